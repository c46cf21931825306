"""Masks made anew each time a record is read, by TensorFlow operations.

In: a batch of dynamic records (records.py) and their manifest.  Out: the features of static ones,
of static shapes.  The distribution is masking.py's: whole words, n-grams, 15 %, 80/10/10, the cap.
The same seed gives the same masks.

Letters: B rows, S tokens, P predictions.  Units are counted within a row: a unit is a word, an
n-gram of words, or a token. All [B, S] arrays over units have unused places at the end.
"""

import collections

import numpy as np
import tensorflow.compat.v1 as tf

from pretraining_data import masking, records

# What masking needs to know. ordinary: int32 array of the ids that may be drawn at random;
# continuation: int32 array [vocabulary], the ## form of each id, or None.
Options = collections.namedtuple(
    "Options", "seq_length max_predictions masked_lm_prob whole_words ngram mask_id ordinary "
               "continuation")


FEATURES = records.DYNAMIC_FEATURES
SETTINGS = ("max_seq_length", "max_predictions_per_seq", "masked_lm_prob", "do_whole_word_mask",
            "ngram", "continuation_targets")


def relevant(content):
    """What of a manifest's content decides on the masks: nested dict."""
    return {"vocab": content["vocab"],
            "settings": {name: content["settings"][name] for name in SETTINGS}}


def options_from_manifest(content):
    """Options from the dict of a manifest of dynamic records."""
    settings, vocab = content["settings"], content["vocab"]
    ordinary = np.concatenate([np.arange(first, last + 1) for first, last in vocab["ordinary"]])
    continuation = None
    if settings["continuation_targets"]:
        continuation = np.arange(vocab["size"], dtype=np.int32)
        for index, inside in vocab["continuation"]:
            continuation[index] = inside
    return Options(settings["max_seq_length"], settings["max_predictions_per_seq"],
                   settings["masked_lm_prob"], settings["do_whole_word_mask"], settings["ngram"],
                   vocab["mask"], ordinary.astype(np.int32), continuation)


def record_values(features):
    """{feature name: list of int} of a parsed dynamic record, token ids without the word starts."""
    values = {name: list(features[name].int64_list.value) for name in FEATURES}
    packed = b"".join(features["token_ids"].bytes_list.value)
    words = np.frombuffer(packed[:len(packed) // 2 * 2], "<u2")
    return dict(values, token_ids=(words & (records.WORD_START_BIT - 1)).tolist())


def parse_batch(serialized, seed, options, vocab_size=None):
    """Features of a batch of serialized dynamic records [B], masked; see mask_batch.

    A record out of bounds raises InvalidArgumentError; vocab_size: above all token ids, or None.
    """
    single = tf.FixedLenFeature([], tf.int64)
    features = tf.parse_example(serialized, {
        "token_ids": tf.FixedLenFeature([], tf.string), "segment_b_start": single,
        "next_sentence_labels": single})
    token_ids, word_starts, lengths = unpack_tokens(features["token_ids"], options.seq_length)
    firsts, labels = features["segment_b_start"], features["next_sentence_labels"]
    within = (tf.equal(tf.strings.length(features["token_ids"]), 2 * lengths)
              & tf.greater(lengths, 0) & tf.less_equal(lengths, options.seq_length)
              & tf.less(tf.reduce_max(token_ids, 1), vocab_size or records.WORD_START_BIT)
              & tf.greater_equal(firsts, 0) & tf.less(firsts, tf.cast(lengths, tf.int64))
              & tf.greater_equal(labels, 0) & tf.less(labels, 2))  # [B]
    with tf.control_dependencies([tf.Assert(tf.reduce_all(within), ["out of bounds"])]):
        masked = mask_batch(token_ids, word_starts, lengths, tf.cast(firsts, tf.int32), seed,
                            options)
        masked["next_sentence_labels"] = tf.cast(labels, tf.int32)
    return masked


def unpack_tokens(packed, seq_length):
    """(token ids [B, S], word starts [B, S] bool, lengths [B]) of the feature token_ids [B]."""
    lengths = tf.strings.length(packed) // 2
    padding = tf.fill(tf.shape(packed), b"\xff" * 2 * seq_length)
    padding = tf.strings.substr(padding, tf.zeros_like(lengths), 2 * (seq_length - lengths))
    words = tf.cast(tf.decode_raw(tf.strings.join([packed, padding]), tf.uint16), tf.int32)
    words.set_shape([packed.shape[0], seq_length])
    used = tf.sequence_mask(lengths, seq_length)
    words = tf.where(used, words, tf.zeros_like(words))
    starts = tf.greater_equal(words, records.WORD_START_BIT)
    return words - records.WORD_START_BIT * tf.cast(starts, tf.int32), starts, lengths


def mask_batch(token_ids, word_starts, lengths, first_lengths, seed, options):
    """Masks a batch.

    Args:
      token_ids: int32 [B, S], [CLS] A [SEP] B [SEP], then zeros.
      word_starts: bool [B, S], a word begins here; True for the special tokens.
      lengths: int32 [B], tokens of the row.
      first_lengths: int32 [B], tokens of [CLS] A [SEP].
      seed: int [2]; each gives other masks.
      options: Options.
    Returns:
      dict of the features of a static record but next_sentence_labels: int32, weights float32.
    """
    positions = tf.range(options.seq_length)[tf.newaxis]  # [1, S]
    last, first_end = lengths[:, tf.newaxis] - 1, first_lengths[:, tf.newaxis] - 1
    used = tf.less_equal(positions, last)
    special = tf.equal(positions, 0) | tf.equal(positions, first_end) | tf.equal(positions, last)
    masked = choose_tokens(used, special, word_starts, lengths, seed, options)
    places, weights = masked_places(masked, options)  # [B, P]
    ids_there = gather_rows(token_ids, places)
    targets = ids_there
    if options.continuation is not None:
        inside = tf.logical_not(gather_rows(word_starts, places))
        targets = tf.where(inside, tf.gather(options.continuation, ids_there), ids_there)
    used = tf.cast(used, tf.int32)
    return {
        "input_ids": tf.where(masked, replacements(token_ids, seed, options), token_ids),
        "input_mask": used,
        "segment_ids": used * tf.cast(tf.greater(positions, first_end), tf.int32),
        "masked_lm_positions": places,
        "masked_lm_ids": targets * tf.cast(weights, tf.int32),
        "masked_lm_weights": weights}


def choose_tokens(used, special, word_starts, lengths, seed, options):
    """The tokens to mask: bool [B, S]. n-grams first; single words fill up what those leave."""
    starts = used & word_starts if options.whole_words else used
    wanted = tf.round(tf.cast(lengths, tf.float32) * options.masked_lm_prob)
    wanted = tf.clip_by_value(tf.cast(wanted, tf.int32), 1, options.max_predictions)
    free = used & tf.logical_not(special)
    masked = tf.zeros_like(used)
    if options.ngram > 1:
        begins = starts & (special | after(special) | ngram_begins(starts, seed, options.ngram))
        masked = pick_units(begins, free, wanted, derived(seed, 1))
        free = free & tf.logical_not(masked)
    left = wanted - tf.reduce_sum(tf.cast(masked, tf.int32), 1)
    sizes = unit_sizes(starts, free)
    shortest = tf.reduce_min(tf.where(tf.greater(sizes, 0), sizes, tf.fill(
        tf.shape(sizes), options.max_predictions + 1)), 1)
    # A row whose words are all longer than its share gets room for the shortest.
    needs_room = tf.equal(left, wanted) & tf.less_equal(shortest, options.max_predictions)
    left = tf.where(needs_room, tf.maximum(left, shortest), left)
    return masked | pick_units(starts, free, left, derived(seed, 2))


def derived(seed, number):
    """Another seed for another use."""
    return tf.cast(seed, tf.int64) * 8 + tf.constant([0, number], tf.int64)


def after(flags):
    """flags [B, S] moved one place to the right."""
    return tf.pad(flags[:, :-1], [[0, 0], [1, 0]])


def ngram_begins(starts, seed, longest):
    """Where n-grams begin, of n words with a chance proportional to 1/n: bool [B, S].

    The words of the batch are one sequence, cut into n-grams; the caller adds what must begin one.
    """
    count = tf.size(starts)
    draw = tf.random.stateless_uniform([count], derived(seed, 3))
    lengths = tf.ones([count], tf.int32)
    for bound in np.cumsum(masking.ngram_odds(longest))[:-1]:
        lengths += tf.cast(tf.greater_equal(draw, bound.astype(np.float32)), tf.int32)
    ends = tf.minimum(tf.cumsum(lengths), count)
    begins = tf.scatter_nd(ends[:, tf.newaxis], tf.ones_like(ends), [count + 1])
    word = tf.cumsum(tf.cast(tf.reshape(starts, [-1]), tf.int32)) - 1  # [B*S]
    begins = tf.gather(begins, tf.maximum(word, 0))
    return tf.reshape(tf.greater(begins, 0), tf.shape(starts))  # [B, S]


def unit_index(begins):
    """The number of each token's unit, as an index into flat [B*S] arrays over units: [B, S]."""
    rows, width = tf.shape(begins)[0], tf.shape(begins)[1]
    index = tf.maximum(tf.cumsum(tf.cast(begins, tf.int32), 1) - 1, 0)
    return index + width * tf.range(rows)[:, tf.newaxis]


def unit_sizes(begins, free):
    """Tokens of each unit that may be masked, 0 for none: int32 [B, S] over units."""
    sizes = tf.math.unsorted_segment_sum(
        tf.reshape(tf.cast(free, tf.int32), [-1]),  # [B*S]
        tf.reshape(unit_index(begins), [-1]), tf.size(free))  # [B*S]
    return tf.reshape(sizes, tf.shape(free))  # [B, S]


def pick_units(begins, free, left, seed):
    """Takes units in random order while they fit, as masking.choose_units: bool [B, S] over tokens.

    Args:
      begins: bool [B, S], a unit begins at this token.
      free: bool [B, S], tokens that may be masked.
      left: int32 [B], tokens to take.
      seed: int [2].
    """
    sizes = unit_sizes(begins, free)
    order = shuffled_order(tf.greater(sizes, 0), seed)
    taken = greedy_choice(gather_rows(sizes, order), left)
    width = tf.shape(order)[1]
    flat = order + width * tf.range(tf.shape(order)[0])[:, tf.newaxis]
    chosen = tf.scatter_nd(tf.reshape(flat, [-1, 1]),  # [B*S, 1]
                           tf.reshape(tf.cast(taken, tf.int32), [-1]),  # [B*S]
                           [tf.size(flat)])
    return free & tf.greater(tf.gather(chosen, unit_index(begins)), 0)


def shuffled_order(eligible, seed):
    """A random order of the eligible units of each row, the others last: int32 [B, S]."""
    width = eligible.shape.as_list()[1]
    bits = width.bit_length()
    draw = tf.random.stateless_uniform(tf.shape(eligible), seed)
    keys = tf.cast(draw * 2 ** (30 - bits), tf.int32) * 2 ** bits + tf.range(width)
    keys = tf.where(eligible, keys, tf.fill(tf.shape(keys), 2 ** 30) + tf.range(width))
    return tf.bitwise.bitwise_and(tf.sort(keys), 2 ** bits - 1)


def greedy_choice(sizes, left):
    """masking.fill_budgets on sizes [B, S] and left [B]: bool [B, S]."""
    def going(sizes, left, taken):
        del taken
        return tf.reduce_any(tf.greater(sizes, 0) & tf.less_equal(sizes, left[:, tf.newaxis]))

    def fill(sizes, left, taken):
        limit = left[:, tf.newaxis]
        fitting = tf.where(tf.less_equal(sizes, limit), sizes, tf.zeros_like(sizes))
        take = tf.greater(fitting, 0) & tf.less_equal(tf.cumsum(fitting, 1), limit)
        used = tf.where(take, fitting, tf.zeros_like(sizes))
        return fitting - used, left - tf.reduce_sum(used, 1), taken | take

    taken = tf.zeros_like(sizes, dtype=tf.bool)
    return tf.while_loop(going, fill, (sizes, left, taken), back_prop=False)[2]


def masked_places(masked, options):
    """(positions [B, P] of the masked tokens, rising, then zeros; weights [B, P]: 1.0 or 0.0)."""
    width, count = options.seq_length, options.max_predictions
    keys = tf.cast(masked, tf.int32) * (width - tf.range(width))  # earlier tokens are larger
    top = tf.math.top_k(keys, min(count, width)).values
    top = tf.pad(top, [[0, 0], [0, count - min(count, width)]])
    weights = tf.greater(top, 0)
    return tf.where(weights, width - top, tf.zeros_like(top)), tf.cast(weights, tf.float32)


def replacements(token_ids, seed, options):
    """What masked tokens are read as: 80 % [MASK], 10 % the token, 10 % an ordinary one: [B, S]."""
    shape = tf.shape(token_ids)
    draw = tf.random.stateless_uniform(shape, derived(seed, 4))
    other = tf.random.stateless_uniform(shape, derived(seed, 5)) * len(options.ordinary)
    other = tf.gather(options.ordinary, tf.minimum(tf.cast(other, tf.int32),
                                                   len(options.ordinary) - 1))
    kept_or_other = tf.where(tf.less(draw, 0.9), token_ids, other)
    return tf.where(tf.less(draw, 0.8), tf.fill(shape, options.mask_id), kept_or_other)


def gather_rows(values, indices):
    """values [B, S] at indices [B, K] of the same row: [B, K]."""
    rows, width = tf.shape(values)[0], tf.shape(values)[1]
    flat = tf.reshape(values, [-1])  # [B*S]
    return tf.gather(flat, indices + width * tf.range(rows)[:, tf.newaxis])

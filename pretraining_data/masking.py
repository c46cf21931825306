"""Instances and their masks, thousands at a time.

In: a shard's tokens (flat integer arrays) and pairs (four integers each).  Out: the instances
[CLS] A [SEP] B [SEP] and what is masked in them.  No TensorFlow.

Instances of a block lie end to end in flat arrays, so there is no padding and no loop over rows:
row r is [offsets[r], offsets[r + 1]).  Letters: R rows, T tokens of all rows, M masked tokens of
all rows, W the largest number of units in a row.
"""

import collections
import re

import numpy as np

# ids [T] int32, starts [T] bool (a word begins here), offsets [R + 1], first_lengths [R]: tokens
# of [CLS] A [SEP], labels [R]: 1 where the segments were swapped.
Rows = collections.namedtuple("Rows", "ids starts offsets first_lengths labels")

# input_ids [T] int32 with the masks in, positions [M] within the row, target_ids [M], offsets
# [R + 1] of each row's part of those two.
Masks = collections.namedtuple("Masks", "input_ids positions target_ids offsets")

NO_TEXT = re.compile(r"\[(PAD|UNK|CLS|SEP|MASK|unused\d+)\]|<S>|<T>")


class VocabTables(object):
    """What masking needs of a vocabulary.

    Attributes:
      size, cls, sep, mask, unk: int.
      ordinary: int32 array, the ids that stand in tokenized text: no special token, and no ## form
        of a Chinese character, which the tokenizer never makes.
      continuation: int32 array [size], the id of ##x for the id of a Chinese character x, else the
        id itself.
    """

    def __init__(self, vocab, is_cjk):
        self.size = len(vocab)
        self.cls, self.sep = vocab["[CLS]"], vocab["[SEP]"]
        self.mask, self.unk = vocab["[MASK]"], vocab["[UNK]"]
        helpers = {"##" + token for token in vocab if len(token) == 1 and is_cjk(token)}
        self.ordinary = np.array([index for token, index in vocab.items() if token not in helpers
                                  and not NO_TEXT.fullmatch(token)], dtype=np.int32)
        self.continuation = np.arange(self.size, dtype=np.int32)
        for helper in helpers.intersection(vocab):
            self.continuation[vocab[helper[2:]]] = vocab[helper]


def ranges(starts, lengths):
    """Indices starts[i], starts[i] + 1, … of lengths[i] each, end to end: int array."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)


def gather(ids, starts, pairs, tables):
    """The instances of pairs, unmasked.

    Args:
      ids, starts: int32 and bool arrays, the tokens of a shard.
      pairs: int array [R, 4]: start, middle and end of two neighbouring segments, and the label.
      tables: VocabTables.
    Returns:
      Rows.
    """
    begin, middle, end, labels = np.asarray(pairs, dtype=np.int64).T
    swapped = labels == 1
    sources = np.stack([np.where(swapped, middle, begin), np.where(swapped, begin, middle)], 1)
    lengths = np.stack([np.where(swapped, end - middle, middle - begin),
                        np.where(swapped, middle - begin, end - middle)], 1)  # [R, 2]
    offsets = np.concatenate([[0], np.cumsum(lengths.sum(1) + 3)])
    first_lengths = lengths[:, 0] + 2
    targets = np.stack([offsets[:-1] + 1, offsets[:-1] + first_lengths], 1)  # [R, 2]
    row_ids = np.full(offsets[-1], tables.sep, dtype=np.int32)
    row_ids[offsets[:-1]] = tables.cls
    row_starts = np.ones(offsets[-1], dtype=bool)
    source = ranges(sources.ravel(), lengths.ravel())
    target = ranges(targets.ravel(), lengths.ravel())
    row_ids[target] = ids[source]
    row_starts[target] = starts[source]
    row_starts[targets] = True
    return Rows(row_ids, row_starts, offsets, first_lengths, labels)


def special_positions(rows):
    """Flat positions of [CLS], [SEP], [SEP] of all rows, sorted: [3R]."""
    begin = rows.offsets[:-1]
    return np.stack([begin, begin + rows.first_lengths - 1, rows.offsets[1:] - 1], 1).ravel()


def ngram_odds(longest):
    """Chances of an n-gram of 1 … longest words, proportional to 1/n: float array [longest]."""
    weights = 1.0 / np.arange(1, longest + 1)
    return weights / weights.sum()


def join_words(is_first, longest, rng):
    """Joins neighbouring words into n-grams of 1 … longest words, of chances ngram_odds(longest).

    Args:
      is_first: bool array [U], words that no n-gram may join to the word before.
      longest: int, N of the n-grams.
      rng: np.random.RandomState.
    Returns:
      bool array [U]: an n-gram begins at this word.
    """
    begins = is_first.copy()
    lengths = 1 + np.searchsorted(np.cumsum(ngram_odds(longest))[:-1],
                                  rng.random_sample(len(begins)), side="right")
    ends = np.cumsum(lengths)
    begins[ends[ends < len(begins)]] = True
    return begins


def find_units(rows, whole_words, ngram, rng):
    """What is masked as one: a token, a word or an n-gram of words, never across [SEP].

    Returns:
      (starts [U] flat positions, lengths [U]) in order, without [CLS] and [SEP].
    """
    special = np.zeros(rows.offsets[-1], dtype=bool)
    special[special_positions(rows)] = True
    starts = np.flatnonzero(rows.starts) if whole_words else np.arange(rows.offsets[-1])
    if ngram > 1:
        is_first = special[starts]
        is_first[1:] |= is_first[:-1]
        starts = starts[join_words(is_first, ngram, rng)]
    lengths = np.diff(np.append(starts, rows.offsets[-1]))
    maskable = ~special[starts]
    return starts[maskable], lengths[maskable]


def choose_units(lengths, row_starts, left, at_least_one, max_predictions, rng):
    """Takes units in random order, skipping those that no longer fit, until the budget is used up.

    Args:
      lengths: int array [U], tokens of each unit, row after row.
      row_starts: int array [R + 1], the first unit of each row.
      left: int array [R], tokens to take.
      at_least_one: bool array [R], rows that get room for their shortest unit in any case …
      max_predictions: int, … if it is not longer than this.
      rng: np.random.RandomState.
    Returns:
      bool array [U].
    """
    counts = np.diff(row_starts)
    width = max(int(counts.max()), 1)
    filled = np.arange(width) < counts[:, None]  # [R, W]
    sizes = np.zeros(filled.shape, dtype=np.int32)
    sizes[filled] = lengths
    shortest = np.where(filled, sizes, max_predictions + 1).min(1)
    room = np.where(at_least_one & (shortest <= max_predictions), np.maximum(left, shortest), left)
    order = random_order(filled, rng)  # [R, W]
    taken = fill_budgets(np.take_along_axis(sizes, order, 1), room.astype(np.int32))
    rows, columns = np.nonzero(taken)
    chosen = np.zeros(len(lengths), dtype=bool)
    chosen[row_starts[rows] + order[rows, columns]] = True
    return chosen


def random_order(filled, rng):
    """A random order of each row's units, the empty places last: int array [R, W].

    One sort of random numbers that carry their column in their lowest bits.
    """
    width = filled.shape[1]
    bits = width.bit_length()
    keys = np.frombuffer(rng.bytes(4 * filled.size), dtype="<u4")
    keys = keys.reshape(filled.shape)  # [R, W]
    keys = keys >> bits << bits | np.arange(width, dtype=np.uint32)
    keys[~filled] = 2 ** 32 - 1
    keys.sort(1)
    return np.minimum(keys & (2 ** bits - 1), width - 1).astype(np.int64)


def fill_budgets(sizes, left):
    """The greedy choice, all rows at once: in order, take what still fits.

    Each round takes everything up to the first unit that does not fit; what is larger than the
    rest of the budget can never fit again. A round leaves less than a unit's length: few rounds.

    Args:
      sizes: int array [R, W], units in the order of choice; 0 = none.
      left: int array [R], tokens to take.
    Returns:
      bool array [R, W].
    """
    taken = np.zeros(sizes.shape, dtype=bool)
    open_rows = np.arange(len(sizes))
    while len(open_rows):
        fitting = np.where(sizes <= left[:, None], sizes, 0)
        take = (fitting > 0) & (np.cumsum(fitting, 1) <= left[:, None])
        taken[open_rows] |= take
        left = left - np.where(take, fitting, 0).sum(1)
        rest = np.where(take, 0, fitting)
        going = ((rest > 0) & (rest <= left[:, None])).any(1)
        open_rows, sizes, left = open_rows[going], rest[going], left[going]
    return taken


def mask_rows(rows, tables, masked_lm_prob, max_predictions, whole_words, ngram,
              continuation_targets, rng):
    """Masks 15 % of each row's tokens: 80 % become [MASK], 10 % stay, 10 % become a random token.

    Args:
      rows: Rows.
      tables: VocabTables.
      masked_lm_prob: float, share of the row's tokens to predict, at least one word.
      max_predictions: int, tokens to predict at most.
      whole_words: bool, mask all tokens of a word together.
      ngram: int, longest n-gram of words to mask together.
      continuation_targets: bool, the target of a character inside a word is its ## form.
      rng: np.random.RandomState.
    Returns:
      Masks.
    """
    wanted = np.clip(np.rint(np.diff(rows.offsets) * masked_lm_prob), 1, max_predictions)
    masked = np.zeros(rows.offsets[-1], dtype=bool)
    left = wanted
    for longest in sorted({ngram, 1}, reverse=True):  # words fill up what n-grams leave
        starts, lengths = find_units(rows, whole_words, longest, rng)
        free = ~masked[starts]
        starts, lengths = starts[free], lengths[free]
        chosen = choose_units(lengths, np.searchsorted(starts, rows.offsets), left,
                              (left == wanted) & (longest == 1), max_predictions, rng)
        masked[ranges(starts[chosen], lengths[chosen])] = True
        left = wanted - np.add.reduceat(masked, rows.offsets[:-1], dtype=np.int64)
    flat = np.flatnonzero(masked)  # [M]
    offsets = np.searchsorted(flat, rows.offsets)
    targets = rows.ids[flat]
    if continuation_targets:
        targets = np.where(rows.starts[flat], targets, tables.continuation[targets])
    positions = flat - np.repeat(rows.offsets[:-1], np.diff(offsets))
    input_ids = rows.ids.copy()
    input_ids[flat] = replace(rows.ids[flat], tables, rng)
    return Masks(input_ids, positions, targets, offsets)


def replace(ids, tables, rng):
    """What the model reads in place of masked ids [M]: 80 % [MASK], 10 % the same, 10 % random."""
    draw = rng.random_sample(len(ids))
    others = tables.ordinary[rng.randint(0, len(tables.ordinary), len(ids))]
    return np.where(draw < 0.8, tables.mask, np.where(draw < 0.9, ids, others)).astype(np.int32)


def describe_row(rows, masks, row, inv_vocab):
    """One instance as text: | between words, read→target where a token is masked."""
    begin, end = rows.offsets[row], rows.offsets[row + 1]
    read, targets = rows.ids, {}
    if masks is not None:
        read = masks.input_ids
        part = slice(masks.offsets[row], masks.offsets[row + 1])
        targets = dict(zip(masks.positions[part].tolist(), masks.target_ids[part].tolist()))
    text = []
    for position in range(end - begin):
        text.append("|" if rows.starts[begin + position] and position else "")
        text.append(inv_vocab[int(read[begin + position])])
        if position in targets:
            text.append("→" + inv_vocab[targets[position]])
    order = "swapped" if rows.labels[row] else "in order"
    return "{} tokens, segments {}, {} masked\n{}".format(
        end - begin, order, len(targets), "".join(text))

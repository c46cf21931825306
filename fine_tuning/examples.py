"""Texts -> token ids -> batches: the input of fine-tuning, evaluation and prediction.

In: a task's file.  Out: a cache file of token ids, and tf.data batches of input_ids, input_mask,
segment_ids [B, S], row [B] and label_ids [B] (or [B, targets], or [B, S]), all int32.

Sentence pairs are short (LCQMC: 25 tokens on average where 128 are allowed), so rows of like
length share a batch and S is the longest of the batch, not the longest allowed.

A cache file holds int32 values: HEADER, then for each row the end of its tokens, the length of
its first segment and its targets (a label, -1 for none; the two ends of an answer; a tag for each
token), each kind one after the other, then the tokens of all rows.
"""

import array
import collections
import hashlib
import io
import itertools
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf

from cli import UserError, write_whole
from fine_tuning import tasks
from tokenization import MAX_WORD_LENGTH

HEADER = ("format", "rows", "tokens", "longest", "cut", "unlabelled", "targets")
FORMAT = 2  # of a cache file
DIGEST = 1  # of its name; a folder knows by it what it was trained on
NO_LABEL = -1
FILLER = -1  # number of a row whose mask is 0 everywhere, which only fills a batch up
LEAST_TOKENS = 3  # of a row: [CLS] a [SEP]
PER_TOKEN = 0  # `targets` of a file in which each token has one
WINDOW = 64  # batches; rows are sorted by length within so many, which are drawn at random

Shares = collections.namedtuple("Shares", "count first own multiple", defaults=(1, 0, 1, 1))
# How devices share a batch: `count` of them get as many rows each, a multiple of `multiple`, and
# this machine's are `own` from number `first` on.

EVERY = Shares()

Examples = collections.namedtuple("Examples", ("path", "source") + HEADER[1:])
Examples.__doc__ = """An encoded file.

path: cache file.  source: file it was made from.  rows, tokens: counts.  longest: tokens of the
longest row.  cut: rows that were longer than allowed.  unlabelled: rows without a label.
targets: numbers to learn of a row, or PER_TOKEN.
"""


class TextEncoder(object):
    """[CLS] a [SEP], or [CLS] a [SEP] b [SEP], as token ids of at most max_seq_length."""

    def __init__(self, tokenizer, max_seq_length):
        """Takes a FullTokenizer.

        Raises:
          UserError: the length does not hold a pair of one token each.
        """
        if max_seq_length < 5:
            raise UserError("--max_seq_length={} is too short: [CLS] a [SEP] b [SEP] are 5".format(
                max_seq_length))
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.opening, self.closing = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])

    def __call__(self, text_a, text_b=None):
        """(ids, length of the first segment, whether tokens were cut off).

        The longer text of a pair loses its last token until both fit (BERT's rule).
        """
        first, room = self._ids(text_a), self.max_seq_length - 2
        if text_b is None:
            kept = first[:room]
            return [self.opening] + kept + [self.closing], len(kept) + 2, len(first) > room
        second, room = self._ids(text_b), room - 1
        keep_first = min(len(first), max(room - len(second), room - room // 2))
        keep_second = min(len(second), room - keep_first)
        ids = ([self.opening] + first[:keep_first] + [self.closing]
               + second[:keep_second] + [self.closing])
        return ids, keep_first + 2, len(first) + len(second) > room

    def _ids(self, text):
        """The ids of a text, or of as much of a long one as gives all that can be kept."""
        enough = self.max_seq_length + MAX_WORD_LENGTH  # a word that is cut in two is beyond it
        length = 4 * enough
        tokens = self.tokenizer.tokenize(text[:length])
        while len(tokens) < enough and length < len(text):
            length *= 4
            tokens = self.tokenizer.tokenize(text[:length])
        return self.tokenizer.convert_tokens_to_ids(tokens)


def padded_arrays(encoded, seq_length=None):
    """Model input for a list of (ids, length of the first segment): three int32 arrays [B, S].

    S is the longest row's length, or seq_length where it is given.
    """
    width = seq_length or max(len(ids) for ids, _ in encoded)
    input_ids, mask, segments = np.zeros([3, len(encoded), width], np.int32)
    for row, (ids, first) in enumerate(encoded):
        input_ids[row, :len(ids)] = ids
        mask[row, :len(ids)] = 1
        segments[row, first:len(ids)] = 1
    return input_ids, mask, segments


def batches_of(encoded, batch_size=8):
    """Lists of padded_arrays for a list of (ids, length of the first segment)."""
    return [padded_arrays(encoded[start:start + batch_size])
            for start in range(0, len(encoded), batch_size)]


def text_batches(task, sources, input_encoding, encoder, count):
    """The batches_of the first `count` rows of some files."""
    rows = itertools.chain.from_iterable(
        rows_of_file(task, source, read_bytes(source), input_encoding) for source in sources)
    return batches_of([encoder(row.text_a, row.text_b)[:2] for row in itertools.islice(
        (row for row in rows if row.text_a is not None), count)])


def random_batches(encoder, count, seed, batch_size=8):
    """Batches as text_batches gives them, of words drawn at random, where there are no texts."""
    rng = np.random.RandomState(seed)
    words = len(encoder.tokenizer.vocab)
    batches = []
    for _ in range(0, count, batch_size):
        shape = [batch_size, rng.randint(5, encoder.max_seq_length + 1)]
        half = np.arange(shape[1]) >= rng.randint(2, shape[1])
        batches.append((rng.randint(words, size=shape).astype(np.int32), np.ones(shape, np.int32),
                        np.tile(half.astype(np.int32), [batch_size, 1])))
    return batches


# --- file -> cache ----------------------------------------------------------------------------


def cached_examples(task, outcome, source, encoder, folder, input_encoding, need_labels):
    """Encodes a file, or takes the cache file made from the very same input.

    Args:
      task: tasks.Task.  outcome: see outcomes, with its labels.  source: path of the data file.
      encoder: TextEncoder.  folder: where cache files are kept.
      input_encoding: of the source, say "utf-8".
      need_labels: whether every row must have one.
    Returns:
      Examples.
    Raises:
      UserError: see tasks; also a file without rows.
    """
    content = read_bytes(source)
    settings = [task.name, task.columns, outcome.labels, encoder.max_seq_length, input_encoding]
    if task.header != "auto" or not need_labels:
        settings += [task.header, need_labels]
    if task.outcome != "classes":
        settings.append(task.outcome)

    def rows():
        found = rows_of_file(task, source, content, input_encoding, outcome.labels, need_labels)
        return encoded_rows(found, outcome, encoder)

    examples = cached_rows(source, cache_key(settings, content, encoder.tokenizer), folder, rows,
                           need_labels)
    tf.logging.info(
        "%s (%s): %d rows, %d tokens on average, longest %d, %d cut to %d tokens, %d unlabelled",
        source, input_encoding, examples.rows, round(examples.tokens / examples.rows),
        examples.longest, examples.cut, encoder.max_seq_length, examples.unlabelled)
    tf.logging.info("%s: %s", source, outcome.counts_text(EncodedRows(examples).targets))
    return examples


def cached_rows(source, key, folder, rows, need_labels):
    """Examples of a cache file in `folder`, which is written if there is none of this key.

    Args:
      source: path of the data file.  key: see cache_key.
      rows: function () -> what write_cache takes.
      need_labels: whether a file with unlabelled rows is of no use.
    """
    stem = os.path.basename(source)
    path = os.path.join(folder, "{}-{}.ids".format(stem, key))
    examples = read_header(path, source)
    if examples is None or (need_labels and examples.unlabelled):
        tf.io.gfile.makedirs(folder)
        for stale in tf.io.gfile.glob(os.path.join(folder, stem + "-*.ids")):
            tf.io.gfile.remove(stale)
        write_cache(path, source, rows())
        examples = read_header(path, source)
    return examples


def fold_examples(examples, number, count, inside):
    """Examples of one part of an encoded file, or of all but that part, in a cache file beside it.

    Args:
      examples: Examples.  number: of the part, from 1; it has each count-th row.
      count: of parts.  inside: whether the part itself is meant.
    Raises:
      UserError: there are fewer rows than parts.
    """
    if examples.rows < count:
        raise UserError("{}: {} rows are too few for {} parts".format(
            examples.source, examples.rows, count))
    rows = EncodedRows(examples)
    chosen = [row for row in range(examples.rows) if (row % count == number - 1) == inside]
    name = "{}.{}_{}_of_{}".format(examples.source, "part" if inside else "without", number, count)
    key = os.path.basename(examples.path).rpartition("-")[2].partition(".")[0]
    return cached_rows(
        name, key, os.path.dirname(examples.path),
        lambda: ((rows[row][0].tolist(), rows[row][1], np.ravel(rows.targets[row]), False)
                 for row in chosen), need_labels=True)


def read_bytes(path):
    """The bytes of a file, local or remote."""
    with tf.io.gfile.GFile(path, "rb") as stream:
        return stream.read()


def rows_of_file(task, source, content, input_encoding, labels=None, need_labels=False):
    """tasks.checked_rows of a file's content."""
    lines = tasks.decoded_lines(io.BytesIO(content), source, input_encoding)
    return tasks.checked_rows(task, source, lines, labels, need_labels)


def label_order(task, source, input_encoding):
    """The labels of a training file in order."""
    rows = rows_of_file(task, source, read_bytes(source), input_encoding, need_labels=True)
    return tasks.labels_found(rows, source, task.header == "auto" and not tasks.reads_json(task),
                              task.outcome == "label_sets")


def cache_key(settings, content, tokenizer):
    """16 hex digits of all that a cache file depends on.

    Args:
      settings: list for JSON.  content: bytes of the data file.  tokenizer: FullTokenizer.
    """
    settings = [DIGEST] + settings + [tokenizer.basic_tokenizer.do_lower_case,
                                      list(tokenizer.vocab)]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode("ascii"))
    digest.update(content)
    return digest.hexdigest()[:16]


def encoded_rows(rows, outcome, encoder):
    """Yields (ids, length of the first segment, outcome.targets of the label, whether it was cut).

    A blank line has no ids.
    """
    for row in rows:
        is_blank = row.text_a is None
        ids, first, was_cut = ([], 0, False) if is_blank else encoder(row.text_a, row.text_b)
        yield ids, first, outcome.targets(row.label), was_cut


def write_cache(path, source, rows):
    """Writes encoded rows under a temporary name, then renames: a cache file is always whole.

    Args:
      path: of the cache file.  source: of the data file.
      rows: (ids, length of the first segment, targets, whether it was cut) of each row; every row
        has as many targets, or every row one for each of its ids.
    Raises:
      UserError: there are none.
    """
    ends, firsts, targets, tokens = [array.array("i") for _ in range(4)]
    longest = cut = unlabelled = per_token = 0
    for ids, first, numbers, was_cut in rows:
        tokens.extend(ids)
        ends.append(len(tokens))
        firsts.append(first)
        targets.extend(numbers)
        longest = max(longest, len(ids))
        cut += was_cut
        unlabelled += bool(ids) and all(number == NO_LABEL for number in numbers)
        per_token |= bool(ids) and len(numbers) == len(ids)  # ids are three or more
    if not tokens:
        raise UserError("{}: no rows".format(source))
    header = array.array("i", [
        FORMAT, len(ends), len(tokens), longest, cut, unlabelled,
        PER_TOKEN if per_token else len(targets) // len(ends)])
    write_whole(path, b"".join(values.tobytes() for values in (
        header, ends, firsts, targets, tokens)))


def read_header(path, source):
    """Examples of a cache file, or None if there is none of this FORMAT."""
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path, "rb") as stream:
        values = np.frombuffer(stream.read(4 * len(HEADER)), np.int32).tolist()
    return Examples(path, source, *values[1:]) if values[0] == FORMAT else None


class EncodedRows(object):
    """A cache file's content: a sequence of (ids int32, length of the first segment).

    Attributes:
      targets: int32 [rows] (label numbers, -1 for none), [rows, targets], or, where each token has
        one, a list of arrays.
    """

    def __init__(self, examples):
        with tf.io.gfile.GFile(examples.path, "rb") as stream:
            values = np.frombuffer(stream.read(), np.int32)[len(HEADER):]
        rows, count = examples.rows, targets_in(examples)
        ends, self.firsts, targets, self.tokens = np.split(
            values, np.cumsum([rows, rows, count]))
        self.starts, self.ends = np.append(0, ends[:-1]), ends
        if examples.targets == PER_TOKEN:
            self.targets = np.split(targets, ends[:-1])
        else:
            self.targets = targets.reshape(target_shape(examples))  # [rows] or [rows, targets]

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, row):
        return self.tokens[self.starts[row]:self.ends[row]], self.firsts[row]


def targets_in(examples):
    """Number of targets in a cache file."""
    return examples.tokens if examples.targets == PER_TOKEN else examples.rows * examples.targets


def target_shape(examples):
    """Shape of the targets of a cache file: one for each row has no axis of its own."""
    return [-1] if examples.targets in (1, PER_TOKEN) else [-1, examples.targets]


# --- cache -> batches of training -------------------------------------------------------------


def batches_per_epoch(rows, batch_size, whole_batches):
    """Batches in one pass; the last one is smaller, unless only whole ones count."""
    return max(1, (rows if whole_batches else rows + batch_size - 1) // batch_size)


def example_batches(examples, batch_size, seed, pad_to=None, whole_batches=False, start_batch=0,
                    shares=EVERY):
    """tf.data batches of an encoded file, for epochs without end, each in another order.

    Args:
      examples: Examples.
      batch_size: rows.  seed: int, of the order.
      pad_to: S of every batch; None: the batch's longest row.
      whole_batches: every batch has batch_size rows, as a TPU needs it; the remainder of an
        epoch is left out.
      start_batch: batches already seen, so that a resumed run goes on with the very rows that an
        undisturbed one would see.
      shares: Shares; each batch becomes as many elements as this machine's devices.
    Returns:
      tf.data.Dataset of dict: input_ids, input_mask, segment_ids [B, S] int32; row (number in the
      file from 0, or FILLER) [B] int32; label_ids int32: [B], [B, targets], or [B, S] with -1
      where a place has no target.
    """
    file = CacheTensors(examples)
    first_epoch, skipped = divmod(
        start_batch, batches_per_epoch(examples.rows, batch_size, whole_batches))
    epochs = tf.data.Dataset.range(first_epoch, 2 ** 31 - 1)
    batches = epochs.flat_map(
        lambda epoch: shuffled_epoch(file, epoch, batch_size, seed, whole_batches)).skip(skipped)
    if whole_batches:
        batches = batches.map(lambda rows: tf.reshape(rows, [batch_size]))  # [B], known to XLA
    if shares.count * shares.multiple > 1:
        batches = batches.flat_map(lambda rows: tf.data.Dataset.from_tensor_slices(
            shared_out(rows, shares)))
    return batches.map(lambda rows: file.padded(rows, pad_to)).prefetch(8)


def shuffled_epoch(file, epoch, batch_size, seed, whole_batches):
    """Dataset of row numbers [B]: a random order, sorted by length within each WINDOW batches.

    The batches of a window are shuffled again, so that training never runs from short to long.
    """
    epoch = tf.cast(epoch, tf.int32)
    order = tf.argsort(tf.random.stateless_uniform([file.examples.rows], [seed, epoch]))
    if whole_batches:
        least = min(batch_size, file.examples.rows)
        order = order[:file.examples.rows // least * least]
    window = tf.range(tf.size(order)) // (batch_size * WINDOW)
    by_length = window * (file.examples.longest + 1) + tf.gather(file.lengths, order)
    order = tf.gather(order, tf.argsort(by_length, stable=True))
    if whole_batches:
        order = tf.tile(order, [-(-batch_size // file.examples.rows)])
    batches = tf.data.Dataset.from_tensor_slices(order).batch(batch_size, whole_batches)
    return batches.shuffle(WINDOW, seed=tf.cast(epoch, tf.int64) + seed)


def shared_out(rows, shares):
    """Row numbers [B] in equal shares, filled up at the end: those of this machine, [own, ...]."""
    filler = -tf.size(rows) % (shares.count * shares.multiple)
    rows = tf.pad(rows, [[0, filler]], constant_values=FILLER)
    rows = tf.reshape(rows, [shares.count, -1])  # [count, B/count]
    return rows[shares.first:shares.first + shares.own]


class CacheTensors(object):
    """A cache file's content as tensors that are read when the iterator starts."""

    def __init__(self, examples):
        self.examples = examples
        values = tf.decode_raw(tf.io.read_file(examples.path), tf.int32)
        rows = examples.rows
        ends, self.firsts, targets, self.tokens = tf.split(
            values[len(HEADER):], [rows, rows, targets_in(examples), examples.tokens])
        self.targets = tf.reshape(targets, target_shape(examples))  # [rows] or [rows, targets]
        self.starts = tf.concat([[0], ends[:-1]], 0)
        self.lengths = ends - self.starts

    def padded(self, rows, pad_to):
        """Features of the rows [B]; a FILLER has no token, and no target but 0."""
        is_row = tf.cast(tf.not_equal(rows, FILLER), tf.int32)
        numbers, rows = rows, rows * is_row
        lengths = tf.gather(self.lengths, rows) * is_row
        longest = pad_to or tf.maximum(tf.reduce_max(lengths), LEAST_TOKENS)
        places = tf.expand_dims(tf.range(longest), 0)  # [1, S]
        is_token = places < tf.expand_dims(lengths, 1)  # [B, S]
        mask = tf.cast(is_token, tf.int32)
        second = tf.cast(places >= tf.expand_dims(tf.gather(self.firsts, rows), 1), tf.int32)
        index = tf.minimum(tf.expand_dims(tf.gather(self.starts, rows), 1) + places,
                           self.examples.tokens - 1)  # [B, S]
        if self.examples.targets == PER_TOKEN:
            targets = tf.where(is_token, tf.gather(self.targets, index),
                               tf.fill(tf.shape(index), NO_LABEL))
        else:
            targets = tf.gather(self.targets, rows)  # [B] or [B, targets]
            if targets.shape.ndims == 2:
                is_row = tf.expand_dims(is_row, 1)  # [B, 1]
            targets *= is_row
        return {"input_ids": tf.gather(self.tokens, index) * mask, "input_mask": mask,
                "segment_ids": second * mask, "label_ids": targets, "row": numbers}

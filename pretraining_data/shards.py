"""One shard of pre-training data, from its documents to its TFRecord file.

In: documents (documents.py).  Out: serialized examples and counts.  No TensorFlow.

    documents -> segmentation.py: ids, word starts    each sentence once
              -> pairs.py: four integers a pair       dupe_factor times, shuffled over the shard
              -> masking.py, records.py               in blocks of rows, with a generator each
"""

import collections
import random

import numpy as np

import tokenization
from pretraining_data import masking, pairs, records, segmentation
from pretraining_data.documents import document_hash, lines_of, read_shard

BATCH_CHARACTERS = 1 << 17
BLOCK_ROWS = 1024
PAIR_STREAM, SHUFFLE_STREAM, MASK_STREAM = 1, 2, 3  # keep the random streams apart

# Everything the records depend on but the text and the shard; the flags say what each is, but that
# user_dict is the SHA-256 of the file.
Settings = collections.namedtuple(
    "Settings", "masking max_seq_length max_predictions_per_seq masked_lm_prob ngram "
                "do_whole_word_mask continuation_targets do_lower_case non_chinese segmenter "
                "input_encoding random_seed dupe_factor short_seq_prob compress num_shards "
                "user_dict", defaults=(None,))

# ids, starts: flat arrays over the tokens; pairs: int array [n, 4]; counts: Counter.
Prepared = collections.namedtuple("Prepared", "ids starts pairs counts")


def batches(documents):
    """Yields lists of Documents with about BATCH_CHARACTERS of text each."""
    batch, size = [], 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class ShardMaker(object):
    """Makes shards; holds the dictionary, loaded on first use, and the vocabulary.

    A call with (shard, path, number of instances to show) is write_shard on the indexed corpus.

    Args:
      settings: Settings.
      vocab_file: str.
      source: (index folder, plain files, number of spans) for documents.read_shard.
      user_dict: str, the file of own words for jieba, or None.
    """

    def __init__(self, settings, vocab_file, source=None, user_dict=None):
        self.settings = settings
        self.vocab_file = vocab_file
        self.source = source
        self.user_dict = user_dict
        self.tokenizer = tokenization.FullTokenizer(vocab_file, settings.do_lower_case)
        self.tables = masking.VocabTables(self.tokenizer.vocab, tokenization.is_cjk)
        self.segmenter = None

    def __reduce__(self):
        return ShardMaker, (self.settings, self.vocab_file, self.source, self.user_dict)

    def load(self):
        """Loads the segmenter's dictionary, once."""
        if self.segmenter is None:
            cut = None
            if not self.settings.non_chinese:
                cut = segmentation.load_cutter(self.settings.segmenter.split("-")[0],
                                               self.user_dict)
            self.segmenter = segmentation.Segmenter(self.tokenizer, cut)

    def __call__(self, job):
        shard, path, num_shown = job
        folder, paths, num_spans = self.source
        return self.write_shard(
            read_shard(folder, paths, num_spans, self.settings.input_encoding, shard),
            shard, path, num_shown)

    def write_shard(self, documents, shard, path, num_shown=0, system=None):
        """Writes the shard of an iterable of documents.Document; no file without an instance.

        Args:
          shard: int.
          path: str, of the TFRecord file.
          num_shown: int, how many instances to describe.
          system: cli.FileSystem of the path; default: see cli.file_system.
        Returns:
          (counts: dict, the first instances as text: list of str).
        """
        prepared = self.prepare(documents)
        counts, shown = prepared.counts, []
        if not len(prepared.pairs):
            return dict(counts, instances=0), shown
        with records.record_writer(path, self.settings.compress, system) as write:
            for rows, masks in self.blocks(prepared, shard):
                counts.update(self.block_counts(rows, masks))
                shown += self.describe(rows, masks, num_shown - len(shown))
                write(self.encode(rows, masks))
        return dict(counts), shown

    def prepare(self, documents):
        """Prepared of an iterable of documents.Document: all tokens and all pairs of a shard."""
        parts, first = [], 0
        counts = collections.Counter()
        for batch in batches(documents):
            ids, starts, batch_pairs, batch_counts = self.prepare_batch(batch)
            parts.append((ids, starts, batch_pairs + np.array([first, first, first, 0])))
            counts.update(batch_counts)
            first += len(ids)
        if not parts:
            return Prepared(np.zeros(0, np.int32), np.zeros(0, bool), np.zeros((0, 4), int), counts)
        ids, starts, all_pairs = [np.concatenate(part) for part in zip(*parts)]
        return Prepared(ids, starts, all_pairs.astype(np.int32), counts)

    def prepare_batch(self, documents):
        """Prepared of a list of documents.Document."""
        self.load()
        lines = [lines_of(document) for document in documents]
        flat = [line for part in lines for line in part]
        segmented = self.segmenter.segment(flat)
        counts = collections.Counter(documents=len(documents))
        ends = np.append(0, segmented.line_ends)
        lengths = np.diff(ends)
        counts["sentences"] = int(np.count_nonzero(lengths))
        counts["lines without text"] = len(flat) - counts["sentences"]
        counts["characters"] = sum(map(len, flat))
        counts["tokens"] = len(segmented.ids)
        counts["unknown tokens"] = int(np.count_nonzero(segmented.ids == self.tables.unk))
        half = (self.settings.max_seq_length - 3) // 2
        counts["sentences longer than a half, cut where needed"] = int((lengths > half).sum())
        last_lines = np.cumsum([len(part) for part in lines])
        bounds = ends[np.append(0, last_lines)].tolist()
        found = self._pairs(documents, lines, segmented, bounds, counts)
        return Prepared(segmented.ids, segmented.starts, found, counts)

    def _pairs(self, documents, lines, segmented, bounds, counts):
        """int array [n, 4] of all documents' pairs; counts those that give none."""
        cuts = pairs.Cuts(segmented)
        settings, found = self.settings, []
        seeds = document_hash(settings.random_seed + PAIR_STREAM,
                              [document.file for document in documents],
                              [document.offset for document in documents]).tolist()
        for part, seed, start, end in zip(lines, seeds, bounds, bounds[1:]):
            document_pairs = pairs.document_pairs(
                cuts, start, end, settings.max_seq_length - 3, settings.short_seq_prob,
                settings.dupe_factor, random.Random(seed))
            found += document_pairs
            size = sum(map(len, part))
            counts["documents of one line"] += len(part) == 1
            if document_pairs:
                counts["characters in instances"] += size
            else:
                reason = "of one sentence" if end > start else "without text"
                counts["documents skipped, " + reason] += 1
                counts["characters skipped, document " + reason] += size
        return np.array(found, dtype=np.int64).reshape(-1, 4)  # [n, 4]

    def blocks(self, prepared, *key):
        """Yields (Rows, Masks) of the shuffled pairs; Masks is None for dynamic masking.

        Args:
          prepared: Prepared.
          *key: ints that make the random streams those of this shard.
        """
        order = self._generator(SHUFFLE_STREAM, key).permutation(len(prepared.pairs))
        for block, first in enumerate(range(0, len(order), BLOCK_ROWS)):
            chosen = prepared.pairs[order[first:first + BLOCK_ROWS]]
            rows = masking.gather(prepared.ids, prepared.starts, chosen, self.tables)
            masks = None
            if self.settings.masking == "static":
                masks = self.mask(rows, self._generator(MASK_STREAM, key + (block,)))
            yield rows, masks

    def _generator(self, stream, key):
        return np.random.RandomState([self.settings.random_seed % 2 ** 32, stream]
                                     + [part % 2 ** 32 for part in key])

    def mask(self, rows, rng):
        """masking.Masks of masking.Rows by the settings."""
        settings = self.settings
        return masking.mask_rows(
            rows, self.tables, settings.masked_lm_prob, settings.max_predictions_per_seq,
            settings.do_whole_word_mask, settings.ngram, settings.continuation_targets, rng)

    def encode(self, rows, masks):
        """Serialized examples: list of bytes."""
        if masks is None:
            return records.encode_dynamic(rows)
        return records.encode_static(rows, masks, self.settings.max_seq_length,
                                     self.settings.max_predictions_per_seq)

    def block_counts(self, rows, masks):
        """Counter of a block: instances, swapped, places, padding, masked tokens."""
        instances, used = len(rows.labels), int(rows.offsets[-1])
        places = instances * self.settings.max_seq_length
        masked = 0 if masks is None else len(masks.positions)
        return collections.Counter({
            "instances": instances, "swapped": int(rows.labels.sum()), "places": places,
            "padding": places - used, "masked tokens": masked})

    def describe(self, rows, masks, count):
        """The first `count` instances of a block, for a person to read: list of str."""
        return [masking.describe_row(rows, masks, row, self.tokenizer.inv_vocab)
                for row in range(max(0, min(count, len(rows.labels))))]

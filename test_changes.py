"""Shows ALBERT's three changes as numbers, and fails if one of them is gone.

In: albert_config/ and data/news_zh_1.txt.  Out: three tables on stdout; exit code 1 if a number in
them is not the expected one. The model's numbers are counted on the variables that modeling.py
makes, those of sentence order on the records that create_pretraining_data.py writes.

  python test_changes.py
"""

import collections
import io
import os
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import create_pretraining_data
import modeling
import tokenization
from pretraining_data import records

ROOT = os.path.dirname(os.path.abspath(__file__))
SIZES = ("tiny", "base", "large", "xlarge", "xxlarge")
SAMPLE = os.path.join(ROOT, "data", "news_zh_1.txt")
VOCAB = os.path.join(ROOT, "albert_config", "vocab.txt")

Row = collections.namedtuple("Row", "name found least most")


def count_parameters(config, scope):
    """Number of parameters under a variable scope of the model."""
    with tf.Graph().as_default():
        modeling.AlbertModel(config, tf.zeros([1, 2], tf.int32))
        return sum(int(np.prod(v.shape.as_list())) for v in tf.trainable_variables(scope))


def factorized_embeddings():
    """Word embeddings: V*E + E*H parameters in place of V*H (paper, section 3.1)."""
    configs = [(size, modeling.AlbertConfig.from_json_file(os.path.join(
        ROOT, "albert_config", "albert_config_%s.json" % size))) for size in SIZES]
    configs.append(("V=30000 H=4096", modeling.AlbertConfig(
        vocab_size=30000, hidden_size=4096, num_hidden_layers=1, num_attention_heads=64,
        intermediate_size=1)))
    for name, config in configs:
        config.num_hidden_layers = 1
        vocab, hidden, embedding = config.vocab_size, config.hidden_size, config.embedding_size
        expected = vocab * embedding + embedding * hidden
        yield Row("{}, unfactorized {:,}".format(name, vocab * hidden),
                  count_parameters(config, "bert/embeddings/word_embeddings"), expected, expected)


def cross_layer_sharing():
    """An encoder of 12 layers, H 1024, I 3072, by what the layers share (paper, section 3.1)."""
    expected = {"none": 125976576, "attention": 79771648, "ffn": 56702976, "all": 10498048}
    for mode in ("none", "attention", "ffn", "all"):
        config = modeling.AlbertConfig(
            vocab_size=8, embedding_size=8, hidden_size=1024, num_hidden_layers=12,
            num_attention_heads=16, intermediate_size=3072, parameter_sharing=mode)
        yield Row("shared: " + mode, count_parameters(config, "bert/encoder"), expected[mode],
                  expected[mode])


def sentence_order():
    """Pairs that data creation makes of the sample (paper, section 3.1)."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tf_sample.tfrecord")
        values = flags.FlagValues()
        create_pretraining_data.define_flags(values)
        values(["", "--input_file=" + SAMPLE, "--output_file=" + path, "--vocab_file=" + VOCAB,
                "--num_workers=1", "--num_shards=1"])
        create_pretraining_data.main(values)
        pairs = [read_pair(record) for record in records.read_records(path)]
    tokenizer = tokenization.FullTokenizer(VOCAB)
    with io.open(SAMPLE, encoding="utf-8", newline="\n") as stream:
        documents = [as_text(tokenizer.convert_tokens_to_ids(tokenizer.tokenize(document)))
                     for document in stream.read().split("\n\n")]
    ordered = [second + first if swapped else first + second for first, second, swapped in pairs]
    yield Row("pairs", len(pairs), 100, len(pairs))
    yield Row("% swapped", 100.0 * np.mean([pair[2] for pair in pairs]), 40, 60)
    yield Row("% that, put in order, stand in one document", 100.0 * np.mean(
        [any(text in document for document in documents) for text in ordered]), 100, 100)
    yield Row("pairs of identical segments", sum(first == second for first, second, _ in pairs),
              0, 0)


def as_text(ids):
    """Token ids as one string, for substring search."""
    return "".join(map(chr, ids))


def read_pair(record):
    """(first segment, second segment, swapped) of a serialized record, unmasked, as_text."""
    features = tf.train.Example.FromString(record).features.feature
    ids, segments, mask, positions, labels, weights, swapped = [
        np.array(features[name].int64_list.value or features[name].float_list.value, int)
        for name in ("input_ids", "segment_ids", "input_mask", "masked_lm_positions",
                     "masked_lm_ids", "masked_lm_weights", "next_sentence_labels")]
    ids[positions[weights > 0]] = labels[weights > 0]
    first, second = ids[(segments == 0) & (mask > 0)], ids[segments == 1]
    return as_text(first[1:-1]), as_text(second[:-1]), int(swapped[0])


def is_good(row):
    """Whether a row's number is the expected one."""
    return row.least <= row.found <= row.most


def report(title, rows):
    """Prints one table; returns the number of rows whose number is not the expected one."""
    print("\n" + title)
    wrong = 0
    for row in rows:
        number = "{:,.1f}".format(row.found) if "%" in row.name else "{:,}".format(row.found)
        expected = "" if is_good(row) else "  WRONG, expected {:,} to {:,}".format(row.least,
                                                                                 row.most)
        print("  {:<44} {:>14}{}".format(row.name, number, expected))
        wrong += not is_good(row)
    return wrong


TABLES = (
    ("1 Factorized embeddings: parameters of the word embeddings", factorized_embeddings),
    ("2 Cross-layer sharing: parameters of the encoder, 12 layers, H 1024, I 3072",
     cross_layer_sharing),
    ("3 Sentence-order prediction: pairs made of data/news_zh_1.txt", sentence_order))


def test_every_number_is_the_expected_one():
    """Collected by pytest: all three tables."""
    assert [row for _, rows in TABLES for row in rows() if not is_good(row)] == []


def main():
    """Prints the three tables; returns the exit code."""
    tf.logging.set_verbosity(tf.logging.ERROR)
    wrong = sum(report(title, rows()) for title, rows in TABLES)
    print("\n{}".format("{} numbers are wrong".format(wrong) if wrong
                        else "All three changes are there."))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

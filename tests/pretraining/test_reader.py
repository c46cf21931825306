"""The order of the records: a function of seed and step, the same in both TensorFlow versions."""

import contextlib
import gzip
import itertools
import struct

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_records import serialized, toy_record, write_toy_records
from helpers.toys import toy_tokens, write_text

from cli import UserError
from pretraining import reader
from pretraining_data import masking, records

FILES, IN_A_FILE = 3, 7
FIRST_TWELVE = [2, 3, 20, 16, 5, 17, 19, 9, 7, 18, 1, 15]  # with the default seed
COUNT = FILES * IN_A_FILE


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Records numbered by their second token, 7 in each of three files."""
    folder, paths = tmp_path_factory.mktemp("records"), []
    for number in range(FILES):
        paths.append(str(folder / ("tf_%d.tfrecord" % number)))
        with tf.python_io.TFRecordWriter(paths[-1]) as writer:
            for index in range(IN_A_FILE):
                record = toy_record(np.random.RandomState(0))
                record["input_ids"][2] = number * IN_A_FILE + index
                writer.write(serialized(record))
    return reader.peek(paths, 16, 3)


def numbers(source, count, batch_size=1, seed=12345, **place):
    """The numbers of the next `count` records, batch by batch."""
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = reader.training_dataset(source, batch_size, seed, **place)
        batch = tf.data.make_one_shot_iterator(dataset).get_next()["input_ids"]
        return list(itertools.chain.from_iterable(
            session.run(batch)[:, 2].tolist() for _ in range(count // batch_size)))


def test_order_is_one_of_seed_and_step(source):
    order = numbers(source, 3 * COUNT)
    epochs = [order[start:start + COUNT] for start in range(0, 3 * COUNT, COUNT)]
    assert all(sorted(epoch) == list(range(COUNT)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert numbers(source, COUNT, seed=1) != epochs[0]
    assert order[:12] == FIRST_TWELVE  # on both versions of TensorFlow
    for passed in (1, 20, 21, 30, 45):
        assert numbers(source, 15, first_record=passed) == order[passed:passed + 15]
    assert numbers(source, 20, 4, first_record=8) == order[8:28]


def test_machines_read_files_of_their_own(source):
    shares = [numbers(source, 14, worker=worker, workers=3) for worker in range(3)]
    assert [{number // IN_A_FILE for number in share} for share in shares] == [{0}, {1}, {2}]
    assert all(sorted(share[:7]) == sorted(share[7:]) == sorted(set(share)) for share in shares)
    resumed = numbers(source, 4, first_record=30, worker=1, workers=3)
    assert resumed == shares[1][10:14]


def test_machines_share_too_few_files_by_record(source):
    order = numbers(source, 40)
    shares = [numbers(source, 10, worker=worker, workers=4) for worker in range(4)]
    assert [number for row in zip(*shares) for number in row] == order
    assert numbers(source, 5, first_record=20, worker=3, workers=4) == order[23:40:4]


def test_evaluation_fills_up_with_rows_that_do_not_count(source):
    with tf.Graph().as_default(), tf.Session() as session:
        batch = tf.data.make_one_shot_iterator(
            reader.evaluation_dataset(source, 8)).get_next()
        batches = [session.run(batch) for _ in range(3)]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(batch)
    rows = np.concatenate([one["input_mask"][:, 0] for one in batches])
    assert rows.tolist() == [1] * COUNT + [0] * 3
    assert np.concatenate([one["input_ids"][:, 2] for one in batches])[:COUNT].tolist() == list(
        range(COUNT))


VOCAB = len(toy_tokens())


def write_changed(path, number, name, value, count=4):
    """Records of which the one of this number has the value as the last of a feature."""
    with tf.python_io.TFRecordWriter(str(path)) as writer:
        for index in range(count):
            record = toy_record(np.random.RandomState(index))
            if index == number:
                record[name][-1] = value
            writer.write(serialized(record))
    return str(path)


@pytest.mark.parametrize("name, value, bound", [
    ("input_ids", VOCAB, "the config's vocab_size {}".format(VOCAB)), ("input_ids", -1, ""),
    ("masked_lm_ids", VOCAB, "the config's vocab_size {}".format(VOCAB)),
    ("masked_lm_positions", 16, "--max_seq_length 16"), ("masked_lm_positions", -1, ""),
    ("input_mask", 2, "2"), ("segment_ids", -1, "2"), ("next_sentence_labels", 2, "2")])
def test_values_out_of_range_are_named(tmp_path, name, value, bound):
    words = "x: {} holds {}, must be at least 0 and below {}".format(name, value, bound)
    with pytest.raises(UserError, match=words):
        reader.peek([write_changed(tmp_path / "x", 0, name, value)], 16, 3, vocab_size=VOCAB)
    path = write_changed(tmp_path / "x", 2, name, value)
    source = reader.peek([path], 16, 3, vocab_size=VOCAB)
    where, number, reason = reader.find_damage([source])
    assert (where, number) == (path, 2) and words in reason
    left = reader.without_corrupt(source, str(tmp_path / "sound"))
    assert reader.count_source(left) == 3
    assert reader.find_damage([left]) is None


def test_weights_as_whole_numbers_are_named():
    example = tf.train.Example.FromString(serialized(toy_record(np.random.RandomState(1))))
    weights = example.features.feature["masked_lm_weights"]
    weights.int64_list.value.extend([1] * len(weights.float_list.value))
    with pytest.raises(UserError, match="masked_lm_weights as int64_list, must be float_list"):
        reader.check_record(example.SerializeToString(), "x", 16, 3)


def test_files_that_hold_nothing_or_cannot_be_read_are_named(tmp_path):
    text = write_text(tmp_path / "text", "字" * 99)
    for skip_corrupt in (False, True):
        with pytest.raises(UserError, match="--input_file: .*text is not a TFRecord file"):
            reader.peek([text], 16, 3, skip_corrupt=skip_corrupt)
    with pytest.raises(UserError, match="--input_file: {} cannot be read: .*Is a dir".format(
            tmp_path)):
        reader.peek([str(tmp_path)], 16, 3)


@pytest.mark.parametrize("text", ["{}", "[]", "3", '{"settings": {}, "shards": [1]}'])
def test_a_manifest_of_something_else_is_damaged(tmp_path, text):
    path = write_toy_records(tmp_path / "tf_x.tfrecord", 2)
    write_text(tmp_path / "tf_x.manifest.json", text)
    with pytest.raises(UserError, match="tf_x.manifest.json is damaged"):
        reader.peek([path], 16, 3)


def changed_bytes(name, value):
    """A toy record whose feature begins with another value."""
    record = toy_record(np.random.RandomState(3))
    record[name] = np.concatenate([[value], record[name][1:]]).astype(record[name].dtype)
    return serialized(record)


def dynamic_bytes():
    """A dynamic record of the tokens 2, 5 and 3, as masking.Rows give it."""
    return records.encode_dynamic(masking.Rows(
        np.array([2, 5, 3]), np.ones(3, bool), np.array([0, 3]), np.array([2]), np.array([0])))[0]


def without_targets():
    record = toy_record(np.random.RandomState(3))
    return serialized(dict(record, masked_lm_weights=np.zeros(3, np.float32)))


def damaged_length():
    length = struct.pack("<Q", 2 ** 62)
    return length + struct.pack("<I", records.masked_crc(length)) + b"xx"


BAD_RECORDS = {  # bytes behind the fourth record, and what is said of them
    "2^40": (records.frame(changed_bytes("input_ids", 2 ** 40)), "input_ids holds 1099511627776"),
    "wraps": (records.frame(changed_bytes("masked_lm_ids", 2 ** 32 + 5)), "masked_lm_ids holds"),
    "segment": (records.frame(changed_bytes("segment_ids", 7)), "segment_ids holds 7"),
    "mask": (records.frame(changed_bytes("input_mask", 5)), "input_mask holds 5"),
    "place": (records.frame(changed_bytes("masked_lm_positions", 16)), "masked_lm_positions holds"),
    "weight": (records.frame(changed_bytes("masked_lm_weights", -1000)), "weights holds -1000"),
    "nan": (records.frame(changed_bytes("masked_lm_weights", np.nan)), "weights holds nan"),
    "no weight": (records.frame(without_targets()), "masked_lm_weights are 0 everywhere"),
    "dynamic": (records.frame(dynamic_bytes()), "holds masks in some records and none in others"),
    "empty": (records.frame(b""), "records have no feature"),
    "no Example": (records.frame(b"\xff" * 40), "holds no tf.train.Example"),
    "length": (damaged_length(), "cut off in it"), "appended": (b"abc", "cut off in it")}


@pytest.mark.parametrize("kind, compressed", [(kind, False) for kind in sorted(BAD_RECORDS)] + [
    (kind, True) for kind in ("place", "dynamic", "length", "appended")])
def test_a_later_record_that_does_not_fit_ends_the_reading_or_is_left_out(
        tmp_path, kind, compressed):
    path, (damage, words) = write_toy_records(tmp_path / "x", 4), BAD_RECORDS[kind]
    with open(path, "r+b") as stream:
        damaged = stream.read() + damage
        stream.seek(0)
        stream.write(gzip.compress(damaged) if compressed else damaged)
        stream.truncate()
    source = reader.peek([path], 16, 3, vocab_size=VOCAB)
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.DataLossError)):
        rows_read(source)
    where, number, reason = reader.find_damage([source])
    assert (where, number) == (path, 4) and words in reason
    assert rows_read(reader.without_corrupt(source, str(tmp_path / "intact"))) == 4


def rows_read(source):
    """How many rows an evaluation on the source reads."""
    count = 0
    with tf.Graph().as_default(), tf.Session() as session:
        batches = tf.data.make_initializable_iterator(reader.evaluation_dataset(source, 1))
        batch = batches.get_next()["input_ids"]
        session.run(batches.initializer)
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                count += len(session.run(batch))
    return count

"""records.py: bytes equal to TensorFlow's own, files that are complete or not there."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_records import toy_record

import cli
from pretraining_data import masking, records

SEQ_LENGTH, MAX_PREDICTIONS = 24, 5


def random_rows(seed, vocab_size=21128):
    """Rows and Masks of 40 instances with all lengths of varints among the ids."""
    rng = np.random.RandomState(seed)
    lengths = rng.randint(5, SEQ_LENGTH + 1, 40)
    lengths[:2] = 5, SEQ_LENGTH
    offsets = np.append(0, np.cumsum(lengths))
    firsts = np.array([rng.randint(3, length - 1) for length in lengths])
    ids = (vocab_size ** rng.random_sample(offsets[-1])).astype(np.int32)
    rows = masking.Rows(ids, rng.random_sample(len(ids)) < 0.5, offsets, firsts,
                        rng.randint(0, 2, 40))
    counts = rng.randint(0, MAX_PREDICTIONS + 1, 40)
    counts[:2] = 0, MAX_PREDICTIONS
    mask_at = np.append(0, np.cumsum(counts))
    positions = np.concatenate([np.sort(rng.permutation(length)[:count])
                                for length, count in zip(lengths, counts)])
    targets = rng.randint(0, vocab_size, mask_at[-1])
    return rows, masking.Masks(ids[::-1].copy(), positions, targets, mask_at)


def oracle(features):
    """Bytes of an Example by TensorFlow."""
    example = tf.train.Example()
    for name, values in features.items():
        if isinstance(values, bytes):
            example.features.feature[name].bytes_list.value.append(values)
        elif name == "masked_lm_weights":
            example.features.feature[name].float_list.value.extend(values)
        else:
            example.features.feature[name].int64_list.value.extend(int(v) for v in values)
    return example.SerializeToString(deterministic=True)


def padded(values, length):
    return list(values) + [0] * (length - len(values))


@pytest.mark.parametrize("seed", range(3))
def test_static_bytes_equal_the_example_api(seed):
    rows, masks = random_rows(seed)
    encoded = records.encode_static(rows, masks, SEQ_LENGTH, MAX_PREDICTIONS)
    for row, record in enumerate(encoded):
        begin, end = rows.offsets[row], rows.offsets[row + 1]
        first, used = rows.first_lengths[row], end - begin
        part = slice(masks.offsets[row], masks.offsets[row + 1])
        assert record == oracle({
            "input_ids": padded(masks.input_ids[begin:end], SEQ_LENGTH),
            "input_mask": padded([1] * used, SEQ_LENGTH),
            "segment_ids": padded([0] * first + [1] * (used - first), SEQ_LENGTH),
            "masked_lm_positions": padded(masks.positions[part], MAX_PREDICTIONS),
            "masked_lm_ids": padded(masks.target_ids[part], MAX_PREDICTIONS),
            "masked_lm_weights": padded([1.0] * len(masks.positions[part]), MAX_PREDICTIONS),
            "next_sentence_labels": [rows.labels[row]]})


def test_dynamic_bytes_equal_the_example_api():
    rows, _ = random_rows(7)
    for row, record in enumerate(records.encode_dynamic(rows)):
        part = slice(rows.offsets[row], rows.offsets[row + 1])
        words = rows.ids[part] + 32768 * rows.starts[part]
        assert record == oracle({
            "token_ids": words.astype("<u2").tobytes(),
            "segment_b_start": [rows.first_lengths[row]],
            "next_sentence_labels": [rows.labels[row]]})


def test_feature_names_are_those_in_the_records():
    rows, masks = random_rows(1)
    for record, names in (
            (records.encode_static(rows, masks, SEQ_LENGTH, MAX_PREDICTIONS)[0],
             toy_record(np.random)),
            (records.encode_dynamic(rows)[0], records.DYNAMIC_FEATURES)):
        assert sorted(tf.train.Example.FromString(record).features.feature) == sorted(names)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 16383, 16384, 2 ** 21 - 1])
def test_varints(value):
    encoded, starts = records.packed_varints([7, value, 7])
    assert encoded[starts[1]:starts[2]] == records.varint(value)
    assert sum((byte & 127) << 7 * index for index, byte in enumerate(records.varint(value))) \
        == value


@pytest.mark.parametrize("compress", [False, True])
def test_files_are_read_by_tensorflow_and_here(tmp_path, compress):
    path, wanted = str(tmp_path / "tf_a.tfrecord"), [b"", b"x", bytes(range(256)) * 40]
    with records.record_writer(path, compress) as write:
        write(wanted[:1])
        write(wanted[1:])
        assert os.listdir(str(tmp_path)) == [os.path.basename(cli.temporary_name(path))]
    assert os.listdir(str(tmp_path)) == ["tf_a.tfrecord"]
    kind = tf.io.TFRecordCompressionType.GZIP if compress else tf.io.TFRecordCompressionType.NONE
    options = tf.io.TFRecordOptions(compression_type=kind)
    assert list(tf.io.tf_record_iterator(path, options)) == wanted
    assert list(records.read_records(path)) == wanted


def test_frames_equal_those_of_tensorflow(tmp_path):
    path, wanted = str(tmp_path / "tf.tfrecord"), [b"", b"abc", b"\xff" * 5000]
    with tf.io.TFRecordWriter(path) as writer:
        for record in wanted:
            writer.write(record)
    with open(path, "rb") as stream:
        assert stream.read() == b"".join(map(records.frame, wanted))


@pytest.mark.parametrize("compress", [False, True])
def test_a_failing_writer_leaves_nothing(tmp_path, compress):
    with pytest.raises(KeyError):
        with records.record_writer(str(tmp_path / "tf.tfrecord"), compress) as write:
            write([b"abc"])
            raise KeyError("stop")
    assert os.listdir(str(tmp_path)) == []


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:5],
                                    lambda data: data[:20] + b"?" + data[21:]])
def test_damaged_files_are_noticed(tmp_path, damage):
    path = tmp_path / "tf.tfrecord"
    path.write_bytes(damage(records.frame(b"abcdefghijkl") * 2))
    assert None in list(records.read_records(str(path)))

"""The pre-training records: which features they hold, how they become bytes, how files are written.

In: blocks of instances as NumPy arrays (masking.py).  Out: TFRecord files of tf.train.Example.
No TensorFlow: the bytes equal Example.SerializeToString(deterministic=True), made 20 times faster.

    static record   input_ids, input_mask, segment_ids [S] int64; masked_lm_positions, masked_lm_ids
                    [P] int64; masked_lm_weights [P] float; next_sentence_labels [1] int64
    dynamic record  token_ids: bytes, little-endian uint16 [n], bit 15 set where a word starts;
                    segment_b_start [1] int64; next_sentence_labels [1] int64

A next_sentence_label is 1 where the two segments were swapped.
"""

import contextlib
import functools
import gzip
import struct
import zlib

import google_crc32c
import numpy as np

import cli

DYNAMIC_FEATURES = ("token_ids", "segment_b_start", "next_sentence_labels")
WORD_START_BIT = 1 << 15  # so that dynamic records hold ids below 32768
GZIP_LEVEL = 4


def varint(value):
    """bytes of a protocol-buffer varint of one int >= 0."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def packed_varints(values):
    """Varints of many values below 2**21 at once.

    Args:
      values: int array [n].
    Returns:
      (bytes of all of them, int array [n + 1]: where each one's bytes start).
    """
    values = np.asarray(values, dtype=np.int32)
    sizes = 1 + (values > 127) + (values > 16383)
    parts = np.empty((len(values), 3), dtype=np.uint8)
    parts[:, 0] = values & 127 | (sizes > 1) << 7
    parts[:, 1] = values >> 7 & 127 | (sizes > 2) << 7
    parts[:, 2] = values >> 14
    used = np.arange(3) < sizes[:, None]  # [n, 3]
    return parts[used].tobytes(), np.concatenate([[0], np.cumsum(sizes)])


# Field numbers of tf.train.Feature, as the tag byte of a length-delimited field.
BYTES_LIST, FLOAT_LIST, INT64_LIST = 0x0A, 0x12, 0x1A


@functools.lru_cache(maxsize=100000)
def _prefix(name, kind, size):
    """What stands before `size` bytes of packed values: map entry, key, Feature, list."""
    values = b"\x0a" + varint(size)
    feature = bytes([kind]) + varint(len(values) + size) + values
    key = name.encode("utf-8")
    entry = (b"\x0a" + varint(len(key)) + key + b"\x12" + varint(len(feature) + size) + feature)
    return b"\x0a" + varint(len(entry) + size) + entry


def _example(parts):
    """Bytes of an Example from the bytes of its features, which are sorted by name."""
    features = b"".join(parts)
    return b"\x0a" + varint(len(features)) + features


def _label_parts():
    name = "next_sentence_labels"
    return [_prefix(name, INT64_LIST, 1) + varint(label) for label in (0, 1)]


@functools.lru_cache(maxsize=None)
def _input_mask(used, seq_length):
    values = b"\x01" * used + b"\x00" * (seq_length - used)
    return _prefix("input_mask", INT64_LIST, seq_length) + values


@functools.lru_cache(maxsize=None)
def _weights(used, max_predictions):
    values = struct.pack("<{}f".format(max_predictions),
                         *[1.0] * used + [0.0] * (max_predictions - used))
    return _prefix("masked_lm_weights", FLOAT_LIST, len(values)) + values


def _segment_ids(first, used, seq_length):
    values = b"\x00" * first + b"\x01" * (used - first) + b"\x00" * (seq_length - used)
    return _prefix("segment_ids", INT64_LIST, seq_length) + values


def _padded_feature(name, encoded, start, end, padding):
    """int64 feature of encoded[start:end], which are packed varints, and `padding` zeros."""
    size = end - start + padding
    return _prefix(name, INT64_LIST, size) + encoded[start:end] + bytes(padding)


def encode_static(rows, masks, seq_length, max_predictions):
    """Serialized static examples.

    Args:
      rows: masking.Rows of R instances of at most seq_length tokens each.
      masks: masking.Masks of the same instances, at most max_predictions each.
      seq_length, max_predictions: S and P, to which the features are padded with zeros.
    Returns:
      list of R bytes.
    """
    labels = _label_parts()
    ids, id_at = packed_varints(masks.input_ids)
    targets, target_at = packed_varints(masks.target_ids)
    positions, position_at = packed_varints(masks.positions)
    id_at, row_at = id_at[rows.offsets].tolist(), rows.offsets.tolist()
    target_at, position_at = target_at[masks.offsets].tolist(), position_at[masks.offsets].tolist()
    mask_at = masks.offsets.tolist()
    examples = []
    for row, (first, label) in enumerate(zip(rows.first_lengths.tolist(), rows.labels.tolist())):
        used = row_at[row + 1] - row_at[row]
        masked = mask_at[row + 1] - mask_at[row]
        unused = max_predictions - masked
        examples.append(_example((
            _padded_feature("input_ids", ids, id_at[row], id_at[row + 1], seq_length - used),
            _input_mask(used, seq_length),
            _padded_feature("masked_lm_ids", targets, target_at[row], target_at[row + 1], unused),
            _padded_feature("masked_lm_positions", positions, position_at[row],
                            position_at[row + 1], unused),
            _weights(masked, max_predictions),
            labels[label],
            _segment_ids(first, used, seq_length))))
    return examples


def encode_dynamic(rows):
    """Serialized dynamic examples of masking.Rows whose ids are below 32768: list of R bytes."""
    labels = _label_parts()
    words = (rows.ids | rows.starts * WORD_START_BIT).astype("<u2").tobytes()
    row_at = rows.offsets.tolist()
    examples = []
    for row, (first, label) in enumerate(zip(rows.first_lengths.tolist(), rows.labels.tolist())):
        tokens = words[2 * row_at[row]:2 * row_at[row + 1]]
        boundary = varint(first)
        examples.append(_example((
            labels[label],
            _prefix("segment_b_start", INT64_LIST, len(boundary)) + boundary,
            _prefix("token_ids", BYTES_LIST, len(tokens)) + tokens)))
    return examples


def masked_crc(data):
    """TFRecord's checksum of bytes: CRC-32C, rotated and shifted."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.lru_cache(maxsize=10000)
def _frame_header(size):
    length = struct.pack("<Q", size)
    return length + struct.pack("<I", masked_crc(length))


def frame(record):
    """bytes of a record as they stand in a TFRecord file."""
    return _frame_header(len(record)) + record + struct.pack("<I", masked_crc(record))


@contextlib.contextmanager
def record_writer(path, compress=False, system=None):
    """Writes a TFRecord file that has its name only once it is complete, in a `with` statement.

    with record_writer("data/tf_news.tfrecord") as write: write(list of serialized examples)

    system: cli.FileSystem; default: that of the path.
    """
    system = system or cli.file_system(path)
    with cli.whole(path, system) as temporary, system.open(temporary, "wb") as raw:
        # Neither name nor time in GZIP's header: equal records make equal files.
        with gzip.GzipFile("", "wb", GZIP_LEVEL, raw, 0) if compress else (
                contextlib.nullcontext(raw)) as stream:
            yield lambda serialized: stream.write(b"".join(map(frame, serialized)))


def compression_of(path):
    """TensorFlow's name for how a file is compressed: "GZIP" for one that begins so, else ""."""
    with cli.file_system(path).open(path, "rb") as stream:
        return "GZIP" if is_gzip(stream) else ""


def is_gzip(stream):
    """Whether a file that was just opened is compressed; it is read from its start afterwards."""
    magic = stream.read(2)
    stream.seek(0)
    return magic == b"\x1f\x8b"


def read_records(path):
    """Yields each record's bytes of a TFRecord file, plain or gzip; None for a damaged record.

    After a damaged length nothing more can be found, nor after damage in a compressed file.
    """
    with cli.file_system(path).open(path, "rb") as raw:
        stream = gzip.GzipFile(fileobj=raw) if is_gzip(raw) else raw
        while True:
            try:
                header = stream.read(12)
                if not header:
                    return
                length, checksum = struct.unpack("<QI", header)
                if checksum != masked_crc(header[:8]) or length > cli.MOST:
                    raise ValueError("the length is damaged")
                record = stream.read(length)
                checksum, = struct.unpack("<I", stream.read(4))
            except (ValueError, struct.error, OSError, EOFError, zlib.error):
                yield None
                return
            yield record if checksum == masked_crc(record) else None

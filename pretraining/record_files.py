"""TFRecord files as files: compression, number of records, damaged records.

In: paths of any file system TensorFlow knows, gs:// among them.  Out: counts, without reading what
a manifest tells; the place of a damaged record; copies without the damaged ones.

A record stands in its file as: length (uint64), its checksum (uint32), the bytes, their checksum.
"""

import gzip
import json
import os
import re
import struct
import zlib

import tensorflow.compat.v1 as tf

from cli import UserError
from pretraining_data import manifest, records

CHUNK = 1 << 22  # bytes read at once where only the lengths matter
AROUND = 16  # bytes of a record's length and checksums
SHARD = re.compile(r"-(\d{5,})-of-\d{5,}\.tfrecord$")


def compression_of(path):
    """"GZIP" for a file that begins as one, else ""."""
    with tf.io.gfile.GFile(path, "rb") as stream:
        return "GZIP" if stream.read(2) == b"\x1f\x8b" else ""


def iterate(path, compression):
    """The serialized records of one file."""
    kinds = tf.python_io.TFRecordCompressionType
    options = tf.python_io.TFRecordOptions(kinds.GZIP if compression else kinds.NONE)
    return tf.python_io.tf_record_iterator(path, options)


def count_records(path, compression):
    """How many records a file holds: by its manifest, else by the lengths, else by reading."""
    known = count_in_manifest(path)
    if known is not None:
        return known
    return sum(1 for _ in iterate(path, compression)) if compression else count_frames(path)


def count_in_manifest(path):
    """The count that the data's manifest notes, or None; one older than the file is not trusted."""
    noted, shard = manifest.manifest_of(path), SHARD.search(path)
    if not tf.io.gfile.exists(noted):
        return None
    if tf.io.gfile.stat(noted).mtime_nsec < tf.io.gfile.stat(path).mtime_nsec:
        return None
    try:
        with tf.io.gfile.GFile(noted, "rb") as stream:
            shards = json.loads(stream.read().decode("utf-8"))["shards"]
        return int(shards[str(int(shard.group(1)) if shard else 0)]["instances"])
    except (ValueError, KeyError, TypeError):
        return None


def count_frames(path):
    """Counts the records of an uncompressed file by the lengths that stand before them."""
    size = tf.io.gfile.stat(path).length
    count = position = start = 0
    chunk = b""
    with tf.io.gfile.GFile(path, "rb") as stream:
        while position < size:
            if position + 8 > start + len(chunk):
                stream.seek(position)
                start, chunk = position, stream.read(CHUNK)
            if position + AROUND > size:
                break
            position += struct.unpack_from("<Q", chunk, position - start)[0] + AROUND
            count += 1
    if position != size:
        raise UserError("{} is damaged or cut off in or after record {}".format(
            path, max(count - 1, 0)))
    return count


def checked_records(path, compression):
    """Yields each record's bytes, or None for a damaged one.

    After a damaged length nothing more can be found, nor after damage in a compressed file.
    """
    with tf.io.gfile.GFile(path, "rb") as raw:
        stream = gzip.GzipFile(fileobj=raw) if compression else raw
        while True:
            try:
                header = stream.read(12)
                if not header:
                    return
                length, checksum = struct.unpack("<QI", header)
                if checksum != records.masked_crc(header[:8]):
                    raise ValueError("the length is damaged")
                body = stream.read(length)
                checksum, = struct.unpack("<I", stream.read(4))
            except (ValueError, struct.error, OSError, EOFError, zlib.error):
                yield None
                return
            yield body if checksum == records.masked_crc(body) else None


def sound_records(path, compression):
    """checked_records without the damaged ones."""
    return (record for record in checked_records(path, compression) if record is not None)


def damages(path, compression, check):
    """Yields (number, reason) of each record that is damaged or refused by check(record)."""
    for number, record in enumerate(checked_records(path, compression)):
        if record is None:
            yield number, "its checksum is wrong, or the file is cut off in it"
            continue
        try:
            check(record)
        except UserError as error:
            yield number, str(error)


def first_damaged(path, compression, check):
    """The first of damages(), or None."""
    return next(damages(path, compression, check), None)


def without_damage(files, compression, folder, check_of=None):
    """Copies files that hold damaged records to `folder`, without those records.

    Args:
      check_of: function(path) -> check of that file's records, see damages; default: only what
        cannot be read is damaged.
    Returns:
      the paths to read in place of files, and how many damaged records were left out.
    """
    sound, lost = [], 0
    for index, path in enumerate(files):
        check = check_of(path) if check_of else len
        damaged = [number for number, _ in damages(path, compression, check)]
        if damaged:
            lost += len(damaged)
            tf.logging.warning("%s: left out %d corrupt records: %s%s", path, len(damaged),
                               ", ".join(map(str, damaged[:10])), " …" * (len(damaged) > 10))
            path = copy_sound(path, compression, os.path.join(
                folder, "{:05d}_{}".format(index, os.path.basename(path))), set(damaged))
        sound.append(path)
    tf.logging.info("%d corrupt records in %d files", lost, len(files))
    return sound, lost


def copy_sound(path, compression, target, damaged):
    """Writes a file's records to target, but the damaged numbers; complete once it is there."""
    tf.io.gfile.makedirs(os.path.dirname(target))
    temporary = records.temporary_name(target)
    options = tf.python_io.TFRecordOptions(
        tf.python_io.TFRecordCompressionType.GZIP if compression
        else tf.python_io.TFRecordCompressionType.NONE)
    with tf.python_io.TFRecordWriter(temporary, options) as writer:
        for number, record in enumerate(checked_records(path, compression)):
            if number not in damaged:
                writer.write(record)
    tf.io.gfile.rename(temporary, target, overwrite=True)
    return target

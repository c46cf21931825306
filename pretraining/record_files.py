"""TFRecord files as files: compression, number of records, damaged records.

In: paths of any file system TensorFlow knows, gs:// among them.  Out: counts, without reading what
a manifest tells; the place of a damaged record; copies without the damaged ones.

A record stands in its file as: length (uint64), its checksum (uint32), the bytes, their checksum.
"""

import json
import os
import re
import struct

import tensorflow.compat.v1 as tf

from cli import UserError
from pretraining_data import manifest, records

CHUNK = 1 << 22  # bytes read at once where only the lengths matter
AROUND = 16  # bytes of a record's length and checksums
SHARD = re.compile(r"-(\d{5,})-of-\d{5,}\.tfrecord$")


def count_records(path, compression):
    """How many records a file holds: by its manifest, else by looking at them."""
    known = count_in_manifest(path)
    return count_frames(path, compression) if known is None else known


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


def count_frames(path, compression):
    """Counts a file's records; UserError where they do not fill it.

    In an uncompressed file this reads only the lengths that stand before them.
    """
    if compression:
        count = 0
        for record in records.read_records(path):
            if record is None:
                raise damage_after(path, count)
            count += 1
        return count
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
        raise damage_after(path, max(count - 1, 0))
    return count


def damage_after(path, number):
    """UserError of a file whose records do not fill it."""
    return UserError("{} is damaged or cut off in or after record {}".format(path, number))


def damages(path, check):
    """Yields (number, reason) of each record that is damaged or refused by check(record)."""
    for number, record in enumerate(records.read_records(path)):
        if record is None:
            yield number, "its checksum is wrong, or the file is cut off in it"
            continue
        try:
            check(record)
        except UserError as error:
            yield number, str(error)


def without_damage(files, compression, folder, check_of=None):
    """Copies files that hold damaged records to `folder`, without those records.

    Args:
      check_of: function(path) -> check of that file's records, see damages; default: only what
        cannot be read is damaged.
    Returns:
      the paths to read in place of files, and how many damaged records were left out.
    """
    intact, lost = [], 0
    for index, path in enumerate(files):
        check = check_of(path) if check_of else len
        damaged = [number for number, _ in damages(path, check)]
        if damaged:
            lost += len(damaged)
            tf.logging.warning("%s: left out %d corrupt records: %s%s", path, len(damaged),
                               ", ".join(map(str, damaged[:10])), " …" * (len(damaged) > 10))
            target = os.path.join(folder, "{:05d}_{}".format(index, os.path.basename(path)))
            copy_without(path, target, compression, set(damaged))
            path = target
        intact.append(path)
    tf.logging.info("%d corrupt records in %d files", lost, len(files))
    return intact, lost


def copy_without(path, target, compression, numbers):
    """Writes a file's records to target, but those of the numbers."""
    tf.io.gfile.makedirs(os.path.dirname(target))
    with records.record_writer(target, compression) as write:
        for number, record in enumerate(records.read_records(path)):
            if number not in numbers:
                write([record])

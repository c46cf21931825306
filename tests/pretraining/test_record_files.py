"""Counting records, naming a damaged one, leaving damaged ones out."""

import json
import os

import pytest
import tensorflow.compat.v1 as tf
from helpers.damage import change_byte, frame_starts
from helpers.toy_records import write_toy_records
from helpers.toys import write_text

from cli import UserError
from pretraining import record_files
from pretraining_data.records import read_records


@pytest.fixture
def seven(tmp_path):
    return write_toy_records(tmp_path / "tf_seven.tfrecord", 7)


@pytest.mark.parametrize("chunk", [20, 1 << 22])
def test_counts_by_the_lengths(seven, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(record_files, "CHUNK", chunk)
    assert record_files.count_records(seven, "") == 7
    packed = write_toy_records(tmp_path / "packed.tfrecord", 5, compressed=True)
    assert record_files.count_records(packed, "GZIP") == 5
    with open(seven, "r+b") as stream:
        stream.truncate(frame_starts(seven)[4] + 30)
    with pytest.raises(UserError, match="tf_seven.* damaged or cut off in or after record 4$"):
        record_files.count_records(seven, "")


def test_counts_by_the_manifest_unless_it_is_older(tmp_path):
    shard = write_toy_records(tmp_path / "tf_x-00001-of-00002.tfrecord", 3)
    noted = write_text(tmp_path / "tf_x.manifest.json", json.dumps(
        {"shards": {"0": {"instances": 8}, "1": {"instances": 99}}}))
    assert record_files.count_records(shard, "") == 99
    os.utime(noted, (1, 1))
    assert record_files.count_records(shard, "") == 3
    single = write_toy_records(tmp_path / "tf_y.tfrecord", 3)
    write_text(tmp_path / "tf_y.manifest.json", json.dumps({"shards": {"0": {"instances": 44}}}))
    assert record_files.count_records(single, "") == 44
    write_text(tmp_path / "tf_y.manifest.json", "{")
    assert record_files.count_records(single, "") == 3


def test_names_and_leaves_out_damaged_records(seven, tmp_path):
    starts = frame_starts(seven)
    whole = list(read_records(seven))
    assert list(record_files.damages(seven, lambda record: None)) == []
    change_byte(seven, starts[2] + 40)
    change_byte(seven, starts[5] + 40)
    (number, reason), (other, _) = record_files.damages(seven, lambda record: None)
    assert (number, other) == (2, 5) and "checksum" in reason
    files, lost = record_files.without_damage([seven], "", str(tmp_path / "sound"))
    assert lost == 2
    assert list(read_records(files[0])) == [
        whole[number] for number in (0, 1, 3, 4, 6)]
    change_byte(seven, starts[3] + 1)  # a length: nothing behind it can be found
    assert record_files.without_damage([seven], "", str(tmp_path / "sound"))[1] == 2
    assert record_files.count_records(files[0], "") == 2


def test_leaves_out_what_a_check_refuses(seven, tmp_path):
    whole = list(read_records(seven))

    def check(record):
        if record in (whole[0], whole[4]):
            raise UserError("out of range")

    files, lost = record_files.without_damage([seven], "", str(tmp_path), lambda path: check)
    assert lost == 2 and list(read_records(files[0])) == whole[1:4] + whole[5:]


def test_a_record_of_other_lengths_is_named(seven):
    def check(record):
        if record == third:
            raise UserError("wrong length")

    third = list(read_records(seven))[3]
    assert list(record_files.damages(seven, check)) == [(3, "wrong length")]


def test_damage_in_a_compressed_file_ends_it(tmp_path):
    path = write_toy_records(tmp_path / "packed.tfrecord", 400, compressed=True)
    whole = list(read_records(path))
    with open(path, "r+b") as stream:
        stream.truncate(os.path.getsize(path) // 2)
    files, lost = record_files.without_damage([path], "GZIP", str(tmp_path / "sound"))
    kept = list(read_records(files[0]))
    assert lost == 1 and 0 < len(kept) < 400 and kept == whole[:len(kept)]
    assert tf.io.gfile.listdir(str(tmp_path / "sound")) == [os.path.basename(files[0])]

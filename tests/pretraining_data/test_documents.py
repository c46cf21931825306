"""documents.py: the same documents however the bytes are cut, clear words for text that is none."""

import gzip
import lzma
import os
import random

import numpy as np
import pytest
from helpers.toys import write_text

import cli
from pretraining_data.documents import (
    Indexer,
    check_encoding,
    check_files,
    lines_of,
    make_spans,
    read_shard,
    scan_documents,
    shard_of,
    unpack,
)


def read_plainly(data, encoding="utf-8"):
    """[text] of the documents of bytes: the plain definition, line by line."""
    documents, lines = [], []
    for line in data.decode(encoding).split("\n"):
        if line.strip():
            lines.append(line)
        elif lines:
            documents.append("\n".join(lines))
            lines = []
    return documents + (["\n".join(lines)] if lines else [])


def indexed(tmp_path, paths, span_bytes, num_shards=1, encoding="utf-8", seed=1):
    """[[Document] of each shard] by the index."""
    spans = make_spans(paths, span_bytes)
    indexer = Indexer(str(tmp_path), paths, encoding, seed, num_shards)
    for job in enumerate(spans):
        indexer(job)
    return [list(read_shard(str(tmp_path), paths, len(spans), encoding, shard))
            for shard in range(num_shards)]


PARTS = ["渔港很热闹。", "abc", "\n", "\n\n", " \n", "\t\r\n", "\r\n", "　", "\u200b\n", "\n \n",
         "  字", "　\n", "\u00a0 \n"]


@pytest.mark.parametrize("seed", range(40))
def test_documents_are_the_same_wherever_a_file_is_cut(tmp_path, seed):
    rng = random.Random(seed)
    data = "".join(rng.choice(PARTS) for _ in range(rng.randint(1, 60))).encode("utf-8")
    wanted = [text.strip() for text in read_plainly(data)]
    path = tmp_path / "text.txt"
    path.write_bytes(data)
    for span_bytes in (1, 2, 7, 50, 10 ** 6):
        with open(str(path), "rb") as stream:
            found = [data[offset:offset + size].decode("utf-8").strip()
                     for pieces in make_spans([str(path)], span_bytes) for piece in pieces
                     for offset, size, _ in scan_documents(stream, piece, "utf-8", "a")]
        assert found == wanted, span_bytes


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
@pytest.mark.parametrize("line, separates", [
    ("\u3000", True), ("\u00a0\u3000 ", True), ("\u2003\t\r", True), ("\u2028", True),
    ("\f", True), ("\u200b", False), ("\ufeff", False), ("\u200d\u3000", False)])
def test_a_line_that_looks_blank_separates_documents(tmp_path, line, separates, encoding):
    parts = ["第一句。\n第二句。", "第三句。\n第四句。"]
    path = tmp_path / "a.txt"
    path.write_bytes((parts[0] + "\n" + line + "\n" + parts[1] + "\n").encode(encoding))
    for span_bytes in (1, 10, 1000):
        (documents,) = indexed(tmp_path, [str(path)], span_bytes, encoding=encoding)
        assert [document.text.rstrip("\n") for document in documents] == (
            parts if separates else ["\n".join([parts[0], line, parts[1]])])


def test_a_file_end_is_a_document_end(tmp_path):
    paths = [write_text(tmp_path / name, "第一句。\n第二句。") for name in ("a.txt", "b.txt")]
    (documents,) = indexed(tmp_path, paths, 1000)
    assert [(document.file, document.text) for document in documents] == [
        (0, "第一句。\n第二句。"), (1, "第一句。\n第二句。")]


def test_each_document_is_in_one_shard_whatever_the_spans(tmp_path):
    path = write_text(tmp_path / "a.txt", "\n\n".join("文{}\n句".format(n) for n in range(3000)))
    one = indexed(tmp_path, [path], 1000, num_shards=7)
    other = indexed(tmp_path, [path], 10 ** 6, num_shards=7)
    assert one == other
    assert sorted(document.offset for shard in one for document in shard) == [
        document.offset for document in indexed(tmp_path, [path], 10 ** 6)[0]]
    counts = [len(shard) for shard in one]
    assert min(counts) > 330 and max(counts) < 530  # 429 expected, standard deviation 19
    moved = indexed(tmp_path, [path], 1000, num_shards=7, seed=2)
    assert moved[0] != one[0]


def test_hash_is_well_mixed():
    shards = shard_of(5, np.zeros(8000), np.arange(0, 80000, 10), 16)
    assert np.abs(np.bincount(shards, minlength=16) - 500).max() < 120


def test_a_long_document_goes_in_parts_at_line_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("pretraining_data.documents.MAX_DOCUMENT_BYTES", 200)
    lines = ["句{:03d}".format(number) for number in range(300)]
    path = write_text(tmp_path / "a.txt", "\n".join(lines))
    for span_bytes in (100, 10 ** 6):
        (documents,) = indexed(tmp_path, [path], span_bytes)
        assert len(documents) > 5
        assert all(len(document.text.encode("utf-8")) <= 200 for document in documents)
        assert [line for document in documents for line in lines_of(document)] == lines


def test_a_line_longer_than_a_document_may_be_is_cut_between_characters(tmp_path, monkeypatch):
    monkeypatch.setattr("pretraining_data.documents.MAX_DOCUMENT_BYTES", 100)
    text = "渔a" * 200
    path = write_text(tmp_path / "a.txt", text + "\n下一句。\n")
    (documents,) = indexed(tmp_path, [path], 10 ** 6)
    assert "".join(line for document in documents
                   for line in lines_of(document)) == text + "下一句。"


@pytest.mark.parametrize("ending, opener", [(".gz", gzip.open), (".xz", lzma.open), ("", open)])
def test_packed_files_are_unpacked_once(tmp_path, ending, opener):
    path = str(tmp_path / ("a.txt" + ending))
    with opener(path, "wb") as stream:
        stream.write("渔港\n很热闹\n".encode("utf-8"))
    (plain,) = unpack([path], str(tmp_path))
    with open(plain, "rb") as stream:
        assert stream.read().decode("utf-8") == "渔港\n很热闹\n"
    assert (plain == path) == (ending == "")


def test_packed_files_are_unpacked_by_several_workers(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.txt.gz", "b.txt", "c.txt.xz")]
    for path, opener in zip(paths, (gzip.open, open, lzma.open)):
        with opener(path, "wb") as stream:
            stream.write(path.encode("utf-8"))
    plain = unpack(paths, str(tmp_path), 2)
    assert plain[1] == paths[1]
    for path, copy in zip(paths, plain):
        with open(copy, "rb") as stream:
            assert stream.read().decode("utf-8") == path


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_damaged_packed_files_fail_clearly(tmp_path, ending):
    path = tmp_path / ("a.txt" + ending)
    path.write_bytes(b"no packed file")
    with pytest.raises(cli.UserError, match="a.txt" + ending):
        unpack([str(path)], str(tmp_path))


def test_gbk_text_is_named_with_file_line_and_byte(tmp_path):
    path = tmp_path / "gbk.txt"
    path.write_bytes(b"abc\n\nab" + "渔港".encode("gbk") + b"\n")
    with pytest.raises(cli.UserError) as error:
        indexed(tmp_path, [str(path)], 3)
    for word in (str(path), "line 3", "byte 8", "utf-8", "--input_encoding", "gb18030"):
        assert word in str(error.value)


@pytest.mark.parametrize("encoding", ["gb18030", "gbk", "big5", "utf-8-sig"])
def test_other_encodings(tmp_path, encoding):
    path = tmp_path / "a.txt"
    path.write_bytes("漁港\n熱鬧\n\n天氣".encode(encoding))
    (documents,) = indexed(tmp_path, [str(path)], 3, encoding=encoding)
    assert [lines_of(document) for document in documents] == [["漁港", "熱鬧"], ["天氣"]]


@pytest.mark.parametrize("name", ["utf-16", "utf-32", "no-such", "iso2022_jp"])
def test_encodings_that_cannot_be_used(name):
    with pytest.raises(cli.UserError, match="--input_encoding"):
        check_encoding(name)


def test_empty_files_are_refused(tmp_path):
    full, empty = write_text(tmp_path / "a.txt", "字"), write_text(tmp_path / "b.txt", "")
    check_files([full])
    with pytest.raises(cli.UserError, match="b.txt is empty"):
        check_files([full, empty])
    with pytest.raises(cli.UserError, match="absent.txt"):
        check_files([os.path.join(str(tmp_path), "absent.txt")])


def test_spans_share_small_files_and_cut_large_ones(tmp_path):
    paths = [write_text(tmp_path / str(number), "x" * size)
             for number, size in enumerate((3, 3, 3, 25))]
    spans = make_spans(paths, 10)
    assert [[piece[:1] + piece[2:4] for piece in span] for span in spans] == [
        [(0, 0, 3), (1, 0, 3), (2, 0, 3)], [(3, 0, 10)], [(3, 10, 20)], [(3, 20, 25)]]


def test_byte_order_marks_and_spaces_are_no_text(tmp_path):
    path = write_text(tmp_path / "a.txt", "\ufeff渔港 \r\n \ufeff \u3000\n很\n")
    (documents,) = indexed(tmp_path, [path], 100)
    assert lines_of(documents[0]) == ["渔港", "\u3000", "很"]

"""Reading a corpus of any size: files of text to documents, shard by shard.

In: UTF-8 text (or --input_encoding), one sentence a line, a blank line between documents; plain,
.gz or .xz.  Out: for each shard the documents that a seeded hash gives it.  No TensorFlow.
A line is blank where all of it is white space, U+3000 and U+00A0 too; zero-width characters are
none.

A cheap first pass cuts the files into spans of 8 MB, checks that each line decodes, and notes where
documents begin. Its result is one small file for each span, ordered by shard, so that memory
depends neither on the number of documents nor on the size of the corpus.
"""

import codecs
import collections
import gzip
import lzma
import os
import shutil

import google_crc32c
import numpy as np

import cli
from pretraining_data import workers

SPAN_BYTES = 8 << 20
MAX_DOCUMENT_BYTES = 1 << 20  # a longer document goes in parts, so that memory stays bounded

# One document, or a part of a very long one. file: its file's number; offset: of its first byte.
Document = collections.namedtuple("Document", "file offset text")

# What one indexing job covers: bytes [begin, end) of a file of size bytes.
Piece = collections.namedtuple("Piece", "file path begin end size")


def check_encoding(name):
    """Raises UserError for an encoding that is unknown or in which a line end is not one byte."""
    try:
        works = "\n \t".encode(name) == b"\n \t"
    except LookupError as error:
        raise cli.UserError("--input_encoding: unknown encoding {!r}".format(name)) from error
    if not works or codecs.lookup(name).name.startswith("iso2022"):
        raise cli.UserError("--input_encoding: {!r} does not keep line ends as one byte; convert "
                            "the text to utf-8".format(name))


def check_files(paths):
    """Raises UserError for a file that is empty or cannot be read, and for a pipe."""
    cli.refuse_pipes(paths, "input_file")
    for path in paths:
        try:
            with open(path, "rb") as stream:
                empty = not stream.read(1)
        except OSError as error:
            raise cli.UserError("--input_file: {}: {}".format(path, error.strerror)) from error
        if empty:
            raise cli.UserError("--input_file: {} is empty".format(path))


def unpack(paths, folder, num_workers=1):
    """Plain files for paths: a .gz or .xz file is unpacked into folder, once, by one worker.

    Raises:
      UserError: a packed file is damaged.
    """
    jobs = [(path, os.path.join(folder, "unpacked-{:05d}".format(number)))
            for number, path in enumerate(paths) if _opener(path) is not open]
    plain = dict(job for job, _ in workers.run_jobs(_unpack_file, jobs, num_workers))
    return [plain.get(path, path) for path in paths]


def _opener(path):
    return {".gz": gzip.open, ".xz": lzma.open}.get(os.path.splitext(path)[1].lower(), open)


def _unpack_file(job):
    path, target = job
    try:
        with _opener(path)(path, "rb") as packed, open(target, "wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 20)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise cli.UserError("--input_file: {}: {}".format(path, error)) from error


def make_spans(paths, span_bytes=SPAN_BYTES, size_of=os.path.getsize):
    """Cuts files into spans of about span_bytes: list of lists of Piece, in file order.

    A large file gives many spans, small files share one. The cut does not depend on the number of
    workers.
    """
    spans, room = [], 0
    for number, path in enumerate(paths):
        size = size_of(path)
        for begin in range(0, size, span_bytes):
            piece = Piece(number, path, begin, min(begin + span_bytes, size), size)
            if piece.end - piece.begin > room:
                spans.append([])
                room = span_bytes
            spans[-1].append(piece)
            room -= piece.end - piece.begin
    return spans


def document_hash(seed, files, offsets):
    """64 well-mixed bits for each document: uint64 array, from the seed, file number and offset."""
    mixed = (np.asarray(files, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
             + np.asarray(offsets, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
             + np.uint64(seed % 2 ** 32))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    return mixed


def shard_of(seed, files, offsets, num_shards):
    """The shard of each document: int array."""
    return (document_hash(seed, files, offsets) >> np.uint64(11)).astype(np.int64) % num_shards


def find_boundary(stream, size, offset, encoding):
    """The first document start at or after offset, as every neighbour of a cut there finds it.

    Within a document of more than MAX_DOCUMENT_BYTES it is the first line start instead.
    """
    if offset == 0 or offset >= size:
        return min(offset, size)
    stream.seek(max(0, offset - 4096))  # before the blank lines that may stand before the start
    lines = list(_lines_until_document(stream, offset, encoding))
    return lines[-1][0] if lines[-1][1] else lines[0][0]


def _lines_until_document(stream, offset, encoding):
    """Yields (start, whether a blank line stands before) of the lines from offset to a document."""
    position = stream.tell()
    at_start, after_blank = position == 0, False
    while True:
        line = stream.readline(MAX_DOCUMENT_BYTES)
        blank = at_start and line.decode(encoding, "replace").isspace()
        if not line:
            yield position, True
            return
        if at_start and not blank and position >= offset:
            yield position, after_blank
            if after_blank or position > offset + MAX_DOCUMENT_BYTES:
                return
        after_blank = blank
        position += len(line)
        at_start = line.endswith(b"\n")


def scan_documents(stream, piece, encoding, name):
    """Yields (offset, size, crc) of the documents that begin in bytes [begin, end) of a file.

    Args:
      stream: the file, open for reading bytes.
      piece: Piece.
      encoding: str.
      name: str, what messages call the file.
    Raises:
      UserError: a line does not decode: file, line, byte and the flag.
    """
    stop = find_boundary(stream, piece.size, piece.end, encoding)
    position = find_boundary(stream, piece.size, piece.begin, encoding)
    stream.seek(position)
    start, crc, at_line_start = position, 0, True
    while position < stop:
        line = stream.readline(MAX_DOCUMENT_BYTES)
        if not line.endswith(b"\n"):
            line = _whole_characters(line, encoding)
            stream.seek(position + len(line))
        text = _decoded(stream, line, encoding, name, position)
        blank = at_line_start and text.isspace()
        if position > start and (blank or position + len(line) - start > MAX_DOCUMENT_BYTES):
            yield start, position - start, crc
            start, crc = position, 0
        if not blank:
            crc = google_crc32c.extend(crc, line)
        position += len(line)
        if blank:
            start = position
        at_line_start = line.endswith(b"\n")
    if position > start:
        yield start, position - start, crc


def _whole_characters(line, encoding):
    """line without the bytes of a character that is cut off at its end."""
    for cut in range(4):
        try:
            line[:len(line) - cut].decode(encoding)
            return line[:len(line) - cut] or line
        except UnicodeDecodeError:
            continue
    return line


def _decoded(stream, line, encoding, name, position):
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        stream.seek(0)
        number, left = 1, position
        while left:
            part = stream.read(min(left, 1 << 20))
            number, left = number + part.count(b"\n"), left - len(part)
        raise cli.UserError("{}, line {}, byte {}: not {}; --input_encoding names the encoding of "
                            "the text, for example gb18030".format(
                                name, number, position + error.start + 1, encoding)) from error


class Indexer(object):
    """The first pass over one span: notes its documents, ordered by shard.

    A call with a span's number and pieces returns (documents, checksum).
    """

    def __init__(self, folder, names, encoding, seed, num_shards):
        self.folder = folder
        self.names = names
        self.encoding = encoding
        self.seed = seed
        self.num_shards = num_shards

    def __call__(self, job):
        number, pieces = job
        found = []
        for piece in pieces:
            with open(piece.path, "rb") as stream:
                found += [(piece.file,) + document for document in scan_documents(
                    stream, piece, self.encoding, self.names[piece.file])]
        entries = np.array(found, dtype=np.int64).reshape(-1, 4)  # [documents, 4]
        shards = shard_of(self.seed, entries[:, 0], entries[:, 1], self.num_shards)
        bounds = np.searchsorted(np.sort(shards), np.arange(self.num_shards + 1))
        np.save(_index_path(self.folder, number, "bounds"), bounds)
        np.save(_index_path(self.folder, number, "entries"),
                entries[np.argsort(shards, kind="stable"), :3])
        return len(entries), google_crc32c.value(entries.astype("<i8").tobytes())


def _index_path(folder, number, part):
    return os.path.join(folder, "{}-{:06d}.npy".format(part, number))


def read_shard(folder, paths, num_spans, encoding, shard):
    """Yields the Documents of a shard in the order of the corpus.

    Args:
      folder: where Indexer wrote.
      paths: the plain files.
      num_spans: int.
      encoding: str.
      shard: int.
    """
    opened, stream = None, None
    try:
        for span in range(num_spans):
            bounds = np.load(_index_path(folder, span, "bounds"), mmap_mode="r")
            first, last = int(bounds[shard]), int(bounds[shard + 1])
            if first == last:
                continue
            entries = np.load(_index_path(folder, span, "entries"), mmap_mode="r")[first:last]
            for number, offset, size in entries.tolist():
                if number != opened:
                    if stream is not None:
                        stream.close()
                    stream, opened = open(paths[number], "rb"), number
                stream.seek(offset)
                yield Document(number, offset, stream.read(size).decode(encoding))
    finally:
        if stream is not None:
            stream.close()


def lines_of(document):
    """The sentences of a document: its lines without spaces and byte order mark around them."""
    return [line.strip(" \t\r\ufeff") for line in document.text.rstrip("\n").split("\n")]

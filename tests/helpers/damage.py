"""Where the records of a file stand, to damage one of them."""

from pretraining import record_files
from pretraining_data.records import read_records


def change_byte(path, position):
    """Flips the bits of one byte of a file."""
    with open(path, "r+b") as stream:
        stream.seek(position)
        byte = stream.read(1)[0]
        stream.seek(position)
        stream.write(bytes([byte ^ 255]))


def frame_starts(path):
    """Where each record of an uncompressed file begins, and the file's end."""
    starts = [0]
    for record in read_records(path):
        starts.append(starts[-1] + len(record) + record_files.AROUND)
    return starts

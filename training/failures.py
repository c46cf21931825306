"""Turns what TensorFlow raises in the middle of a run into one line that a user can act on.

In: an exception of the run.  Out: a UserError that names the file and record, the folder, or the
flags that decide the memory.
"""

import contextlib
import re

import tensorflow.compat.v1 as tf

from cli import UserError
from weights.checkpoints import newest_checkpoint

NOT_WRITABLE = re.compile(
    "No space left|File too large|quota exceeded|Permission denied|Read-only file system", re.I)
OUT_OF_MEMORY = re.compile("OOM|[Oo]ut of memory|allocat")


@contextlib.contextmanager
def explained(output_dir, find_damage=None):
    """Runs the body of a `with` statement.

    Args:
      output_dir: the run's folder.
      find_damage: function() -> (path, record number, reason) of a damaged input record, or None;
        default: the run reads no records.
    Raises:
      UserError: an input record is damaged; the disk is full or cannot be written.
    """
    try:
        yield
    except (tf.errors.OpError, OSError, UnicodeDecodeError) as error:
        words = first_line(error)
        if NOT_WRITABLE.search(str(error)):
            raise UserError("--output_dir {!r} cannot be written any more: {}; the last complete "
                            "checkpoint is {}".format(output_dir, words, newest_checkpoint(
                                output_dir))) from None
        # TensorFlow's own message does not decode where a record's bytes stand in it.
        damaging = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, UnicodeDecodeError)
        if find_damage and isinstance(error, damaging):
            tf.logging.error("%s; looking for the record", words)
            damage = find_damage()
            if damage:
                raise UserError("{}: record {} (the first is 0) is corrupt: {}; "
                                "--skip_corrupt_records leaves such records out".format(
                                    *damage)) from None
        raise


def first_line(error):
    """What an error says, without the list of operations that TensorFlow appends."""
    text = getattr(error, "message", None) or str(error)
    return (text.splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def memory_advice(now, less):
    """Turns a lack of memory inside a `with` statement into one line that says what to change.

    now: the flags that decide the memory, as they are; less: those that take less of it.
    """
    try:
        yield
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        if isinstance(error, tf.errors.OpError) and not OUT_OF_MEMORY.search(error.message):
            raise
        raise UserError("out of memory with {}: take {} ({})".format(
            now, less, first_line(error)[:200])) from None


def forward_advice(batch_flag, batch_size, max_seq_length):
    """memory_advice() for an evaluation or prediction, by the flag of its batch size."""
    return memory_advice("--{}={} and --max_seq_length={}".format(
        batch_flag, batch_size, max_seq_length), "a smaller --{}".format(batch_flag))


def step_advice(micro_batch_size, recompute):
    """memory_advice() for training steps, by their micro-batch size and recomputation (bool)."""
    less = []
    if micro_batch_size != 1:
        less.append("--micro_batch_size={}".format(max(micro_batch_size // 2, 1)))
    if not recompute:
        less.append("--recompute=true")
    return memory_advice(
        "--micro_batch_size={} and --recompute={}".format(micro_batch_size, str(recompute).lower()),
        " or ".join(less or ["a shorter --max_seq_length or a smaller model"]))

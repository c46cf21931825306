"""Turns what TensorFlow raises in the middle of a run into one line that a user can act on.

In: an exception of the run.  Out: a UserError that names the file and record, or the folder.
"""

import contextlib
import re

import tensorflow.compat.v1 as tf

from cli import UserError
from weights.checkpoints import newest_checkpoint

NOT_WRITABLE = re.compile(
    "No space left|File too large|quota exceeded|Permission denied|Read-only file system", re.I)


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
    except (tf.errors.OpError, OSError) as error:
        words = first_line(error)
        if NOT_WRITABLE.search(str(error)):
            raise UserError("--output_dir {!r} cannot be written any more: {}; the last complete "
                            "checkpoint is {}".format(output_dir, words, newest_checkpoint(
                                output_dir))) from None
        damaging = (tf.errors.DataLossError, tf.errors.InvalidArgumentError)
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

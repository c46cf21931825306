"""What a failure of a run becomes: the record that caused it, in one line."""

import pytest

from cli import UserError
from training import failures


def test_a_message_that_does_not_decode_leads_to_the_record(tmp_path):
    """TensorFlow quotes a record that is no Example, whose bytes its own message then chokes on."""
    error = UnicodeDecodeError("utf-8", b"\x84", 0, 1, "invalid start byte")
    with pytest.raises(UserError, match="a.tfrecord: record 3 .* is corrupt: no Example"):
        with failures.explained(str(tmp_path), lambda: ("a.tfrecord", 3, "no Example")):
            raise error
    for find_damage in (None, lambda: None):
        with pytest.raises(UnicodeDecodeError):
            with failures.explained(str(tmp_path), find_damage):
                raise error

"""What waits is predicted together, nobody is held up by another, and no fault spreads."""

import threading
import time

import pytest

from cli import UserError
from serving.batching import Batcher, Service, TooManyWaiting


class Gate:
    """A service that answers a row by itself once the gate is open, and notes what it is asked."""

    def __init__(self):
        self.open, self.entered, self.batches = threading.Event(), threading.Event(), []
        self.service = Service({}, (1,), self.encode, self.answer)

    def encode(self, row):
        if row == "bad":
            raise UserError("cannot be read")
        return row

    def answer(self, rows):
        self.entered.set()
        assert self.open.wait(5)
        self.batches.append(rows)
        if "poison" in rows:
            raise ValueError("a fault of the model")
        return [row * 2 for row in rows]


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def batcher(gate):
    """A Batcher whose first prediction is under way and waits at the gate."""
    batcher = Batcher(gate.service, batch_size=3, most_waiting=12)
    batcher.first = batcher.submit(["first"])
    assert gate.entered.wait(5)
    yield batcher
    gate.open.set()
    batcher.close()


def test_what_waits_is_joined_and_each_gets_its_own(gate, batcher):
    futures = [batcher.submit(rows) for rows in (["a"], ["b", "c"], ["d"])]
    assert batcher.waiting_rows == 4
    gate.open.set()
    assert [future.result(5) for future in futures] == [["aa"], ["bb", "cc"], ["dd"]]
    assert batcher.first.result(5) == ["firstfirst"] and batcher.waiting_rows == 0
    assert gate.batches == [["first"], ["a", "b", "d"], ["c"]]


def test_a_large_request_does_not_hold_up_a_small_one(gate, batcher):
    large = batcher.submit(list("abcdefgh"))
    small = batcher.submit(["s"])
    gate.open.set()
    assert large.result(5) == [letter * 2 for letter in "abcdefgh"] and small.result(5) == ["ss"]
    assert "s" in gate.batches[1] and [len(rows) for rows in gate.batches] == [1, 3, 3, 3]


def test_a_long_row_counts_as_several(gate, batcher):
    long = batcher.submit(["long" * 256, "a", "b"])
    gate.open.set()
    assert long.result(5)[1:] == ["aa", "bb"]
    assert [len(rows) for rows in gate.batches] == [1, 1, 2]


def test_a_bad_row_fails_its_own_request_alone(gate, batcher):
    bad, good = batcher.submit(["a", "bad", "b", "c", "d"]), batcher.submit(["e"])
    gate.open.set()
    with pytest.raises(UserError, match="^row 2: cannot be read$"):
        bad.result(5)
    assert good.result(5) == ["ee"]
    batcher.submit(["end"]).result(5)
    assert batcher.waiting_rows == 0 and not any("d" in rows for rows in gate.batches)


def test_a_fault_of_the_model_fails_the_row_that_causes_it(gate, batcher):
    poisoned, others = batcher.submit(["poison"]), [batcher.submit([row]) for row in "ab"]
    gate.open.set()
    with pytest.raises(ValueError, match="a fault of the model"):
        poisoned.result(5)
    assert [future.result(5) for future in others] == [["aa"], ["bb"]]


def test_what_nobody_waits_for_is_not_predicted(gate, batcher):
    dropped, kept = batcher.submit(list("abcdef")), batcher.submit(["k"])
    assert dropped.cancel()
    gate.open.set()
    assert kept.result(5) == ["kk"] and gate.batches[1:] == [["k"]]
    assert batcher.waiting_rows == 0


def test_too_many_rows_are_refused_at_once(gate, batcher):
    kept = batcher.submit(["x"] * 12)
    with pytest.raises(TooManyWaiting):
        batcher.submit(["y"])
    gate.open.set()
    assert len(kept.result(5)) == 12 and batcher.submit(["y"]).result(5) == ["yy"]


def test_nothing_waits_on_an_idle_server():
    batcher = Batcher(Service({}, (1,), str, list), batch_size=64, most_waiting=64)
    started = time.time()
    assert [batcher.submit([letter]).result(5) for letter in "abc"] == [["a"], ["b"], ["c"]]
    assert time.time() - started < 1
    batcher.close()

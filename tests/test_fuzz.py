"""A short run of benchmarks/fuzz.py: mutated input succeeds or ends in one line, no other way."""

import random

import pytest

from benchmarks import fuzz

# Rounds of each kind, a few seconds' work; the longer run is benchmarks/fuzz.py itself.
ROUNDS = {"text": 30, "vocabulary": 12, "config": 20, "records": 3, "rows": 4, "huggingface": 12}


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    return fuzz.make_seeds(str(tmp_path_factory.mktemp("fuzz") / "sound"))


@pytest.mark.parametrize("kind", sorted(fuzz.KINDS))
def test_mutated_input_succeeds_or_ends_in_one_line(seeds, tmp_path, kind):
    rng = random.Random(20)
    found = [fuzz.try_once(kind, seeds, str(tmp_path / str(number)), rng)
             for number in range(ROUNDS[kind])]
    assert [said for verdict, said in found if verdict == "failed"] == []
    assert "refused" in {verdict for verdict, _ in found}  # the mutations do reach the script


class Script(object):
    """A stand-in for a script: no flags, and a main() that does as it is told."""

    __name__ = "script"

    def __init__(self, main):
        self.main = lambda values: main()

    def define_flags(self, values):
        pass


def refuse(words):
    raise fuzz.cli.UserError(words)


@pytest.mark.parametrize("main, verdict", [
    (lambda: None, "succeeded"), (lambda: refuse("one line"), "refused"),
    (lambda: refuse("two\nlines"), "failed"), (lambda: 1 / 0, "failed"),
    (lambda: fuzz.time.sleep(3), "failed")])
def test_an_outcome_is_judged(monkeypatch, main, verdict):
    monkeypatch.setattr(fuzz, "SLOWEST", 1)
    assert fuzz.outcome(fuzz.Case(Script(main), [], None))[0] == verdict


def test_what_a_refused_run_leaves_behind_is_a_failure(tmp_path):
    case = fuzz.Case(Script(lambda: refuse("no")), [], str(tmp_path))
    assert fuzz.outcome(case)[0] == "failed"

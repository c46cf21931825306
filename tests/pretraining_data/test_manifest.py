"""manifest.py: machines that share a folder lose none of each other's shards."""

import itertools
import json

import pytest

import cli
from pretraining_data import manifest

IDENTITY = {"settings": {"num_shards": 3, "max_seq_length": 8, "max_predictions_per_seq": 2},
            "vocab": {"size": 9}, "input": {"files": ["a.txt"]}}


def machine(tmp_path, *chosen):
    """A function that makes and notes the chosen shards as one machine would."""
    progress = manifest.Progress(str(tmp_path / "tf.tfrecord"), "-{}".format(chosen[0]))

    def work():
        progress.start(IDENTITY, False, chosen)
        progress.begin(chosen)
        for shard in chosen:
            with open(progress.shard_path(shard), "wb"):
                progress.add(shard, {"instances": shard + 1})
        progress.finish()
    return work


def interrupt(monkeypatch, number, other):
    """Lets other() run before the given one of the reads and writes; whether it has run: a list."""
    calls, done = itertools.count(), []

    def patched(function):
        def call(*arguments, **named):
            if next(calls) == number:
                done.append(True)
                other()
            return function(*arguments, **named)
        return call

    for place, name in ((manifest, "read_json"), (cli, "write_whole"), (manifest, "_remove"),
                        (manifest, "_move_unless_there")):
        monkeypatch.setattr(place, name, patched(getattr(place, name)))
    return done


@pytest.mark.parametrize("linked", [True, False])
def test_machines_that_end_at_any_instant_lose_nothing(tmp_path, monkeypatch, linked):
    for number in itertools.count():
        folder = tmp_path / str(number)
        folder.mkdir()
        with monkeypatch.context() as patch:
            if not linked:
                patch.setattr(manifest.os, "link", lambda *_: cli.LOCAL.open("/", "rb"))
            interrupted = interrupt(patch, number, machine(folder, 1, 2))
            machine(folder, 0)()
        if not interrupted:
            break
        content = json.loads((folder / "tf.manifest.json").read_text(encoding="utf-8"))
        assert content["totals"] == {"instances": 6}, number
        assert content["shards"] == {str(shard): {"instances": shard + 1} for shard in range(3)}
        assert not list(folder.glob(".*"))
    assert number > 10


def test_what_one_machine_of_several_has_made_is_described(tmp_path):
    machine(tmp_path, 0, 2)()
    content = manifest.read_json(str(tmp_path / "tf.manifest.json"))
    assert manifest.is_manifest(content) and sorted(content["shards"]) == ["0", "2"]

"""create_pretraining_data_beam.py with the local runner: the same files as without Beam."""

import importlib.util
import json
import os
import sys

import pytest
from absl import flags
from helpers.toys import write_text

import cli
import create_pretraining_data
import create_pretraining_data_beam
from pretraining_data import manifest

needs_beam = pytest.mark.skipif(importlib.util.find_spec("apache_beam") is None,
                                reason="needs Apache Beam: ./setup.sh --with=beam")


def run_script(script, vocab, text, output, **changes):
    values = flags.FlagValues()
    script.define_flags(values)
    options = dict(vocab_file=vocab, input_file=str(text), output_file=str(output), num_shards=3,
                   max_seq_length=64, max_predictions_per_seq=10)
    options.update(changes)
    values(["script"] + ["--{}={}".format(*option) for option in options.items()])
    script.main(values)


def contents(folder):
    found = {}
    for name in os.listdir(str(folder)):
        with open(os.path.join(str(folder), name), "rb") as stream:
            found[name] = stream.read()
    return found


@needs_beam
@pytest.mark.parametrize("options", [{}, {"masking": "dynamic", "compress": True}])
def test_the_same_bytes_as_without_beam(toy_vocab, toy_corpus, tmp_path, options):
    scripts = {"plain": create_pretraining_data, "beam": create_pretraining_data_beam}
    for name, script in scripts.items():
        os.mkdir(str(tmp_path / name))
        more = {"num_workers": 1} if name == "plain" else {}
        run_script(script, toy_vocab, toy_corpus, tmp_path / name / "tf.tfrecord",
                   **dict(options, **more))
    plain, beam = contents(tmp_path / "plain"), contents(tmp_path / "beam")
    path = manifest.manifest_path("tf.tfrecord")
    one, other = json.loads(plain.pop(path).decode()), json.loads(beam.pop(path).decode())
    assert plain == beam and len(plain) == 3
    del one["input"]["checksum"]
    assert one == other


@needs_beam
def test_bad_input_fails_clearly(toy_vocab, tmp_path):
    for name, text, words in (("a.txt.gz", "x", "packed"), ("b.txt", "", "b.txt is empty")):
        path = write_text(tmp_path / name, text)
        with pytest.raises(cli.UserError, match=words):
            run_script(create_pretraining_data_beam, toy_vocab, path, tmp_path / "tf.tfrecord")
    with pytest.raises(cli.UserError, match="--input_file: no file matches"):
        run_script(create_pretraining_data_beam, toy_vocab, tmp_path / "c*.txt", tmp_path / "tf")


def test_without_beam_it_says_what_to_install(toy_vocab, toy_corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(cli.UserError, match="./setup.sh --with=beam"):
        run_script(create_pretraining_data_beam, toy_vocab, toy_corpus, tmp_path / "tf.tfrecord")

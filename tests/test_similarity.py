"""Scores are the probability of the label that means 'the same', one line out for one line in."""

import io
import sys

import numpy as np
import pytest
from absl import flags
from helpers.toy_classifier import PAIRS, write_classifier
from helpers.toys import write_text

import similarity
from cli import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory, toy_vocab, toy_config):
    return write_classifier(tmp_path_factory.mktemp("pairs"), toy_vocab, toy_config)


def run(*arguments):
    values = flags.FlagValues()
    similarity.define_flags(values)
    values(["similarity.py"] + list(arguments))
    return similarity.main(values)


def test_scores_are_the_probability_of_the_same_label(folder):
    model = similarity.SentenceSimilarity(folder)
    scores = model.predict(PAIRS)
    assert scores.shape == (23,)
    assert np.array_equal(scores, model.predictor.predict(PAIRS)[:, 1])
    other = similarity.SentenceSimilarity(folder, same_label="0").predict(PAIRS)
    assert np.abs(scores + other - 1).max() < 1e-6


def test_script_reads_a_file_and_standard_input_alike(folder, tmp_path, capsys, monkeypatch):
    text = "".join("{}\t{}\n".format(*pair) for pair in PAIRS[:5]) + "\n"
    path = write_text(tmp_path / "pairs.txt", text)
    run("--model_dir=" + folder, "--input_file=" + path)
    from_file = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode("utf-8"))))
    run("--model_dir=" + folder)
    assert capsys.readouterr().out == from_file
    lines = from_file.split("\n")
    assert len(lines) == 7 and lines[5] == ""
    expected = similarity.SentenceSimilarity(folder).predict(PAIRS[:5])
    for line, pair, score in zip(lines, PAIRS, expected):
        cells = line.split("\t")
        assert tuple(cells[1:]) == pair and abs(float(cells[0]) - score) < 1e-6


def test_a_line_that_does_not_read_is_said_and_the_next_ones_are_answered(
        folder, tmp_path, capsys):
    path = write_text(tmp_path / "pairs.txt", "天\t气\n天气\n气\t天\n")
    assert run("--model_dir=" + folder, "--input_file=" + path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("ERROR\t" + path + ", line 2: 1 columns where 2 are expected")
    assert [line.split("\t")[1:] for line in lines[::2]] == [["天", "气"], ["气", "天"]]
    path = write_text(tmp_path / "pairs.txt", "天\t气\n")
    assert run("--model_dir=" + folder, "--input_file=" + path) == 0


def test_models_that_cannot_compare_are_refused(folder, tmp_path, toy_vocab, toy_config):
    with pytest.raises(UserError, match="--model_dir is required"):
        run()
    with pytest.raises(UserError, match="--same_label=yes: the model's labels are 0, 1"):
        run("--model_dir=" + folder, "--same_label=yes")
    single = write_classifier(tmp_path, toy_vocab, toy_config, pair=False, task="chnsenticorp")
    with pytest.raises(UserError, match="fine-tuned on chnsenticorp, which has no pairs"):
        run("--model_dir=" + single)

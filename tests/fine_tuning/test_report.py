"""Figures of a hand-made confusion table, and tables that read back to what was written."""

import json

import numpy as np
import pytest

from fine_tuning.outcomes import Classes, Score
from fine_tuning.report import class_report, class_report_text, write_predictions, write_report

# 3 classes, the last one neither there nor predicted.
CONFUSION = [[3, 1, 0], [2, 4, 0], [0, 0, 0]]


def test_figures_by_hand():
    report = class_report(CONFUSION, ["甲", "乙", "丙"], 0.5)
    assert report["accuracy"] == 0.7 and report["examples"] == 10
    first = report["classes"]["甲"]
    assert first == {"precision": 0.6, "recall": 0.75, "f1": pytest.approx(2 / 3), "examples": 4}
    assert report["classes"]["乙"]["f1"] == pytest.approx(8 / 11)
    assert report["classes"]["丙"]["f1"] == 0.0
    assert report["macro_f1"] == pytest.approx((2 / 3 + 8 / 11) / 3)


def test_report_files_hold_the_figures(tmp_path):
    report = class_report(CONFUSION, ["甲", "乙", "丙"], 0.5)
    path = write_report(str(tmp_path), "eval_results", report, class_report_text(report))
    with open(path, encoding="utf-8") as stream:
        text = stream.read()
    assert text == class_report_text(report)
    assert "accuracy = 0.7\n" in text and "乙\t2\t4\t0" in text
    with open(str(tmp_path / "eval_results.json"), encoding="utf-8") as stream:
        assert json.load(stream) == report


def test_predictions_read_back(tmp_path):
    probabilities = np.array([[0.1, 0.9], [0.75, 0.25]], np.float32)
    path = str(tmp_path / "test_results.tsv")
    write_predictions(path, probabilities, Classes(["坏", "好"]))
    with open(path, encoding="utf-8") as stream:
        rows = [line.split("\t") for line in stream.read().splitlines()]
    assert rows[0] == ["row", "label", "confidence", "p(坏)", "p(好)"]
    assert [row[:2] for row in rows[1:]] == [["1", "好"], ["2", "坏"]]
    assert np.array_equal(np.float32([row[3:] for row in rows[1:]]), probabilities)
    assert [np.float32(row[2]) for row in rows[1:]] == [np.float32(0.9), np.float32(0.75)]


def test_a_blank_line_is_one_and_a_score_of_0_is_not(tmp_path):
    path = str(tmp_path / "test_results.tsv")
    write_predictions(path, np.array([[0.0], [np.nan], [1.5]]), Score(["score"]))
    with open(path, encoding="utf-8") as stream:
        assert stream.read() == "row\tscore\n1\t0\n\n3\t1.5\n"

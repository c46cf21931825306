"""EM and F1 are those of the official CMRC 2018 evaluator, on its own figures and by hand."""

import io
import json
import os

import pytest
from helpers.toys import FIXTURES

from fine_tuning.reading_metric import (
    answer_scores,
    english_words,
    longest_common_run,
    metric_tokens,
    reading_report,
)


@pytest.fixture(scope="module")
def official():
    """153 predictions, with F1 (0..1) and EM of each and of all as the evaluator gave them."""
    with io.open(os.path.join(FIXTURES, "cmrc_metric.json"), encoding="utf-8") as stream:
        return json.load(stream)


def test_each_prediction_has_the_official_figures(official):
    assert len(official["rows"]) == official["total"] == 153
    for row in official["rows"]:
        exact, f1 = answer_scores(row["prediction"], row["answers"])
        assert exact == row["em"], row
        assert abs(f1 - row["f1"]) <= 1e-6, row


def test_all_predictions_have_the_official_figures(official):
    report = reading_report({row["id"]: row["prediction"] for row in official["rows"]},
                            {row["id"]: row["answers"] for row in official["rows"]})
    assert report["exact_match"] == pytest.approx(official["em"], abs=1e-6)
    assert report["f1"] == pytest.approx(official["f1"], abs=1e-6)
    assert (report["questions"], report["unanswered"]) == (153, 0)


# The right-hand sides are what NLTK 3.8.1's word tokenizer gives for these runs.
@pytest.mark.parametrize("text, tokens", [
    ("the murder of a machine operator", "the murder of a machine operator"),
    ('"the murder" (1970)', "`` the murder '' ( 1970 )"),
    ("world cup 2002.", "world cup 2002 ."),
    ("e.g. u.s. dollars", "e.g. u.s. dollars"),
    ("1,000, or 2,500", "1,000 , or 2,500"),
    ("he's, they'll, don't, cannot", "he 's , they 'll , do n't , can not"),
    ("'tis gonna be", "'t is gon na be"),
    ("the girls' room", "the girls ' room"),
    ("50% of $3.88 & c#", "50 % of $ 3.88 & c #"),
    ("wait...what?!", "wait ... what ? !"),
    ("«ça»", "« ça »"),
    ("o'neil", "o'neil"),
    ("   ", "")])
def test_english_is_cut_as_the_treebank_does(text, tokens):
    assert english_words(text) == tokens.split()


def test_marks_join_what_they_stand_between():
    assert metric_tokens("ω-force和《Koei Tecmo》。") == ["ωforce", "和", "koei", "tecmo"]


@pytest.mark.parametrize("first, second, length", [
    ("abcdef", "xbcdy", 3), ("abc", "abc", 3), ("abab", "babab", 4), ("abc", "xyz", 0),
    ("", "abc", 0), ("acbd", "abcd", 1)])
def test_the_overlap_is_contiguous(first, second, length):
    assert longest_common_run(list(first), list(second)) == length
    assert longest_common_run(list(second), list(first)) == length


def test_a_question_without_an_answer_is_right_if_left_empty():
    assert answer_scores("", []) == (1.0, 1.0)
    assert answer_scores("上海", []) == (0.0, 0.0)
    assert answer_scores("", ["上海"]) == (0.0, 0.0)


def test_missing_predictions_count_nothing():
    answers = {"1": ["上海"], "2": ["北京"], "3": ["广州市"]}
    report = reading_report({"1": "上海", "3": "广州"}, answers)
    assert report["unanswered"] == 1
    assert report["exact_match"] == pytest.approx(100 / 3)
    assert report["f1"] == pytest.approx((100 + 80) / 3)
    assert reading_report({}, answers) == {"questions": 3, "unanswered": 3, "exact_match": 0.0,
                                           "f1": 0.0}

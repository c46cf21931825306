"""serve.py: every kind of model answers over HTTP as its predictor does; the script itself."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

pytest.importorskip("tornado", reason="needs tornado: ./setup.sh --with=serve")
pytest.importorskip("prometheus_client", reason="needs it: ./setup.sh --with=serve")

from helpers.served import ask, predict, served
from helpers.toy_classifier import PAIRS, write_classifier
from helpers.toy_encoder import write_pretrained
from helpers.toy_labeller import write_labeller
from helpers.toy_reading import toy_passages, write_reader
from helpers.toy_records import run_script
from helpers.toys import ROOT, TOY_SENTENCES

import fill_mask
import serve
from cli import UserError
from fine_tuning.export import export_saved_model
from fine_tuning.labelling_predictor import LabellingPredictor
from fine_tuning.predictor import Predictor
from fine_tuning.reading_predictor import ReadingPredictor


def answers_over_http(model_dir, rows, **limits):
    """(what /model says, the answers) of a folder's model."""
    with served(serve.service_of(str(model_dir), 4, 3), rows=99, chars=999, body=99999,
                waiting_rows=99, **limits) as running:
        about = json.loads(ask(running.port, "GET", "/model")[2].decode("utf-8"))
        status, answer = predict(running.port, rows)
    assert status == 200, answer
    return about, answer["answers"]


@pytest.mark.parametrize("exported", [False, True])
def test_a_classifier_gives_label_and_probabilities(tmp_path, toy_vocab, toy_config, exported):
    folder = write_classifier(tmp_path, toy_vocab, toy_config)
    model = Predictor(folder)
    expected = model.predict(PAIRS)
    if exported:
        folder = os.path.join(folder, "exported")
        export_saved_model(model, folder)
    about, answers = answers_over_http(folder, PAIRS)
    assert (about["head"], about["labels"], about["texts"]) == ("classifier", ["0", "1"], [2])
    for answer, row in zip(answers, expected):
        assert answer["label"] == "01"[row.argmax()]
        assert [answer["probabilities"][label] for label in "01"] == pytest.approx(row, abs=2e-6)
    assert len(answers) == len(PAIRS)


@pytest.mark.parametrize("outcome, labels, keys", [
    ("label_sets", ("a", "b", "c"), {"labels", "probabilities"}), ("score", ("score",), {"score"})])
def test_sets_of_labels_and_scores_are_answered(tmp_path, toy_vocab, toy_config, outcome, labels,
                                                keys):
    folder = write_classifier(tmp_path, toy_vocab, toy_config, labels=labels, task="tsv",
                              columns="text_a,text_b,label", outcome=outcome)
    _, answers = answers_over_http(folder, PAIRS)
    assert {frozenset(answer) for answer in answers} == {frozenset(keys)}
    for answer, row in zip(answers, Predictor(folder).predict(PAIRS)):
        values = answer.get("probabilities", answer)
        assert [values[label] for label in labels] == pytest.approx(row, abs=2e-6)
        assert answer.get("labels", []) == [
            label for label, value in zip(labels, row) if outcome != "score" and value >= 0.5]


def test_a_classifier_of_single_texts_refuses_pairs(tmp_path, toy_vocab, toy_config):
    folder = write_classifier(tmp_path, toy_vocab, toy_config, pair=False, labels=("坏", "好"))
    with served(serve.service_of(folder, 4, 3)) as running:
        assert predict(running.port, [["天气", "有雨"]]) == (
            400, {"error": "row 1: 2 texts, this model takes 1"})
        status, answer = predict(running.port, ["天气"])
    assert status == 200 and set(answer["answers"][0]["probabilities"]) == {"好", "坏"}


def test_labelling_gives_entities_at_their_characters(tmp_path, toy_vocab, toy_config):
    folder = write_labeller(tmp_path, toy_vocab, toy_config)
    about, answers = answers_over_http(folder, TOY_SENTENCES)
    expected = LabellingPredictor(folder).predict(TOY_SENTENCES)
    assert about["types"] == ["LOC", "PER"] and any(answer["entities"] for answer in answers)
    for text, answer, mentions in zip(TOY_SENTENCES, answers, expected):
        assert len(answer["entities"]) == len(mentions)
        for entity, mention in zip(answer["entities"], mentions):
            assert entity["confidence"] == pytest.approx(mention.confidence, abs=1e-5)
            assert (entity["type"], entity["text"]) == mention[0::3][:2]
            assert text[entity["start"]:entity["end"]] == entity["text"]


@pytest.mark.parametrize("null_answers", [False, True])
def test_reading_gives_the_place_of_the_answer(tmp_path, toy_vocab, toy_config, null_answers):
    folder = write_reader(tmp_path, toy_vocab, toy_config, null_answers)
    rows = [(questions[0][1], context) for context, questions in toy_passages(5)]
    about, answers = answers_over_http(folder, rows + [("哪年？", "")])
    assert (about["head"], about["texts"]) == ("reading", [2])
    assert (answers.pop()["text"], len(answers)) == ("", 5)
    best = ReadingPredictor(folder).predict(rows)
    for (_, passage), answer, expected in zip(rows, answers, best):
        found = [answer] + answer["others"]
        assert [one["text"] for one in found] == [one.text for one in expected[:3]]
        assert [one["probability"] for one in found] == pytest.approx(
            [one.probability for one in expected[:3]], abs=1e-5)
        assert passage[answer["start"]:answer["end"]] == answer["text"]


def test_a_pre_trained_model_fills_in(tmp_path, toy_vocab):
    folder = write_pretrained(tmp_path, "albert_zh", toy_vocab)
    texts = ["天[MASK]雨", "[MASK][MASK]桥在2019年建成[MASK]", "明天有[MASK]"]
    about, answers = answers_over_http(folder, texts)
    filler = fill_mask.MaskFiller(folder, top_k=3)
    assert about["head"] == "masked_words"
    for text, answer in zip(texts, answers):
        assert answer["text"] == text and len(answer["masks"]) == text.count("[MASK]")
        for row, candidates in zip(answer["masks"], filler.fill(text)):
            assert [place["token"] for place in row] == [best.token for best in candidates]
            assert [place["probability"] for place in row] == pytest.approx(
                [best.probability for best in candidates], abs=1e-6)
    with served(serve.service_of(folder, 4, 3)) as running:
        status, answer = predict(running.port, ["天[MASK]", "天气"])
    assert (status, answer["error"]) == (400, "row 2: no [MASK] in the text '天气'")


def test_the_page_knows_every_kind_of_model():
    with open(os.path.join(ROOT, "serving", "page.html"), encoding="utf-8") as stream:
        kinds = re.findall(r"^  (\w+): \{$", stream.read(), re.MULTILINE)
    assert sorted(kinds) == sorted(serve.LOADERS)


def test_a_folder_without_a_model_and_missing_packages_are_one_line(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no checkpoint"):
        run_script(serve, "--model_dir=" + str(tmp_path), "--port=0")
    with pytest.raises(UserError, match="--model_dir is required"):
        run_script(serve)
    monkeypatch.delitem(sys.modules, "serving.server")
    monkeypatch.setitem(sys.modules, "tornado.httpserver", None)
    with pytest.raises(UserError, match="./setup.sh --with=serve"):
        run_script(serve, "--model_dir=" + str(tmp_path))


def test_from_start_to_sigterm(tmp_path, toy_vocab, toy_config):
    """The one test with a process of its own: address on standard output, clean end, exit 0."""
    folder = write_classifier(tmp_path, toy_vocab, toy_config)
    process = subprocess.Popen(
        [sys.executable, "serve.py", "--model_dir=" + folder, "--port=0"], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        address = process.stdout.readline().decode("utf-8").strip()
        port = int(re.match(r"http://127\.0\.0\.1:(\d+)$", address).group(1))
        assert predict(port, PAIRS[:2])[0] == 200
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (0, b"")
    assert b"0 requests are left without an answer" in error and b"Traceback" not in error

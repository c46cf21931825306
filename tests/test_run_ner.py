"""run_ner.py end to end on toy sentences: train, resume, evaluate, predict, answer, refuse."""

import io
import json
import os
import shutil
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.killed_runs import run_until_killed
from helpers.toy_classifier import write_classifier
from helpers.toy_entities import write_tagged
from helpers.toy_records import run_script
from helpers.toys import TOY_CONFIG, toy_tokens, write_text

import run_ner
from cli import UserError
from fine_tuning import labelling, tag_schemes
from fine_tuning.labelling_predictor import LabellingPredictor
from fine_tuning.predictor import Predictor
from weights import checkpoints

LONG = "老师让父母写一篇短文。图书馆里的渔民越来越多，" * 4 + "5G 😀 abc\t渔港"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tagged(tmp_path_factory.mktemp("data"), train=60, dev=17, test=9)


@pytest.fixture(scope="module")
def settings(tmp_path_factory, toy_vocab, data):
    """The flags of a toy run, by name; a configuration of one layer, which is built often."""
    config = dict(TOY_CONFIG, vocab_size=len(toy_tokens()), num_hidden_layers=1)
    return dict(task_name="bio", vocab_file=toy_vocab, data_dir=data, max_seq_length=32,
                bert_config_file=write_text(tmp_path_factory.mktemp("config") / "config.json",
                                            json.dumps(config)),
                train_batch_size=8, learning_rate=0.005, num_train_epochs=1, eval_batch_size=8)


@pytest.fixture(scope="module")
def call(settings):
    """Runs the script with the toy model's files and further flags."""
    def run(output, *switches, **changes):
        run_script(run_ner, *(["--%s=%s" % item for item in dict(
            settings, output_dir=output, **changes).items()] + list(switches)))
    return run


@pytest.fixture(scope="module", params=["", "--crf"], ids=["softmax", "crf"])
def trained(request, tmp_path_factory, call):
    """A model fine-tuned until it has learned the toy task, once with and once without a CRF."""
    folder = tmp_path_factory.mktemp("trained")
    data = write_tagged(tmp_path_factory.mktemp("more_data"), train=480, dev=17, test=9)
    call(folder, "--do_train", "--save_best", *filter(None, [request.param]), num_train_epochs=3,
         classifier_dropout=0, data_dir=data)
    return str(folder)


def report_of(folder, name="eval_results"):
    with io.open(os.path.join(str(folder), name + ".json"), encoding="utf-8") as stream:
        return json.load(stream)


def lines_of(*path):
    with io.open(os.path.join(*map(str, path)), encoding="utf-8") as stream:
        return stream.read().splitlines()


# ---- training ----------------------------------------------------------------------------------


def test_overfits_keeps_the_best_by_f1_and_describes_itself(trained):
    cells = [line.split("\t") for line in lines_of(trained, "evaluations.tsv")]
    assert cells[0] == ["step", "f1", "precision", "recall"]
    assert report_of(trained + "/best")["f1"] == max(float(line[1]) for line in cells[1:]) >= 0.98
    run_script(run_ner, "--output_dir=" + trained, "--do_eval", "--eval_batch_size=3")
    assert report_of(trained) == report_of(trained + "/best")
    description = report_of(trained, "labelling")
    assert (description["scheme"], description["types"]) == ("BIO", ["DEV", "LOC", "PER"])
    has_crf = "crf/transitions" in dict(tf.train.list_variables(trained))
    assert description["crf"] == has_crf
    if has_crf:
        assert np.ptp(tf.train.load_variable(trained, "crf/transitions")) > 0.5


def test_a_killed_run_goes_on_and_the_end_has_nothing_to_train(settings, call, tmp_path, caplog):
    folder = tmp_path / "out"
    run_until_killed(run_ner, 4, ["--do_train", "--save_checkpoints_steps=4"] + [
        "--%s=%s" % item for item in dict(settings, output_dir=folder).items()])
    assert checkpoints.step_of(str(folder)) == 4
    with caplog.at_level("INFO"):
        call(folder, "--do_train")
        call(folder, "--do_train", "--do_eval")
    assert "training from step 4 to 8" in caplog.text
    assert "nothing to train: {} is at step 8".format(folder) in caplog.text
    assert report_of(folder)["sentences"] == 17


def test_other_data_or_a_crf_start_afresh(call, tmp_path, caplog):
    folder = tmp_path / "out"
    data = write_tagged(tmp_path, train=9)
    call(folder, "--do_train", data_dir=data)
    write_text(tmp_path / "train.txt", "天 S-X\n气 O\n")
    with caplog.at_level("INFO"):
        call(folder, "--do_train", data_dir=data)
        call(folder, "--do_train", "--crf", data_dir=data)
    assert sorted(path.name for path in folder.iterdir() if "replaced" in path.name) == [
        "replaced-1", "replaced-2"]
    assert caplog.text.count("training starts again") == 2
    assert report_of(folder, "labelling")["scheme"] == "BIOES"


def test_sentences_are_read_in_windows_and_inexact_entities_said(call, tmp_path, caplog):
    text = "渔港天气。" * 9
    write_text(tmp_path / "train.jsonl", json.dumps({"text": text + "ab€", "entities": [
        {"type": "X", "start": 5, "end": 7}, {"type": "Y", "start": 46, "end": 47}]}))
    with caplog.at_level("INFO"):
        call(tmp_path / "out", "--do_train", task_name="jsonl", data_dir=str(tmp_path))
    assert "1 sentences in 2 windows, longest 32 tokens" in caplog.text
    assert "1 of 1 sentences have an entity whose ends are no ends of tokens" in caplog.text


# ---- answers -----------------------------------------------------------------------------------


def test_predictions_have_every_character_and_entities_are_slices(trained, data, capsys):
    source = write_text(os.path.join(trained, "texts.txt"), LONG.replace("\t", " ") + "\n\n桥\n")
    run_script(run_ner, "--output_dir=" + trained, "--do_predict", "--predict_file=" + source,
               "--cluener_submission")
    rows = [json.loads(line) for line in lines_of(trained, "predictions.jsonl")]
    assert [row["text"] for row in rows] == [LONG.replace("\t", " "), "", "桥"]
    for row in rows:
        for entity in row["entities"]:
            assert row["text"][entity["start"]:entity["end"]] == entity["text"]
            assert 0 < entity["confidence"] <= 1
    assert [entity["text"] for entity in rows[0]["entities"]][:8] == ["老师", "父母", "图书馆",
                                                                    "渔民"] * 2
    with io.open(os.path.join(trained, "predictions.conll"), encoding="utf-8") as stream:
        tagged = stream.read().split("\n\n")
    assert "".join(line[0] for line in tagged[0].split("\n")) == rows[0]["text"]
    submitted = [json.loads(line) for line in lines_of(trained, "cluener_predict.json")]
    assert submitted[0]["label"]["LOC"]["图书馆"][0] == [11, 13] and submitted[1]["label"] == {}
    run_script(run_ner, "--output_dir=" + trained, "--do_predict")
    assert capsys.readouterr().out.endswith("f1 = 1.0\n")
    assert len(lines_of(trained, "predictions.jsonl")) == 9


def test_no_answer_depends_on_batch_or_company(trained):
    texts = [LONG, "", "桥", " \u200b", "渔民用5G手机查询市场。"]
    together = LabellingPredictor(trained, batch_size=3).predict(texts)
    model = LabellingPredictor(trained, batch_size=1)
    for text, found in zip(texts, together):
        alone, = model.predict([text])
        assert [mention[:4] for mention in alone] == [mention[:4] for mention in found]
        assert all(abs(one.confidence - other.confidence) < 1e-5
                   for one, other in zip(alone, found))
        tags = model.character_tags(text, found)
        assert len(tags) == len(text)
        assert tag_schemes.entities_from_tags(tags) == [
            tag_schemes.Entity(*mention[:3]) for mention in found]


def test_standard_input_is_answered_line_by_line(trained, capsys, monkeypatch):
    content = "渔民在桥。\n\n".encode("utf-8") + b"\xff\n\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert run_script(run_ner, "--output_dir=" + trained, "--do_predict", "--predict_file=-") == 1
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["text"] for answer in answers] == ["渔民在桥。", "", "\ufffd", ""]
    assert answers[2]["error"].startswith("standard input, line 3: byte 0xff at offset 0")
    assert answers[0]["entities"][0]["text"] == "渔民" and answers[1]["entities"] == []


def test_exports_answer_alike(trained, capsys, monkeypatch):
    run_script(run_ner, "--output_dir=" + trained, "--do_export")
    lines = capsys.readouterr().out.splitlines()
    assert "the probabilities differ by at most" in lines[0]
    assert len(lines) == (3 if tf.__version__ >= "2" else 2)
    texts = [LONG, "渔民用5G手机查询市场。"]
    served = LabellingPredictor(trained + "/export/labelling").predict(texts)
    expected = LabellingPredictor(trained).predict(texts)
    for found, wanted in zip(sum(served, []), sum(expected, [])):
        assert found[:4] == wanted[:4] and abs(found.confidence - wanted.confidence) < 1e-5


# ---- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("changes, words", [
    (dict(task_name="foo"), "--task_name: unknown task 'foo'; known: msra, cluener"),
    (dict(max_seq_length=2), "--max_seq_length=2 is too short"),
    (dict(max_seq_length=129), "above the config's max_position_embeddings 128"),
    (dict(data_dir="/nowhere"), "--data_dir=/nowhere: no train file for the task bio"),
    (dict(init_checkpoint="/nowhere/x"), "no checkpoint '/nowhere/x'")])
def test_settings_that_fit_nothing_are_refused(call, tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        call(tmp_path / "out", "--do_train", **changes)
    assert not (tmp_path / "out").exists()


def test_a_type_that_only_dev_has_stops_before_training(call, tmp_path):
    write_tagged(tmp_path, train=9)
    write_text(tmp_path / "dev.txt", "天 O\n\n气 B-LOC\n雨 B-ZOO\n")
    with pytest.raises(UserError, match="dev.txt, line 4: '雨' is of the type 'ZOO'"):
        call(tmp_path / "out", "--do_train", "--save_best", data_dir=str(tmp_path))
    assert checkpoints.newest_checkpoint(str(tmp_path / "out")) is None


def test_folders_of_other_heads_are_refused(trained, tmp_path, toy_vocab, toy_config, call):
    classifier = write_classifier(tmp_path, toy_vocab, toy_config)
    with pytest.raises(UserError, match="head 'classifier', not 'labelling'"):
        LabellingPredictor(classifier)
    with pytest.raises(UserError, match="a model with the head 'labelling'"):
        Predictor(trained)
    with pytest.raises(UserError, match="holds a model with the head 'classifier'"):
        call(classifier, "--do_train")
    copy = shutil.copytree(trained, str(tmp_path / "copy"))
    description = dict(report_of(copy, "labelling"), types=["X"])
    write_text(os.path.join(copy, "labelling.json"), json.dumps(description))
    with pytest.raises(UserError, match=r"has shape \[7.* there and \[3"):
        LabellingPredictor(copy)


def test_every_task_names_files_for_each_split():
    for task in labelling.TASKS.values():
        assert sorted(task.files) == ["dev", "test", "train"]

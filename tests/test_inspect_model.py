"""inspect_model.py on models of every kind: what it says is what was written there."""

import json
import os

import numpy as np
import pytest
from helpers import toy_heads
from helpers.numpy_models import google_shapes, random_weights
from helpers.toy_classifier import write_classifier
from helpers.toy_records import run_script
from helpers.toy_styles import ALBERT_ZH, GOOGLE, STYLES, TWO, shapes_of
from helpers.toys import toy_tokens, write_text

import convert_checkpoint
import inspect_model
from cli import UserError
from fine_tuning import export, predictor
from weights import checkpoints


def write_model(folder, arrays, config=None):
    """A folder with a checkpoint of these arrays and, where given, a config; its path."""
    folder.mkdir()
    checkpoints.write_checkpoint(str(folder), "model.ckpt-9", arrays)
    if config:
        write_text(folder / "albert_config.json", json.dumps(config))
    return str(folder)


def rows_of(folder):
    """The report on a folder: dict title -> texts, joined by a bar."""
    rows = {}
    for title, text in inspect_model.model_rows(str(folder)):
        rows[title] = " | ".join(filter(None, [rows.get(title), text]))
    return rows


def count(shapes, *starts):
    return "{:,}".format(sum(int(np.prod(shape)) for name, shape in shapes.items()
                             if name.startswith(starts)))


def test_a_pretrained_models_folder(tmp_path):
    shapes = shapes_of("albert_zh")
    arrays = dict(random_weights(shapes), global_step=np.int64(9))
    slots = {name + "/lamb_m": array for name, array in arrays.items() if name.startswith("bert")}
    folder = write_model(tmp_path / "run", dict(arrays, **slots), ALBERT_ZH)
    rows = rows_of(folder)
    assert rows["model"].endswith("run/model.ckpt-9") and "albert_zh's" in rows["names"]
    assert rows["parameters"] == count(shapes, "")
    assert rows["  encoder"] == count(shapes, "bert/encoder/")
    assert rows["  masked words' head"] == count(shapes, "cls/predictions/")
    assert rows["heads"] == "pooled output; masked words; sentence order"
    assert rows["step"] == "9" and rows["optimizer"] == "lamb_m"
    keys = json.loads("{%s}" % rows["config keys"])
    assert keys["parameter_sharing"] == "all"
    assert keys["hidden_size"] == 32 and keys["vocab_size"] == len(toy_tokens())
    assert rows["config"] == ('albert_config.json fits; it adds "num_hidden_layers": 1, '
                              '"num_attention_heads": 4, "hidden_act": "gelu", "ln_type": "postln"')
    assert "run_pretraining.py --output_dir=" + folder in rows[""]
    assert "--format=tf|albert_zh|bert|huggingface" in rows[""]


def test_googles_names_behind_a_prefix_and_no_config(tmp_path):
    shapes = google_shapes(GOOGLE)
    rows = rows_of(write_model(tmp_path / "hub", {
        "module/" + name: array for name, array in random_weights(shapes).items()}))
    assert "begin with 'module/'" in rows["model"] and rows["names"] == "Google's"
    assert rows["style"].startswith("google") and rows["step"] == "not said"
    assert rows["parameters"] == count(shapes, "") and "other variables" not in rows
    assert '"num_hidden_groups": 1' in rows["config keys"]
    assert rows["config"].endswith("the weights cannot tell num_hidden_layers, "
                                   "num_attention_heads, hidden_act, ln_type")


def test_a_config_that_does_not_fit_is_said_to(tmp_path):
    rows = rows_of(write_model(tmp_path / "run", random_weights(shapes_of("two")),
                               dict(TWO, hidden_size=64)))
    assert rows["config"].startswith("does not fit: albert_config.json: variable ")
    assert rows["config"].endswith('"hidden_size": 32')


@pytest.mark.parametrize("form, said", [("bert", "this project's"), ("huggingface", "BertForPre")])
def test_a_plain_bert_is_shown_as_one(tmp_path, toy_vocab, form, said):
    source = write_model(tmp_path / "run", random_weights(shapes_of("two")), STYLES["two"])
    run_script(convert_checkpoint, "--from=" + source, "--to=" + str(tmp_path / "out"),
               "--vocab_file=" + toy_vocab, "--format=" + form)
    rows = rows_of(tmp_path / "out")
    assert rows["style"].startswith("plain BERT") and said in rows["model"] + rows["names"]
    assert '"num_hidden_layers": 2' in rows["config keys"] and " fits; " in rows["config"]
    assert rows["it serves as"].endswith("makes a checkpoint of it, if all layers are equal")


def test_a_classifier_and_what_it_is_exported_to(tmp_path, toy_vocab):
    config = write_text(tmp_path / "config.json", json.dumps(GOOGLE))
    folder = write_classifier(tmp_path / "run", toy_vocab, config, labels=("不同", "相同"))
    rows = rows_of(folder)
    assert rows["heads"] == "pooled output; classifier of 2 classes: 不同, 相同"
    assert (rows["task_name"], rows["pair"], rows["max_seq_length"]) == ("lcqmc", "True", "40")
    assert "--do_predict --predict_file=FILE" in rows[""]
    saved = os.path.join(folder, "saved_model")
    export.export_saved_model(predictor.Predictor(folder), saved)
    exported = rows_of(saved)
    assert exported["model"] == "SavedModel" and exported["heads"] == rows["heads"]
    assert exported["parameters"] == rows["parameters"] and "Predictor" in exported["it serves as"]
    run_script(convert_checkpoint, "--from=" + folder, "--to=" + str(tmp_path / "hf"),
               "--format=huggingface")
    theirs = rows_of(tmp_path / "hf")
    assert theirs["model"] == "Hugging Face folder, AlbertForSequenceClassification"
    assert theirs["heads"] == rows["heads"] and theirs["parameters"] == rows["parameters"]


@pytest.mark.parametrize("head, said, script", [
    ("labelling", "5 tags: O, B-LOC, I-LOC, B-PER, I-PER", "run_ner.py"),
    ("reading", "starts and ends of answers", "run_mrc.py")])
def test_labelling_and_reading_models_are_told_from_classifiers(
        tmp_path, toy_vocab, head, said, script):
    folder, _, weights = toy_heads.write_model(tmp_path / "run", toy_vocab, GOOGLE, head)
    rows = rows_of(folder)
    assert rows["heads"] == said and " fits; " in rows["config"]
    assert int(rows["  head of its task"]) == sum(
        array.size for name, array in weights.items() if not name.startswith("bert/"))
    assert "predictions: {} --output_dir=".format(script) in str(list(
        inspect_model.model_rows(folder)))


def test_what_is_no_model_ends_in_one_line(tmp_path):
    with pytest.raises(UserError, match="--folder: folder '.*' holds no checkpoint"):
        rows_of(tmp_path)
    rows = rows_of(write_model(tmp_path / "other", {"resnet/conv1": np.zeros([2, 3], np.float32)}))
    assert rows["names"] == "unknown" and rows["it serves as"].startswith("nothing here")
    assert rows["  other variables"] == "6" and rows["config keys"] == "none can be told"


def test_the_script_prints_a_row_a_line(tmp_path, capsys):
    folder = write_model(tmp_path / "run", random_weights(shapes_of("albert_zh")), ALBERT_ZH)
    run_script(inspect_model, "--folder=" + folder)
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 1 + len(list(inspect_model.model_rows(folder)))
    assert lines[0].split() == ["model", "TensorFlow", "checkpoint", folder + "/model.ckpt-9"]

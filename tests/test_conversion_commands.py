"""The README's commands on public checkpoints and conversion, one after the other at toy size."""

import importlib
import json
import os
import shutil

import numpy as np
from helpers.numpy_models import random_weights
from helpers.readme import COMMANDS, python_call
from helpers.toy_heads import write_model
from helpers.toy_records import run_script
from helpers.toy_styles import ALBERT_ZH, GOOGLE, shapes_of
from helpers.toys import pair_rows, write_text

import convert_checkpoint
from fine_tuning import predictor
from weights import checkpoints

MARKS = ("convert_checkpoint.py", "--output_dir=output/from_")
TOY = {"max_seq_length": 16, "train_batch_size": 8, "num_train_epochs": 1}


def write_place(folder, toy_vocab):
    """What the commands take as given: public archives, a folder of Hugging Face, LCQMC."""
    def add(name, checkpoint, shapes, config=None):
        (folder / name).mkdir()
        checkpoints.write_checkpoint(str(folder / name), checkpoint, random_weights(shapes))
        os.remove(str(folder / name / "checkpoint"))
        if config:
            write_text(folder / name / "albert_config.json", json.dumps(config))
            shutil.copy(toy_vocab, str(folder / name / "vocab_chinese.txt"))
    (folder / "albert_config").mkdir()
    write_text(folder / "albert_config" / "albert_config_tiny.json", json.dumps(ALBERT_ZH))
    shutil.copy(toy_vocab, str(folder / "albert_config" / "vocab.txt"))
    add("albert_tiny_zh", "albert_model.ckpt", shapes_of("albert_zh"))
    add("google_base", "model.ckpt-best", shapes_of("google"), GOOGLE)
    slots = {name + "/lamb_m": shape for name, shape in shapes_of("albert_zh").items()}
    add("my_domain_model", "model.ckpt-9", dict(shapes_of("albert_zh"), **slots), ALBERT_ZH)
    run_script(convert_checkpoint, "--format=huggingface", "--from=" + str(folder / "google_base"),
               "--to=" + str(folder / "albert_chinese_base"))
    write_model(folder / "output" / "msra", toy_vocab, GOOGLE, "labelling")
    (folder / "lcqmc").mkdir()
    for name in ("train", "dev"):
        write_text(folder / "lcqmc" / (name + ".txt"), pair_rows(8))


def test_the_readmes_commands_run_one_after_the_other(tmp_path, toy_vocab, monkeypatch, capsys):
    commands = [command for command in COMMANDS if any(mark in command for mark in MARKS)]
    assert len(commands) == 12
    write_place(tmp_path, toy_vocab)
    monkeypatch.chdir(tmp_path)
    for command in commands:
        name, arguments = python_call(command)
        toy = ["--%s=%s" % item for item in TOY.items()] if name == "run_classifier" else []
        assert not run_script(importlib.import_module(name), *(arguments + toy))
    assert capsys.readouterr().out.count("largest difference") == 6
    for folder in ("from_albert_zh_hf", "from_google_hf"):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as stream:
            assert json.load(stream)["id2label"] == {"0": "0", "1": "1"}
    probabilities = predictor.Predictor("output/from_huggingface").predict([("明天", "图书馆")])
    np.testing.assert_allclose(probabilities.sum(), 1, atol=1e-6)

"""The model that is shipped: it loads, and it reads unseen text as well as its card says."""

import os
import re

import pytest
from helpers.readme import text_of
from helpers.toy_records import run_script
from helpers.toys import ROOT

import create_pretraining_data
import fill_mask
import run_pretraining
from weights import checkpoints

MODEL = os.path.join(ROOT, "pretrained", "albert_tiny_open")
CARDS = ["pretrained/albert_tiny_open/README.md", "pretrained/albert_tiny_open/README_EN.md"]


def card_row(card, first_cell):
    """The numbers in the row of a card's table that begins with first_cell."""
    row = re.search(r"^\| {} .*$".format(re.escape(first_cell)), text_of(card), re.MULTILINE)
    return [float(cell) for cell in row.group(0).strip("| ").split(" | ")[1:]]


def test_masked_words_and_order_of_unseen_text_are_as_on_the_card(tmp_path, capsys):
    records = str(tmp_path / "tf_news_zh_1.tfrecord")
    lengths = ["--max_seq_length=64", "--max_predictions_per_seq=10"]
    run_script(create_pretraining_data, *lengths + [
        "--input_file=" + os.path.join(ROOT, "data", "news_zh_1.txt"), "--output_file=" + records,
        "--vocab_file=" + os.path.join(MODEL, "vocab.txt"), "--dupe_factor=1"])
    run_script(run_pretraining, *lengths + [
        "--do_eval", "--input_file=" + records, "--output_dir=" + str(tmp_path / "out"),
        "--init_checkpoint=" + MODEL,
        "--bert_config_file=" + os.path.join(MODEL, "albert_config.json")])
    found = dict(re.findall(r"^(\w+) = (\S+)$", capsys.readouterr().out, re.MULTILINE))
    for card in CARDS:
        wanted = card_row(card, "`data/news_zh_1.txt`")
        names = ["mlm_loss", "mlm_accuracy", "sop_accuracy"]
        assert [float(found[name]) for name in names] == pytest.approx(wanted, abs=0.002), card


def test_it_knows_which_words_follow_one_another():
    filler = fill_mask.MaskFiller(MODEL)
    for text, token in (("我们要推动经济[MASK]展。", "发"), ("用户可[MASK]在这里下载软件。", "以")):
        (best, *_), = filler.fill(text)
        assert best.token == token and best.probability > 0.5


def test_it_holds_no_slots_and_the_vocabulary_of_set_up():
    shapes = checkpoints.shapes_in(os.path.join(MODEL, "model.ckpt"))
    assert not [name for name in shapes if "adam" in name]
    assert os.readlink(os.path.join(MODEL, "vocab.txt")) == "../../albert_config/vocab.txt"

"""For each [MASK] the likeliest tokens, as the model's own head gives them, from every layout."""

import io
import json
import os
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags
from helpers.toy_encoder import ENCODER_STYLES, write_pretrained
from helpers.toys import ROOT, TOY_SENTENCES

import fill_mask
import modeling
from cli import UserError
from weights import checkpoints


@pytest.fixture(scope="module")
def folder(tmp_path_factory, toy_vocab):
    return write_pretrained(tmp_path_factory.mktemp("plain"), "albert_zh", toy_vocab)


def run(texts, *arguments):
    values = flags.FlagValues()
    fill_mask.define_flags(values)
    values(["fill_mask.py"] + list(arguments))
    return fill_mask.main(values, texts)


def expected_probabilities(filler, ids, place):
    """softmax over the vocabulary at one place, by the whole model over all places."""
    config = filler.files.config
    with tf.Graph().as_default(), tf.Session() as session:
        model = modeling.AlbertModel(config, tf.constant([ids]))
        head = modeling.masked_lm_head(model.sequence_output[:, place:place + 1], model,
                                       tf.constant([[1]]), tf.constant([[1.0]]))
        checkpoints.restore(session, filler.files.checkpoint)
        return session.run(tf.nn.softmax(head.logits))[0]


@pytest.mark.parametrize("style", ENCODER_STYLES)
def test_candidates_are_the_models_own_in_every_layout(tmp_path, toy_vocab, style):
    filler = fill_mask.MaskFiller(write_pretrained(tmp_path, style, toy_vocab), top_k=7)
    tokens = ["[CLS]", "天", "[MASK]", "雨", "[MASK]", "[SEP]"]
    ids = filler.tokenizer.convert_tokens_to_ids(tokens)
    answers = filler.fill("天[MASK]雨[MASK]")
    assert len(answers) == 2
    for place, row in zip((2, 4), answers):
        expected = expected_probabilities(filler, ids, place)
        best = np.argsort(-expected)[:7]
        assert [candidate.token for candidate in row] == filler.tokenizer.convert_ids_to_tokens(
            best.tolist())
        assert np.abs(expected[best] - [candidate.probability for candidate in row]).max() < 1e-6
    assert answers[0] != answers[1]


def test_words_beyond_the_vocabulary_are_no_candidates(tmp_path, toy_vocab):
    with io.open(toy_vocab, encoding="utf-8") as stream:
        words = stream.read().split("\n")[:20]
    short = tmp_path / "short.txt"
    short.write_bytes("\n".join(words).encode("utf-8"))
    filler = fill_mask.MaskFiller(write_pretrained(tmp_path, "albert_zh"), top_k=99,
                                  vocab_file=str(short))
    assert sorted(candidate.token for candidate in filler.fill("[MASK]")[0]) == sorted(words)


def test_arguments_and_standard_input_answer_alike(folder, capsys, monkeypatch):
    texts = ["明天[MASK]雨", TOY_SENTENCES[0] + "[MASK]"]
    run(texts, "--model_dir=" + folder, "--top_k=3")
    from_arguments = capsys.readouterr().out
    content = (texts[0] + "\n\n" + texts[1] + "\n").encode("utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    run([], "--model_dir=" + folder, "--top_k=3")
    lines = capsys.readouterr().out.split("\n")
    assert "\n".join(lines[:2] + lines[3:]) == from_arguments and lines[2] == ""
    assert lines[0].startswith("明天[MASK]雨 -> 明天") and lines[1].count("\t") == 3


def test_json_holds_the_text_the_filled_text_and_the_candidates(folder, capsys):
    run(["明[MASK]有[MASK]"], "--model_dir=" + folder, "--top_k=2", "--format=json")
    answer = json.loads(capsys.readouterr().out)
    words = [row[0]["token"].replace("##", "") for row in answer["masks"]]
    assert answer["text"] == "明[MASK]有[MASK]" and answer["filled"] == "明{}有{}".format(*words)
    assert [len(row) for row in answer["masks"]] == [2, 2]


def test_filled_text_drops_the_sign_of_a_continued_word():
    def row(token):
        return [fill_mask.Candidate(token, 0.5)]
    assert fill_mask.filled_text("play[MASK] [MASK]!", [row("##ing"), row("##")]) == "playing ##!"


def test_the_projects_vocabulary_stands_in_where_the_folder_has_none(tmp_path, monkeypatch,
                                                                     toy_vocab):
    model_dir = write_pretrained(tmp_path, "albert_zh")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="vocabulary albert_config/vocab.txt: No such file"):
        fill_mask.MaskFiller(model_dir)
    os.mkdir("albert_config")
    with io.open(toy_vocab, "rb") as stream:
        (tmp_path / "albert_config" / "vocab.txt").write_bytes(stream.read())
    assert fill_mask.MaskFiller(model_dir).fill("天[MASK]")


def test_bad_input_fails_in_one_line(folder, tmp_path, monkeypatch, toy_vocab):
    with pytest.raises(UserError, match="--model_dir is required"):
        run([])
    with pytest.raises(UserError, match="no checkpoint"):
        run([], "--model_dir=" + str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="a text of 203 tokens .* this model takes 128"):
        run(["天" * 200 + "[MASK]"], "--model_dir=" + folder)
    project = os.path.join(ROOT, "albert_config", "vocab.txt")
    if os.path.exists(project):
        with pytest.raises(UserError, match="has 21128 tokens, the config's vocab_size is"):
            run([], "--model_dir=" + folder, "--vocab_file=" + project)


@pytest.mark.parametrize("form, start", [
    ("text", "ERROR\t"), ("json", '{"text": "天气", "error": "')])
def test_a_pipe_goes_on_after_a_bad_line(folder, monkeypatch, capsys, form, start):
    content = "天[MASK]\n天气\n气[MASK]\n".encode("utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert run([], "--model_dir=" + folder, "--format=" + form) == 1
    lines = capsys.readouterr().out.splitlines()
    bad, = [line for line in lines if line.startswith(start)]
    assert "standard input, line 2: no [MASK] in the text '天气'" in bad
    assert lines.index(bad) * 2 + 1 == len(lines)


def test_an_encoder_without_the_head_fails_clearly(tmp_path, toy_vocab):
    model_dir = write_pretrained(tmp_path, "albert_zh", toy_vocab)
    reader = tf.train.load_checkpoint(model_dir)
    arrays = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()
              if name.startswith("bert/")}
    checkpoints.write_checkpoint(model_dir, "model.ckpt-8", arrays)
    with pytest.raises(UserError, match="model.ckpt-8 has no head for masked words .*cls/predict"):
        fill_mask.MaskFiller(model_dir)

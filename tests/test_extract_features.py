"""Vectors are the pooled output of the layer asked for, whatever the batch, file or pipe."""

import io
import json
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags
from helpers.toy_classifier import write_classifier
from helpers.toy_encoder import ENCODER_STYLES, write_pretrained
from helpers.toys import TOY_SENTENCES, write_text

import extract_features
import modeling
from cli import UserError
from extract_features import Encoder
from weights import checkpoints

TEXTS = [TOY_SENTENCES[number % 12] * (1 + number % 4) for number in range(13)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, toy_vocab):
    return write_pretrained(tmp_path_factory.mktemp("plain"), "albert_zh", toy_vocab, layers=3)


def run(*arguments):
    values = flags.FlagValues()
    extract_features.define_flags(values)
    values(["extract_features.py"] + list(arguments))
    extract_features.main(values)


def layers_of(encoder, text):
    """The embeddings' output and each layer's, [S, H], of one text without padding."""
    ids = encoder.text_encoder(text)[0]
    with tf.Graph().as_default(), tf.Session() as session:
        model = modeling.AlbertModel(encoder.files.config, tf.constant([ids]))
        checkpoints.restore(session, encoder.files.checkpoint)
        return [layer[0] for layer in session.run(
            [model.embedding_output] + model.all_encoder_layers)]


@pytest.mark.parametrize("pooling, layer, wanted", [
    ("mean", -1, lambda layers: layers[3].mean(0)),
    ("mean", 1, lambda layers: layers[1].mean(0)),
    ("mean", 0, lambda layers: layers[0].mean(0)),
    ("cls", -2, lambda layers: layers[2][0]),
    ("first_last_mean", -1, lambda layers: (layers[1].mean(0) + layers[3].mean(0)) / 2)])
def test_a_vector_is_the_pooled_layer(folder, pooling, layer, wanted):
    encoder = Encoder(folder, pooling, layer)
    vectors = encoder.encode(TEXTS[:3])
    for text, vector in zip(TEXTS, vectors):
        assert np.abs(vector - wanted(layers_of(encoder, text))).max() < 2e-6


@pytest.mark.parametrize("style", ENCODER_STYLES)
def test_padding_and_batch_change_nothing_in_any_layout(tmp_path, toy_vocab, style):
    encoder = Encoder(write_pretrained(tmp_path, style, toy_vocab), batch_size=5)
    together = encoder.encode(TEXTS)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert together.shape == (13, 32) and np.ptp(together, 0).max() > 0.01
    assert np.abs(together - alone).max() <= 1e-6 * max(1.0, np.abs(alone).max())
    assert encoder.encode([]).shape == (0, 32)


def test_a_fine_tuned_folder_and_a_checkpoint_with_a_config_work(tmp_path, toy_vocab, toy_config):
    tuned = write_classifier(tmp_path, toy_vocab, toy_config)
    vectors = Encoder(tuned).encode(TEXTS)
    named = Encoder(tuned + "/model.ckpt-7.index", config_file=tuned + "/albert_config.json",
                    vocab_file=toy_vocab)
    assert np.array_equal(named.encode(TEXTS), vectors)


def test_the_best_checkpoint_of_a_run_that_kept_it_is_taken(tmp_path, toy_vocab):
    home = write_pretrained(tmp_path, "albert_zh", toy_vocab, save_best=True)
    reader = tf.train.load_checkpoint(home)
    arrays = {name: 2 * reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    (tmp_path / "best").mkdir()
    checkpoints.write_checkpoint(home + "/best", "model.ckpt-3", arrays)
    assert Encoder(home).files.checkpoint == home + "/best/model.ckpt-3"
    assert Encoder(home + "/model.ckpt-7").files.checkpoint == home + "/model.ckpt-7"
    best = Encoder(home + "/best")
    assert best.files == Encoder(home).files._replace(config=best.files.config)


def test_files_and_pipes_give_the_same_vectors(folder, tmp_path, capsys, monkeypatch):
    lines = TEXTS[:4] + [""] + TEXTS[4:]
    content = "".join(line + "\n" for line in lines)
    source = write_text(tmp_path / "texts.txt", content)
    expected = Encoder(folder).encode(lines)
    for name in ("a.npy", "a.jsonl"):
        run("--model_dir=" + folder, "--input_file=" + source, "--output=" + str(tmp_path / name),
            "--batch_size=3")
    saved = np.load(str(tmp_path / "a.npy"))
    assert saved.dtype == np.float32 and np.abs(saved - expected).max() < 2e-6
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode("utf-8"))))
    run("--model_dir=" + folder)
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with io.open(str(tmp_path / "a.jsonl"), encoding="utf-8") as stream:
        written = [json.loads(line) for line in stream]
    for rows in (printed, written):
        assert [row["text"] for row in rows] == lines
        assert np.abs(np.array([row["vector"] for row in rows]) - expected).max() < 2e-6


def test_long_and_empty_lines_are_counted(folder, tmp_path, caplog):
    source = write_text(tmp_path / "texts.txt", "天" * 30 + "\n\n天\n")
    with caplog.at_level("INFO"):
        run("--model_dir=" + folder, "--input_file=" + source, "--max_seq_length=12",
            "--output=" + str(tmp_path / "a.npy"))
    assert "3 lines: 1 cut to 12 tokens, 1 empty" in caplog.text


def test_bad_input_fails_before_anything_is_written(folder, tmp_path):
    source = write_text(tmp_path / "texts.txt", "天\n")
    given = ["--model_dir=" + folder, "--input_file=" + source]
    for more, words in (
            (["--output=a.txt"], r"--output is 'a.txt', must end in .npy or .jsonl"),
            (["--layer=4"], "--layer is 4, must be from -3 to 3"),
            (["--max_seq_length=129"], "--max_seq_length is 129, .*max_position_embeddings 128"),
            (["--input_file=" + str(tmp_path / "none")], "no file matches"),
            (["--model_dir=" + str(tmp_path)], "holds no checkpoint")):
        with pytest.raises(UserError, match=words):
            run(*(given + more))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt"]

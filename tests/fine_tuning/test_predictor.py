"""A fine-tuned folder answers alone: from its checkpoint, from its SavedModel, through a pipe."""

import io

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_classifier import PAIRS, write_classifier

from cli import UserError
from fine_tuning import export, predictor
from fine_tuning.examples import padded_arrays


@pytest.fixture(scope="module")
def folder(tmp_path_factory, toy_vocab, toy_config):
    return write_classifier(tmp_path_factory.mktemp("pairs"), toy_vocab, toy_config)


@pytest.fixture(scope="module")
def model(folder):
    return predictor.Predictor(folder, batch_size=5)


@pytest.fixture(scope="module")
def saved_model(folder, model):
    target = folder + "/saved_model"
    export.export_saved_model(model, target)
    return target


def test_rows_in_order_whatever_the_batch(folder, model):
    together = model.predict(PAIRS)
    assert np.abs(together.sum(1) - 1).max() < 1e-6
    assert np.ptp(together[:, 0]) > 0.01
    alone = np.concatenate([model.predict([pair]) for pair in PAIRS])
    assert np.abs(together - alone).max() < 1e-6
    assert model.predict([]).shape == (0, 2)


def test_padding_changes_nothing(model):
    encoded = [model.encoder(*pair)[:2] for pair in PAIRS[:4]]
    short, long = padded_arrays(encoded), padded_arrays(encoded, seq_length=40)
    assert long[0].shape == (4, 40) and short[0].shape[1] < 40
    assert np.abs(model.scores(*short) - model.scores(*long)).max() < 1e-6


def test_saved_model_gives_the_same_probabilities_from_texts(model, saved_model):
    served = predictor.Predictor(saved_model)
    assert served.labels == model.labels
    assert np.abs(served.predict(PAIRS) - model.predict(PAIRS)).max() < 1e-6


def test_a_saved_model_of_another_tensorflow_fails_in_one_line(saved_model, monkeypatch):
    def refuse(*_):
        raise ValueError("NodeDef mentions attr 'debug_name' not in Op; more")

    monkeypatch.setattr(tf.saved_model, "load", refuse)
    with pytest.raises(UserError, match="cannot be loaded by TensorFlow .*'debug_name' not in Op"):
        predictor.Predictor(saved_model)


@pytest.mark.parametrize("rows_at_once", [1, 4])
def test_answers_line_by_line_keep_empty_lines(model, rows_at_once):
    text = "天气\t有雨\n\n图书馆\t开门\t1\r\n模型\t数据"
    answers = list(model.answers(io.BytesIO(text.encode("utf-8")), "x", "utf-8", rows_at_once))
    assert [(number, line) for number, line, _ in answers] == [
        (1, "天气\t有雨"), (2, ""), (3, "图书馆\t开门\t1"), (4, "模型\t数据")]
    assert answers[1][2] is None
    expected = model.predict([("天气", "有雨"), ("图书馆", "开门"), ("模型", "数据")])
    assert np.abs(np.stack([answers[n][2] for n in (0, 2, 3)]) - expected).max() < 1e-6


@pytest.mark.parametrize("rows_at_once", [1, 4])
def test_a_line_that_does_not_read_is_answered_by_the_reason(model, rows_at_once):
    raw = b"a\tb\nab\n\xff\tb\na\tb\t7\nb\ta\n"
    answers = [answer for _, _, answer in model.answers(io.BytesIO(raw), "pipe", "utf-8",
                                                        rows_at_once)]
    assert np.abs(np.stack(answers[::4]) - model.predict([("a", "b"), ("b", "a")])).max() < 1e-6
    for answer, message in zip(answers[1:4], (
            "pipe, line 2: 1 columns where 2 are expected", "pipe, line 3: byte 0xff at offset 0",
            "pipe, line 4: label '7' is not one of 0, 1")):
        assert isinstance(answer, UserError) and str(answer).startswith(message)
    lines = list(model.answer_lines(io.BytesIO(raw), "utf-8"))
    assert [reads for _, reads in lines] == [True, False, False, False, True]
    assert lines[1][0].startswith("2\tERROR\tstandard input, line 2: 1 columns")


def test_a_converted_model_reads_one_text_or_two_and_a_first_label_is_no_text(
        tmp_path, toy_vocab, toy_config, model):
    files = model.files._replace(description=dict(
        model.description, task_name=None, pair=None))
    answers = list(predictor.Predictor(files).answers(
        io.BytesIO("天气\n天气\t有雨\n".encode("utf-8")), "x", "utf-8", 2))
    both = predictor.Predictor(files).predict(["天气", ("天气", "有雨")])
    assert np.abs(np.stack([answer for _, _, answer in answers]) - both).max() < 1e-6
    single = predictor.Predictor(write_classifier(
        tmp_path, toy_vocab, toy_config, pair=False, task="chnsenticorp"))
    (_, _, first), (_, _, second) = single.answers(
        io.BytesIO("1\t天气\n天气\n".encode("utf-8")), "x", "utf-8", 2)
    assert np.abs(first - second).max() < 1e-6
    assert np.abs(single.predict(["1\t天气"])[0] - first).max() > 1e-4


def test_an_answer_comes_before_the_next_line_is_read(model):
    read = []

    def lines():
        for number in range(3):
            read.append(number)
            yield "天气\t有雨\n".encode("utf-8")

    answers = model.answers(lines(), "x", "utf-8", 1)
    next(answers)
    assert read == [0]


def test_wrong_rows_and_folders_fail_clearly(model, tmp_path, toy_vocab, toy_config):
    with pytest.raises(UserError, match=r"row 2: this model \(lcqmc\) takes pairs"):
        model.predict([("天", "气"), "天气"])
    with pytest.raises(UserError, match="holds no fine-tuned model"):
        predictor.Predictor(str(tmp_path))
    with pytest.raises(UserError, match="holds a model with the head 'classifier', not 'other'"):
        type("Other", (predictor.Predictor,), {"HEAD": "other"})(model.files)
    three = write_classifier(tmp_path, toy_vocab, toy_config, labels=("a", "b", "c"))
    files = model.files._replace(checkpoint=predictor.chosen_checkpoint(three))
    with pytest.raises(UserError, match=r"output_bias has shape \[3\] there and \[2\]"):
        predictor.Predictor(files)


def test_a_checkpoint_without_classifier_fails_clearly(model, tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        predictor.modeling.AlbertModel(model.files.config, tf.zeros([1, 4], tf.int32))
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    with pytest.raises(UserError, match=r"no classifier weights \(variables output_bias, output_w"):
        predictor.Predictor(model.files._replace(checkpoint=path))

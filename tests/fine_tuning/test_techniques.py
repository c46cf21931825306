"""Techniques of fine-tuning against NumPy, and what each is there for."""

import argparse

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toys import TOY_CONFIG

import modeling
import optimization
from cli import UserError
from fine_tuning import techniques
from lamb_optimizer import is_named

LOGITS = np.array([[2.0, -1.0, 0.5], [0.1, 0.2, -3.0], [-1.0, 4.0, 1.0]], np.float32)
LABELS = np.array([0, 2, 1])


def flags_of(**changes):
    values = dict(layer_decay=1.0, fgm_epsilon=0.0, ema_decay=0.0, rdrop_weight=0.0,
                  label_smoothing=0.0, focal_gamma=0.0, class_weights=None)
    return argparse.Namespace(**dict(values, **changes))


def losses(**changes):
    chosen = techniques.techniques_of(flags_of(**changes), ["a", "b", "c"], [8, 1, 1])
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(techniques.classification_losses(
            tf.constant(LOGITS), tf.constant(LABELS), chosen))


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_the_plain_loss_is_cross_entropy():
    np.testing.assert_allclose(losses(), -log_softmax(LOGITS)[range(3), LABELS], rtol=1e-5)


def test_smoothing_focal_loss_and_weights_are_their_formulas():
    log_probs = log_softmax(LOGITS)
    truth = 0.9 * np.eye(3)[LABELS] + 0.1 / 3
    np.testing.assert_allclose(losses(label_smoothing=0.1), -(truth * log_probs).sum(-1), rtol=1e-5)
    known = log_probs[range(3), LABELS]
    np.testing.assert_allclose(losses(focal_gamma=2.0), -(1 - np.exp(known)) ** 2 * known,
                               rtol=1e-5)
    weights = np.array([1.0, 2.0, 3.0]) * 10 / (8 + 2 + 3)
    np.testing.assert_allclose(losses(class_weights="1,2,3"), -weights[LABELS] * known, rtol=1e-5)


def test_balanced_weights_give_each_class_the_same_sum_and_rows_a_mean_of_1():
    weights = np.array(techniques.class_weights("balanced", ["a", "b", "c"], [8, 1, 1]))
    np.testing.assert_allclose(weights * [8, 1, 1], [10 / 3] * 3)


@pytest.mark.parametrize("changes", [
    {"class_weights": "1,2"}, {"class_weights": "1,2,x"}, {"class_weights": "1,0,1"},
    {"label_smoothing": 1.0}, {"fgm_epsilon": -1.0}, {"layer_decay": 0.0}, {"ema_decay": 1.0},
    {"rdrop_weight": float("nan")}, {"focal_gamma": -0.5}])
def test_a_value_that_cannot_be_meant_is_named(changes):
    (name, value), = changes.items()
    with pytest.raises(UserError, match="--{} is ".format(name)):
        techniques.techniques_of(flags_of(**changes), ["a", "b", "c"], [8, 1, 1])


def test_divergence_is_symmetric_and_0_for_equal_halves():
    halves = np.concatenate([LOGITS, LOGITS[::-1]])
    p, q = log_softmax(LOGITS), log_softmax(LOGITS[::-1])
    expected = 0.5 * ((np.exp(p) * (p - q)).sum(-1) + (np.exp(q) * (q - p)).sum(-1))
    with tf.Graph().as_default(), tf.Session() as session:
        found, same = session.run([techniques.divergence(tf.constant(halves)),
                                   techniques.divergence(tf.tile(tf.constant(LOGITS), [2, 1]))])
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(same, np.zeros(3))


def adversarial_scalars(epsilon, ids, labels, config):
    """(scalars, gradient of the word table, shifts that were asked for) of a toy batch."""
    shifts = []

    def gradients_at(shift):
        shifts.append(shift)
        model = modeling.AlbertModel(config, tf.constant(ids), word_shift=shift, training=True)
        head = modeling.classification_head(model.pooled_output, tf.constant(labels), 2, config)
        return {"loss": head.loss}, optimization.dense_gradients(head.loss,
                                                                 tf.trainable_variables())

    scalars, gradients = techniques.with_adversary(gradients_at, epsilon)
    gradient, = [g for v, g in zip(tf.trainable_variables(), gradients)
                 if v.op.name.endswith("word_embeddings")]
    return scalars, gradient, shifts


@pytest.mark.parametrize("ln_type", ["postln", "preln"])
def test_the_adversary_moves_words_by_epsilon_to_where_the_loss_is_higher(ln_type):
    config = modeling.AlbertConfig(**dict(TOY_CONFIG, vocab_size=12, ln_type=ln_type))
    ids, labels = np.array([[2, 7, 9, 7, 3], [2, 8, 5, 4, 3]], np.int32), np.array([0, 1])
    with tf.Graph().as_default(), tf.Session() as session:
        scalars, gradient, shifts = adversarial_scalars(0.01, ids, labels, config)
        plain, plain_gradient, _ = adversarial_scalars(0.0, ids, labels, config)
        session.run(tf.global_variables_initializer())
        found, table, moved, alone, alone_table = session.run(
            [scalars, gradient, shifts[1], plain["loss"], plain_gradient])
    assert np.linalg.norm(moved) == pytest.approx(0.01, rel=1e-5)
    assert set(np.flatnonzero(np.abs(moved).sum(1))) == set(ids.ravel())
    slope = np.linalg.norm(alone_table)  # what the loss rises by for each unit of that direction
    assert found["adversarial_loss"] - alone == pytest.approx(0.01 * slope, rel=0.05)
    assert found["loss"] == pytest.approx(alone + found["adversarial_loss"], rel=1e-6)
    np.testing.assert_allclose(table, 2 * alone_table, rtol=0.2, atol=0.05 * slope)


@pytest.mark.parametrize("changes, levels", [
    ({}, {"layer_shared": 1}),
    ({"parameter_sharing": "none"}, {"layer_0": 2, "layer_1": 1}),
    ({"parameter_sharing": "ffn"}, {"layer_shared": 1}),
    ({"embedding_style": "google", "num_hidden_groups": 1}, {"layer_shared": 1}),
    ({"embedding_style": "google", "num_hidden_groups": 2}, {"layer_0": 2, "layer_1": 1}),
    ({"embedding_style": "google", "num_hidden_groups": 12}, {"group_0": 2, "group_6": 1})])
def test_every_variable_has_the_rate_of_its_level(changes, levels):
    config = modeling.AlbertConfig(**dict(
        TOY_CONFIG, vocab_size=12, num_hidden_layers=2, **changes))
    with tf.Graph().as_default():
        model = modeling.AlbertModel(config, tf.zeros([1, 4], tf.int32))
        modeling.classification_head(model.pooled_output, None, 2, config)
        variables = {v.op.name: v for v in tf.trainable_variables()}
    factors = techniques.rate_factors(config, 0.5)
    deepest = max(levels.values())
    for name in variables:
        found = [factor for pattern, factor in factors
                 if is_named(variables[name], [pattern])]
        scope = name.split("/")[2] if name.startswith("bert/encoder/") else ""
        if name.startswith("bert/embeddings/") or scope == "embedding_hidden_mapping_in":
            assert found == [0.5 ** (deepest + 1)], name
        elif name.startswith("bert/pooler/"):
            assert found == [0.5], name
        elif scope:
            assert found == [0.5 ** levels[scope]], name
        else:
            assert found == [], name

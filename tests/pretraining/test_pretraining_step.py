"""A step without arithmetic on padding: the numbers of the padded batch, from fewer places."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_models import toy_model
from helpers.toy_records import toy_record

import modeling
from pretraining import step

ROWS, LENGTH, PLACES = 8, 32, 7
LENGTHS = (9, 21, 7, 14, 8, 19, 8, 11)


def padded_batch():
    """Rows of LENGTHS tokens, of which three hold no word to predict: name -> array."""
    rng = np.random.RandomState(5)
    records = [toy_record(rng, LENGTH, 3, length) for length in LENGTHS]
    batch = {name: np.stack([record[name] for record in records]).astype(
        np.float32 if name == "masked_lm_weights" else np.int32) for name in records[0]}
    for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
        batch[name] = np.pad(batch[name], [[0, 0], [0, PLACES - 3]], mode="constant")
        batch[name][[2, 4, 6]] = 0
    batch["next_sentence_labels"] = batch["next_sentence_labels"][:, 0]
    return batch


def run(build, seed=3):
    """What the tensors of build(features) are at fixed weights."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        tensors = build({name: tf.constant(value) for name, value in padded_batch().items()})
        rng = np.random.RandomState(seed)
        session.run(tf.global_variables_initializer())
        for variable in sorted(tf.trainable_variables(), key=lambda v: v.op.name):
            variable.load(rng.normal(0.0, 0.2, variable.shape.as_list()), session)
        return session.run(tensors)


def trained(config, fixed_shapes, micro_batch_size=0, recompute=False, loss_factor=None):
    """(scalars, gradients)."""
    return run(lambda features: step.training_step(
        features, config, micro_batch_size, recompute,
        loss_factor and tf.constant(loss_factor), fixed_shapes=fixed_shapes))


def assert_equal(one, other):
    """Of two results of trained()."""
    for name, value in one[0].items():
        assert abs(value - other[0][name]) < 1e-6, name
    assert max(np.abs(gradient).max() for gradient in one[1]) > 0.01
    for gradient, expected in zip(one[1], other[1]):
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("changes, modes", [
    ({}, [(0, False), (1, False, 1024.0)]),
    ({"ln_type": "preln"}, [(2, False)]),
    ({"embedding_style": "google", "num_hidden_groups": 2}, [(4, True)])], ids=str)
def test_loss_and_gradients_are_those_of_the_padded_batch(changes, modes):
    config = toy_model(**changes)
    padded = trained(config, True)
    for mode in modes:
        assert_equal(padded, trained(config, False, *mode))


def test_an_evaluation_is_that_of_the_padded_batch():
    def evaluated(micro_batch_size, fixed_shapes):
        def build(features):
            filled = {name: tf.pad(value[1:], [[0, 1]] + [[0, 0]] * (value.shape.ndims - 1))
                      for name, value in features.items()}
            return step.evaluation_step(filled, toy_model(), micro_batch_size,
                                        fixed_shapes=fixed_shapes)
        return run(build)

    padded = evaluated(0, True)
    sums = step.Sums(*[value[0] for value in padded[1]])
    assert sums.rows == ROWS - 1
    assert sums.words == padded_batch()["masked_lm_weights"][1:].sum()
    for rows in (0, 2):
        loss, found = evaluated(rows, False)
        np.testing.assert_allclose(found, padded[1], rtol=1e-6)
        np.testing.assert_allclose(loss, padded[0], rtol=1e-6)


@pytest.mark.parametrize("rows, lengths", [(0, [24]), (2, [24, 16, 16, 8]), (1, None)])
def test_a_part_is_as_long_as_its_longest_row_and_predicts_used_places_alone(
        rows, lengths, monkeypatch):
    head = modeling.masked_lm_head

    def shape_teller(output, model, labels, weights):
        told = 1000 * tf.shape(model.embedding_output)[1] + tf.shape(output)[0]
        return head(output, model, labels, weights)._replace(
            example_loss=tf.cast(tf.fill(tf.shape(labels), told), tf.float32))

    monkeypatch.setattr(modeling, "masked_lm_head", shape_teller)
    sums = step.Sums(*run(lambda features: step.evaluation_step(features, toy_model(), rows))[1])
    order = np.argsort(-np.array(LENGTHS), kind="stable")
    words = padded_batch()["masked_lm_weights"].sum(axis=1)[order].reshape([-1, rows or ROWS])
    words = words.sum(axis=1)  # [parts]
    cut = -(-np.array(LENGTHS)[order].reshape([-1, rows or ROWS]).max(axis=1) // 8) * 8
    assert lengths is None or cut.tolist() == lengths
    assert sums.words == words.sum() and sums.mlm_loss == (words * (1000 * cut + words)).sum()


def test_dropout_is_the_same_from_run_to_run():
    config = toy_model(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    assert trained(config, False, 2)[0] == trained(config, False, 2)[0]

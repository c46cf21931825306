"""Micro-batches and recomputation: the numbers of the whole batch, whatever it is cut into."""

import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_models import ROWS, toy_batch, toy_model

import layers
import modeling
from pretraining import step
from training import micro_batches


def results(config, micro_batch_size, recompute=False, batch=None):
    """Scalars and gradients (by variable name) of a toy batch, at fixed weights."""
    batch = batch or toy_batch()
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(3)
        features = {name: tf.constant(value) for name, value in batch.items()}
        scalars, gradients = step.training_step(features, config, micro_batch_size, recompute)
        rng = np.random.RandomState(11)
        session.run(tf.global_variables_initializer())
        for variable in sorted(tf.trainable_variables(), key=lambda v: v.op.name):
            variable.load(rng.normal(0.0, 0.2, variable.shape.as_list()), session)
        found = session.run([scalars, gradients])
        names = [variable.op.name for variable in tf.trainable_variables()]
    return found[0], dict(zip(names, found[1]))


def assert_equal_steps(one, other, tolerance=1e-6):
    for name, value in one[0].items():
        assert abs(value - other[0][name]) < tolerance, name
    assert set(one[1]) == set(other[1])
    for name, gradient in one[1].items():
        np.testing.assert_allclose(gradient, other[1][name], rtol=0, atol=tolerance, err_msg=name)


ARCHITECTURES = [
    {}, {"ln_type": "preln"}, {"embedding_style": "google", "num_hidden_groups": 2},
    {"parameter_sharing": "none"}, {"parameter_sharing": "attention"}, {"parameter_sharing": "ffn"}]


@pytest.mark.parametrize("changes", ARCHITECTURES, ids=str)
def test_gradients_do_not_depend_on_micro_batches_or_recomputation(changes):
    config = toy_model(**changes)
    whole = results(config, ROWS)
    assert max(np.abs(gradient).max() for gradient in whole[1].values()) > 0.01
    assert_equal_steps(whole, results(config, 2, True))
    if not changes:
        assert_equal_steps(whole, results(config, 1))
        assert_equal_steps(whole, results(config, ROWS, True))


@pytest.mark.parametrize("changes", ARCHITECTURES, ids=str)
def test_handed_on_weights_have_the_plain_gradients(changes):
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.constant(toy_batch()["input_ids"])
        found = []
        for training in (False, True):
            model = modeling.AlbertModel(toy_model(**changes), ids, training=training)
            found.append(tf.gradients(tf.reduce_sum(tf.square(model.sequence_output[:, 1])),
                                      tf.trainable_variables()))
        session.run(tf.global_variables_initializer())
        plain, handed_on = session.run([
            [tf.convert_to_tensor(g) for g in gradients if g is not None] for gradients in found])
        assert len(plain) == len(handed_on) > 16
        for one, other in zip(plain, handed_on):
            np.testing.assert_allclose(other, one, rtol=0, atol=1e-6 * max(1.0, np.abs(one).max()))


@pytest.mark.parametrize("recompute", [False, True])
def test_one_sum_of_a_shared_weights_gradients_is_kept(recompute):
    """No sum waits for the gradients of all layers: each has those of one layer and of the rest."""
    config = toy_model(num_hidden_layers=4)
    with tf.Graph().as_default() as graph:
        model = modeling.AlbertModel(config, tf.constant(toy_batch()["input_ids"]), training=True,
                                     recompute=recompute)
        kernel, = [v for v in tf.trainable_variables()
                   if v.op.name.endswith("intermediate/dense/kernel")]
        tf.gradients(model.pooled_output, kernel)
        sums = [op for op in graph.get_operations() if op.type == "AddN"
                and op.outputs[0].shape == kernel.shape]
        assert [len(op.inputs) for op in sums] == [2] * 3
        for op in sums[:-1]:  # the layer below waits for it
            assert any(op in reader.control_inputs for reader in graph.get_operations())


@pytest.mark.parametrize("changes", [
    {}, {"ln_type": "preln"}, {"embedding_style": "google", "num_hidden_groups": 2}], ids=str)
def test_the_last_layer_computes_no_more_than_the_heads_look_at(changes):
    with tf.Graph().as_default(), tf.Session() as session:
        batch = {name: tf.constant(value) for name, value in toy_batch().items()}
        arguments = [batch[name] for name in ("input_ids", "input_mask", "segment_ids")]
        places = batch["masked_lm_positions"]
        config = toy_model(**changes)
        model = modeling.AlbertModel(config, *arguments, training=True)
        outputs = [[layers.gather_positions(model.sequence_output, places), model.pooled_output],
                   list(model.outputs_at(places))]
        gradients = [tf.gradients([tf.square(output) for output in found],
                                  tf.trainable_variables()) for found in outputs]
        session.run(tf.global_variables_initializer())
        for whole, short in zip(*session.run([
                found + [tf.convert_to_tensor(slope) for slope in slopes]
                for found, slopes in zip(outputs, gradients)])):
            np.testing.assert_allclose(short, whole, rtol=1e-5, atol=1e-4)


def test_dropout_is_drawn_anew_for_the_recomputation_alike():
    config = toy_model(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    plain = results(config, 4)
    assert_equal_steps(plain, results(config, 4, True))
    assert abs(plain[0]["loss"] - results(toy_model(), 4)[0]["loss"]) > 1e-3


@pytest.mark.parametrize("batch_size, length, rows", [
    (32, 512, 2), (64, 128, 8), (32, 32, 32), (12, 512, 2), (7, 512, 1), (7, 256, 7)])
def test_a_cpu_cuts_few_rows_together_and_other_devices_all(batch_size, length, rows):
    def engine(name, fixed_shapes=False):
        return types.SimpleNamespace(fixed_shapes=fixed_shapes,
                                     chosen=types.SimpleNamespace(names=[name]))

    found = [micro_batches.rows_cut_together(made, batch_size, length) for made in (
        engine("/cpu:0"), engine("/gpu:0"), engine("/cpu:0", fixed_shapes=True))]
    assert found == [rows, batch_size, batch_size]


def test_rows_of_like_length_are_together_and_cut_whatever_their_width():
    widths = [3, 0, 17, 8, 3, 1]
    mask = np.array([[1] * width + [0] * (20 - width) for width in widths])
    mask[0, 1] = 0  # what lies before a row's end counts as well
    with tf.Graph().as_default(), tf.Session() as session:
        features = {"mask": tf.placeholder(tf.int32, [6, None]),
                    "place": tf.range(6, dtype=tf.int32)}

        def contribution(rows):
            short = micro_batches.cut(rows, ["mask"], micro_batches.longest(rows["mask"]))
            number = tf.cast(tf.reduce_sum(tf.constant([1, 10]) * rows["place"]), tf.float32)
            return [number * tf.cast(tf.shape(short["mask"])[1], tf.float32)]

        sums, gradients = micro_batches.sum_over_micro_batches(
            contribution, features, 2, lengths=micro_batches.row_lengths(features["mask"]))
        found = session.run(sums, {features["mask"]: mask})
    assert gradients == []
    # Longest first: rows 2 and 3, 0 and 4, 5 and 1, cut to 20 (for 24), 8 and 8.
    assert found == [(2 + 30) * 20 + (0 + 40) * 8 + (5 + 10) * 8]

"""Gradients in fine-tuning: those of the whole batch, whatever it is cut into, for each head."""

import argparse

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_models import toy_model

import devices
import run_classifier
import run_mrc
import run_ner
from fine_tuning import outcomes, step, techniques
from fine_tuning.tag_schemes import SCHEMES, tags_of
from training import run_settings

ROWS, LENGTH = 6, 9
TAGS = tags_of(SCHEMES["BIO"], ["PER", "LOC"])
PLAIN = dict(layer_decay=1.0, fgm_epsilon=0.0, ema_decay=0.0, rdrop_weight=0.0,
             label_smoothing=0.0, focal_gamma=0.0, class_weights=None)


def classifier(config, dropout=0.0, **changes):
    chosen = techniques.Techniques(**dict(PLAIN, **changes))
    return run_classifier.classifier_objective(config, outcomes.Classes("abc"), dropout, chosen)


def tagger(config, **changes):
    settings = argparse.Namespace(**dict(dict(crf=False, classifier_dropout=0.0), **changes))
    return run_ner.tagger_objective(config, TAGS, settings)


def toy_rows(targets):
    """Features of ROWS rows of different lengths; targets: shape and limit of the labels'."""
    rng = np.random.RandomState(4)
    lengths = np.array([9, 3, 7, 5, 8, 6])
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    shape, limit = targets
    return {"input_ids": rng.randint(1, 20, [ROWS, LENGTH]).astype(np.int32) * mask,
            "input_mask": mask, "segment_ids": mask * (np.arange(LENGTH) > 2),
            "label_ids": rng.randint(0, limit, [ROWS] + shape).astype(np.int32)}


def filled_up(features, count):
    """The features with `count` rows that only fill a batch up."""
    return {name: np.concatenate([array, np.zeros((count,) + array.shape[1:], array.dtype)])
            for name, array in features.items()}


def gradients_of(build, features, micro_batch_size=0, recompute=False, fgm_epsilon=0.0, **changes):
    """(scalars, {variable: gradient}) at fixed weights, of rows whose number no graph knows."""
    config = toy_model(vocab_size=20, num_hidden_layers=1, **changes)
    training = run_settings.Training(ROWS, 0.01, 10, 1, "adamw", micro_batch_size, recompute)
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = {name: tf.placeholder(tf.int32, [None] * array.ndim)
                  for name, array in features.items()}
        inputs["label_ids"].set_shape([None] + list(features["label_ids"].shape[1:]))
        scalars, gradients = step.head_step(inputs, build(config), training, fgm_epsilon)
        rng = np.random.RandomState(11)
        session.run(tf.global_variables_initializer())
        variables = tf.trainable_variables()
        for variable in sorted(variables, key=lambda v: v.op.name):
            variable.load(rng.normal(0.0, 0.2, variable.shape.as_list()), session)
        found = session.run([scalars, gradients], {
            inputs[name]: array for name, array in features.items()})
    return found[0], dict(zip([v.op.name for v in variables], found[1]))


def assert_same(one, other):
    for name, value in one[0].items():
        assert abs(value - other[0][name]) < 1e-6, name
    assert set(one[1]) == set(other[1])
    for name, gradient in one[1].items():
        np.testing.assert_allclose(other[1][name], gradient, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("build, targets", [
    (classifier, ([], 3)),
    (lambda config: classifier(config, label_smoothing=0.1, focal_gamma=2.0,
                               class_weights=[0.5, 1.0, 2.0], rdrop_weight=4.0), ([], 3)),
    (tagger, ([LENGTH], len(TAGS))), (lambda config: tagger(config, crf=True), ([LENGTH], 3)),
    (run_mrc.reader_objective, ([2], 3))],
    ids=["classifier", "techniques", "tagger", "crf", "reader"])
def test_gradients_do_not_depend_on_the_parts(build, targets):
    features = toy_rows(targets)
    whole = gradients_of(build, features)
    assert max(np.abs(gradient).max() for gradient in whole[1].values()) > 0.01
    assert_same(whole, gradients_of(build, filled_up(features, 2), 4, recompute=True))


def test_the_adversary_is_that_of_the_whole_batch():
    features = toy_rows(([], 3))
    whole = gradients_of(classifier, features, fgm_epsilon=1.0)
    assert whole[0]["loss"] > whole[0]["adversarial_loss"] + 0.1
    assert_same(whole, gradients_of(classifier, features, 1, fgm_epsilon=1.0))


@pytest.mark.parametrize("build, targets", [
    (classifier, ([], 3)), (lambda config: tagger(config, crf=True), ([LENGTH], 3)),
    (run_mrc.reader_objective, ([2], 3))], ids=["classifier", "crf", "reader"])
def test_a_tpu_multiplies_in_bfloat16_and_keeps_the_rest(build, targets, monkeypatch):
    monkeypatch.setattr(devices, "mean_over_devices", lambda tensors, use_tpu: list(tensors))
    with tf.Graph().as_default() as graph:
        features = {name: tf.constant(array, tf.int32) for name, array in toy_rows(targets).items()}
        scalars, gradients = step.head_step(
            features, build(toy_model(vocab_size=20, num_hidden_layers=1)),
            run_settings.Training(ROWS, 0.01, 10, 1, "adamw", 2, True), 1.0, use_tpu=True,
            bfloat16=True)
        products = {op.outputs[0].dtype for op in graph.get_operations()
                    if op.type in ("MatMul", "BatchMatMulV2") and "gradients" not in op.name}
        assert tf.bfloat16 in products
        assert {tensor.dtype for tensor in list(scalars.values()) + gradients} == {tf.float32}
        assert {variable.dtype.base_dtype for variable in tf.trainable_variables()} == {tf.float32}


def test_recomputation_drops_alike_and_parts_drop_each_their_own():
    features = {name: np.tile(array[:1], [4] + [1] * (array.ndim - 1))
                for name, array in toy_rows(([], 3)).items()}
    rates = dict(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)

    def found(*parts, **changes):
        return gradients_of(lambda config: classifier(config, 0.2, rdrop_weight=2.0), features,
                            *parts, **changes)

    plain = found(2, **rates)
    assert_same(plain, found(2, True, **rates))
    assert abs(plain[0]["loss"] - found(2)[0]["loss"]) > 1e-3

"""LAMB, AdamW, the schedule and the order of a step, against NumPy and the reference's numbers."""

import json
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_models import REFERENCE, build, case_inputs, load, reference_config

import optimization

NOISE = "self/key/bias"  # its true gradient is 0, LAMB amplifies the rounding

with open(os.path.join(REFERENCE, "description.json"), encoding="utf-8") as stream:
    DESCRIPTION = json.load(stream)


@pytest.mark.parametrize("schedule", DESCRIPTION["lr_schedule"])
def test_learning_rate_equals_the_reference(schedule):
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        rate = optimization.learning_rate_at(
            step, schedule["init_lr"], schedule["num_train_steps"], schedule["num_warmup_steps"])
        found = [session.run(rate, {step: s}) for s in range(len(schedule["lr_at_step"]))]
    np.testing.assert_allclose(found, schedule["lr_at_step"], rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
@pytest.mark.parametrize("warmup", [0, 2])
def test_three_steps_equal_the_reference(optimizer, warmup):
    name = "steps_%s_warm%d" % (optimizer, warmup)
    settings, expected = DESCRIPTION["optimizer"][name + ".npz"], load(name)
    with tf.Graph().as_default(), tf.Session() as session:
        _, masked, order = build(reference_config(), case_inputs("main"))
        update = optimization.create_optimizer(
            masked.loss + order.loss, settings["init_lr"], settings["num_train_steps"],
            settings["num_warmup_steps"], optimizer, correct_bias=False)
        session.run(tf.global_variables_initializer())
        values = load("variables")
        for variable in tf.trainable_variables():
            variable.load(values[variable.op.name], session)
        for step in range(3):
            loss, rate, _ = session.run([masked.loss + order.loss, update.learning_rate,
                                         update.op])
            wanted_loss, wanted_rate = settings["loss_and_lr_before_each_step"][step]
            assert abs(loss - wanted_loss) < 1e-2
            assert abs(rate - wanted_rate) < 1e-8
            for variable in tf.trainable_variables():
                if NOISE not in variable.op.name:
                    np.testing.assert_allclose(
                        session.run(variable), expected["step%d/%s" % (step + 1, variable.op.name)],
                        rtol=0, atol=2e-4, err_msg="%s step %d" % (variable.op.name, step))
        found = {v.op.name for v in tf.global_variables()}
    assert set(settings["slots"]) <= found


def numpy_lamb(weight, gradients, rate, decay, adapt):
    m, v = np.zeros_like(weight), np.zeros_like(weight)
    for gradient in gradients:
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient ** 2
        update = m / (np.sqrt(v) + 1e-6) + decay * weight
        norms = np.linalg.norm(weight), np.linalg.norm(update)
        ratio = norms[0] / norms[1] if adapt and all(norms) else 1.0
        weight = weight - rate * ratio * update
    return weight


@pytest.mark.parametrize("name, decay, excluded, adapt", [
    ("w/kernel", 0.01, (), True), ("w/bias", 0.0, (), True), ("LayerNorm/gamma", 0.0, (), True),
    ("x/bias", 0.0, ("bias",), False), ("x/kernel", 0.01, ("bias",), True)])
def test_lamb_equals_numpy(name, decay, excluded, adapt):
    start = np.array([[3.0, -4.0], [0.5, 2.0]])
    gradients = [np.array([[0.1, 0.2], [-0.3, 0.0]]), np.array([[-0.2, 0.1], [0.0, 0.4]])]
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable(name, initializer=start.astype(np.float32))
        given = tf.placeholder(tf.float32, [2, 2])
        rule = optimization.LAMBOptimizer(0.1, exclude_from_trust_ratio=excluded)
        op = rule.apply_gradients([(given, variable)])
        session.run(tf.global_variables_initializer())
        for gradient in gradients:
            session.run(op, {given: gradient})
        found = session.run(variable)
    np.testing.assert_allclose(found, numpy_lamb(start, gradients, 0.1, decay, adapt), rtol=1e-5)


def test_a_variable_may_have_a_rate_of_its_own():
    with tf.Graph().as_default(), tf.Session() as session:
        names = ["bert/bias", "crf/bias"]
        variables = [tf.get_variable(name, initializer=tf.zeros([2])) for name in names]
        loss = tf.reduce_sum(variables[0] * [1.0, -0.5]) + tf.reduce_sum(variables[1] * [1.0, -0.5])
        update = optimization.create_optimizer(loss, 1e-4, 10, 0, "adamw",
                                               rate_factors=[("^crf/", 100.0)])
        session.run(tf.global_variables_initializer())
        session.run(update.op)
        slow, fast = session.run(variables)
    np.testing.assert_allclose(slow, [-1e-4, 1e-4], rtol=1e-3)
    np.testing.assert_allclose(fast, [-1e-2, 1e-2], rtol=1e-3)


def test_zero_weight_or_zero_update_has_ratio_one():
    with tf.Graph().as_default(), tf.Session() as session:
        zero = tf.get_variable("zero", initializer=np.zeros(3, np.float32))
        rule = optimization.LAMBOptimizer(0.1)
        ratios = [rule.trust_ratio(zero, tf.ones([3])), rule.trust_ratio(zero, tf.zeros([3])),
                  rule.trust_ratio(zero + 2.0, tf.zeros([3])),
                  rule.trust_ratio(zero + 2.0, tf.ones([3]))]
        session.run(tf.global_variables_initializer())
        np.testing.assert_allclose(session.run(ratios), [1, 1, 1, 2], rtol=1e-6)


def test_rows_used_twice_are_summed_before_clipping():
    with tf.Graph().as_default(), tf.Session() as session:
        table = tf.get_variable("table", initializer=np.ones([4, 2], np.float32))
        loss = tf.reduce_sum(tf.gather(table, [1, 1, 1, 2])) * 10.0
        update = optimization.create_optimizer(loss, 0.1, 10, 0)
        session.run(tf.global_variables_initializer())
        assert abs(session.run(update.gradient_norm) - 10.0 * np.sqrt(2 * (9 + 1))) < 1e-3


def test_step_is_counted_after_the_rate_is_read():
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("weight", initializer=np.float32(1.0))
        update = optimization.create_optimizer(weight * weight, 1.0, 10, 4)
        session.run(tf.global_variables_initializer())
        found = [session.run([update.learning_rate, update.op])[0] for _ in range(6)]
        assert session.run(tf.train.get_global_step()) == 6
    np.testing.assert_allclose(found, [0.0, 0.25, 0.5, 0.75, 0.6, 0.5], rtol=1e-6)


@pytest.mark.parametrize("optimizer, corrected", [("adamw", True), ("adamw", False),
                                                  ("lamb", True)])
def test_adamw_s_first_steps_are_as_long_as_the_rate_says(optimizer, corrected):
    gradients = [0.5, -0.25, 0.125, 0.5, 0.5]
    with tf.Graph().as_default(), tf.Session() as session:
        gradient = tf.placeholder(tf.float32, [])
        weight = tf.get_variable("layer/bias", initializer=tf.constant(3.0))
        update = optimization.create_optimizer(weight * gradient, 0.01, 10 ** 9, 0, optimizer,
                                               correct_bias=corrected)
        session.run(tf.global_variables_initializer())
        m = v = 0.0
        wanted = 3.0
        for t, value in enumerate(gradients, 1):
            session.run(update.op, {gradient: value})
            m, v = 0.9 * m + 0.1 * value, 0.999 * v + 0.001 * value ** 2
            step = m / (np.sqrt(v) + 1e-6)
            if optimizer == "lamb":
                step *= abs(wanted) / abs(step)
            elif corrected:
                step *= np.sqrt(1.0 - 0.999 ** t) / (1.0 - 0.9 ** t)
            wanted -= 0.01 * step
            assert abs(session.run(weight) - wanted) < 1e-5
            if t == 1 and optimizer == "adamw":
                assert abs(3.0 - wanted - (0.01 if corrected else 0.0316)) < 1e-4


def test_the_optimizer_that_fits_follows_batch_length_and_width():
    assert optimization.fitting_optimizer(4096, 512) == "lamb"  # the published run
    assert optimization.fitting_optimizer(32, 128) == "adamw"
    assert optimization.fitting_rate("lamb", 4096, 512, 4096) == 0.00176
    tiny = optimization.fitting_rate("adamw", 32, 128, 312)
    assert tiny == 0.001
    assert optimization.fitting_rate("adamw", 32, 128, 768) < tiny
    assert abs(optimization.fitting_rate("adamw", 8, 128, 312) - tiny / 2) < 1e-9
    assert optimization.fitting_rate("adamw", 1024, 128, 312) == 2 * tiny

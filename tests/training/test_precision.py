"""Number formats and compilation: what is refused, float16's loss scale, bfloat16's loss curve."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_models import toy_batch, toy_model

import optimization
from cli import UserError
from pretraining import step
from training import precision

TF_2 = not tf.__version__.startswith("1.")


@pytest.mark.parametrize("arguments, words", [
    (("fp16", False, False, 0), "fp16.*a CPU"), (("fp16", False, True, 0), "fp16.*a TPU.*bf16"),
    (("bf16", False, False, 1), "bf16.*a GPU.*fp16"), (("fp32", True, True, 0), "--xla"),
    (("bf16", True, False, 0), "--xla.*bf16" if TF_2 else "bf16.*TensorFlow 1.15")])
def test_combinations_that_do_not_work_are_refused(arguments, words, monkeypatch):
    monkeypatch.setattr(precision, "cpu_has", lambda feature: True)
    with pytest.raises(UserError, match=words):
        precision.check_precision(*arguments)


def test_combinations_that_work_pass(monkeypatch):
    for arguments in (("fp32", True, False, 1), ("fp32", False, True, 0), ("fp16", True, False, 2),
                      ("bf16", False, True, 0)):
        precision.check_precision(*arguments)
    if not TF_2:
        with pytest.raises(UserError, match="--xla.*CPU.*loses updates"):
            precision.check_precision("fp32", True)
    if TF_2:
        precision.check_precision("fp32", True)
        monkeypatch.setattr(precision, "cpu_has", lambda feature: False)
        with pytest.raises(UserError, match="AVX-512"):
            precision.check_precision("bf16", False)


def test_session_config_holds_the_rewrites(monkeypatch):
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_clustering_debug")
    plain = precision.configure(tf.ConfigProto(), "fp32", False)
    assert plain == tf.ConfigProto()
    half = precision.configure(tf.ConfigProto(), "fp16", True).graph_options
    assert half.rewrite_options.auto_mixed_precision == half.rewrite_options.ON
    assert half.optimizer_options.global_jit_level == half.optimizer_options.ON_1
    assert precision.os.environ["TF_XLA_FLAGS"].split() == [
        "--tf_xla_clustering_debug", precision.COMPILE_FOR_CPU]
    assert precision.configure(tf.ConfigProto(), "bf16", False, use_tpu=True) == tf.ConfigProto()


def test_loss_scale_halves_doubles_and_counts():
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", initializer=np.float32(1.0))
        slope = tf.placeholder(tf.float32, [])
        scale = precision.LossScale(growth_steps=2)
        update = optimization.create_optimizer(weight * slope, 0.1, 100, 0, "adamw",
                                               loss_scale=scale)
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])

        def take(value):
            finite, _ = session.run([update.finite, update.op], {slope: value})
            return [session.run(weight), all(finite)] + session.run(
                scale.state + [tf.train.get_global_step()])

        first = take(1.0)
        assert first[0] < 1.0 and first[1:] == [True, 2.0 ** 15, 1.0, 0.0, 1]
        over = take(3e38 / 2 ** 10)  # overflows only with the scale
        assert over == [first[0], True, 2.0 ** 14, 0.0, 1.0, 2]  # skipped, counted, no failure
        assert take(1.0)[2:4] == [2.0 ** 14, 1.0]
        assert take(1.0)[2:4] == [2.0 ** 15, 0.0]
        for _ in range(15):
            last = take(float("inf"))
        assert last[1:3] == [True, 1.0]
        stuck = take(float("inf"))  # not the scale's fault: reported, and not counted
        assert not stuck[1] and stuck[-1] == last[-1]


def test_gradients_do_not_depend_on_the_loss_scale():
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", initializer=np.float32([1.0, 2.0]))
        loss = tf.reduce_sum(weight * weight)
        plain = optimization.dense_gradients(loss, [weight])
        scaled = optimization.dense_gradients(loss, [weight], tf.constant(1024.0))
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(*session.run([plain[0], scaled[0]]))


def train_step(config, features, optimizer="lamb", **options):
    """(loss, op) of a step over features."""
    scalars, gradients = step.training_step(features, config, **options)
    update = optimization.create_optimizer(scalars["loss"], 0.01, 400, 0, optimizer,
                                           gradients=gradients)
    return scalars["loss"], update.op


@pytest.mark.skipif(not TF_2, reason="TensorFlow 1.15 has no bfloat16 on a CPU")
@pytest.mark.skipif(not precision.cpu_has("avx512f"), reason="this CPU has no AVX-512")
def test_bfloat16_learns_along_the_same_curve():
    curves = []
    for name in ("fp32", "bf16"):
        config = precision.configure(tf.ConfigProto(), name, False)
        with tf.Graph().as_default(), tf.Session(config=config) as session:
            tf.set_random_seed(1)
            features = {key: tf.placeholder_with_default(value, value.shape)
                        for key, value in toy_batch().items()}
            loss, op = train_step(toy_model(initializer_range=0.02), features)
            session.run(tf.global_variables_initializer())
            curves.append([session.run([loss, op])[0] for _ in range(200)])
    assert curves[0][-1] < 0.5 * curves[0][0]
    assert curves[0] != curves[1]
    np.testing.assert_allclose(curves[1], curves[0], rtol=0.01, atol=0.01)


@pytest.mark.parametrize("name, recompute, rows, optimizer", [
    ("fp32", True, 2, "lamb"), pytest.param("bf16", True, 4, "lamb", marks=pytest.mark.skipif(
        not TF_2, reason="XLA of TensorFlow 1.15 has no bfloat16 on a CPU"))])
def test_the_step_compiles_with_static_shapes_as_on_a_tpu(name, recompute, rows, optimizer,
                                                          monkeypatch):
    monkeypatch.setattr(optimization.devices, "mean_over_devices",
                        lambda tensors, use_tpu=False: list(tensors))  # there is one core
    batch = toy_batch()
    config = toy_model(num_hidden_layers=1, hidden_dropout_prob=0.1,
                       attention_probs_dropout_prob=0.1)

    def compiled(*values):
        loss, op = train_step(
            config, dict(zip(sorted(batch), values)), optimizer, micro_batch_size=rows,
            recompute=recompute, use_tpu=True, bfloat16=name == "bf16",
            fixed_shapes=True)
        with tf.control_dependencies([op]):
            return [tf.identity(loss)]

    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        losses, = tf.xla.experimental.compile(compiled, [tf.constant(batch[key])
                                                         for key in sorted(batch)])
        session.run(tf.global_variables_initializer())
        found = [session.run(losses) for _ in range(4)]
        assert session.run(tf.train.get_global_step()) == 4
    assert np.all(np.isfinite(found)) and found[-1] < found[0]

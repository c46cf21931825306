"""hooks.py: what the log says of steps that a loss scale skipped."""

import collections
import math
import types

import pytest
import tensorflow.compat.v1 as tf

from training import hooks


class Writer(object):
    """Keeps what is written as scalars: [(step, {name: value})]."""

    def __init__(self):
        self.written = []

    def add_summary(self, summary, step):
        self.written.append((step, {value.tag: value.simple_value for value in summary.value}))

    def flush(self):
        pass


@pytest.mark.parametrize("norms, mean", [
    ([1.0, 3.0], 2.0), ([1.0, math.inf], 1.0), ([math.nan, 3.0], 3.0),
    ([math.inf, math.nan], None)])
def test_a_skipped_step_is_in_no_mean_and_counted(caplog, norms, mean):
    caplog.set_level("INFO")
    training = types.SimpleNamespace(num_train_steps=10, batch_size=4)
    with tf.Graph().as_default():
        scalars = collections.OrderedDict([("loss", tf.zeros([])), ("gradient_norm", tf.zeros([]))])
        hook = hooks.ProgressHook(scalars, tf.zeros([]), tf.zeros([]), training, 2, None)
        hook.writer = Writer()
        tf.train.create_global_step()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            hook.after_create_session(session, None)
    for norm in norms:
        hook.after_run(None, types.SimpleNamespace(results=dict(
            loss=norm / 2.0, gradient_norm=norm, learning_rate=0.5, tokens=6.0)))
    (step, found), = hook.writer.written
    assert step == 2 and found["learning_rate"] == 0.5 and found["tokens_per_second"] > 0
    assert found.get("gradient_norm") == mean and found.get("loss") == (mean and mean / 2.0)
    assert found.get("left_out", 0) == sum(not math.isfinite(norm) for norm in norms)
    assert ("left_out" in caplog.text) == ("left_out" in found)
    assert "inf" not in caplog.text.replace("INFO", "") and "nan" not in caplog.text

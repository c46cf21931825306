"""The whole training step under XLA, whose rules are a TPU's: static shapes, no host in between."""

import glob
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_models import toy_batch, toy_model
from helpers.toys import ROOT

import optimization
from pretraining import step


def three_losses(config, micro_batch_size, recompute, optimizer, compiled):
    """The losses of three steps on one batch, and a weight after them."""
    def train(*arrays):
        features = dict(zip(sorted(batch), arrays))
        scalars, gradients = step.training_step(features, config, micro_batch_size, recompute,
                                                 fixed_shapes=compiled)
        update = optimization.create_optimizer(
            scalars["loss"], 0.01, 10, 0, optimizer, gradients=gradients)
        with tf.control_dependencies([update.op]):
            return tf.identity(scalars["loss"])

    batch = toy_batch()
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(5)
        inputs = [tf.constant(batch[name]) for name in sorted(batch)]
        loss = tf.xla.experimental.compile(train, inputs)[0] if compiled else train(*inputs)
        rng = np.random.RandomState(13)
        session.run(tf.global_variables_initializer())
        for variable in sorted(tf.trainable_variables(), key=lambda v: v.op.name):
            variable.load(rng.normal(0.0, 0.2, variable.shape.as_list()), session)
        losses = [float(session.run(loss)) for _ in range(3)]
        assert session.run(tf.train.get_global_step()) == 3
        table, = [v for v in tf.trainable_variables() if v.op.name.endswith("/word_embeddings")]
        return losses, session.run(table)


@pytest.mark.parametrize("micro_batch_size, recompute, optimizer, changes", [
    (2, False, "adamw", {"ln_type": "preln"}),
    (2, True, "lamb", {"embedding_style": "google"}),
])
def test_a_compiled_step_is_the_plain_one(micro_batch_size, recompute, optimizer, changes):
    config = toy_model(num_hidden_layers=1, **changes)
    plain, compiled = [three_losses(config, micro_batch_size, recompute, optimizer, on)
                       for on in (False, True)]
    assert plain[0][2] < plain[0][0]
    np.testing.assert_allclose(compiled[0], plain[0], rtol=1e-3)
    np.testing.assert_allclose(compiled[1], plain[1], atol=1e-3)


LAYERS = """
import sys
sys.path.insert(0, {root!r})
import tensorflow.compat.v1 as tf
import modeling

config = modeling.AlbertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2,
                               num_attention_heads=2, intermediate_size=16)

def gradients(x):
    y = modeling.encoder(modeling.Chain(x, recompute={recompute}), tf.zeros([2, 1, 1, 16]), config,
                         modeling.Dropout(0.0, 0.0, 0, 0))[-1].output
    return tf.gradients(tf.reduce_sum(tf.square(y)), tf.trainable_variables())

with tf.Session() as session:
    compiled = tf.xla.experimental.compile(gradients, [tf.ones([2, 16, 8])])
    session.run(tf.global_variables_initializer())
    session.run(compiled)
"""


def test_xla_does_not_merge_the_recomputation_with_the_first_pass(tmp_path):
    products = []
    for recompute in (False, True):
        folder = str(tmp_path / str(recompute))
        switches = "--xla_dump_to={} --xla_dump_hlo_as_text".format(folder)
        subprocess.check_call([sys.executable, "-c", LAYERS.format(root=ROOT, recompute=recompute)],
                              env=dict(os.environ, XLA_FLAGS=switches))
        products.append(0)
        for path in glob.glob(os.path.join(folder, "*after_optimizations.txt")):
            with open(path, encoding="utf-8") as stream:
                products[-1] += len(re.findall(r" dot\(", stream.read()))
    assert products[1] == products[0] + 2 * 8  # Q, K, V, scores, context, output, two dense layers

"""The parts every layer is made of: variables, dense, layer norm, dropout, activations, shapes.

In: tensors and the config's widths.  Out: tensors; variables are made in the current scope under
the names of the public checkpoints, and reused where the scope says so.

Letters for dimensions as in modeling.py; M stands for any product of leading dimensions.
"""

import collections
import math
import re
import zlib

import tensorflow.compat.v1 as tf

import gradients

WORDS_OR_PROJECTION = re.compile("word_embeddings(_2)?$|embedding_hidden_mapping_in/kernel$")
QUERY_OR_KEY = re.compile("self/(query|key)/kernel$")
DROPOUT_SITES = ("embeddings", "weights", "attention", "output", "classifier")


def matrix(name, shape, config):
    """The variable `name` of the current scope, truncated normal at first."""
    full_name = "/".join([tf.get_variable_scope().name, name])
    # A seed by name, so that the variable starts alike in every graph it stands in.
    seed = zlib.crc32(full_name.encode("utf-8")) & 0x7FFFFFFF
    return tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(
        stddev=first_spread(full_name, shape, config), seed=seed))


def first_spread(full_name, shape, config):
    """Standard deviation of a matrix's first values.

    With one initializer_range for all, the rows of the word table are shorter than those of the
    position table that is added to them, five times once they are projected: the layers see where a
    token stands and hardly which it is, and pre-training stays for hundreds of steps at the loss of
    who knows the tokens' frequencies alone. With initialization "scaled" a word's row has length
    1 and its projection keeps that scale, and queries and keys start on the scale of their input.
    """
    if config.initialization == "scaled":
        if WORDS_OR_PROJECTION.search(full_name):
            return 1.0 / math.sqrt(config.embedding_size)
        if QUERY_OR_KEY.search(full_name):
            return 1.0 / math.sqrt(shape[0])
    return config.initializer_range


def vector(name, size, value=0.0, dtype=None):
    """The variable `name` of the current scope, [size], filled with `value` at first."""
    return tf.get_variable(name, [size], dtype, initializer=tf.constant_initializer(value))


def dense(x, width, config, scope="dense"):
    """x [..., W] · kernel [W, width] + bias [width]."""
    with tf.variable_scope(scope):
        kernel = matrix("kernel", [shape_list(x)[-1], width], config)
        return matmul_last(x, kernel) + vector("bias", width)


def look_up(table, ids, one_hot=False):
    """Rows of table [V, W] at ids [B, S], as [B, S, W]; by a matrix product if one_hot."""
    if not one_hot:
        return tf.gather(table, ids)
    size, width = shape_list(table)
    rows = tf.matmul(tf.one_hot(tf.reshape(ids, [-1]), size, dtype=table.dtype), table)  # [M, W]
    return tf.reshape(rows, shape_list(ids) + [width])  # [B, S, W]


def matmul_last(x, kernel):
    """x [..., W] · kernel [W, U] -> [..., U]."""
    shape = shape_list(x)
    flat = tf.matmul(tf.reshape(x, [-1, shape[-1]]), kernel)  # [M, W] -> [M, U]
    return tf.reshape(flat, shape[:-1] + [shape_list(kernel)[-1]])  # [..., U]


def layer_norm(x, scope=None):
    """Norms the last axis of x to mean 0 and variance 1, then scales and shifts it."""
    with tf.variable_scope((scope + "/" if scope else "") + "LayerNorm"):
        beta = vector("beta", shape_list(x)[-1], dtype=tf.float32)
        gamma = vector("gamma", shape_list(x)[-1], 1.0, tf.float32)
    return tf.cast(gradients.normalize(tf.cast(x, tf.float32), gamma, beta), x.dtype)


class Dropout(collections.namedtuple("Dropout", "hidden attention seed layer")):
    """What a layer drops in training: rates of hidden states and attention, seed, its number.

    seed: int32 scalar of the step. Equal seed, layer and site drop the same elements.
    """

    def of_hidden(self, x, site):
        """x without the elements dropped at one of DROPOUT_SITES."""
        return dropout(x, self.hidden, self.seed, site, self.layer)

    def of_attention(self):
        """Function from the attention's weights to their factors, or None if all stay."""
        if self.attention == 0.0:
            return None
        return lambda weights: dropout_factors(
            weights, self.attention, self.seed, "weights", self.layer)


def dropout(x, rate, seed, site, layer=0):
    """x with elements set to 0 at `rate` and the others raised, so that the mean stays."""
    return x if rate == 0.0 else x * dropout_factors(x, rate, seed, site, layer)


def dropout_factors(x, rate, seed, site, layer):
    """0 or 1 / (1 - rate) for each element of x; drawn by seed alone, but not before x is there."""
    place = layer * len(DROPOUT_SITES) + DROPOUT_SITES.index(site)
    seed += tf.cast(gradients.zero_after(x), tf.int32)
    uniform = tf.random.stateless_uniform(tf.shape(x), tf.stack([seed, place]))
    return tf.cast(uniform >= rate, x.dtype) / (1.0 - rate)


def activation(config):
    """The function that the config's hidden_act names."""
    return {"gelu": gradients.gelu, "gelu_new": gradients.gelu, "gelu_erf": gelu_erf,
            "relu": tf.nn.relu, "tanh": tf.tanh}[config.hidden_act]


def gelu_erf(x):
    """Gaussian error linear unit as it is defined, x · Φ(x); what Hugging Face calls "gelu"."""
    return 0.5 * x * (1.0 + tf.math.erf(x / math.sqrt(2.0)))


def gather_positions(x, positions):
    """Rows of x [B, S, H] at positions [B, P], as [B, P, H]."""
    batch, length, width = shape_list(x)
    offsets = tf.reshape(tf.range(batch) * length, [-1, 1])  # [B, 1]
    rows = tf.reshape(positions + offsets, [-1])  # [B*P]
    found = tf.gather(tf.reshape(x, [-1, width]), rows)  # [B*S, H] -> [B*P, H]
    return tf.reshape(found, [batch, shape_list(positions)[1], width])  # [B, P, H]


def split_heads(x, heads):
    """[B, S, H] -> [B, N, S, D]."""
    batch, length, hidden = shape_list(x)
    x = tf.reshape(x, [batch, length, heads, hidden // heads])  # [B, S, N, D]
    return tf.transpose(x, [0, 2, 1, 3])  # [B, N, S, D]


def merge_heads(x):
    """[B, N, S, D] -> [B, S, H]."""
    batch, heads, length, size = shape_list(x)
    x = tf.transpose(x, [0, 2, 1, 3])  # [B, S, N, D]
    return tf.reshape(x, [batch, length, heads * size])  # [B, S, H]


def shape_list(x):
    """The shape of x as a list: ints where it is known, scalar tensors where it is not."""
    known = x.shape.as_list()
    if None not in known:
        return known
    dynamic = tf.unstack(tf.shape(x))  # one operation, a slice of each would be four times as many
    return [length if size is None else size for size, length in zip(known, dynamic)]

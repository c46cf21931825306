"""The parts every layer is made of: variables, dense, layer norm, dropout, activations, shapes.

In: tensors and the config's widths.  Out: tensors; variables are made in the current scope under
the names of the public checkpoints, and reused where the scope says so.

Letters for dimensions as in modeling.py; M stands for any product of leading dimensions.
"""

import functools
import math
import re
import zlib

import tensorflow.compat.v1 as tf

LAYER_NORM_EPSILON = 1e-12
WORDS_OR_PROJECTION = re.compile("word_embeddings(_2)?$|embedding_hidden_mapping_in/kernel$")
QUERY_OR_KEY = re.compile("self/(query|key)/kernel$")


@tf.RegisterGradient("ByHand")
def gradient_by_hand(operation, dy, *unused):
    """What the function behind the operation gave as its gradient, see by_hand."""
    del unused
    return [None] + list(operation.graph.gradients_by_hand[operation.name](dy))


def by_hand(function):
    """Decorates function(*inputs) -> (output, its gradient), to return the output alone.

    gradient(dy) gives those of the inputs. tf.custom_gradient would keep every graph it was ever
    used in.
    """
    @functools.wraps(function)
    def differentiable(*inputs):
        output, gradient = function(*inputs)
        graph = tf.get_default_graph()
        with graph.gradient_override_map({"IdentityN": "ByHand"}):
            output = tf.identity_n([output] + list(inputs))[0]
        if not hasattr(graph, "gradients_by_hand"):
            graph.gradients_by_hand = {}
        graph.gradients_by_hand[output.op.name] = gradient
        return output
    return differentiable


def zero_after(tensor):
    """A scalar 0 that is known when the tensor is, and to no compiler before.

    What is computed from it is computed later, and not merged with the same computed before. XLA
    heeds no control dependency.
    """
    return tf.minimum(tf.abs(tf.reshape(tensor, [-1])[0]), 0.0)  # [M] -> scalar


def later(seed, after):
    """The int32 scalar seed, but not before the tensor `after` is there; that may be None."""
    return seed if after is None else seed + tf.cast(zero_after(after), tf.int32)


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
    return tf.cast(normalize(tf.cast(x, tf.float32), gamma, beta), x.dtype)


@by_hand
def normalize(x, gamma, beta):
    """Layer norm of x [..., W] with its gradient by hand: keeps x normed and a number a row."""
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)  # [..., 1]
    variance = tf.reduce_mean(tf.squared_difference(x, mean), axis=-1, keepdims=True)
    inverse = tf.rsqrt(variance + LAYER_NORM_EPSILON)  # [..., 1]
    normed = (x - mean) * inverse

    def gradient(dy):
        rows = list(range(x.shape.ndims - 1))
        scaled = dy * gamma
        slope = tf.reduce_mean(scaled * normed, axis=-1, keepdims=True)  # [..., 1]
        dx = inverse * (scaled - tf.reduce_mean(scaled, axis=-1, keepdims=True) - slope * normed)
        return dx, tf.reduce_sum(dy * normed, rows), tf.reduce_sum(dy, rows)

    return normed * gamma + beta, gradient


def dropout(x, rate, seed, site, index=0, after=None):
    """Drops x's elements at `rate`; equal seed, site and layer index drop the same ones.

    after: a tensor that is to be there before they are drawn, or None.
    """
    if rate == 0.0:
        return x
    seed = later(seed, after)
    sites = ("embeddings", "weights", "attention", "output", "classifier")
    place = index * len(sites) + sites.index(site)
    uniform = tf.random.stateless_uniform(tf.shape(x), tf.stack([seed, place]))
    return x * tf.cast(uniform >= rate, x.dtype) / (1.0 - rate)


def attend_to(query, key, value, bias, drop):
    """softmax(Q Kᵀ + bias) V of every head, with its gradient by hand: keeps one [B, N, S, S].

    The softmax's gradient needs Σ P dP over the keys, which is Σ O dO over D (Dao et al.,
    arXiv 2205.14135, appendix B.2).

    Args:
      query: [B, N, S, D], or of some positions alone.
      key, value: [B, N, S, D].
      bias: [B, 1, 1, S], without a gradient.
      drop: the dropout of the weights P. It is linear, so its gradient is itself.
    """
    @by_hand
    def attention(query, key, value):
        weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) + bias)  # [B, N, S, S]
        context = tf.matmul(drop(weights), value)  # [B, N, S, D]

        def gradient(dy):
            slope = tf.reduce_sum(context * dy, axis=-1, keepdims=True)  # [B, N, S, 1]
            change = drop(tf.matmul(dy, value, transpose_b=True), after=dy)
            scores = weights * (change - slope)
            return (tf.matmul(scores, key), tf.matmul(scores, query, transpose_a=True),
                    tf.matmul(drop(weights, after=dy), dy, transpose_a=True))

        return context, gradient

    return attention(query, key, value)


def activation(config):
    """The function that the config's hidden_act names."""
    return {"gelu": gelu, "gelu_new": gelu, "gelu_erf": gelu_erf, "relu": tf.nn.relu,
            "tanh": tf.tanh}[config.hidden_act]


@by_hand
def gelu(x):
    """Gaussian error linear unit in its tanh form (arXiv 1606.08415); keeps only its slope.

    ½ x (1 + tanh(v)) = x σ(u) with u = 2v = x (a + b x²): fewer passes over the widest tensor.
    The slope is σ(u) + x σ'(u) u'.
    """
    a = 2.0 * math.sqrt(2.0 / math.pi)
    b = 0.044715 * a
    square = tf.square(x)
    gate = tf.sigmoid(x * (a + b * square))
    slope = gate + tf.raw_ops.SigmoidGrad(y=gate, dy=x * (a + 3.0 * b * square))
    return x * gate, lambda dy: [dy * slope]


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
    dynamic = tf.shape(x)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(known)]

"""What serves memory and speed in training; who reads the model for its mathematics can skip it.

In: the functions of a layer.  Out: the same values, whose gradients keep less and take less work.

  normalize, attention, gelu   functions whose gradient is written by hand
  Chain                        layers one after the other, which may share their weights

Letters for dimensions as in modeling.py.
"""

import functools
import math

import tensorflow.compat.v1 as tf

LAYER_NORM_EPSILON = 1e-12


@tf.RegisterGradient("ByHand")
def gradient_by_hand(operation, dy, *unused):
    """Asks the function behind the operation for its gradient, see by_hand."""
    del unused
    return [None] + list(operation.graph.gradients_by_hand[operation.name](dy))


def by_hand(function):
    """Decorator of a function whose gradient is written out beside it.

    function(*inputs) returns (output, gradient), and gradient(dy) the gradients of the inputs; the
    decorated one returns the output alone. tf.custom_gradient would keep every graph that it was
    ever used in.
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

    What is computed from it is computed after the tensor, and not merged with an equal computation
    before it. XLA heeds no control dependency, so the order has to lie in the values.
    """
    return tf.minimum(tf.abs(tf.reshape(tensor, [-1])[0]), 0.0)  # [M] -> scalar


@by_hand
def normalize(x, gamma, beta):
    """Layer norm of x [..., W]; keeps x normed and one number a row."""
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


def attention(query, key, value, bias, dropped):
    """softmax(Q Kᵀ + bias) V of every head; keeps one [B, N, S, S].

    The softmax's gradient needs Σ P dP over the keys, which is Σ O dO over D (Dao et al.,
    arXiv 2205.14135, appendix B.2).

    Args:
      query: [B, N, S, D], or of some positions alone.
      key, value: [B, N, S, D].
      bias: [B, 1, 1, S], without a gradient.
      dropped: function from a tensor [B, N, S, S] to factors for the softmax's elements, the same
        at each call, which are drawn when the tensor is there; None drops nothing.
    """
    def thinned(weights, factors):
        return weights if factors is None else weights * factors

    @by_hand
    def differentiable(query, key, value):
        weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) + bias)  # [B, N, S, S]
        context = tf.matmul(thinned(weights, dropped and dropped(weights)), value)  # [B, N, S, D]

        def gradient(dy):
            change = tf.matmul(dy, value, transpose_b=True)  # [B, N, S, S]
            factors = dropped and dropped(change)
            slope = tf.reduce_sum(context * dy, axis=-1, keepdims=True)  # [B, N, S, 1]
            scores = weights * (thinned(change, factors) - slope)
            return (tf.matmul(scores, key), tf.matmul(scores, query, transpose_a=True),
                    tf.matmul(thinned(weights, factors), dy, transpose_a=True))

        return context, gradient

    return differentiable(query, key, value)


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


class Chain(object):
    """A tensor, and what to remember about the weights of the layers that it came through.

    Differentiated as they stand, L layers of one set of weights leave L gradients of it, which are
    kept until the last one is there. Here each layer hands its weights on to the next, and on the
    way back takes its turn only when the gradients of those above are one sum. With `recompute` it
    also keeps its input alone, and computes the rest once more (Chen et al., arXiv 1604.06174).
    """

    def __init__(self, output, training=True, recompute=False, weights=()):
        """The start of a chain.

        Args:
          output: tensor, the first layer's input.
          training: bool; without it the layers are only called one after the other.
          recompute: bool, compute each layer again when its gradient is asked for.
          weights: pairs (variable name, float32 value) handed on by the layers so far.
        """
        self.output = output
        self.training = training
        self.recompute = recompute
        self.weights = weights

    def then(self, layer):
        """The Chain after one more layer.

        layer: function from a tensor to a tensor. It reads variables by tf.get_variable and has
          gradients with respect to its input and these variables alone. Random numbers are drawn
          by seed, and from the input (zero_after), so that they are drawn alike and late again.
        """
        if not self.training:
            return Chain(layer(self.output), False)
        scope = tf.get_variable_scope()
        weights = dict(self.weights)

        def call(x, known):
            names = []

            def read(getter, name, *args, **kwargs):
                dtype = kwargs.pop("dtype")
                if name not in known:
                    known[name] = tf.identity(getter(name, *args, dtype=tf.float32, **kwargs))
                names.append(name)
                return tf.cast(known[name], dtype)

            with tf.variable_scope(scope, reuse=tf.AUTO_REUSE, custom_getter=read):
                return layer(x), names

        @by_hand
        def recomputed(x, *values):
            def gradient(dy):
                kept = [tf.stop_gradient(tensor) for tensor in (x + zero_after(dy),) + values]
                again, _ = call(kept[0], dict(zip(names, kept[1:])))
                return tf.gradients(again, kept, dy)
            return y, gradient

        y, names = call(self.output, weights)
        values = [weights[name] for name in names]
        if self.recompute:
            y = recomputed(self.output, *values)
        with tf.get_default_graph().gradient_override_map({"IdentityN": "InTurn"}):
            y, *values = tf.identity_n([y] + values)
        weights.update(zip(names, values))
        return Chain(y, True, self.recompute, tuple(weights.items()))


@tf.RegisterGradient("InTurn")
def in_turn(operation, dy, *sums):
    """Lets dy go down to a layer when the weights' gradients of those above it are added up."""
    del operation
    sums = [None if total.op.type == "ZerosLike" else total for total in sums]  # none is above
    with tf.control_dependencies([total for total in sums if total is not None]):
        return [tf.identity(dy)] + sums

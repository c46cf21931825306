"""Layers one after the other: what they keep for the gradient, and when shared weights add it up.

In: a function of one tensor that reads variables.  Out: its result.

Differentiated as they stand, L layers of one set of weights leave L gradients of it, which are kept
until the last one is there. Here each layer hands its weights on to the next, and on the way back
takes its turn only when the gradients of those above are one sum. With recomputation it also keeps
its input alone, and computes the rest once more (Chen et al., arXiv 1604.06174).
"""

import tensorflow.compat.v1 as tf

from layers import by_hand, zero_after


def chained(function, x, weights, recompute):
    """function(x) as one layer of a chain.

    Args:
      function: from a tensor to a tensor. It reads variables by tf.get_variable and has gradients
        with respect to x and these variables alone. It draws random numbers by seed only, and not
        before its argument `after`, a tensor or None.
      x: tensor.
      weights: dict variable name -> float32 value, empty at first and the same for all layers of
        a chain.
      recompute: bool, compute function(x) again when its gradient is asked for.
    """
    scope = tf.get_variable_scope()

    def run(x, known, after=None):
        names = []

        def read(getter, name, *args, **kwargs):
            dtype = kwargs.pop("dtype")
            if name not in known:
                known[name] = tf.identity(getter(name, *args, dtype=tf.float32, **kwargs))
            names.append(name)
            return tf.cast(known[name], dtype)

        with tf.variable_scope(scope, reuse=tf.AUTO_REUSE, custom_getter=read):
            return function(x, after=after), names

    @by_hand
    def recomputed(x, *values):
        def gradient(dy):
            kept = [tf.stop_gradient(tensor) for tensor in (x + zero_after(dy),) + values]
            again, _ = run(kept[0], dict(zip(names, kept[1:])), after=dy)
            return tf.gradients(again, kept, dy)
        return y, gradient

    y, names = run(x, weights)
    values = [weights[name] for name in names]
    if recompute:
        y = recomputed(x, *values)
    with tf.get_default_graph().gradient_override_map({"IdentityN": "InTurn"}):
        y, *values = tf.identity_n([y] + values)
    weights.update(zip(names, values))
    return y


@tf.RegisterGradient("InTurn")
def in_turn(operation, dy, *sums):
    """Lets dy go down to a layer when the weights' gradients of those above it are added up."""
    del operation
    sums = [None if total.op.type == "ZerosLike" else total for total in sums]  # none is above
    with tf.control_dependencies([total for total in sums if total is not None]):
        return [tf.identity(dy)] + sums

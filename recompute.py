"""Layers one after the other: what they keep for the gradient, and when shared weights add it up.

In: a function of one tensor that reads variables.  Out: its result.

Differentiated as they stand, L layers of one set of weights leave L gradients of it, which are kept
until the last one is there. Here each layer hands its weights on to the next, and on the way back
takes its turn only when the gradients of those above are one sum. With recomputation it also keeps
its input alone, and computes the rest once more (Chen et al., arXiv 1604.06174).
"""

import itertools

import tensorflow.compat.v1 as tf

NUMBERS = itertools.count()  # a gradient is registered once in a process, under a name of its own


def chained(function, x, weights, recompute):
    """function(x) as one layer of a chain.

    Args:
      function: from a tensor to a tensor. It reads variables by tf.get_variable, draws random
        numbers by seed only, and has gradients with respect to x and these variables alone.
      x: tensor.
      weights: dict variable name -> float32 value, empty at first and the same for all layers of
        a chain.
      recompute: bool, compute function(x) again when its gradient is asked for.
    """
    scope = tf.get_variable_scope()

    def run(x, known):
        names = []

        def read(getter, name, *args, **kwargs):
            dtype = kwargs.pop("dtype")
            if name not in known:
                known[name] = tf.identity(getter(name, *args, dtype=tf.float32, **kwargs))
            names.append(name)
            return tf.cast(known[name], dtype)

        with tf.variable_scope(scope, reuse=tf.AUTO_REUSE, custom_getter=read):
            return function(x), names

    gradient_name = "Recomputed_{}".format(next(NUMBERS))

    @tf.RegisterGradient(gradient_name)
    def differentiate(operation, dy, *unused):
        del unused
        with tf.control_dependencies([dy]):  # no sooner than the gradient arrives here
            kept = [tf.stop_gradient(tf.identity(tensor)) for tensor in operation.inputs[1:]]
        again, _ = run(kept[0], dict(zip(names, kept[1:])))
        return [None] + tf.gradients(again, kept, dy)

    y, names = run(x, weights)
    values = [weights[name] for name in names]
    if recompute:
        y = identities([y, x] + values, gradient_name)[0]
    y, *values = identities([y] + values, "InTurn")
    weights.update(zip(names, values))
    return y


@tf.RegisterGradient("InTurn")
def in_turn(operation, dy, *sums):
    """Lets dy go down to a layer when the weights' gradients of those above it are added up."""
    del operation
    sums = [None if total.op.type == "ZerosLike" else total for total in sums]  # none is above
    with tf.control_dependencies([total for total in sums if total is not None]):
        return [tf.identity(dy)] + sums


def identities(tensors, gradient_name):
    """The tensors unchanged, with the gradient that is registered under the name."""
    with tf.get_default_graph().gradient_override_map({"IdentityN": gradient_name}):
        return tf.identity_n(tensors)

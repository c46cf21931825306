"""Layers that keep only their input for the gradient and compute the rest once more.

In: a function of one tensor that reads variables.  Out: its result; the memory of what lies between
is free until the gradient needs it (Chen et al., arXiv 1604.06174).
"""

import itertools

import tensorflow.compat.v1 as tf

NUMBERS = itertools.count()  # a gradient is registered once in a process, under a name of its own


def recomputed(function, x, weights):
    """function(x), computed again from x when its gradient is asked for.

    Args:
      function: from a tensor to a tensor. It reads variables by tf.get_variable, draws random
        numbers by seed only, and has gradients with respect to x and these variables alone.
      x: tensor.
      weights: dict variable name -> value, empty at first and the same for all layers of a chain.
        Each layer hands the values it read on to the next, so that on the way back the gradients
        of shared variables are added up layer by layer, not kept to the end.
    """
    scope = tf.get_variable_scope()

    def run(x, known):
        names = []

        def read(getter, name, *args, **kwargs):
            if name not in known:
                known[name] = tf.identity(getter(name, *args, **kwargs))
            names.append(name)
            return known[name]

        with tf.variable_scope(scope, reuse=tf.AUTO_REUSE, custom_getter=read):
            return function(x), names

    y, names = run(x, weights)
    gradient_name = "Recomputed_{}".format(next(NUMBERS))

    @tf.RegisterGradient(gradient_name)
    def differentiate(operation, dy, _, *later):
        with tf.control_dependencies([dy]):  # no sooner than the gradient arrives here
            kept = [tf.stop_gradient(tf.identity(tensor)) for tensor in operation.inputs[1:]]
        again, _ = run(kept[0], dict(zip(names, kept[1:])))
        dx, *here = tf.gradients(again, kept, dy)
        sums = [one + other for one, other in zip(here, later)]
        with tf.control_dependencies(sums):  # before the layer below takes its turn
            return [None, tf.identity(dx)] + sums

    with tf.get_default_graph().gradient_override_map({"IdentityN": gradient_name}):
        y, _, *values = tf.identity_n([y, x] + [weights[name] for name in names])
    weights.update(zip(names, values))
    return y

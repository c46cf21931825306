"""Layers that keep only their input for the gradient and compute the rest once more.

In: a function of one tensor that reads variables.  Out: its result; the memory of what lies between
is free until the gradient needs it (Chen et al., arXiv 1604.06174).
"""

import collections
import itertools

import tensorflow.compat.v1 as tf

NUMBERS = itertools.count()  # a gradient is registered once in a process, under a name of its own


def recomputed(function, x):
    """function(x), computed again from x when its gradient is asked for.

    Args:
      function: from a tensor to a tensor of any shape. It reads variables by tf.get_variable, draws
        random numbers by seed only, and takes gradients with respect to x and variables alone.
      x: tensor.
    """
    scope = tf.get_variable_scope()
    values = collections.OrderedDict()  # variable name -> its value, as read by the first pass

    def run(x, known):
        def read(getter, name, *args, **kwargs):
            if name not in known:
                known[name] = tf.identity(getter(name, *args, **kwargs))
            return known[name]

        with tf.variable_scope(scope, reuse=tf.AUTO_REUSE, custom_getter=read):
            return function(x)

    y = run(x, values)
    name = "Recomputed_{}".format(next(NUMBERS))

    @tf.RegisterGradient(name)
    def differentiate(operation, dy, *unused):
        del unused
        with tf.control_dependencies([dy]):  # no sooner than the gradient arrives here
            kept = [tf.stop_gradient(tf.identity(tensor)) for tensor in operation.inputs[1:]]
        again = run(kept[0], dict(zip(values, kept[1:])))
        return [None] + tf.gradients(again, kept, dy)

    with tf.get_default_graph().gradient_override_map({"IdentityN": name}):
        return tf.identity_n([y, x] + list(values.values()))[0]

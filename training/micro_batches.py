"""A batch worked off in parts: the gradient of the whole at the memory of one part.

In: a function from rows to what they add to the batch's loss and scalars, and the batch's rows.
Out: the scalars and gradients of the whole batch, as if it had been computed at once.
"""

import collections

import tensorflow.compat.v1 as tf

from cli import UserError
from optimization import dense_gradients


def check_micro_batch_size(micro_batch_size, batch_size):
    """Raises UserError where a device's batch_size rows do not divide into micro-batches."""
    if micro_batch_size < 0 or (micro_batch_size and batch_size % micro_batch_size):
        raise UserError("--micro_batch_size is {}, must divide the {} sequences of a device's "
                        "batch, or be 0 to be chosen".format(micro_batch_size, batch_size))


def sum_over_micro_batches(contribution, features, micro_batch_size, loss_factor=None):
    """Adds up scalars and gradients over the micro-batches of a batch.

    Args:
      contribution: function from features of M rows to an OrderedDict of scalars. Those of a batch
        are the sums of its micro-batches'; "loss" is differentiated.
      features: dict of tensors [B, ...], B known before the run.
      micro_batch_size: M, a divisor of B; B itself gives the plain graph without a loop.
      loss_factor: see dense_gradients.
    Returns:
      (OrderedDict of the batch's scalars, its gradients in the order of tf.trainable_variables()).
    """
    rows = next(iter(features.values())).shape.as_list()[0]
    parts = {name: tf.reshape(tensor, [-1, micro_batch_size] + tensor.shape.as_list()[1:])
             for name, tensor in features.items()}  # [B/M, M, ...]

    def micro_batch(index):
        return {name: tf.gather(tensor, index) for name, tensor in parts.items()}  # [M, ...]

    first = contribution(features if micro_batch_size == rows else micro_batch(0))
    variables = tf.trainable_variables()
    if micro_batch_size == rows:
        return first, dense_gradients(first["loss"], variables, loss_factor)

    def add(index, scalars, gradients):
        found = contribution(micro_batch(index))
        more = dense_gradients(found["loss"], variables, loss_factor)
        return (index + 1, tuple(a + b for a, b in zip(scalars, found.values())),
                tuple(a + b for a, b in zip(gradients, more)))

    _, scalars, gradients = tf.while_loop(
        lambda index, *sums: index < rows // micro_batch_size, add,
        (tf.zeros([], tf.int32), tuple(tf.zeros([]) for _ in first),
         tuple(tf.zeros(variable.shape) for variable in variables)),
        parallel_iterations=1, back_prop=False)
    return collections.OrderedDict(zip(first, scalars)), list(gradients)

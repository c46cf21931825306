"""A batch worked off in parts: the sums over the whole, at the memory of one part, without padding.

In: a function from rows to what they add to the batch's sums, and the batch's rows, of any model.
Out: the sums of the whole batch, as if it had been computed at once.

A step that leaves padding out gives the rows' lengths, so that rows of like length are computed
together, and cuts what its function is given:

  mask = features["input_mask"]                                             # [B, S]
  sum_over_micro_batches(contribution, features, rows, loss_of, lengths=row_lengths(mask))
  def contribution(rows):
      rows = cut(rows, ["input_ids", "input_mask"], longest(rows["input_mask"]))

Off a TPU and without XLA, that is, which compile for shapes that are known.
"""

import tensorflow.compat.v1 as tf

from cli import UserError
from optimization import dense_gradients

SEED_STRIDE = 1000003  # a prime, so that seeds of neighbouring steps lie far apart
LENGTH_STEP = 8  # lengths are cut to multiples of it, so that there are not too many shapes
# Of a CPU, whose parts of a batch are each cut to their longest row: measured with the tiny model,
# half and twice as many cost 5 % more or less, by the batch.
TOKENS_AT_ONCE = 1024


def check_micro_batch_size(micro_batch_size, batch_size):
    """Raises UserError where a device's batch_size rows do not divide into micro-batches."""
    if micro_batch_size < 0 or (micro_batch_size and batch_size % micro_batch_size):
        raise UserError("--micro_batch_size is {}, must divide the {} sequences of a device's "
                        "batch, or be 0 to be chosen".format(micro_batch_size, batch_size))


def even_sizes(batch_size):
    """The micro-batch sizes to choose from: the whole, then powers of two that divide it."""
    return [batch_size] + [
        2 ** power for power in range(batch_size.bit_length(), -1, -1)
        if batch_size % 2 ** power == 0 and 2 ** power < batch_size]


def rows_cut_together(engine, batch_size, seq_length):
    """How many of a device's rows are best cut to their longest together: few on a CPU, else all.

    Args:
      engine: run_settings.Engine.
      batch_size: rows that the device gets.
      seq_length: tokens of a row, its padding included.
    """
    if engine.fixed_shapes or "cpu" not in engine.chosen.names[0]:
        return batch_size
    fitting = [rows for rows in even_sizes(batch_size)
               if TOKENS_AT_ONCE // 2 <= rows * seq_length <= TOKENS_AT_ONCE]
    return fitting[0] if fitting else batch_size


def sum_over_micro_batches(contribution, features, micro_batch_size=0, loss_of=None,
                           loss_factor=None, lengths=None):
    """Adds up what the micro-batches of a batch contribute, one after the other.

    Args:
      contribution: function from features of M rows to a structure of scalars (see tf.nest) whose
        sums over micro-batches are those of the batch.
      features: dict of tensors [B, ...].
      micro_batch_size: M, a divisor of B; 0, or a B known before the run, gives the plain graph
        without a loop.
      loss_of: function from a contribution to the scalar that is differentiated; default: none is.
      loss_factor: see optimization.dense_gradients.
      lengths: int32 [B], by which rows are put into micro-batches, the longest first and rows of
        one length in their own order; default: all in their own order.
    Returns:
      (the sums in the structure of a contribution; the loss's gradients in the order of
      tf.trainable_variables(), [] where none is taken).
    """
    def with_gradients(rows):
        found = contribution(rows)
        return found, dense_gradients(loss_of(found), tf.trainable_variables(),
                                      loss_factor) if loss_of else []

    example = next(iter(features.values()))
    if micro_batch_size in (0, example.shape.as_list()[0]):
        return with_gradients(features)
    order = tf.range(tf.shape(example)[0]) if lengths is None else tf.argsort(
        lengths, direction="DESCENDING", stable=True)
    order = tf.reshape(order, [-1, micro_batch_size])  # [B/M, M]

    def micro_batch(index):
        rows = tf.gather(order, index)  # order[index] does not compile under 1.15's XLA
        return {name: tf.gather(tensor, rows) for name, tensor in features.items()}

    # Of the first one only the variables are used, which cannot be made inside of the loop.
    sums = tf.nest.map_structure(lambda scalar: tf.zeros([]), contribution(micro_batch(0)))
    start = sums, [tf.zeros(v.shape) for v in tf.trainable_variables()] if loss_of else []

    def add(index, sums):
        more = with_gradients(micro_batch(index))
        return index + 1, tf.nest.map_structure(tf.add, sums, more)

    count = order.shape.as_list()[0] or tf.shape(order)[0]
    return tf.while_loop(lambda index, sums: index < count, add,
                         (tf.zeros([], tf.int32), start), parallel_iterations=1,
                         back_prop=False)[1]


def row_lengths(values):
    """How far each row goes until nothing but zeros follows: [B, S] -> int32 [B]."""
    places = tf.range(1, tf.shape(values)[1] + 1)  # [S]
    return tf.reduce_max(tf.cast(tf.not_equal(values, 0), tf.int32) * places, axis=1)


def longest(values):
    """The greatest of row_lengths(values [B, S]), int32."""
    return tf.reduce_max(row_lengths(values))


def cut(features, names, length, step=LENGTH_STEP):
    """The features, those of the names [B, S, ...] without what lies beyond the length.

    Args:
      length: int32, below 1 like 1; what is left is as long as the next multiple of `step`.
    """
    length = -(-tf.maximum(length, 1) // step) * step
    return dict(features, **{name: features[name][:, :length] for name in names})


def dropout_seed(features):
    """int32 scalar that differs between steps, and between the parts of one step by their rows.

    It depends on nothing that a resumed run does not know.
    """
    step = tf.cast(tf.train.get_or_create_global_step(), tf.int32)
    return step * SEED_STRIDE + tf.reduce_sum(features["input_ids"])

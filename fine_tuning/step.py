"""A batch of examples -> the scalars and gradients of a training step, whatever the head.

In: the tensors of a batch, as examples.py gives them, and the head's Objective.  Out: tensors of
the current graph.
"""

import collections

import tensorflow.compat.v1 as tf

import devices
from fine_tuning import techniques
from training import micro_batches, precision

Objective = collections.namedtuple("Objective", "amount sums")
# What a head learns: the mean of a loss over rows or tokens.
# amount: function(features) -> their number, a float scalar.
# sums: function(features, dropout_seed, **options of modeling.AlbertModel) -> OrderedDict of sums
#   over them, "loss" the first, the others to be watched.


def head_step(features, objective, training, fgm_epsilon=0.0, loss_factor=None,
              use_tpu=False, bfloat16=False, fixed_shapes=False):
    """The loss of a device's rows, what else is watched, and the gradients.

    Args:
      features: dict of the tensors of B rows; those whose mask is 0 everywhere do not count.
      objective: Objective.
      training: run_settings.Training, whose micro_batch_size divides B or is 0.
      fgm_epsilon: see techniques.with_adversary.
      loss_factor: see optimization.dense_gradients.
      use_tpu, bfloat16: bool, whether the graph is for a TPU's cores, and computes in bfloat16.
      fixed_shapes: bool, whether the rows stay as long as they are; else those of like length are
        put together and cut to their longest.
    Returns:
      (OrderedDict of scalars, "loss" the first; gradients in the order of
      tf.trainable_variables()).
    """
    # An answer's ends [B, 2] are among them, but there is no row so short that they are cut.
    of_tokens = [name for name, values in features.items() if values.shape.ndims == 2]
    amount, = devices.mean_over_devices([objective.amount(features)], use_tpu)

    def gradients_at(word_shift):
        def contribution(rows):
            if training.micro_batch_size and not fixed_shapes:
                rows = micro_batches.cut(rows, of_tokens,
                                         micro_batches.longest(rows["input_mask"]))
            with precision.tpu_bfloat16(bfloat16):
                sums = objective.sums(
                    rows, micro_batches.dropout_seed(rows), training=True,
                    recompute=training.recompute, one_hot_embeddings=use_tpu,
                    word_shift=word_shift)
            return collections.OrderedDict(
                (name, tf.div_no_nan(total, amount)) for name, total in sums.items())
        return micro_batches.sum_over_micro_batches(
            contribution, features, training.micro_batch_size, lambda scalars: scalars["loss"],
            loss_factor,
            None if fixed_shapes else micro_batches.row_lengths(features["input_mask"]))
    return techniques.with_adversary(gradients_at, fgm_epsilon, use_tpu)


def real_rows(features):
    """1.0 for each row, 0.0 for one that only fills a batch up; [B]."""
    return tf.cast(features["input_mask"][:, 0], tf.float32)


def row_objective(sums):
    """The Objective of a mean over rows."""
    return Objective(lambda features: tf.reduce_sum(real_rows(features)), sums)

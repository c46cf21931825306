"""A batch of records -> the scalars and gradients of a training step, or an evaluation's figures.

In: the tensors of a batch, as reader.py gives them, and the model's config.  Out: tensors of the
current graph; variables are made in it under the names of the public checkpoints.
"""

import collections

import tensorflow.compat.v1 as tf

import devices
import modeling
from training import micro_batches, precision
from weights import checkpoints

TOKENS = ("input_ids", "input_mask", "segment_ids")  # [B, S]
PLACES = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")  # [B, P]

# Sums over rows: of the masked words' losses and hits, each times its weight, and of the weights;
# of the rows' losses and hits in sentence order, and their number.
Sums = collections.namedtuple("Sums", "mlm_loss mlm_hits words sop_loss sop_hits rows")


def training_step(features, config, micro_batch_size=0, recompute=False, loss_factor=None,
                  use_tpu=False, bfloat16=False, fixed_shapes=False):
    """The loss of a device's rows, its parts, and the gradients.

    Args:
      features: dict of the tensors of B records.
      config: modeling.AlbertConfig.
      micro_batch_size: how many rows are computed at once, a divisor of B; 0 for all.
      recompute: bool, whether the layers are computed again for the gradient.
      loss_factor: scalar that the loss is multiplied by on the way to its gradients, see
        optimization.dense_gradients; None for 1.
      use_tpu, bfloat16, fixed_shapes: see sums_of.
    Returns:
      (OrderedDict of scalars, "loss" the first; gradients in the order of
      tf.trainable_variables()).
    """
    batch_size = features["input_ids"].shape.as_list()[0]
    words, = devices.mean_over_devices([tf.reduce_sum(features["masked_lm_weights"])], use_tpu)

    def contribution(rows):
        """What some rows add to the batch's scalars."""
        found = sums_of(rows, config, use_tpu, bfloat16, fixed_shapes, training=True,
                        recompute=recompute, dropout_seed=micro_batches.dropout_seed(rows))
        mlm_loss, sop_loss = found.mlm_loss / (words + 1e-5), found.sop_loss / batch_size
        return collections.OrderedDict([
            ("loss", mlm_loss + sop_loss), ("mlm_loss", mlm_loss),
            ("mlm_accuracy", found.mlm_hits / (words + 1e-5)), ("sop_loss", sop_loss),
            ("sop_accuracy", found.sop_hits / batch_size)])

    return micro_batches.sum_over_micro_batches(
        contribution, features, micro_batch_size, lambda scalars: scalars["loss"], loss_factor,
        sorting_lengths(features, fixed_shapes))


def evaluation_step(features, config, micro_batch_size=0, use_tpu=False, bfloat16=False,
                    fixed_shapes=False):
    """(the batch's loss, the list of tensors [1] that evaluation_metrics takes); no dropout.

    Rows whose mask is 0 everywhere fill the last batch up and do not count.
    """
    found, _ = micro_batches.sum_over_micro_batches(
        lambda rows: sums_of(rows, config, use_tpu, bfloat16, fixed_shapes), features,
        micro_batch_size, lengths=sorting_lengths(features, fixed_shapes))
    loss = tf.div_no_nan(found.mlm_loss, found.words) + tf.div_no_nan(found.sop_loss, found.rows)
    return loss, [tf.reshape(value, [1]) for value in found]  # [1]


def evaluation_metrics(*sums):
    """tf.metrics by name: means over every masked word and every record, whatever the batches."""
    found = Sums(*sums)

    def mean(total, count):
        return tf.metrics.mean(tf.div_no_nan(total, count), count)

    return {"mlm_loss": mean(found.mlm_loss, found.words),
            "mlm_accuracy": mean(found.mlm_hits, found.words),
            "sop_loss": mean(found.sop_loss, found.rows),
            "sop_accuracy": mean(found.sop_hits, found.rows)}


def model_variables(config):
    """Name -> shape of every variable that training makes."""
    def build():
        row = {name: tf.zeros([1, 1], tf.int32) for name in (
            "input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids")}
        row.update(masked_lm_weights=tf.ones([1, 1]), next_sentence_labels=tf.zeros([1], tf.int32))
        sums_of(row, config)
    return checkpoints.variables_of(build)


def sorting_lengths(features, fixed_shapes):
    """The lengths by which rows are put together, or None for their own order."""
    return None if fixed_shapes else micro_batches.row_lengths(features["input_mask"])


def sums_of(features, config, use_tpu=False, bfloat16=False, fixed_shapes=False, **options):
    """The Sums of some rows, by both heads.

    Args:
      use_tpu: bool, whether the graph is for a TPU's cores.
      bfloat16: bool, whether a TPU computes in bfloat16.
      fixed_shapes: bool, whether a compiler wants shapes that do not depend on the rows; else
        nothing is computed of what is padding in all of them, nor the words of unused places.
      **options: further ones of modeling.AlbertModel.
    """
    rows = features if fixed_shapes else without_padding(features)
    with precision.tpu_bfloat16(bfloat16):
        model = modeling.AlbertModel(
            config, rows["input_ids"], rows["input_mask"], rows["segment_ids"],
            one_hot_embeddings=use_tpu, **options)
        output, pooled_output = model.outputs_at(rows["masked_lm_positions"])
        labels, weights = [tf.reshape(rows[name], [-1]) for name in (
            "masked_lm_ids", "masked_lm_weights")]  # [B*P]
        output = tf.reshape(output, [-1, config.hidden_size])  # [B*P, H]
        if not fixed_shapes:
            used = tf.where(tf.not_equal(weights, 0.0))[:, 0]  # [U]
            output, labels, weights = [tf.gather(x, used) for x in (output, labels, weights)]
        masked = modeling.masked_lm_head(output, model, labels, weights)
        order = modeling.sentence_order_head(pooled_output, rows["next_sentence_labels"], config)
    real = tf.cast(rows["input_mask"][:, 0], tf.float32)  # [B]
    return Sums(*[tf.reduce_sum(x) for x in (
        masked.example_loss * weights, hits(masked, labels) * weights, weights,
        order.example_loss * real, hits(order, rows["next_sentence_labels"]) * real, real)])


def without_padding(features):
    """The features cut to the longest row, and to the most places for masked words in use."""
    length = tf.maximum(micro_batches.longest(features["input_mask"]),
                        1 + tf.reduce_max(features["masked_lm_positions"]))
    places = micro_batches.longest(features["masked_lm_weights"])
    return micro_batches.cut(micro_batches.cut(features, TOKENS, length), PLACES, places, step=1)


def hits(head, labels):
    """1.0 where the head's best class is the label, else 0.0; [M]."""
    best = tf.argmax(head.logits, axis=-1, output_type=tf.int32)
    return tf.cast(tf.equal(best, labels), tf.float32)  # [M]

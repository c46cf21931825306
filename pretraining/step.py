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

SEED_STRIDE = 1000003  # a prime, so that seeds of neighbouring steps lie far apart


def training_step(features, config, micro_batch_size=0, recompute=False, loss_factor=None,
                  use_tpu=False, bfloat16=False):
    """The loss of a device's rows, its parts, and the gradients.

    Args:
      features: dict of the tensors of B records.
      config: modeling.AlbertConfig.
      micro_batch_size: how many rows are computed at once, a divisor of B; 0 for all.
      recompute: bool, whether the layers are computed again for the gradient.
      loss_factor: scalar that the loss is multiplied by on the way to its gradients, see
        optimization.dense_gradients; None for 1.
      use_tpu: bool, whether the graph is for a TPU's cores.
      bfloat16: bool, whether a TPU computes in bfloat16.
    Returns:
      (OrderedDict of scalars, "loss" the first; gradients in the order of
      tf.trainable_variables()).
    """
    batch_size = features["input_ids"].shape.as_list()[0]
    weight_sum, = devices.mean_over_devices(
        [tf.reduce_sum(features["masked_lm_weights"])], use_tpu)

    def contribution(rows):
        """What some rows add to the batch's scalars, each of which is a sum over the rows."""
        masked, order = heads(rows, config, use_tpu, bfloat16, weight_sum=weight_sum,
                              training=True, recompute=recompute, dropout_seed=dropout_seed(rows))
        right = hits(masked, rows["masked_lm_ids"])
        weights = tf.reshape(rows["masked_lm_weights"], [-1])  # [B*P]
        labels = rows["next_sentence_labels"]
        fraction = labels.shape.as_list()[0] / float(batch_size)
        return collections.OrderedDict([
            ("loss", masked.loss + fraction * order.loss), ("mlm_loss", masked.loss),
            ("mlm_accuracy", tf.reduce_sum(right * weights) / (weight_sum + 1e-5)),
            ("sop_loss", fraction * order.loss),
            ("sop_accuracy", fraction * tf.reduce_mean(hits(order, labels)))])

    return micro_batches.sum_over_micro_batches(
        contribution, features, micro_batch_size or batch_size, loss_factor)


def evaluation_step(features, config, use_tpu=False, bfloat16=False):
    """(the batch's loss, the list of tensors that evaluation_metrics takes); no dropout.

    Rows whose mask is 0 everywhere fill the last batch up and do not count.
    """
    masked, order = heads(features, config, use_tpu, bfloat16)
    return masked.loss + order.loss, [
        masked.example_loss, hits(masked, features["masked_lm_ids"]),
        tf.reshape(features["masked_lm_weights"], [-1]),  # [B*P]
        order.example_loss, hits(order, features["next_sentence_labels"]),
        tf.cast(features["input_mask"][:, 0], tf.float32)]


def evaluation_metrics(masked_loss, masked_hits, weights, order_loss, order_hits, rows):
    """tf.metrics by name: means over every masked word and every record, whatever the batches."""
    return {"mlm_loss": tf.metrics.mean(masked_loss, weights),
            "mlm_accuracy": tf.metrics.mean(masked_hits, weights),
            "sop_loss": tf.metrics.mean(order_loss, rows),
            "sop_accuracy": tf.metrics.mean(order_hits, rows)}


def model_variables(config):
    """Name -> shape of every variable that training makes."""
    def build():
        row = {name: tf.zeros([1, 1], tf.int32) for name in (
            "input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids")}
        row.update(masked_lm_weights=tf.ones([1, 1]), next_sentence_labels=tf.zeros([1], tf.int32))
        heads(row, config)
    return checkpoints.variables_of(build)


def heads(features, config, use_tpu=False, bfloat16=False, weight_sum=None, **options):
    """The two heads over a batch: (masked_lm_head, sentence_order_head).

    weight_sum: see modeling.masked_lm_head; options: further ones of modeling.AlbertModel.
    """
    with precision.tpu_bfloat16(bfloat16):
        model = modeling.AlbertModel(
            config, features["input_ids"], features["input_mask"], features["segment_ids"],
            one_hot_embeddings=use_tpu, **options)
        output, pooled_output = model.outputs_at(features["masked_lm_positions"])
        masked = modeling.masked_lm_head(output, model, features["masked_lm_ids"],
                                         features["masked_lm_weights"], weight_sum)
        return masked, modeling.sentence_order_head(
            pooled_output, features["next_sentence_labels"], config)


def dropout_seed(features):
    """int32 scalar that differs between steps, and between the devices of one step by their rows.

    It depends on nothing that a resumed run does not know.
    """
    step = tf.cast(tf.train.get_or_create_global_step(), tf.int32)
    return step * SEED_STRIDE + tf.reduce_sum(features["input_ids"])


def hits(head, labels):
    """1.0 where the head's best class is the label, else 0.0; [M]."""
    best = tf.argmax(head.logits, axis=-1, output_type=tf.int32)
    return tf.cast(tf.equal(best, tf.reshape(labels, [-1])), tf.float32)  # [M]

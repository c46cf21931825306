"""From a loss to one training step: schedule, gradients, clipping, update, step count.

In: the loss and the run's learning rate and lengths.  Out: an Update, whose `op` is the train_op.
"""

import collections

import tensorflow.compat.v1 as tf

from lamb_optimizer import LAMBOptimizer

CLIP_NORM = 1.0  # as BERT; LAMB's ratio does not make it superfluous, the moments keep an outlier

Update = collections.namedtuple("Update", "op learning_rate gradient_norm trust_ratio")


class AdamWeightDecayOptimizer(LAMBOptimizer):
    """Adam with decoupled weight decay, not bias-corrected: LAMB whose trust ratio is always 1."""

    slot_prefix = "adam"

    def trust_ratio(self, variable, update):
        """1 for every variable."""
        del variable, update
        return tf.ones([])


OPTIMIZERS = {"lamb": LAMBOptimizer, "adamw": AdamWeightDecayOptimizer}


def learning_rate_at(step, learning_rate, num_train_steps, num_warmup_steps):
    """The rate of the update that follows `step` earlier ones, a float32 scalar.

    It rises linearly from 0 for num_warmup_steps, then continues on the line that falls from
    learning_rate at step 0 to 0 at num_train_steps.
    """
    step = tf.cast(step, tf.float32)
    decayed = learning_rate * tf.maximum(0.0, 1.0 - step / num_train_steps)
    if not num_warmup_steps:
        return decayed
    return tf.where(step < num_warmup_steps, learning_rate * step / num_warmup_steps, decayed)


def dense_gradients(loss, variables):
    """Gradients of the loss; an embedding's rows are summed into a tensor of its shape."""
    gradients = tf.gradients(loss, variables)
    unused = [v.op.name for v, g in zip(variables, gradients) if g is None]
    if unused:
        raise ValueError("the loss does not depend on {}".format(", ".join(unused)))
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def create_optimizer(loss, learning_rate, num_train_steps, num_warmup_steps, optimizer="lamb",
                     use_tpu=False, **settings):
    """Builds the update of every trainable variable.

    Args:
      loss: scalar, the mean over this device's batch.
      learning_rate: float, the schedule's peak.
      num_train_steps, num_warmup_steps: lengths of the schedule in updates.
      optimizer: "lamb" or "adamw".
      use_tpu: whether to average the gradients over the TPU's cores before they are clipped.
      **settings: further arguments of the optimizer's class.
    Returns:
      Update(op, learning_rate, gradient_norm, trust_ratio): the op also counts the global step,
      after the rate was read from it; the others are scalars to be watched.
    """
    global_step = tf.train.get_or_create_global_step()
    rate = learning_rate_at(global_step, learning_rate, num_train_steps, num_warmup_steps)
    rule = OPTIMIZERS[optimizer](rate, **settings)
    variables = tf.trainable_variables()
    gradients = dense_gradients(loss, variables)
    if use_tpu:
        gradients = [tf.tpu.cross_replica_sum(g) / tf.tpu.cross_replica_sum(tf.ones([]))
                     for g in gradients]
    clipped, norm = tf.clip_by_global_norm(gradients, CLIP_NORM)
    with tf.control_dependencies([rule.apply_gradients(zip(clipped, variables))]):
        op = tf.assign_add(global_step, 1).op
    return Update(op, rate, norm, tf.reduce_mean(tf.stack(rule.trust_ratios)))

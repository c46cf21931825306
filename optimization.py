"""From a loss to one training step: gradients -> mean over devices -> clip -> update -> count.

In: the loss and the run's learning rate and lengths.  Out: an Update, whose `op` is the train_op.
"""

import collections
import functools
import math
import warnings

import tensorflow.compat.v1 as tf

import devices
from lamb_optimizer import LAMBOptimizer

CLIP_NORM = 1.0  # as BERT; LAMB's ratio does not make it superfluous, the moments keep an outlier

Update = collections.namedtuple("Update", "op learning_rate gradient_norm trust_ratio finite names")


class AdamWeightDecayOptimizer(LAMBOptimizer):
    """Adam with decoupled weight decay: LAMB whose trust ratio is always 1."""

    slot_prefix = "adam"

    def trust_ratio(self, variable, update):
        """1 for every variable."""
        del variable, update
        return tf.ones([])


OPTIMIZERS = {"lamb": LAMBOptimizer, "adamw": AdamWeightDecayOptimizer}

LAMB_TOKENS = 2 ** 18  # of a step, from which on LAMB is taken
ADAMW_RATE, ADAMW_TOKENS, ADAMW_WIDTH = 0.001, 4096, 312  # measured together, see fitting_rate
HIGHEST_ADAMW_RATE = 0.002
PUBLISHED_RATE, PUBLISHED_BATCH = 0.00176, 4096  # of ALBERT's LAMB, in sequences


def fitting_optimizer(batch_size, seq_length):
    """The name of the optimizer that learns fastest from batches of this size.

    LAMB was made for batches that AdamW cannot use; in small ones its first thousands of steps
    are too short, since it moves each matrix by a fixed share of its length.
    """
    return "lamb" if batch_size * seq_length >= LAMB_TOKENS else "adamw"


def fitting_rate(optimizer, batch_size, seq_length, hidden_size):
    """The highest learning rate of a schedule, for pre-training.

    LAMB's is the published one, AdamW's the best one measured on the tiny model. Both go with the
    square root of the batch; AdamW's falls with the width, and is bounded.
    """
    if optimizer == "lamb":
        return PUBLISHED_RATE * math.sqrt(batch_size / float(PUBLISHED_BATCH))
    rate = ADAMW_RATE * math.sqrt(batch_size * seq_length / float(ADAMW_TOKENS))
    return min(rate, HIGHEST_ADAMW_RATE) * min(1.0, ADAMW_WIDTH / float(hidden_size))


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


def bias_correction(step, beta_1=0.9, beta_2=0.999):
    """√(1 - β₂ᵗ) / (1 - β₁ᵗ) of update t = step + 1 (Kingma and Ba, arXiv 1412.6980, section 2).

    The moments start from 0. Without it the updates of the first steps are too large, up to 6.5
    times at the tenth, since v takes a thousand steps to fill and m ten.
    """
    t = tf.cast(step, tf.float32) + 1.0
    return tf.sqrt(1.0 - tf.pow(beta_2, t)) / (1.0 - tf.pow(beta_1, t))


def dense_gradients(loss, variables, loss_factor=None):
    """Gradients of the loss; an embedding's rows are summed into a tensor of its shape.

    loss_factor: scalar that the loss is multiplied by on the way, for numbers as small as
      float16's; the gradients are divided by it again.
    """
    with warnings.catch_warnings():  # the word table's gradient is dense, with or without rows
        warnings.filterwarnings("ignore", "Converting sparse IndexedSlices")
        gradients = tf.gradients(loss if loss_factor is None else loss * loss_factor, variables)
    unused = [v.op.name for v, g in zip(variables, gradients) if g is None]
    if unused:
        raise ValueError("the loss does not depend on {}".format(", ".join(unused)))
    gradients = [summed_rows(gradient, variable) if isinstance(gradient, tf.IndexedSlices)
                 else gradient for gradient, variable in zip(gradients, variables)]
    return gradients if loss_factor is None else [g / loss_factor for g in gradients]


def summed_rows(gradient, variable):
    """An embedding's gradient, given by rows of which some occur twice, in the variable's shape."""
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices,
                                        variable.shape.as_list()[0])


def clip(gradients):
    """Scales gradients of a global norm above CLIP_NORM down to it.

    Returns:
      clipped gradients, their norm before, and for each one whether it is finite, bool [n].
    """
    squares = tf.stack([2.0 * tf.nn.l2_loss(gradient) for gradient in gradients])
    norm = tf.sqrt(tf.reduce_sum(squares))
    clipped, _ = tf.clip_by_global_norm(gradients, CLIP_NORM, use_norm=norm)
    return clipped, norm, tf.is_finite(squares)


def apply_update(rule, gradients, variables, proceed, loss_scale=None, ema_decay=0.0):
    """Updates the variables on every device, then counts the global step; both if `proceed`.

    With a loss scale, a step that does not proceed is counted as long as the scale can fall. With
    ema_decay the running means of the variables are updated last.

    Returns:
      the op, and the mean trust ratio.
    """
    global_step = tf.train.get_or_create_global_step()
    counts, state, values = proceed, [], []
    if loss_scale:
        counts = tf.logical_or(proceed, loss_scale.can_fall)
        state, values = loss_scale.state, loss_scale.next_values(proceed)

    def across_devices(strategy, gradients, proceed, counts, values):
        def update(variable, function, *values, **options):
            """Calls the function with each device's copy of the variable and of the values."""
            return strategy.extended.update(variable, lambda copy: function(copy, *[
                devices.on_device_of(copy, variable, value) for value in values]), **options)

        rule.create_moments(variables)
        ratios = [ratio for variable, gradient in zip(variables, gradients)
                  for ratio in update(variable, functools.partial(update_if, rule), gradient,
                                      proceed, group=False)]
        with tf.control_dependencies(ratios):
            counted = update(global_step, count_if, counts)
            kept = [update(variable, assign, value) for variable, value in zip(state, values)]
        if ema_decay:
            with tf.control_dependencies([counted]):
                kept.append(tf.train.ExponentialMovingAverage(
                    ema_decay, num_updates=global_step).apply(variables))
        return tf.group(counted, *kept), tf.reduce_mean(tf.stack(ratios))

    return tf.distribute.get_replica_context().merge_call(
        across_devices, args=(gradients, proceed, counts, values))


def update_if(rule, variable, gradient, proceed):
    """Lets the optimizer update the variable if `proceed`; returns the trust ratio, 0 if not."""
    def updated():
        op, ratio = rule.update(variable, gradient)
        with tf.control_dependencies([op]):
            return tf.identity(ratio)
    return tf.cond(proceed, updated, lambda: tf.zeros([]))


def count_if(step, counts):
    """Adds 1 to the step if `counts`."""
    return step.assign_add(tf.cast(counts, step.dtype)).op


def assign(variable, value):
    """Sets the variable."""
    return variable.assign(value).op


def create_optimizer(loss, learning_rate, num_train_steps, num_warmup_steps, optimizer="lamb",
                     use_tpu=False, gradients=None, loss_scale=None, correct_bias=True,
                     ema_decay=0.0, **settings):
    """Builds the update of every trainable variable.

    Args:
      loss: scalar, the mean over this device's batch.
      learning_rate: float, the schedule's peak.
      num_train_steps, num_warmup_steps: lengths of the schedule in updates.
      optimizer: "lamb" or "adamw".
      use_tpu: whether to average the gradients over the TPU's cores before they are clipped.
      gradients: of this device's batch, in the order of tf.trainable_variables(); default: the
        loss is differentiated here.
      loss_scale: precision.LossScale, or None.
      correct_bias: bool, whether AdamW's moments are bias-corrected, which BERT's are not; LAMB's
        never are.
      ema_decay: float, of the running mean of the weights that is kept beside them; 0 keeps none.
      **settings: further arguments of the optimizer's class.
    Returns:
      Update(op, learning_rate, gradient_norm, trust_ratio, finite, names): the op also counts the
      global step, after the rate was read from it. The next three are scalars to be watched.
      `finite` is bool [n], for the loss and each gradient, whose `names` stand beside it: where one
      is false, the op changes nothing. With a loss scale that can still fall all are called
      finite, and the step is skipped.
    """
    step = tf.train.get_or_create_global_step()
    rate = learning_rate_at(step, learning_rate, num_train_steps, num_warmup_steps)
    if correct_bias and optimizer == "adamw":
        settings["correction"] = bias_correction(step)
    rule = OPTIMIZERS[optimizer](rate, **settings)
    variables = tf.trainable_variables()
    if gradients is None:
        gradients = dense_gradients(loss, variables, loss_scale and loss_scale.value)
    means = devices.mean_over_devices([loss] + gradients, use_tpu)
    clipped, norm, finite = clip(means[1:])
    finite = tf.concat([[tf.is_finite(means[0])], finite], axis=0)
    op, ratio = apply_update(rule, clipped, variables, tf.reduce_all(finite), loss_scale,
                             ema_decay)
    if loss_scale:
        finite = tf.logical_or(finite, loss_scale.can_fall)
    return Update(op, rate, norm, ratio, finite, ["loss"] + [v.op.name for v in variables])

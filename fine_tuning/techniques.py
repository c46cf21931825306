"""What wins points in fine-tuning beside the plain loss; all of it is off until a flag asks for it.

In: the flags, the labels of the training file, a head's logits.  Out: Techniques; the loss of a
batch; rates by layer; a perturbation of the word table.

  layer_decay      lower layers learn more slowly        (Howard and Ruder, arXiv 1801.06146, 3.2)
  fgm_epsilon      a second loss at the words moved where the first one rises fastest
                                                         (Miyato et al., arXiv 1605.07725, 3)
  rdrop_weight     two dropouts of a row must agree      (Liang et al., arXiv 2106.14448, 2)
  label_smoothing  the truth has probability 1 - s + s/C (Szegedy et al., arXiv 1512.00567, 7)
  class_weights    rare classes count more
  focal_gamma      what is known already counts less     (Lin et al., arXiv 1708.02002, 3.2)
  ema_decay        the model is the mean of its last steps
"""

import collections
import functools

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import cli
import devices
import modeling
from cli import UserError
from weights import layouts

Techniques = collections.namedtuple(
    "Techniques", "layer_decay fgm_epsilon ema_decay rdrop_weight label_smoothing focal_gamma "
    "class_weights")
# class_weights: float list [C], or None for 1 each.

BALANCED = "balanced"
RANGES = {"layer_decay": (1e-6, 1.0), "fgm_epsilon": (0.0, 100.0), "ema_decay": (0.0, 0.99999),
          "rdrop_weight": (0.0, 100.0), "label_smoothing": (0.0, 0.99),
          "focal_gamma": (0.0, 10.0)}


def define_technique_flags(flag_values):
    """Defines the flags of all techniques."""
    real = functools.partial(flags.DEFINE_float, flag_values=flag_values)
    real("layer_decay", 1.0, "Rate of each level as a share of the one above it: head, encoder "
         "(its layers where they do not share), embeddings. Default: 1, one rate for all.")
    real("fgm_epsilon", 0.0, "Length of the adversarial step on the word table; 1 is usual, and "
         "doubles the time. Default: 0, none.")
    real("ema_decay", 0.0, "Keep the running mean of the weights beside them, and evaluate, "
         "predict and export with it; 0.999 is usual. Default: 0, the weights as they are.")
    real("rdrop_weight", 0.0, "Weight of the divergence between two dropouts of a row; 4 is usual, "
         "and doubles the time. Default: 0, none.")
    real("label_smoothing", 0.0, "Share of the truth that all classes get alike; 0.1 is usual. "
         "Default: 0.")
    real("focal_gamma", 0.0, "Power by which well known rows count less; 2 is usual for skewed "
         "classes. Default: 0, all alike.")
    flags.DEFINE_string(
        "class_weights", None, "Weight of each class in the loss: numbers by commas in the order "
        "of the labels, or balanced, by how rare they are. Default: 1 each.",
        flag_values=flag_values)


def check_ranges(settings):
    """Raises UserError for a flag of RANGES that is out of its range."""
    for name, (lowest, highest) in sorted(RANGES.items()):
        cli.require_within(settings, lowest, highest, name)


def techniques_of(settings, labels, counts):
    """The Techniques of the flags.

    Args:
      settings: of the flags.  labels: C names.  counts: how often each stands in the training file.
    Raises:
      UserError: a value that cannot be meant.
    """
    check_ranges(settings)
    weights = settings.class_weights
    return Techniques(
        settings.layer_decay, settings.fgm_epsilon, settings.ema_decay, settings.rdrop_weight,
        settings.label_smoothing, settings.focal_gamma,
        weights and class_weights(weights, labels, counts))


def class_weights(text, labels, counts):
    """--class_weights as a list of floats whose mean over the training rows is 1."""
    counts = np.asarray(counts, np.float64)
    if text == BALANCED:
        weights = 1.0 / np.maximum(counts, 1.0)
    else:
        try:
            weights = np.array([float(cell) for cell in text.split(",")])
        except ValueError:
            raise UserError("--class_weights is {!r}, must be {} or numbers by commas".format(
                text, BALANCED)) from None
        if len(weights) != len(labels) or not (np.isfinite(weights) & (weights > 0)).all():
            raise UserError("--class_weights is {!r}, must be {} numbers above 0, for {}".format(
                text, len(labels), ", ".join(labels)))
    return (weights * counts.sum() / (weights * counts).sum()).tolist()


def classification_losses(logits, labels, techniques):
    """The loss of each row [B], for logits [B, C] and labels int [B]."""
    log_probs = tf.nn.log_softmax(logits)
    classes = logits.shape.as_list()[-1]
    truth = tf.one_hot(labels, classes)  # [B, C]
    smoothed = (1.0 - techniques.label_smoothing) * truth + techniques.label_smoothing / classes
    losses = -tf.reduce_sum(smoothed * log_probs, axis=-1)  # [B]
    if techniques.focal_gamma:
        known = tf.exp(tf.reduce_sum(truth * log_probs, axis=-1))  # [B]
        losses *= tf.pow(tf.maximum(1.0 - known, 0.0), techniques.focal_gamma)
    if techniques.class_weights:
        losses *= tf.gather(tf.constant(techniques.class_weights), labels)
    return losses


def twice(features):
    """A batch followed by itself, so that each row meets two dropouts: [B, ...] -> [2B, ...]."""
    return {name: tf.concat([tensor, tensor], axis=0) for name, tensor in features.items()}


def divergence(logits):
    """How far the two halves of logits [2B, C] are apart, [B]: (KL(p‖q) + KL(q‖p)) / 2."""
    first, second = tf.split(tf.nn.log_softmax(logits), 2)  # [B, C]
    return 0.5 * tf.reduce_sum((tf.exp(first) - tf.exp(second)) * (first - second), axis=-1)


def with_adversary(gradients_at, epsilon, use_tpu=False):
    """The scalars and gradients of a batch, and of the batch moved against its labels.

    Args:
      gradients_at: function(word_shift [V, E] or None) -> (OrderedDict of scalars, "loss" first;
        gradients in the order of tf.trainable_variables()), of this device's rows.
      epsilon: length of the shift over the whole table; 0 moves nothing.
      use_tpu: see devices.mean_over_devices; the shift is that of the rows of all devices.
    Returns:
      the scalars and gradients of the sum of both losses.
    """
    scalars, gradients = gradients_at(None)
    if not epsilon:
        return scalars, gradients
    of_words = [gradient for variable, gradient in zip(tf.trainable_variables(), gradients)
                if (variable.op.name + "/").startswith(layouts.WORDS + "/")]  # or its replica's
    slope, = devices.mean_over_devices(of_words, use_tpu)  # [V, E]
    length = tf.norm(slope)
    shift = slope * (epsilon / tf.where(length > 0.0, length, tf.ones_like(length)))
    # No gradient goes back through integers: tf.gradients would follow one to the loop over the
    # first pass's micro-batches, though tf.stop_gradient stood there, and could not enter it.
    adversarial, more = gradients_at(tf.bitcast(tf.bitcast(shift, tf.int32), tf.float32))
    scalars["adversarial_loss"] = adversarial["loss"]
    scalars["loss"] = scalars["loss"] + adversarial["loss"]
    return scalars, [one + other for one, other in zip(gradients, more)]


def rate_factors(config, decay):
    """What optimization's rate_factors are for --layer_decay: [(pattern, factor)].

    Where all layers share one set of weights the encoder is one level; otherwise each layer or
    group is one, the last one next to the head.
    """
    if decay == 1.0:
        return []
    levels = list(collections.OrderedDict.fromkeys(
        modeling.layer_scopes(index, config).attention.split("/")[0]
        for index in range(config.num_hidden_layers)))
    below = "^bert/(embeddings|encoder/embedding_hidden_mapping_in)/"
    return [(below, decay ** (len(levels) + 1)), ("^bert/pooler/", decay)] + [
        ("^bert/encoder/{}/".format(scope), decay ** (len(levels) - level))
        for level, scope in enumerate(levels)]

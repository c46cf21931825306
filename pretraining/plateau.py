"""What the loss of a pre-training is expected to be, and a warning where it does not move on.

In: the records, then the masked words' loss of each step.  Out: log lines.

Who guesses among V tokens loses ln V a masked word. Who knows how frequent each token is, and
nothing of the text around it, loses the entropy of these frequencies. A training stays on that
plateau until it begins to read the context, which a good start does within a few hundred steps.
"""

import itertools
import math

import numpy as np
import tensorflow.compat.v1 as tf

from pretraining import dynamic_masking
from pretraining_data.records import read_records

SAMPLED_RECORDS = 4000
MARGIN = 0.1  # nats below the plateau from which on a loss counts as having left it
PATIENCE = 1000  # steps after the warm-up; a good start leaves the plateau in a tenth of them
SMOOTHING = 0.02  # weight of a step in the running mean, about its last 50 steps


def token_counts(source, vocab_size, most=SAMPLED_RECORDS):
    """How often each token stands among the words to be masked, in a sample of the records.

    Args:
      source: reader.Source.
      vocab_size: V.
      most: records that are looked at, the first ones of every file.
    Returns:
      int64 [V].
    """
    counts = np.zeros(vocab_size, np.int64)
    for path in source.files:
        for record in itertools.islice(filter(None, read_records(path)),
                                       -(-most // len(source.files))):
            words = np.array(words_of(record, source.masking is not None), np.int64)
            np.add.at(counts, words[(0 <= words) & (words < vocab_size)], 1)
    return counts


def words_of(record, dynamic):
    """The token ids of a serialized record that are, or may come to be, predicted: list of int.

    Of one that cannot be read there are none; the training itself stops at it.
    """
    try:
        features = tf.train.Example.FromString(record).features.feature
    except Exception:  # protobuf raises another class in each of its versions
        return []
    if not dynamic:
        weights = features["masked_lm_weights"].float_list.value
        return [token for token, weight in zip(
            features["masked_lm_ids"].int64_list.value, weights) if weight > 0.0]
    values = dynamic_masking.record_values(features)
    second = (values["segment_b_start"] or [1])[0]
    return list(values["token_ids"][1:second - 1]) + list(values["token_ids"][second:-1])


def log_frequencies(counts):
    """ln of each token's share, one more of every token than was counted: float32 [V]."""
    return np.log((counts + 1.0) / (counts + 1.0).sum()).astype(np.float32)


def entropy(counts):
    """Entropy of the counted tokens in nats, with Miller and Madow's correction for a sample."""
    found = counts[counts > 0]
    shares = found / float(found.sum())
    return float(-(shares * np.log(shares)).sum() + (len(found) - 1) / (2.0 * found.sum()))


def log_expectation(plateau, vocab_size):
    """Says once what the loss of the masked words is to be measured by."""
    tf.logging.info(
        "mlm_loss to expect: %.2f is guessing (ln %d), %.2f is knowing how frequent each token is; "
        "what is below has been read from the context", math.log(vocab_size), vocab_size, plateau)


class PlateauHook(tf.train.SessionRunHook):
    """Warns, at ever longer intervals, as long as the loss has not left the plateau."""

    def __init__(self, mlm_loss, plateau, num_warmup_steps, patience=PATIENCE):
        """Keeps the settings.

        Args:
          mlm_loss: scalar tensor, a step's mean loss of a masked word.
          plateau: see entropy().
          num_warmup_steps: steps before which nothing is expected.
          patience: steps after these until the first warning.
        """
        self.mlm_loss = mlm_loss
        self.plateau = plateau
        self.next_warning = num_warmup_steps + patience
        self.mean = None

    def after_create_session(self, session, coord):
        self.done = int(session.run(tf.train.get_global_step()))

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.mlm_loss)

    def after_run(self, run_context, run_values):
        loss = float(run_values.results)
        self.done += 1
        if math.isfinite(loss):
            self.mean = loss if self.mean is None else self.mean + SMOOTHING * (loss - self.mean)
        if self.done < self.next_warning or self.mean is None:
            return
        self.next_warning = 2 * self.done
        if self.mean > self.plateau - MARGIN:
            tf.logging.warning(
                "step %d: mlm_loss is %.2f, still on the plateau of %.2f: so far the model knows "
                "how frequent each token is and nothing of the context. Other values of "
                "--learning_rate and --optimizer (left out, they fit the batch), a longer warm-up "
                "or more text may help; see docs, troubleshooting", self.done, self.mean,
                self.plateau)

"""A linear-chain CRF over tag logits (Lafferty et al. 2001): how likely are the tags of a row?

In: logits [B, S, T], tags [B, S], lengths [B].  Out: log-likelihoods [B]; only sequences that the
tags' scheme allows have a share in the probability. tag_schemes.TagDecoder finds the best of them.

Letters for dimensions: B rows, S places of the longest row, T tags.
"""

import tensorflow.compat.v1 as tf

from fine_tuning.tag_schemes import allowed_transitions
from weights import layouts

FORBIDDEN = -10000.0  # added to the score of what no valid sequence has; no infinity in a gradient
SCOPE, NAME = layouts.CRF.split("/")


def transition_scores(num_tags):
    """The variable [T, T]: the score of a tag (column) after another (row), 0 at first."""
    with tf.variable_scope(SCOPE, reuse=tf.AUTO_REUSE):
        return tf.get_variable(NAME, [num_tags, num_tags], initializer=tf.zeros_initializer())


def log_likelihood(logits, tags, lengths, transitions, names):
    """The logarithm of the probability of each row's tags among the valid sequences: [B].

    Args:
      logits: float [B, S, T].  tags: int32 [B, S], anything beyond a row's length.
      lengths: int32 [B], places of each row that count; a row of 0 has the value 0.
      transitions: float [T, T], see transition_scores.
      names: T tags of one scheme.
    """
    starts, steps, ends = [tf.constant((~mask) * FORBIDDEN, tf.float32)
                           for mask in allowed_transitions(names)]
    steps += transitions
    counts = tf.sequence_mask(lengths, tf.shape(tags)[1])  # [B, S]
    score = sequence_score(logits, tags, counts, steps)
    whole = log_sum_of_all(logits + place_one(starts, tf.shape(tags)[1]), counts, steps, ends)
    return tf.where(lengths > 0, score - whole, tf.zeros_like(score))


def place_one(starts, length):
    """starts [T] at the first of `length` places and 0 at the others: [1, S, T]."""
    return tf.expand_dims(tf.pad(tf.expand_dims(starts, 0), [[0, length - 1], [0, 0]]), 0)


def sequence_score(logits, tags, counts, steps):
    """The score [B] of each row's own tags, over the places that count [B, S]."""
    counted = tf.cast(counts, logits.dtype)
    own = tf.reduce_sum(logits * tf.one_hot(tags, tf.shape(logits)[2]), axis=2)  # [B, S]
    moves = tf.gather_nd(steps, tf.stack([tags[:, :-1], tags[:, 1:]], axis=2))  # [B, S-1]
    return (tf.reduce_sum(own * counted, axis=1)
            + tf.reduce_sum(moves * counted[:, 1:], axis=1))


def log_sum_of_all(scores, counts, steps, ends):
    """log of the sum of exp(score) over all sequences of each row: [B], by the forward recursion.

    scores [B, S, T] are those of each place; counts, steps, ends: see log_likelihood.
    """
    def onward(before, place):
        own, counted = place  # [B, T], [B]
        after = tf.reduce_logsumexp(tf.expand_dims(before, 2) + steps, axis=1) + own
        return tf.where(tf.tile(tf.expand_dims(counted, 1), [1, tf.shape(own)[1]]), after, before)

    places = tf.transpose(scores, [1, 0, 2])  # [S, B, T]
    are_counted = tf.transpose(counts, [1, 0])  # [S, B]
    sums = tf.foldl(onward, (places[1:], are_counted[1:]), initializer=places[0])
    return tf.reduce_logsumexp(sums + ends, axis=1)

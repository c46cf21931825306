"""The CRF's likelihood against the enumeration of all valid sequences, and that it learns."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.tag_paths import path_probabilities

from fine_tuning import crf, tag_schemes
from fine_tuning.tag_schemes import SCHEMES

LENGTHS = [4, 1, 3, 2, 0]


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_log_likelihood_equals_the_enumeration_of_all_paths(scheme):
    rng = np.random.RandomState(3)
    names = tag_schemes.tags_of(SCHEMES[scheme], ["X"])
    transitions = rng.randn(len(names), len(names))
    logits = 2 * rng.randn(len(LENGTHS), 4, len(names))
    decoder = tag_schemes.TagDecoder(names, transitions)
    tags, expected = np.zeros([len(LENGTHS), 4], np.int32), np.zeros(len(LENGTHS))
    for row, length in enumerate(LENGTHS[:-1]):
        everything = path_probabilities(decoder, logits[row, :length])
        chosen = sorted(everything)[rng.randint(len(everything))]
        tags[row, :length], expected[row] = chosen, np.log(everything[chosen])
    tags[3, 2:] = len(names) - 1  # what stands behind a row's end does not count
    with tf.Graph().as_default(), tf.Session() as session:
        found = session.run(crf.log_likelihood(
            tf.constant(logits, tf.float32), tf.constant(tags), tf.constant(LENGTHS),
            tf.constant(transitions, tf.float32), names))
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_transitions_are_learned_where_the_logits_say_nothing():
    names = tag_schemes.tags_of(SCHEMES["BIO"], ["X"])
    tags = np.array([[0, 1, 0, 1, 0]] * 2, np.int32)  # O and B-X in turn
    with tf.Graph().as_default(), tf.Session() as session:
        transitions = crf.transition_scores(len(names))
        likelihood = crf.log_likelihood(tf.zeros([2, 5, 3]), tf.constant(tags),
                                        tf.constant([5, 5]), transitions, names)
        train = tf.train.GradientDescentOptimizer(1.0).minimize(-tf.reduce_mean(likelihood))
        session.run(tf.global_variables_initializer())
        for _ in range(30):
            session.run(train)
        assert [variable.op.name for variable in tf.global_variables()] == ["crf/transitions"]
        assert session.run(likelihood).min() > -1  # from -4.5
        learned = session.run(transitions)
    assert learned[0, 1] > learned[0, 0] and learned[1, 0] > learned[1, 1]

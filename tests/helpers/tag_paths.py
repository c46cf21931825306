"""All tag sequences of a row, one by one: the oracle of what recursions find."""

import itertools

import numpy as np


def path_scores(decoder, scores):
    """Score of every valid sequence of a TagDecoder over scores [S, T], by its tag numbers."""
    totals = {}
    for numbers in itertools.product(range(scores.shape[1]), repeat=len(scores)):
        total = (decoder.starts[numbers[0]] + decoder.ends[numbers[-1]]
                 + sum(scores[place, number] for place, number in enumerate(numbers))
                 + sum(decoder.steps[pair] for pair in zip(numbers, numbers[1:])))
        if np.isfinite(total):
            totals[numbers] = total
    return totals


def path_probabilities(decoder, scores):
    """The share of each valid sequence, by its tag numbers."""
    totals = path_scores(decoder, scores)
    whole = sum(np.exp(total) for total in totals.values())
    return {numbers: np.exp(total) / whole for numbers, total in totals.items()}

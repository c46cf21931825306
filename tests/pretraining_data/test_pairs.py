"""pairs.py: neighbours of one document, everything covered, nothing twice in one pair."""

import random

import numpy as np
import pytest

from pretraining_data import pairs, segmentation

NONE, CLAUSE, LINE = segmentation.NO_CUT, segmentation.CLAUSE, segmentation.LINE


def cuts_of_documents(documents, clause_every=0):
    """(Cuts, bounds) of documents given as lists of sentence lengths, every token a word."""
    levels, bounds = [], [0]
    for document in documents:
        for length in document:
            sentence = [LINE] + [NONE] * (length - 1)
            if clause_every:
                sentence[clause_every::clause_every] = [CLAUSE] * len(
                    sentence[clause_every::clause_every])
            levels += sentence
        bounds.append(len(levels))
    levels = np.array(levels, dtype=np.uint8)
    words = np.ones(len(levels), bool)
    return pairs.Cuts(segmentation.Segmented(None, words, levels, None)), bounds


def all_pairs(documents, seed, longest=61, short=0.1, dupes=3, clause_every=0):
    cuts, bounds = cuts_of_documents(documents, clause_every)
    found = [pairs.document_pairs(cuts, start, end, longest, short, dupes,
                                  random.Random(1000 * seed + start))
             for start, end in zip(bounds, bounds[1:])]
    return cuts, bounds, found


@pytest.mark.parametrize("seed", range(200))
def test_documents_of_one_and_three_sentences(seed):
    _, bounds, found = all_pairs([[12], [9, 14, 11]], seed, short=1.0, dupes=5)
    assert found[0] == []
    for start, middle, end, label in found[1]:
        assert bounds[1] <= start < middle < end <= bounds[2]
        assert {start, middle, end} <= {12, 21, 35, 46}
        assert label in (0, 1)
    assert len(found[1]) == 5


@pytest.mark.parametrize("seed", range(60))
def test_every_token_is_covered_and_nothing_is_too_long(seed):
    rng = random.Random(seed)
    documents = [[rng.randint(1, 40) for _ in range(rng.randint(2, 30))] for _ in range(12)]
    documents += [[90, 5], [5, 90], [200, 3, 3], [58, 4], [31, 31, 31]]
    _, bounds, found = all_pairs(documents, seed, short=0.3, dupes=1, clause_every=9)
    for start, end, document in zip(bounds, bounds[1:], found):
        reached = set()
        for first, middle, last, _ in document:
            assert start <= first < middle < last <= end
            assert last - first <= 61
            reached.update(range(first, last))
        assert reached == set(range(start, end))


def test_no_punctuation_at_all_loses_no_token():
    for seed in range(30):
        _, bounds, found = all_pairs([[400], [62], [61 * 3 + 1], [30]], seed, dupes=1)
        for start, end, document in zip(bounds, bounds[1:], found):
            assert set().union(*[range(first, last) for first, _, last, _ in document]) == \
                set(range(start, end))


def test_a_word_longer_than_an_instance_loses_no_token():
    levels = np.zeros(300, np.uint8)
    levels[[0, 200]] = LINE
    starts = levels > 0
    cuts = pairs.Cuts(segmentation.Segmented(None, starts, levels, None))
    for seed in range(20):
        found = pairs.document_pairs(cuts, 0, 300, 61, 0.1, 1, random.Random(seed))
        assert set().union(*[range(first, last) for first, _, last, _ in found]) == set(range(300))


def test_a_short_sentence_without_punctuation_gives_no_pair():
    _, _, found = all_pairs([[pairs.RUN_ON_TOKENS - 1], [pairs.RUN_ON_TOKENS], [1]], 0, dupes=4)
    assert [len(document) for document in found] == [0, 4, 0]


def test_one_sentence_with_punctuation_inside_is_split_there():
    for seed in range(20):
        _, _, found = all_pairs([[20]], seed, clause_every=8)
        assert len(found[0]) == 3
        assert {middle for _, middle, _, _ in found[0]} <= {8, 16}


def test_a_left_over_sentence_joins_the_chunk_before():
    """Sentences of 12: five fill 61 tokens; a sixth alone cannot be a pair."""
    for seed in range(20):
        _, _, found = all_pairs([[12] * 6], seed, short=0.0, dupes=1)
        assert [(first, last) for first, _, last, _ in found[0]] == [(0, 48), (48, 72)]
    _, _, found = all_pairs([[20, 20, 15]], 0, short=1.0, dupes=50)
    assert {(first, last) for first, _, last, _ in found[0]} == {(0, 55)}


def test_half_of_the_pairs_are_swapped_and_places_vary():
    _, _, found = all_pairs([[5] * 8] * 300, 1, short=0.0, dupes=10)
    labels = [pair[3] for document in found for pair in document]
    assert abs(np.mean(labels) - 0.5) < 0.05
    middles = {middle - first for document in found for first, middle, _, _ in document}
    assert middles == set(range(5, 40, 5))


def test_short_targets_are_as_frequent_as_asked():
    _, _, found = all_pairs([[4] * 300] * 20, 2, short=0.1, dupes=4)
    lengths = [last - first for document in found for first, _, last, _ in document]
    short = np.mean([length < 52 for length in lengths])
    assert 0.05 < short < 0.13  # a tenth of the targets, uniform over 2 … 61, ends of documents

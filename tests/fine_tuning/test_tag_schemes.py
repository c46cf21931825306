"""Tags and entities are each other's image; the best valid tags and their confidence are exact."""

import itertools
import random

import numpy as np
import pytest
from helpers.tag_paths import path_probabilities

from fine_tuning import tag_schemes
from fine_tuning.tag_schemes import SCHEMES, Entity


def random_tags(rng, scheme, types, length):
    """Tags without any order; the prefixes of the scheme."""
    tags = tag_schemes.tags_of(SCHEMES[scheme], types)
    return [rng.choice(tags) for _ in range(length)]


def random_entities(rng, length):
    entities, place = [], 0
    while place < length:
        end = min(length, place + rng.randint(1, 4))
        if rng.random() < 0.5:
            entities.append(Entity(rng.choice(["LOC", "A-B"]), place, end))
        place = end
    return entities


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_tags_hold_the_entities_they_were_made_from(scheme):
    rng = random.Random(3)
    for _ in range(200):
        entities = random_entities(rng, 12)
        tags = tag_schemes.tags_from_entities(entities, 12, SCHEMES[scheme])
        assert tag_schemes.entities_from_tags(tags) == entities
        assert set(tags) <= set(tag_schemes.tags_of(SCHEMES[scheme], ["LOC", "A-B"]))


@pytest.mark.parametrize("tags, scheme", [
    ("O B I", "BIO"), ("B E S O", "BIOES"), ("B M E", "BMES"), ("", "BIO"), ("O", "BIO"),
    ("S", "BIOES"), ("I M", None), ("B I M E", None)])
def test_a_scheme_is_known_by_its_prefixes(tags, scheme):
    found = tag_schemes.scheme_of(tags.split())
    assert found == (SCHEMES[scheme] if scheme else None)


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_allowed_sequences_are_those_that_entities_give(scheme):
    tags = tag_schemes.tags_of(SCHEMES[scheme], ["X", "Y"])
    starts, steps, ends = tag_schemes.allowed_transitions(tags)
    for numbers in itertools.product(range(len(tags)), repeat=3):
        allowed = starts[numbers[0]] and ends[numbers[2]] and all(
            steps[pair] for pair in zip(numbers, numbers[1:]))
        names = [tags[number] for number in numbers]
        entities = tag_schemes.entities_from_tags(names)
        assert allowed == (tag_schemes.tags_from_entities(entities, 3, SCHEMES[scheme]) == names)


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
@pytest.mark.parametrize("with_crf", [False, True])
def test_viterbi_and_confidence_equal_the_enumeration_of_all_paths(scheme, with_crf):
    rng = np.random.RandomState(4)
    tags = tag_schemes.tags_of(SCHEMES[scheme], ["X"])
    transitions = rng.randn(len(tags), len(tags)) if with_crf else None
    decoder = tag_schemes.TagDecoder(tags, transitions)
    lengths, scores = [5, 1, 3, 4], 2 * rng.randn(4, 5, len(tags))
    for row, path in enumerate(decoder.best(scores, lengths)):
        own = scores[row, :lengths[row]]
        everything = path_probabilities(decoder, own)
        assert tuple(path) == max(everything, key=everything.get)
        for entity, confidence in decoder.entities(own, path):
            having = sum(share for numbers, share in everything.items() if entity in
                         tag_schemes.entities_from_tags([tags[number] for number in numbers]))
            assert abs(confidence - having) < 1e-9


def test_the_best_sequence_is_valid_whatever_the_scores():
    rng = np.random.RandomState(5)
    for scheme in SCHEMES.values():
        tags = tag_schemes.tags_of(scheme, ["X", "Y"])
        decoder = tag_schemes.TagDecoder(tags)
        for path in decoder.best(9 * rng.randn(50, 7, len(tags)), [7] * 50):
            names = [tags[number] for number in path]
            entities = tag_schemes.entities_from_tags(names)
            assert tag_schemes.tags_from_entities(entities, 7, scheme) == names


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_figures_equal_those_of_seqeval_on_random_tags(scheme):
    metrics = pytest.importorskip("seqeval.metrics", reason="needs requirements-seqeval.txt")
    rng = random.Random(6)
    for _ in range(20):
        truth, found = [[random_tags(rng, scheme, ["LOC", "PER", "T"], 1 + number)
                         for number in range(15)] for _ in range(2)]
        report = tag_schemes.entity_report(*[
            [tag_schemes.entities_from_tags(tags) for tags in side]
            for side in (truth, found)], types=[])
        # seqeval knows the inner place as I alone.
        theirs = [[[tag.replace("M-", "I-") for tag in tags] for tags in side]
                  for side in (truth, found)]
        expected = metrics.classification_report(*theirs, output_dict=True, zero_division=0)
        for name, row in list(report["types"].items()) + [("micro avg", report)]:
            for mine, other in (("precision", "precision"), ("recall", "recall"),
                                ("f1", "f1-score"), ("entities", "support")):
                assert abs(row[mine] - expected[name][other]) < 1e-12
        assert abs(report["macro_f1"] - expected["macro avg"]["f1-score"]) < 1e-12


def test_figures_by_hand():
    truth = [[Entity("LOC", 0, 2), Entity("PER", 3, 4)], [], [Entity("LOC", 1, 2)]]
    found = [[Entity("LOC", 0, 2), Entity("LOC", 3, 4)], [Entity("PER", 0, 1)], []]
    report = tag_schemes.entity_report(truth, found, ["LOC", "ORG", "PER"])
    assert (report["right"], report["entities"], report["predicted"]) == (1, 3, 3)
    assert report["precision"] == report["recall"] == report["f1"] == 1 / 3
    assert report["types"]["LOC"]["f1"] == 0.5 and report["types"]["ORG"]["f1"] == 0
    assert report["macro_f1"] == 0.5 / 3 and report["sentences"] == 3
    assert "LOC\t0.5000\t0.5000\t0.5000\t2\t2" in tag_schemes.entity_report_text(report)

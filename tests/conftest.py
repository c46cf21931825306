"""Toy fixtures: a vocabulary, a configuration and a corpus small enough for a second's work."""

import json
import os
import sys

import pytest
import tensorflow.compat.v1 as tf
from helpers.toys import ROOT, SHARED, TOY_CONFIG, TOY_SENTENCES, toy_tokens, write_text

sys.path[:0] = [ROOT, os.path.join(ROOT, "tests")]


@pytest.fixture(autouse=True)
def information_is_logged():
    """Each test begins with the log as a script sets it, whatever the one before has left."""
    tf.logging.set_verbosity(tf.logging.INFO)


@pytest.fixture(scope="session")
def toy_vocab(tmp_path_factory):
    """Path of a vocabulary of a few hundred lines."""
    folder = tmp_path_factory.mktemp("vocab")
    return write_text(folder / "vocab.txt", "\n".join(toy_tokens()) + "\n")


@pytest.fixture(scope="session")
def toy_config(tmp_path_factory):
    """Path of a one-layer configuration that fits the toy vocabulary: graphs cost time."""
    config = dict(TOY_CONFIG, vocab_size=len(toy_tokens()), num_hidden_layers=1)
    return write_text(tmp_path_factory.mktemp("config") / "config.json", json.dumps(config))


@pytest.fixture(scope="session")
def toy_corpus(tmp_path_factory):
    """Path of a corpus of 8 documents, each of 6 sentences."""
    twice = TOY_SENTENCES * 2
    documents = ["\n".join(twice[start:start + 6]) for start in range(8)]
    folder = tmp_path_factory.mktemp("corpus")
    return write_text(folder / "toy.txt", "\n\n".join(documents) + "\n")


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real data sets; the test is skipped where it is missing."""
    folder = os.path.join(SHARED, "data")
    if not os.path.isdir(folder):
        pytest.skip("needs the data sets of ../shared/data")
    return folder

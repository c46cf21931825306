"""Toy fixtures: a vocabulary, a configuration and a corpus small enough for a second's work."""

import io
import json
import os
import string
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHARED = os.path.join(os.path.dirname(ROOT), "shared")
FIXTURES = os.path.join(ROOT, "tests", "fixtures")
sys.path.insert(0, ROOT)

TOY_SENTENCES = """
清晨的渔港很热闹。
渔民把新鲜的鱼搬上岸。
市场里的人越来越多。
孩子们跟着父母挑选海鲜。
今年的产量比去年高。
天气预报说明天有雨。
图书馆下午三点开门。
他们用5G手机查询路线。
新的桥在2019年建成。
老师让大家写一篇短文。
模型需要很多数据。
使用语言模型来预测下一个词的概率。
""".split()

TOY_CONFIG = {
    "vocab_size": 0, "embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 128,
    "type_vocab_size": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "initializer_range": 0.02, "ln_type": "postln"}


def write_text(path, text):
    """Writes text as UTF-8 with the line ends it has; returns the path as str."""
    with io.open(str(path), "w", encoding="utf-8", newline="") as stream:
        stream.write(text)
    return str(path)


def toy_tokens():
    """Specials, then the sentences' characters, letters and digits, then their ## twins."""
    ordinary = "".join(TOY_SENTENCES) + string.ascii_lowercase + string.digits + "，？！"
    characters = sorted(set(ordinary))
    specials = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return specials + characters + ["##" + character for character in characters]


@pytest.fixture(scope="session")
def toy_vocab(tmp_path_factory):
    """Path of a vocabulary of a few hundred lines."""
    folder = tmp_path_factory.mktemp("vocab")
    return write_text(folder / "vocab.txt", "\n".join(toy_tokens()) + "\n")


@pytest.fixture(scope="session")
def toy_config(tmp_path_factory):
    """Path of a two-layer configuration that fits the toy vocabulary."""
    config = dict(TOY_CONFIG, vocab_size=len(toy_tokens()))
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

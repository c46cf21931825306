"""The shipped sample texts: data/news_zh_1.txt and data/lcqmc_sample/*.txt, read as plain bytes.

What comes out: proof that both keep the formats the scripts read (one sentence a line with blank
lines between documents; two sentences and a label a line), that nothing occurs twice, and that no
sentence of the development or test pairs has been seen in training.
"""
import collections
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
NEWS = ROOT / "data" / "news_zh_1.txt"
VOCAB = ROOT / "albert_config" / "vocab.txt"
PAIR_COUNTS = {"train": 400, "dev": 100, "test": 100}
END_MARKS = "？?"


def pair_file(split):
    """The file of one split: "train", "dev" or "test"."""
    return ROOT / "data" / "lcqmc_sample" / (split + ".txt")


def news_documents():
    """The sample corpus as a list of documents, each a list of sentences."""
    text = NEWS.read_bytes().decode("utf-8")
    return [document.split("\n") for document in text[:-1].split("\n\n")]


def news_sentences():
    """Every sentence of the sample corpus in file order."""
    return [sentence for document in news_documents() for sentence in document]


def sample_pairs(split):
    """One split as a list of rows, each the list of its tab-separated cells."""
    text = pair_file(split).read_bytes().decode("utf-8")
    return [line.split("\t") for line in text[:-1].split("\n")]


def bare_sentences(split):
    """The sentences of one split without their closing question marks."""
    return {cell.rstrip(END_MARKS) for row in sample_pairs(split) for cell in row[:2]}


def repeated(items):
    """The items that occur more than once."""
    return [item for item, count in collections.Counter(items).items() if count > 1]


@pytest.mark.parametrize("path", [NEWS] + [pair_file(split) for split in PAIR_COUNTS],
                         ids=lambda path: path.name)
def test_files_are_plain_utf8_with_unix_line_ends(path):
    content = path.read_bytes()
    text = content.decode("utf-8")
    assert "\ufeff" not in text
    assert b"\r" not in content
    assert text.endswith("\n") and not text.endswith("\n\n")
    assert [line for line in text.split("\n") if line != line.strip()] == []


def test_news_has_enough_documents_and_sentences():
    documents = news_documents()
    assert len(documents) >= 40
    assert len(news_sentences()) >= 600
    assert [document[0] for document in documents if not 10 <= len(document) <= 22] == []


def test_news_documents_are_separated_by_exactly_one_blank_line():
    text = NEWS.read_bytes().decode("utf-8")
    assert not text.startswith("\n")
    assert "\n\n\n" not in text


def test_news_sentences_are_short_and_never_repeated():
    sentences = news_sentences()
    assert repeated(sentences) == []
    assert [sentence for sentence in sentences if not 5 <= len(sentence) <= 80] == []


def test_news_varies_its_characters_and_its_sentence_lengths():
    sentences = news_sentences()
    lengths = [len(sentence) for sentence in sentences]
    assert min(lengths) <= 8 and max(lengths) >= 50
    assert len(set("".join(sentences))) >= 1500
    for mark in "“「《：，。！？%（":
        assert any(mark in sentence for sentence in sentences), mark
    assert sum(any("A" <= char <= "Z" for char in sentence) for sentence in sentences) >= 10
    assert sum(any(char.isdigit() for char in sentence) for sentence in sentences) >= 100


def test_news_is_covered_by_the_vocabulary():
    if not VOCAB.exists():
        pytest.skip("albert_config/vocab.txt is fetched by setup.sh")
    known = set(VOCAB.read_bytes().decode("utf-8").split("\n"))
    characters = collections.Counter("".join(news_sentences()).lower().replace(" ", ""))
    unknown = {char: count for char, count in characters.items() if char not in known}
    assert sum(unknown.values()) < 0.002 * sum(characters.values()), unknown


@pytest.mark.parametrize("split", sorted(PAIR_COUNTS))
def test_pairs_have_the_published_format(split):
    rows = sample_pairs(split)
    assert len(rows) == PAIR_COUNTS[split]
    assert [row for row in rows if len(row) != 3 or row[2] not in ("0", "1")] == []
    cells = [cell for row in rows for cell in row[:2]]
    assert [cell for cell in cells if not 5 <= len(cell) <= 30] == []


@pytest.mark.parametrize("split", sorted(PAIR_COUNTS))
def test_pair_labels_are_balanced(split):
    labels = [row[2] for row in sample_pairs(split)]
    assert 0.4 <= labels.count("1") / len(labels) <= 0.6


def test_no_pair_occurs_twice_in_either_order():
    rows = [row for split in PAIR_COUNTS for row in sample_pairs(split)]
    pairs = [tuple(sorted(cell.rstrip(END_MARKS) for cell in row[:2])) for row in rows]
    assert repeated(pairs) == []
    assert [pair for pair in pairs if pair[0] == pair[1]] == []


@pytest.mark.parametrize("one, other", [("train", "dev"), ("train", "test"), ("dev", "test")])
def test_no_sentence_is_shared_between_splits(one, other):
    assert bare_sentences(one) & bare_sentences(other) == set()


@pytest.mark.parametrize("split", sorted(PAIR_COUNTS))
def test_the_closing_mark_does_not_tell_the_label(split):
    same_mark = {"0": [], "1": []}
    for first, second, label in sample_pairs(split):
        same_mark[label].append((first[-1] in END_MARKS) == (second[-1] in END_MARKS))
    shares = [sum(flags) / len(flags) for flags in same_mark.values()]
    assert abs(shares[0] - shares[1]) < 0.25

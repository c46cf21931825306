"""tokenization.py against BERT's own output, and its ways to fail."""

import io
import json
import os
import subprocess
import sys
import time

import pytest
from helpers.toys import FIXTURES, ROOT, toy_tokens, write_text

import cli
import tokenization

VOCAB = os.path.join(ROOT, "albert_config", "vocab.txt")


@pytest.fixture(scope="module")
def real_vocab():
    if not os.path.isfile(VOCAB):
        pytest.skip("needs albert_config/vocab.txt, which setup.sh fetches")
    return VOCAB


def reference_cases():
    with io.open(os.path.join(FIXTURES, "tokenizer_cases.json"), encoding="utf-8") as stream:
        return json.load(stream)["cases"]


@pytest.mark.parametrize("form", ["cased", "lower"])
def test_agrees_with_the_reference_token_for_token(real_vocab, form):
    tokenizer = tokenization.FullTokenizer(real_vocab, do_lower_case=form == "lower")
    for case in reference_cases():
        expected, text = case[form], case["input"]
        assert tokenizer.basic_tokenizer.tokenize(text) == expected["basic"], repr(text)
        tokens = tokenizer.tokenize(text)
        assert tokens == expected["tokens"], repr(text)
        assert tokenizer.convert_tokens_to_ids(tokens) == expected["ids"], repr(text)
        assert tokenizer.convert_ids_to_tokens(expected["ids"]) == tokens


@pytest.mark.parametrize("lower", [False, True])
def test_offsets_rise_and_point_at_the_source(real_vocab, lower):
    tokenizer = tokenization.FullTokenizer(real_vocab, lower)
    for case in reference_cases():
        text, last = case["input"], 0
        for piece in tokenizer.tokenize_with_offsets(text):
            assert last <= piece.start < piece.end <= len(text)
            last = piece.start
            source = text[piece.start:piece.end]
            if piece.token != "[UNK]" and source.isascii():
                kept = "".join(char for char in source if not tokenization.is_dropped(char))
                bare = piece.token[2:] if piece.token.startswith("##") else piece.token
                assert bare == (kept.lower() if lower else kept)


def test_offsets_of_an_accented_word(toy_vocab):
    pieces = tokenization.FullTokenizer(toy_vocab).tokenize_with_offsets("新 Ca\u200bfé5")
    assert pieces == [("新", 0, 1), ("c", 2, 3), ("##a", 3, 4), ("##f", 5, 6), ("##e", 6, 7),
                      ("##5", 7, 8)]


def test_the_vocabulary_is_loaded_line_by_line(real_vocab):
    vocab = tokenization.load_vocab(real_vocab)
    assert len(vocab) == 21128
    assert list(vocab.values()) == list(range(21128))
    assert vocab["\u2028"] and vocab["##\u2028"]
    assert [vocab[token] for token in tokenization.SPECIAL_TOKENS] == [0, 100, 101, 102, 103]


@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_vocabulary_with_windows_line_ends_and_no_final_one(tmp_path, start):
    path = write_text(tmp_path / "vocab.txt", start + "\r\n".join(toy_tokens()))
    assert list(tokenization.load_vocab(path)) == toy_tokens()


@pytest.mark.parametrize("tokens, words", [
    (toy_tokens() + ["鱼"], ["'鱼'", "again in line {}".format(len(toy_tokens()) + 1)]),
    (["[PAD]", "", "鱼"], ["line 2 is empty"]),
    (["[PAD]", "鱼\t7"], ["line 2", "'鱼\\t7' has a tab"]),
    ([token for token in toy_tokens() if token != "[MASK]"], ["[MASK] missing"])])
def test_bad_vocabularies_are_refused(tmp_path, tokens, words):
    path = write_text(tmp_path / "vocab.txt", "\n".join(tokens) + "\n")
    with pytest.raises(cli.UserError) as error:
        tokenization.load_vocab(path)
    for word in words + [path]:
        assert word in str(error.value)


def test_missing_and_undecodable_vocabularies_are_refused(tmp_path):
    with pytest.raises(cli.UserError, match="absent.txt"):
        tokenization.load_vocab(str(tmp_path / "absent.txt"))
    path = tmp_path / "gbk.txt"
    path.write_bytes("[PAD]\n鱼".encode("gbk"))
    with pytest.raises(cli.UserError, match="not UTF-8 at byte 6"):
        tokenization.load_vocab(str(path))


def test_bytes_and_str_are_the_same_text(toy_vocab):
    tokenizer = tokenization.FullTokenizer(toy_vocab)
    assert tokenizer.tokenize("新的桥".encode("utf-8")) == tokenizer.tokenize("新的桥")
    with pytest.raises(ValueError):
        tokenization.convert_to_unicode(3)


@pytest.mark.parametrize("unit", ["a", "桥", "。", "\u0301", "5a"])
def test_time_is_linear_in_a_text_without_spaces(toy_vocab, unit):
    tokenizer = tokenization.FullTokenizer(toy_vocab)
    tokenizer.tokenize(unit * 1000)

    def seconds(length):
        start = time.process_time()
        tokenizer.tokenize(unit * length)
        return time.process_time() - start

    short, long = [min(seconds(length) for _ in range(3)) for length in (20000, 200000)]
    assert long < 30 * short + 0.5  # ten times the text; a quadratic tokenizer takes a hundred


def test_no_tensorflow_is_imported():
    code = "import sys, tokenization; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.call([sys.executable, "-c", code], cwd=ROOT) == 0

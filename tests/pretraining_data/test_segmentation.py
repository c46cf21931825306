"""segmentation.py against a plain path: one sentence, one token, one word at a time."""

import bisect
import io
import itertools
import json
import os

import jieba
import pytest
from helpers.toys import FIXTURES, ROOT, TOY_SENTENCES, write_text

import cli
import tokenization
from pretraining_data import segmentation

VOCAB = os.path.join(ROOT, "albert_config", "vocab.txt")
ODD = ["", "\u200b", "\ufeff", "a\x00b", "中\ufeff国", "　全角　空格　", "ΑΣ.Β ΑΣ ΟΔΟΣ：α",
       "İstanbul", "don't", "3.14和1,000", "café5s很好", "テレビを見る", "\u2028行\u2028",
       "ﬁne", "豈有此理", "①②", "👍很好", "é́é", "C++语言", "a_b-c%", "2019年5月", "中" * 30,
       "ab" * 150, "https://a.cn/b?c=1"]


def plain(tokenizer, line):
    """(ids, starts) of one line, by the plain tokenizer and plain jieba."""
    edges = list(itertools.accumulate(map(len, jieba.lcut(line))))
    ids, starts, last_word = [], [], None
    for piece in tokenizer.tokenize_with_offsets(line):
        ids.append(tokenizer.vocab[piece.token])
        starts.append(not piece.token.startswith("##")
                      and bisect.bisect_right(edges, piece.start) != last_word)
        last_word = bisect.bisect_right(edges, piece.end - 1)
    return ids, starts


def check_against_plain(tokenizer, segmenter, lines):
    segmented = segmenter.segment(lines)
    first = 0
    for line, last in zip(lines, segmented.line_ends.tolist()):
        ids, starts = plain(tokenizer, line)
        assert segmented.ids[first:last].tolist() == ids, repr(line)
        assert segmented.starts[first:last].tolist() == starts, repr(line)
        first = last
    assert first == len(segmented.ids) == len(segmented.starts) == len(segmented.levels)


@pytest.mark.parametrize("lower", [False, True])
def test_toy_and_odd_lines_equal_the_plain_path(toy_vocab, lower):
    tokenizer = tokenization.FullTokenizer(toy_vocab, lower)
    segmenter = segmentation.Segmenter(tokenizer, segmentation.load_cutter("jieba"))
    check_against_plain(tokenizer, segmenter, TOY_SENTENCES + ODD)
    check_against_plain(tokenizer, segmenter, [""])
    check_against_plain(tokenizer, segmenter, ["渔港", ""])


@pytest.mark.parametrize("lower", [False, True])
def test_fixture_and_real_lines_equal_the_plain_path(shared_data, lower):
    if not os.path.isfile(VOCAB):
        pytest.skip("needs albert_config/vocab.txt, which setup.sh fetches")
    tokenizer = tokenization.FullTokenizer(VOCAB, lower)
    segmenter = segmentation.Segmenter(tokenizer, segmentation.load_cutter("jieba"))
    with io.open(os.path.join(FIXTURES, "tokenizer_cases.json"), encoding="utf-8") as stream:
        cases = [case["input"] for case in json.load(stream)["cases"]]
    check_against_plain(tokenizer, segmenter,
                        [case.replace("\n", " ").replace("\r", " ") for case in cases] + ODD)
    path = os.path.join(shared_data, "clue_corpus_small", "CLUECorpusSmall_bert_sampled.txt")
    with io.open(path, encoding="utf-8") as stream:
        lines = [line.rstrip("\n") for line in itertools.islice(stream, 1500)]
    check_against_plain(tokenizer, segmenter, lines)


def test_words_of_any_length_stay_whole(toy_vocab):
    segmenter = segmentation.Segmenter(tokenization.FullTokenizer(toy_vocab),
                                       segmentation.load_cutter("jieba"))
    line = "中华人民共和国成立"
    assert segmenter.segment([line]).starts.tolist() == [True] + [False] * 6 + [True, False]


def test_without_chinese_a_word_is_what_stands_between_spaces(toy_vocab):
    segmenter = segmentation.Segmenter(tokenization.FullTokenizer(toy_vocab), None)
    assert segmenter.segment(["abc de 渔港!"]).starts.tolist() == \
        [True, False, False, True, False, True, True, True]


def cuts_of(toy_vocab, line):
    """The line with / before a clause and // before a sentence."""
    tokenizer = tokenization.FullTokenizer(toy_vocab)
    segmenter = segmentation.Segmenter(tokenizer, segmentation.load_cutter("jieba"))
    pieces = tokenizer.tokenize_with_offsets(line)
    return "".join("/" * int(level % segmentation.LINE) + line[piece.start:piece.end]
                   for level, piece in zip(segmenter.segment([line]).levels, pieces))


@pytest.mark.parametrize("line, cut", [
    ("今天有雨，明天天晴。后天呢？", "今天有雨，/明天天晴。//后天呢？"),
    ("他说：“来。”她走了！！！真的", "他说：/“来。”//她走了！！！//真的"),
    ("价格3.14元10:30见,好", "价格3.14元10:30见,/好"),
    ("a.b x. y, z", "a.bx.//y,/z"),
    ("很好 喜欢", "很好/喜欢")])
def test_places_to_cut(toy_vocab, line, cut):
    assert cuts_of(toy_vocab, line) == cut


def test_a_long_line_without_punctuation_is_cut_in_blocks():
    asked = []

    def cut(text):
        asked.append(len(text))
        return list(text)

    text = "的" * 5000 + "。" + "a" * 10 + "\n"
    assert "".join(segmentation.cut_words(cut, text)) == text
    assert asked == [2000, 2000, 1000, 1, 10, 1]


def test_blocks_give_the_words_of_the_whole():
    line = "使用语言模型来预测下一个词的概率，" * 150
    assert segmentation.cut_words(jieba.lcut, line + "\n") == jieba.lcut(line + "\n")


def test_rjieba_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rjieba", None)
    with pytest.raises(cli.UserError, match="--segmenter=rjieba.*pip install rjieba"):
        segmentation.package_version("rjieba")


def test_rjieba_where_it_is_installed_cuts_nearly_like_jieba(toy_vocab):
    pytest.importorskip("rjieba", reason="needs rjieba (Python 3.9 or later)")
    assert segmentation.package_version("rjieba").startswith("rjieba-0")
    cut = segmentation.load_cutter("rjieba")
    for line in TOY_SENTENCES:
        assert "".join(cut(line)) == line
    assert sum(cut(line) == jieba.lcut(line) for line in TOY_SENTENCES) >= 11


def test_own_words_stay_with_their_cutter_and_useless_ones_are_counted(tmp_path, caplog):
    path = write_text(tmp_path / "words.txt", "渔港很\n卡·马\n")
    plainly = jieba.lcut("渔港很热闹")
    assert "渔港很" not in plainly
    assert "渔港很" in segmentation.load_cutter("jieba", path)("渔港很热闹")
    assert jieba.lcut("渔港很热闹") == segmentation.load_cutter("jieba")("渔港很热闹") == plainly
    assert "1 of 2 words have no effect, the first is '卡·马'" in caplog.text

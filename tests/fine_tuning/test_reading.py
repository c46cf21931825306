"""Windows cover the passage, answers are its own slices, bad files are named with the question."""

import copy
import json
import os

import numpy as np
import pytest
from helpers.toy_reading import squad, toy_passages

from cli import UserError
from fine_tuning.reading import (
    Answer,
    Question,
    WindowEncoder,
    answer_span,
    answer_spans,
    best_answers,
    best_spans,
    nbest_text,
    predictions_text,
    questions_of,
    windows_with_most_context,
)
from tokenization import FullTokenizer

PASSAGE = "新的桥在 2019 年建成，渔民　把5G手机 HELLO 搬上岸。😀图书馆Café下午三点开门！" * 3


@pytest.fixture(scope="module")
def tokenizer(toy_vocab):
    return FullTokenizer(toy_vocab)


def encoder_of(tokenizer, length=60, stride=20, query=10):
    return WindowEncoder(tokenizer, length, stride, query)


def content_of(*passages):
    return json.dumps(squad(*passages), ensure_ascii=False).encode("utf-8")


def question_on(context, text="", start=0, question="谁把鱼搬上岸？"):
    return Question("Q", question, context, [Answer(text, start)] if text else [])


# --- the file ---------------------------------------------------------------------------------


def test_questions_are_read_in_the_order_of_the_file():
    found = questions_of(content_of(*toy_passages(5)), "a.json", need_answers=True)
    assert [question.id for question in found] == ["Q0", "Q1", "Q2", "Q3", "Q4"]
    assert found[0].text == "桥在哪年建成？" and found[0].answers[0].text == "2019"
    assert "图书馆下午三点" in found[3].context


def without(key, where):
    """The toy file's object with a key taken out of its first article, passage, question, …"""
    document = copy.deepcopy(squad(*toy_passages(2)))
    article = document["data"][0]
    passage = article["paragraphs"][0]
    levels = {"file": document, "article": article, "passage": passage, "question":
              passage["qas"][0], "answer": passage["qas"][0]["answers"][0]}
    del levels[where][key]
    return document


@pytest.mark.parametrize("key, where, named", [
    ("data", "file", "a.json: no key 'data'"), ("paragraphs", "article", "data[0]: no key"),
    ("context", "passage", "data[0].paragraphs[0]: no key 'context'"),
    ("qas", "passage", "no key 'qas'"), ("id", "question", "paragraphs[0].qas[0]: no key 'id'"),
    ("question", "question", "question Q0: no key 'question'"),
    ("answers", "question", "question Q0: no answers"),
    ("text", "answer", "question Q0: no key 'text'"),
    ("answer_start", "answer", "question Q0: no key 'answer_start'")])
def test_a_missing_key_is_named_with_its_place(key, where, named):
    content = json.dumps(without(key, where)).encode("ascii")
    with pytest.raises(UserError) as caught:
        questions_of(content, "a.json", need_answers=True)
    assert "a.json" in str(caught.value) and named in str(caught.value)


@pytest.mark.parametrize("content, named", [
    (b"[1, 2]", "a list"), (b"{", "not JSON"), (b'{"data": []}', "no questions"),
    (b'{"data": "x"}', "'data' is expected to hold a list, found a str"),
    ("{\"data\": \"中\"}".encode("gb18030"), "is not utf-8"),
    (content_of(("上岸", [("1", "？", [("岸", "1")])])), "'answer_start' is expected to hold"),
    (content_of(*toy_passages(1) * 2), "question Q0: the id stands twice, at 0 and 1")])
def test_other_faults_of_a_file_are_named(content, named):
    with pytest.raises(UserError, match="a.json") as caught:
        questions_of(content, "a.json", need_answers=True)
    assert named in str(caught.value)


def test_what_is_to_be_predicted_needs_no_answers():
    document = without("answers", "question")
    content = json.dumps(document).encode("ascii")
    assert questions_of(content, "a.json", need_answers=False)[0].answers == []
    assert questions_of(content, "a.json", True, null_answers=True)[0].answers == []


@pytest.mark.parametrize("text, start, span", [
    ("渔民", 4, (4, 6)), ("渔民", 6, (4, 6)), ("渔民", 24, (4, 6)), ("渔民", 25, None),
    ("渔民", -1, (4, 6)), ("岸", 0, (8, 9)), ("鱼", 7, None), ("", 2, None)])
def test_an_answer_off_its_offset_is_taken_nearby(text, start, span):
    assert answer_span(Question("Q", "？", "昨天早上渔民搬上岸，" + "晴" * 40,
                                [Answer(text, start)])) == span


def test_the_nearest_place_is_taken_and_the_first_answer_that_stands():
    assert answer_span(question_on("岸上岸边岸", "岸", 3)) == (2, 3)
    both = Question("Q", "？", "渔民上岸", [Answer("船民", 0), Answer("上岸", 1)])
    assert answer_span(both) == (2, 4)


def test_few_lost_answers_are_left_out_and_many_are_a_fault():
    good, lost = question_on("渔民上岸", "上岸", 2), question_on("渔民上岸", "船民", 0)
    assert answer_spans([good] * 99 + [lost], "a.json")[-2:] == [(2, 4), None]
    with pytest.raises(UserError, match="a.json: 2 of 100.*question Q, answer '船民' at 0"):
        answer_spans([good] * 98 + [lost] * 2, "a.json")
    assert answer_spans([good, question_on("渔民")], "a.json", null_answers=True)[1] == (0, 0)


def test_all_answers_of_cmrc_that_are_off_are_found(shared_data):
    path = os.path.join(shared_data, "reading", "cmrc2018", "cmrc2018_train.json")
    if not os.path.exists(path):
        pytest.skip("needs CMRC 2018")
    with open(path, "rb") as stream:
        questions = questions_of(stream.read(), path, need_answers=True)
    spans = answer_spans(questions, path)
    off = [(question, span) for question, span in zip(questions, spans)
           if span[0] != question.answers[0].start]
    assert (len(questions), len(off)) == (10142, 21)
    for question, (start, end) in zip(questions, spans):
        assert question.context[start:end] == question.answers[0].text


# --- windows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("length, stride", [(60, 20), (60, 40), (33, 20), (128, 1), (128, 20)])
def test_windows_hold_every_token_and_know_where(tokenizer, length, stride):
    question = question_on(PASSAGE)
    encoder = encoder_of(tokenizer, length, stride)
    pieces = tokenizer.tokenize_with_offsets(PASSAGE)
    seen = set()
    for window in encoder.windows(7, question):
        assert window.question == 7 and len(window.ids) <= length
        tokens = tokenizer.convert_ids_to_tokens(window.ids)
        assert tokens[0] == "[CLS]" and tokens[window.first - 1] == tokens[-1] == "[SEP]"
        part = range(window.skipped, window.skipped + len(window.ids) - 1 - window.first)
        assert tokens[window.first:-1] == [pieces[place].token for place in part]
        seen.update(part)
    assert seen == set(range(len(pieces)))


def test_a_passage_that_fits_is_one_window_at_any_stride(tokenizer):
    question = question_on("渔民把新鲜的鱼搬上岸。", "鱼搬", 6)
    found = [encoder_of(tokenizer, 40, stride).windows(0, question, (6, 8))
             for stride in (1, 5, 27)]
    assert len(found[0]) == 1 and found[0] == found[1] == found[2]


def test_the_answer_is_marked_in_the_windows_that_hold_it_whole(tokenizer):
    start = PASSAGE.index("5G手机", 60)
    windows = encoder_of(tokenizer).windows(0, question_on(PASSAGE), (start, start + 4))
    holding = [window for window in windows if window.start]
    assert 0 < len(holding) < len(windows)
    for window in holding:
        tokens = tokenizer.convert_ids_to_tokens(window.ids[window.start:window.end + 1])
        assert tokens == tokenizer.tokenize("5G手机")
    assert all(window.end == 0 for window in windows if not window.start)


def test_a_long_question_is_cut_and_an_empty_passage_is_a_window(tokenizer):
    encoder = encoder_of(tokenizer)
    window, = encoder.windows(0, question_on("", question="鱼" * 50))
    assert (window.first, len(window.ids)) == (12, 13)


def test_lengths_that_leave_gaps_are_refused(tokenizer):
    with pytest.raises(UserError, match="--doc_stride=48.*gaps"):
        WindowEncoder(tokenizer, 60, 48, 10)
    with pytest.raises(UserError, match="--max_query_length is 0"):
        WindowEncoder(tokenizer, 60, 20, 0)


# --- answers ----------------------------------------------------------------------------------


def flat_logits(windows, padding=5):
    return [np.zeros([2, len(window.ids) + padding], np.float32) for window in windows]


def answers_for(tokenizer, encoder, question, logits, **settings):
    return best_answers(question, encoder.pieces(question.context),
                        encoder.windows(0, question), logits, **settings)


def test_best_spans_equal_a_search_of_all_pairs():
    rng = np.random.RandomState(4)
    for size, longest, count in ((1, 3, 5), (9, 4, 6), (30, 7, 20), (5, 9, 40)):
        starts, ends = rng.randn(2, size).astype(np.float32)
        pairs = sorted(((float(starts[i]) + float(ends[j]), i, j) for i in range(size)
                        for j in range(i, min(size, i + longest))), reverse=True)[:count]
        found = best_spans(starts, ends, longest, count)
        assert [pair[1:] for pair in found] == [pair[1:] for pair in pairs]
        np.testing.assert_allclose([pair[0] for pair in found], [pair[0] for pair in pairs])


@pytest.mark.parametrize("text", ["2019", "5G手机", "HELLO 搬上岸", "Café", "图书馆Café下午"])
def test_the_marked_answer_comes_back_as_the_slice_it_is(tokenizer, text):
    encoder = encoder_of(tokenizer)
    start = PASSAGE.index(text, 50)
    question = question_on(PASSAGE)
    windows = encoder.windows(0, question, (start, start + len(text)))
    logits = flat_logits(windows)
    for window, (starts, ends) in zip(windows, logits):
        starts[window.start], ends[window.end] = 5, 5
    best = best_answers(question, encoder.pieces(PASSAGE), windows, logits)[0]
    assert (best.text, best.start, best.end) == (text, start, start + len(text))
    assert best.score == 10


def test_question_padding_and_special_tokens_are_never_answers(tokenizer):
    encoder, question = encoder_of(tokenizer), question_on(PASSAGE)
    windows = encoder.windows(0, question)
    logits = flat_logits(windows)
    for window, both in zip(windows, logits):
        both[:, :window.first] = 50
        both[:, len(window.ids) - 1:] = 50
    for candidate in answers_for(tokenizer, encoder, question, logits):
        assert candidate.score == 0 and candidate.text == PASSAGE[candidate.start:candidate.end]
        assert candidate.text


def test_answers_are_no_longer_than_allowed_and_never_end_before_they_start(tokenizer):
    question = question_on("渔民把新鲜的鱼搬上岸。")
    encoder = encoder_of(tokenizer)
    window, = encoder.windows(0, question)
    logits = flat_logits([window])
    logits[0][0, window.first + 1] = logits[0][1, window.first + 4] = 9
    logits[0][1, window.first] = 20
    assert answers_for(tokenizer, encoder, question, logits)[0].text == "渔"
    logits[0][1, window.first] = 0
    assert answers_for(tokenizer, encoder, question, logits)[0].text == "民把新鲜"
    short = answers_for(tokenizer, encoder, question, logits, max_answer_length=3)[0]
    assert len(short.text) <= 3 and short.score == 9


def test_each_token_counts_in_the_window_with_most_context(tokenizer):
    question = question_on(PASSAGE)
    windows = encoder_of(tokenizer).windows(0, question)
    owners = windows_with_most_context(windows, len(tokenizer.tokenize(PASSAGE)))
    assert set(owners) == set(range(len(windows))) and list(owners) == sorted(owners)
    for token, owner in enumerate(owners):
        margins = [min(token - window.skipped,
                       window.skipped + len(window.ids) - 2 - window.first - token)
                   for window in windows]
        assert margins[owner] == max(margins) >= 0


def test_the_n_best_have_probabilities_and_no_text_twice(tokenizer):
    encoder, question = encoder_of(tokenizer), question_on(PASSAGE)
    rng = np.random.RandomState(2)
    logits = [both + rng.randn(*both.shape) for both in flat_logits(encoder.windows(0, question))]
    found = answers_for(tokenizer, encoder, question, logits, n_best_size=10)
    texts = [candidate.text for candidate in found]
    assert len(texts) == len(set(texts)) == 10
    probabilities = [candidate.probability for candidate in found]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1)
    gap = found[0].score - found[1].score
    assert probabilities[0] / probabilities[1] == pytest.approx(np.exp(gap))


def test_no_answer_is_given_only_if_it_is_allowed_and_no_window_holds_one(tokenizer):
    encoder, question = encoder_of(tokenizer), question_on(PASSAGE)
    logits = flat_logits(encoder.windows(0, question))
    for both in logits:
        both[:, 0] = 4
    assert answers_for(tokenizer, encoder, question, logits)[0].text
    assert answers_for(tokenizer, encoder, question, logits, null_answers=True)[0].text == ""
    logits[1][:, 0] = -4
    assert answers_for(tokenizer, encoder, question, logits, null_answers=True)[0].text


@pytest.mark.parametrize("context", ["", " \u3000 "])
def test_an_empty_passage_has_the_empty_answer(tokenizer, context):
    encoder, question = encoder_of(tokenizer), question_on(context)
    logits = flat_logits(encoder.windows(0, question))
    answer, = answers_for(tokenizer, encoder, question, logits)
    assert (answer.text, answer.start, answer.end, answer.probability) == ("", 0, 0, 1.0)


def test_files_of_predictions_hold_each_question_once(tokenizer):
    encoder, question = encoder_of(tokenizer), question_on("渔民上岸")
    answers = {"Q": answers_for(tokenizer, encoder, question,
                                flat_logits(encoder.windows(0, question)))}
    best = answers["Q"][0]
    assert json.loads(predictions_text(answers)) == {"Q": best.text}
    assert json.loads(nbest_text(answers))["Q"][0] == dict(best._asdict())

"""Files to sentences, sentences to windows of tokens, and back: one tag for each character."""

import json
import os
import random

import pytest

from cli import UserError
from fine_tuning import labelling, tag_schemes
from fine_tuning.tag_schemes import SCHEMES, Entity
from fine_tuning.tasks import task_among
from tokenization import FullTokenizer

ALPHABETS = ["清晨的渔港很热闹天气", "abcXYZéÅǅİ", "0123456789", "  \t\u3000\u00a0",
             "，。！？“《」…-#", "😀👨\u200d👩🏽🇨🇳", "龘𠮷㐂鿿豈",
             "\x00\u200b\ufeff\u0301ß한ﬁ", "\u2028カな"]


@pytest.fixture(scope="module")
def tokenizer(toy_vocab):
    return FullTokenizer(toy_vocab)


def random_text(rng):
    return "".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(rng.randint(1, 60)))


def numbered(text):
    return list(enumerate(text.split("\n"), 1))


def read(text, **options):
    return labelling.read_sentences("x.txt", numbered(text), **options)


# ---- text <-> tokens ---------------------------------------------------------------------------


def test_each_character_of_a_thousand_random_strings_has_one_tag(tokenizer):
    rng = random.Random(8)
    for number in range(1000):
        text, scheme = random_text(rng), SCHEMES[rng.choice(sorted(SCHEMES))]
        windows = labelling.windows_of(text, tokenizer, rng.choice([3, 8, 200]))
        places = [place for window in windows for place in window.places]
        assert places == sorted(places) and all(start < end for start, end in places)
        starts = [start for start, _ in places]
        assert len(set(starts)) == len(starts)
        assert set(starts) == {piece.start for piece in tokenizer.tokenize_with_offsets(text)}
        answers = [[(entity, 0.5) for entity in random_spans(rng, len(window.places))]
                   for window in windows]
        entities = [entity for entity, _ in labelling.text_entities(windows, answers)]
        tags = tag_schemes.tags_from_entities(entities, len(text), scheme)
        assert len(tags) == len(text), number
        assert tag_schemes.entities_from_tags(tags) == entities
        if text.strip():
            lines = tag_schemes.conll_text(text, tags).split("\n")
            assert len(lines) == len(text) + 2


def random_spans(rng, length):
    spans, place = [], 0
    while place < length:
        end = min(length, place + rng.randint(1, 3))
        if rng.random() < 0.6:
            spans.append(Entity(rng.choice("XY"), place, end))
        place = end
    return spans


def test_what_training_is_told_comes_back_as_the_same_entities(tokenizer):
    """Where entities begin and end with tokens, whatever the windows."""
    rng = random.Random(9)
    for _ in range(300):
        text, scheme = random_text(rng), SCHEMES[rng.choice(sorted(SCHEMES))]
        places = [window.places for window in labelling.windows_of(text, tokenizer, 500)]
        spans = random_spans(rng, len(places[0])) if places else []
        entities = [Entity(kind, places[0][start][0], places[0][end - 1][1])
                    for kind, start, end in spans]
        # Neighbours of one type become one where a window ends; at a space it may end one.
        entities = [entity for place, entity in enumerate(entities)
                    if (not place or entities[place - 1].type != entity.type)
                    and len(text[entity.start:entity.end].split()) == 1]
        sentence = labelling.Sentence(1, text, entities)
        windows = labelling.windows_of(text, tokenizer, rng.choice([4, 9, 500]))
        answers = [[(entity, 1.0) for entity in tag_schemes.entities_from_tags(
            labelling.window_tags(sentence, window, scheme))] for window in windows]
        assert [entity for entity, _ in labelling.text_entities(windows, answers)] == entities


def test_a_token_belongs_to_the_entity_of_its_first_character(tokenizer):
    text = "天雨 ab€气"  # ab€ is one [UNK]
    sentence = labelling.Sentence(1, text, [Entity("X", 1, 4), Entity("Y", 4, 7)])
    window, = labelling.windows_of(text, tokenizer, 50)
    assert window.places == [(0, 1), (1, 2), (3, 6), (6, 7)]
    assert labelling.window_tags(sentence, window, SCHEMES["BIO"]) == ["O", "B-X", "I-X", "B-Y"]


def test_windows_are_cut_behind_the_end_of_a_sentence_else_a_mark_else_where_full(tokenizer):
    def parts(text, limit=8):
        return [(text[window.places[0][0]:window.places[-1][1]], window.joined)
                for window in labelling.windows_of(text, tokenizer, limit)]

    assert parts("天天天天，天。天天天天") == [("天天天天，天。", False), ("天天天天", True)]
    assert parts("天天天天天，天天天天") == [("天天天天天，", False), ("天天天天", True)]
    assert parts("天天天天天“天天天天") == [("天天天天天“天天", False), ("天天", True)]
    assert parts("天天天天天 天天天天") == [("天天天天天", False), ("天天天天", False)]
    assert parts("天天。天天天天天天天") == [("天天。天天天天天", False), ("天天", True)]
    assert parts("天" * 8) == [("天" * 8, False)]
    assert parts(" \u200b") == []


def test_an_entity_through_which_a_window_is_cut_is_one_again(tokenizer):
    windows = labelling.windows_of("天" * 12, tokenizer, 8)
    answers = [[(Entity("X", 5, 8), 0.5)], [(Entity("X", 0, 2), 0.5), (Entity("X", 2, 4), 0.9)]]
    assert labelling.text_entities(windows, answers) == [
        (Entity("X", 5, 10), 0.25), (Entity("X", 10, 12), 0.9)]
    answers[1][0] = (Entity("Y", 0, 2), 0.5)
    assert len(labelling.text_entities(windows, answers)) == 3


# ---- files -------------------------------------------------------------------------------------


def test_columns_with_space_or_tab_and_their_scheme():
    sentences, scheme = read("天 B-X\n气\tI-X\n  O\n\n\n雨 O\n")
    assert scheme.name == "BIO"
    assert sentences == [labelling.Sentence(1, "天气 ", [Entity("X", 0, 2)]),
                         labelling.Sentence(6, "雨", [])]
    assert read("天 B-X\n气 M-X\n雨 E-X")[1].name == "BMES"
    assert read("天 S-X\n气 O\n雨 O")[1].name == "BIOES"


def test_tags_without_their_beginning_are_read_and_said(caplog):
    with caplog.at_level("WARNING"):
        sentences, _ = read("天 I-X\n气 B-X\n\n雨 O\n有 O")
    assert sentences[0].entities == [Entity("X", 0, 1), Entity("X", 1, 2)]
    assert "1 sentences (the first at line 1) have tags that BIO does not allow" in caplog.text


def test_json_lines_of_cluener_and_of_predictions():
    line = {"text": "天气有雨", "label": {"X": {"气有": [[1, 2]], "雨": [[3, 3]]}}}
    sentences, _ = read(json.dumps(line) + "\n")
    assert sentences[0].entities == [Entity("X", 1, 3), Entity("X", 3, 4)]
    written = tag_schemes.entity_lines("天气有雨", [(Entity("X", 1, 3), 0.5)])
    assert read(written)[0][0].entities == [Entity("X", 1, 3)]
    submitted = labelling.cluener_line(4, "天气有雨", sentences[0].entities)
    assert json.loads(submitted) == {"id": 4, "label": line["label"]}


def test_of_overlapping_entities_the_longest_is_kept_and_the_rest_counted(caplog):
    line = {"text": "天气有雨", "entities": [{"type": "X", "start": 0, "end": 2},
                                         {"type": "Y", "start": 1, "end": 4}]}
    with caplog.at_level("INFO"):
        sentences, _ = read(json.dumps(line))
    assert sentences[0].entities == [Entity("Y", 1, 4)]
    assert "1 entities within others left out" in caplog.text


def test_files_to_predict_may_be_plain_lines_or_lack_labels():
    sentences, _ = read("天气 O\n\n雨\n", need_labels=False)
    assert [(row.line, row.text, row.entities) for row in sentences] == [
        (1, "天气 O", None), (2, "", None), (3, "雨", None), (4, "", None)]
    assert read("天 O\n气 B-X\n", need_labels=False)[0][0].entities == [Entity("X", 1, 2)]
    assert read('{"id": 0, "text": "天气"}', need_labels=False)[0][0].entities is None


@pytest.mark.parametrize("text, message", [
    ("天 B-X\n气\n", r"x.txt, line 2: no tag in '气'; expected one character, a space or tab"),
    ("天 B-X\n O\n", "x.txt, line 2: no character in ' O'"),
    ("天气 B-X", "x.txt, line 1: '天气' is 2 characters; expected one"),
    ("天 O\n气 X-Y", "line 2: 'X-Y' is no tag; expected O, or one of B, I, M, E, S with -"),
    ("天 B-", "line 1: 'B-' is no tag"),
    ("天 B-X\n气 I-X\n\n雨 M-X", r"line 4: the tag M-X is of another scheme than B-X \(line 1\), "
     r"I-X \(line 2\); one file has one of BIO \(B I\), BIOES"),
    ("\n天 B-X\n雨 B-Z", "line 3: '雨' is of the type 'Z', which the training file does not have; "
     "it has X, Y"),
    ('{"text": "天气", "label": {"X": {"雨": [[0, 0]]}}}', r"line 1: '雨' \(X\) is not at 0 to 0 "
     "of the text, where '天' stands"),
    ('{"text": "天气", "label": {"Z": {"天": [[0, 0]]}}}', "line 1: '天' is of the type 'Z'"),
    ('{"label": {}}', r"line 1: KeyError \('text'\); expected a JSON object with text and label"),
    ('{"text": "天"}', "line 1: no label; a labelled file is needed here"),
    ("{天", "line 1: JSONDecodeError")])
def test_bad_lines_fail_with_file_line_and_what_was_expected(text, message):
    with pytest.raises(UserError, match=message):
        read(text, types=["X", "Y"])


def test_tasks_are_listed_and_types_are_found():
    with pytest.raises(UserError, match="unknown task 'foo'; known: msra, cluener, resume, bio"):
        task_among(labelling.TASKS, "foo")
    assert task_among(labelling.TASKS, "MSRA").files["train"][0] == "train.txt"
    sentences, _ = read("天 B-Y\n气 B-X\n")
    assert labelling.types_found(sentences, "x") == ["X", "Y"]
    with pytest.raises(UserError, match="no entity in 1 sentences"):
        labelling.types_found(read("天 O\n")[0], "x")


@pytest.mark.parametrize("name, scheme, counts", [
    ("msra/test.txt", "BIO", (4631, 6192)), ("resume/dev.char.bmes", "BMES", (463, 1497)),
    ("cluener/dev.json", "BIO", (1343, 3072))])
def test_public_files_are_read_whole(shared_data, name, scheme, counts):
    path = os.path.join(shared_data, "ner", name)
    with open(path, "rb") as stream:
        lines = [(number, text.decode("utf-8").rstrip("\n")) for number, text in
                 enumerate(stream, 1)]
    sentences, found = labelling.read_sentences(path, lines)
    assert found.name == scheme
    assert (len(sentences), sum(len(row.entities) for row in sentences)) == counts

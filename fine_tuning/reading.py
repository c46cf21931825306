"""Questions about passages -> windows of token ids; logits of windows -> answers.

In: SQuAD-like JSON (CMRC 2018, DRCD, your own).  Out: Windows that a model reads, and from its
start and end logits the best answers, each a slice of the passage itself. No TensorFlow in here.

    passage  |-----------------------------------|
    window 1 [CLS] question [SEP] |--------| [SEP]
    window 2 [CLS] question [SEP]    |--------| [SEP]       doc_stride tokens further on

The file: {"data": [{"paragraphs": [{"context": "...", "qas": [{"id": "...", "question": "...",
"answers": [{"text": "...", "answer_start": 30}]}]}]}]}, offsets in characters.
"""

import collections
import functools
import json

import numpy as np
from absl import logging

from cli import UserError
from fine_tuning.tasks import split_names

ReadingTask = collections.namedtuple("ReadingTask", "name files")  # split -> names to try, in order
TASKS = {task.name: task for task in (
    ReadingTask("cmrc2018", {"train": ("cmrc2018_train.json",), "dev": ("cmrc2018_dev.json",),
                             "test": ("cmrc2018_test.json", "cmrc2018_trial.json")}),
    ReadingTask("drcd", {"train": ("DRCD_training.json",), "dev": ("DRCD_dev.json",),
                         "test": ("DRCD_test.json",)}),
    ReadingTask("own", split_names("{}.json")))}
NEARBY = 20  # characters an answer may stand off its offset; CMRC's 21 are off by one or two
MOST_LEFT_OUT = 0.01  # share of the training questions; above it the offsets are wrong altogether

Answer = collections.namedtuple("Answer", "text start")  # start as the file says
Question = collections.namedtuple("Question", "id text context answers")
Window = collections.namedtuple("Window", "question ids first skipped start end")
Window.__doc__ = """A part of a passage with its question.

question: number of the question from 0.  ids: [CLS] question [SEP] part [SEP].
first: tokens before the part.  skipped: tokens of the passage before the part.
start, end: places in ids of the answer's first and last token; 0, that is [CLS], where the part
does not hold the answer.
"""
Candidate = collections.namedtuple("Candidate", "text start end score probability")
Candidate.__doc__ = """A possible answer: context[start:end]; "" where there is none.

score: start plus end logit.  probability: among the candidates of its question.
"""


# --- the file ---------------------------------------------------------------------------------


def questions_of(content, path, need_answers, null_answers=False, encoding="utf-8"):
    """The Questions of a file, in its order.

    Args:
      content: bytes of the file.  path: its name for messages.
      need_answers: whether each question must have answers.
      null_answers: whether there may be questions with none of them.
      encoding: of the content.
    Raises:
      UserError: no JSON, a missing key, a value of another kind, an id twice, no question.
    """
    found, places = [], {}
    for context, record, where in _records(content, path, encoding):
        name = str(_member(record, "id", (str, int), where))
        where = "{}, question {}".format(path, name)
        if name in places:
            raise UserError("{}: the id stands twice, at {} and {}".format(
                where, places[name], len(found)))
        places[name] = len(found)
        given = record.get("answers") or []
        if need_answers and not given and not null_answers:
            raise UserError("{}: no answers; data with unanswerable questions need "
                            "--null_answers".format(where))
        _check(given, list, "answers", where)
        answers = [Answer(_member(answer, "text", str, where),
                          _member(answer, "answer_start", int, where)) for answer in given]
        found.append(Question(name, _member(record, "question", str, where), context, answers))
    if not found:
        raise UserError("{}: no questions".format(path))
    return found


def _records(content, path, encoding):
    """Yields (context, object of the question, where it stands) for each question of a file."""
    try:
        document = json.loads(content.decode(encoding).lstrip("\ufeff"))
    except UnicodeDecodeError as error:
        raise UserError("{}: byte {:#04x} at offset {} is not {}; name the file's encoding with "
                        "--input_encoding".format(path, content[error.start], error.start,
                                                  encoding)) from error
    except ValueError as error:
        raise UserError("{}: not JSON ({})".format(path, error)) from error
    for number, article in enumerate(_member(document, "data", list, path)):
        at_article = "{}, data[{}]".format(path, number)
        for place, paragraph in enumerate(_member(article, "paragraphs", list, at_article)):
            where = "{}.paragraphs[{}]".format(at_article, place)
            context = _member(paragraph, "context", str, where)
            for count, record in enumerate(_member(paragraph, "qas", list, where)):
                yield context, record, "{}.qas[{}]".format(where, count)


def _member(record, key, kind, where):
    """record[key], which must be of this kind."""
    _check(record, dict, "the place of {!r}".format(key), where)
    if key not in record:
        raise UserError("{}: no key {!r} in an object with the keys {}".format(
            where, key, ", ".join(sorted(record)) or "(none)"))
    return _check(record[key], kind, repr(key), where)


def _check(value, kind, name, where):
    if not isinstance(value, kind) or isinstance(value, bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise UserError("{}: {} is expected to hold a {}, found a {}".format(
            where, name, " or ".join(one.__name__ for one in kinds), type(value).__name__))
    return value


def answer_span(question):
    """(start, end) in characters of the first answer that stands in the passage, or None.

    An answer that does not stand at its offset is taken where it stands nearest, at most NEARBY
    characters away.
    """
    for text, start in question.answers:
        if not text:
            continue
        low = max(0, start - NEARBY)
        part = question.context[low:max(0, start + NEARBY) + len(text)]
        places = [low + place for place in range(len(part)) if part.startswith(text, place)]
        if places:
            nearest = min(places, key=lambda place: abs(place - start))
            return nearest, nearest + len(text)
    return None


def answer_spans(questions, path, null_answers=False):
    """The answer_span of each training question; None for those that are not to be trained on.

    Args:
      questions: list of Question.  path: their file, for messages.
      null_answers: whether a question without answers is one.
    Returns:
      list of (start, end); (0, 0) for an unanswerable question; None, counted in the log, where
      no answer stands in the passage.
    Raises:
      UserError: that is so for more than MOST_LEFT_OUT of the questions.
    """
    spans = [(0, 0) if null_answers and not question.answers else answer_span(question)
             for question in questions]
    lost = [question for question, span in zip(questions, spans) if span is None]
    moved = sum(span is not None and bool(question.answers)
                and span[0] not in [answer.start for answer in question.answers]
                for question, span in zip(questions, spans))
    if moved:
        logging.info("%s: %d answers do not stand at their offset, but at most %d characters away: "
                     "taken there", path, moved, NEARBY)
    if not lost:
        return spans
    text, start = (lost[0].answers or [Answer("", 0)])[0]
    message = ("{}: {} of {} questions have no answer that stands in the passage at its offset or "
               "at most {} characters away; the first is question {}, answer {!r} at {}").format(
                   path, len(lost), len(questions), NEARBY, lost[0].id, text, start)
    if len(lost) > MOST_LEFT_OUT * len(questions):
        raise UserError(message + "; offsets count the passage's characters")
    logging.warning("%s: left out", message)
    return spans


# --- windows ----------------------------------------------------------------------------------


class WindowEncoder(object):
    """Cuts passages into windows of token ids.

    Attributes:
      tokenizer: FullTokenizer.  max_seq_length, doc_stride, max_query_length: in tokens.
    """

    def __init__(self, tokenizer, max_seq_length, doc_stride=128, max_query_length=64):
        """Takes the lengths in tokens.

        Raises:
          UserError: a window would not hold doc_stride tokens of the passage, which then has gaps.
        """
        for name, value in (("doc_stride", doc_stride), ("max_query_length", max_query_length)):
            if value < 1:
                raise UserError("--{} is {}, must be at least 1".format(name, value))
        room = max_seq_length - max_query_length - 3
        if room < doc_stride:
            raise UserError(
                "--max_seq_length={} leaves {} tokens for the passage beside --max_query_length={} "
                "and 3 special tokens, fewer than --doc_stride={}: there would be gaps".format(
                    max_seq_length, room, max_query_length, doc_stride))
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.doc_stride = doc_stride
        self.max_query_length = max_query_length
        self.opening, self.closing = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
        # The questions of a passage follow one another.
        self.pieces = functools.lru_cache(maxsize=8)(tokenizer.tokenize_with_offsets)

    def cuts(self, question):
        """Whether a Question has more than max_query_length tokens."""
        return len(self.tokenizer.tokenize(question.text)) > self.max_query_length

    def windows(self, number, question, span=None):
        """The Windows of a Question, one at least, over the whole passage.

        Args:
          number: of the question.  question: Question.
          span: (start, end) of its answer in characters, for training.
        """
        query = self.tokenizer.tokenize(question.text)[:self.max_query_length]
        opening = ([self.opening] + self.tokenizer.convert_tokens_to_ids(query) + [self.closing])
        pieces = self.pieces(question.context)
        ids = self.tokenizer.convert_tokens_to_ids([piece.token for piece in pieces])
        answer = token_span(pieces, span) if span else None
        room = self.max_seq_length - len(opening) - 1
        found = []
        for skipped in range(0, max(1, len(ids) - room + self.doc_stride), self.doc_stride):
            part = ids[skipped:skipped + room]
            start = end = 0
            if answer and skipped <= answer[0] and answer[1] < skipped + len(part):
                start, end = [len(opening) + place - skipped for place in answer]
            found.append(Window(number, opening + part + [self.closing], len(opening), skipped,
                                start, end))
        return found


def token_span(pieces, span):
    """(first, last) number of the Pieces that hold characters of the span, or None if none does."""
    inside = [number for number, piece in enumerate(pieces)
              if piece.end > span[0] and piece.start < span[1]]
    return (inside[0], inside[-1]) if inside else None


# --- answers ----------------------------------------------------------------------------------


def best_answers(question, pieces, windows, logits, max_answer_length=64, n_best_size=20,
                 null_answers=False):
    """The likeliest answers of a question, best first; exactly one "" for an empty passage.

    A span counts in the window that shows most of the passage around its first token. None begins
    or ends in the question, in padding or in a special token.

    Args:
      question: Question.  pieces: of its passage.  windows: all its Windows.
      logits: for each window (start, end), float [S] with S at least the window's length.
      max_answer_length: in tokens.
      n_best_size: how many answers at most, no text twice.
      null_answers: whether "" is one: its score is the lowest of [CLS] over the windows, since the
        passage holds no answer only if no window does.
    Returns:
      list of Candidate.
    """
    owners = windows_with_most_context(windows, len(pieces))
    scored = []
    for number, (window, (starts, ends)) in enumerate(zip(windows, logits)):
        places = slice(window.first, len(window.ids) - 1)
        chosen = owners[window.skipped:window.skipped + len(window.ids) - 1 - window.first]
        starts = np.where(chosen == number, starts[places], -np.inf)
        for score, first, last in best_spans(starts, ends[places], max_answer_length,
                                              n_best_size):
            start = pieces[window.skipped + first].start
            scored.append((score, start, max(start, pieces[window.skipped + last].end)))
    if null_answers or not scored:
        scored.append((min(float(starts[0] + ends[0]) for starts, ends in logits), 0, 0))
    texts = collections.OrderedDict()
    for score, start, end in sorted(scored, key=lambda one: (-one[0], one[1:])):
        texts.setdefault(question.context[start:end], (start, end, score))
    kept = list(texts.items())[:n_best_size]
    weights = np.exp(np.array([score for _, (_, _, score) in kept]) - kept[0][1][2])
    return [Candidate(text, start, end, score, float(weight))
            for (text, (start, end, score)), weight in zip(kept, weights / weights.sum())]


def windows_with_most_context(windows, tokens):
    """int [tokens]: for each token of a passage the window that shows most on both its sides."""
    context = np.full([len(windows), tokens], -1)
    for row, window in zip(context, windows):
        left = np.arange(len(window.ids) - 1 - window.first)
        row[window.skipped:window.skipped + len(left)] = np.minimum(left, left[::-1])
    return context.argmax(0)


def best_spans(start_logits, end_logits, longest, count):
    """The `count` best spans of a window, best first: [(score, first, last)], those of -inf not.

    Args:
      start_logits, end_logits: float [n].
      longest: tokens of a span at most.
    """
    places = np.arange(len(start_logits))[:, None] + np.arange(longest)  # [n, longest]
    padded = np.concatenate([end_logits, np.full(longest, -np.inf)])
    scores = (np.asarray(start_logits, np.float64)[:, None] + padded[places]).ravel()
    best = np.argpartition(-scores, min(count, len(scores)) - 1)[:count] if len(scores) else []
    best = sorted(best, key=lambda index: (-scores[index], index))
    return [(float(scores[index]), int(index // longest), int(index // longest + index % longest))
            for index in best if scores[index] > -np.inf]


def predictions_text(answers):
    """predictions.json: {question id: text} of a dict question id -> [Candidate]."""
    return json.dumps({name: found[0].text for name, found in answers.items()},
                      ensure_ascii=False, indent=1) + "\n"


def nbest_text(answers):
    """nbest_predictions.json: {question id: [{text, start, end, score, probability}]}."""
    return json.dumps({name: [candidate._asdict() for candidate in found]
                       for name, found in answers.items()}, ensure_ascii=False, indent=1) + "\n"

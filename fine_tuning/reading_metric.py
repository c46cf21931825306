"""How good answers are: exact match and F1, as the official CMRC 2018 evaluator counts them.

In: predicted texts and the answers of the annotators.  Out: EM and F1 in per cent.

    answer -> lower case, marks left out -> tokens: a Chinese character each, English words
    F1 from the longest run of tokens that both hold; the best of the answers counts.
"""

import re

import numpy as np

MARKS = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
CHINESE = re.compile("[\u4e00-\u9fa5]")

# The Penn Treebank's way to cut English (its tokenizer.sed and NLTK's), for lower-case text without
# MARKS: each rule puts spaces around what is a token of its own.
QUOTES_AND_PUNCTUATION = tuple((re.compile(pattern), replacement) for pattern, replacement in (
    ("([«‘„])", r" \1 "),
    ('^"', " `` "),
    ("([ ([{<])(\"|'')", r"\1 `` "),
    (r"'(?!re|ve|ll|[mtsdn])(\w)\b", r"' \1"),
    (r"([^.])\.([])}>\"'» ]*)\s*$", r"\1 . \2 "),
    (r",(\D)", r" , \1"),
    (",$", " , "),
    (r"(\.{2,}|[;@#$%&])", r" \1 "),
    (r"([^.])\.([])}>\"'» ]*)\s*$", r"\1 . \2 "),
    ("([?!])", r" \1 "),
    ("([^'])' ", r"\1 ' "),
    (r"([][(){}<>])", r" \1 ")))
ENDINGS = tuple((re.compile(pattern), replacement) for pattern, replacement in (
    ("(»)", r" \1 "),
    ("''|\"", " '' "),
    ("([^' ])('[smd]?) ", r"\1 \2 "),
    ("([^' ])('ll|'re|'ve|n't) ", r"\1 \2 "),
    (r"\b(can)(not)\b", r" \1 \2 "),
    (r"\b(d)('ye)\b", r" \1 \2 "),
    (r"\b(gim|lem)(me)\b", r" \1 \2 "),
    (r"\b(gon)(na)\b", r" \1 \2 "),
    (r"\b(got)(ta)\b", r" \1 \2 "),
    (r"\b(more)('n)\b", r" \1 \2 "),
    (r"\b(wan)(na)(?=\s)", r" \1 \2 "),
    (r" ('t)(is)\b", r" \1 \2 "),
    (r" ('t)(was)\b", r" \1 \2 ")))


def english_words(text):
    """Tokens of a run of text without Chinese characters: [str]."""
    for pattern, replacement in QUOTES_AND_PUNCTUATION:
        text = pattern.sub(replacement, text)
    text = " {} ".format(text)
    for pattern, replacement in ENDINGS:
        text = pattern.sub(replacement, text)
    return text.split()


def without_marks(text):
    """The text in lower case, stripped, without MARKS: what exact match compares."""
    return "".join(char for char in text.lower().strip() if char not in MARKS)


def metric_tokens(text):
    """Tokens that F1 compares: each Chinese character, and the words of what stands between."""
    tokens, start = [], 0
    text = without_marks(text)
    for found in CHINESE.finditer(text):
        tokens += english_words(text[start:found.start()]) + [found.group()]
        start = found.end()
    return tokens + english_words(text[start:])


def longest_common_run(first, second):
    """Length of the longest contiguous run of tokens that both lists hold."""
    longest, row = 0, np.zeros(len(second) + 1, np.int32)
    numbers = {token: number for number, token in enumerate(dict.fromkeys(second))}
    second = np.array([numbers[token] for token in second], np.int32)
    for token in first:
        row[1:] = (row[:-1] + 1) * (second == numbers.get(token, -1))
        longest = max(longest, int(row.max()))
    return longest


def answer_f1(prediction, answer):
    """F1 in 0..1 of a predicted text; 1 where both are empty, that is: there is no answer."""
    if not prediction and not answer:
        return 1.0
    found, wanted = metric_tokens(prediction), metric_tokens(answer)
    common = longest_common_run(found, wanted)
    if not common:
        return 0.0
    precision, recall = common / len(found), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def answer_scores(prediction, answers):
    """(EM, F1) in 0..1 of a predicted text, the best over the answers: [str]; none means "".

    CMRC 2018 and DRCD have an answer to each question; an unanswerable one is right if left empty.
    """
    answers = answers or [""]
    exact = without_marks(prediction) in [without_marks(answer) for answer in answers]
    return float(exact), max(answer_f1(prediction, answer) for answer in answers)


def reading_report(predictions, answers):
    """EM and F1 in per cent over all questions.

    Args:
      predictions: dict question id -> text; one that is missing counts 0.
      answers: dict question id -> list of answer texts.
    Returns:
      dict for JSON: questions, unanswered, exact_match, f1.
    """
    scores = [answer_scores(predictions[name], texts) for name, texts in answers.items()
              if name in predictions]
    exact, overlap = [100.0 * sum(column) / len(answers) for column in zip(*scores or [(0, 0)])]
    return {"questions": len(answers), "unanswered": len(answers) - len(scores),
            "exact_match": exact, "f1": overlap}

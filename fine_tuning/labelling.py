"""Sequence labelling: which characters of a text are an entity, and of which type?

In: files of one character and its tag a line (BIO, BIOES, BMES), or of JSON lines (CLUENER's, or
text and entities), or plain lines.  Out: sentences, windows of tokens that a model can read, and
from what it says of the tokens the entities and one tag for each character.  No TensorFlow.

A token belongs to the entity in which its first character lies. Data of your own need no entry in
TASKS: --task_name=bio for columns of any of the schemes, --task_name=jsonl for JSON lines.
"""

import collections
import itertools
import json
import re
import unicodedata

from absl import logging

from cli import UserError
from fine_tuning import tag_schemes
from fine_tuning.tag_schemes import SCHEMES, Entity
from fine_tuning.tasks import split_names
from tokenization import is_punctuation

Sentence = collections.namedtuple("Sentence", "line text entities")
Sentence.__doc__ = """line: number from 1.  entities: list of Entity, None where they are not known.
"""
LabellingTask = collections.namedtuple("LabellingTask", "name files")
Window = collections.namedtuple("Window", "places tokens joined")
Window.__doc__ = """A part of a sentence that a model reads at once.

places: (start, end) in the sentence of the characters of each token.  tokens: the tokens.
joined: whether an entity may go on from the window before: no space is between.
"""

TASKS = collections.OrderedDict((task.name, task) for task in (
    LabellingTask("msra", split_names("{}.txt", "msra_{}_bio.txt", "{}.tsv")),
    LabellingTask("cluener", dict(split_names("{}.json"), test=("test_nolabel.json", "test.json"))),
    LabellingTask("resume", split_names("{}.char.bmes", "{}.txt")),
    LabellingTask("bio", split_names("{}.txt", "{}.tsv", "{}.conll", "{}.bio", "{}.bmes")),
    LabellingTask("jsonl", split_names("{}.jsonl", "{}.json"))))

COLUMNS_LINE = re.compile(r".[ \t](O|[%s]-\S+)\s*$" % tag_schemes.PREFIXES)
EXPECTED = "expected one character, a space or tab, and its tag"
SENTENCE_ENDS = "。！？!?；;…"


# --- files ------------------------------------------------------------------------------------


def read_sentences(path, lines, types=None, need_labels=True):
    """(sentences, their scheme) of a labelled file, or of one to predict.

    A file whose first line begins with { holds JSON lines; one whose first line is a character and
    its tag is read as columns; any other must have no labels, and each line is a sentence.

    Args:
      path: str for the messages.  lines: (number from 1, text) pairs, with the empty lines.
      types: names of entities that are allowed, None for any.
      need_labels: whether a sentence without labels is an error.
    Returns:
      list of Sentence; Scheme, BIO for JSON lines and where there is nothing to see it by.
    Raises:
      UserError: a line that cannot be read; file, line, and what was expected.
    """
    lines = list(lines)
    first = next((text for _, text in lines if text.strip()), "")
    if first.lstrip().startswith("{"):
        sentences, scheme = json_sentences(path, lines, need_labels), SCHEMES["BIO"]
    elif need_labels or COLUMNS_LINE.match(first):
        sentences, scheme = column_sentences(path, lines)
    else:
        sentences = [Sentence(number, text, None) for number, text in lines]
        scheme = SCHEMES["BIO"]
    for sentence in sentences if types is not None else ():
        for kind, start, end in sentence.entities or ():
            if kind not in types:
                number = sentence.line + (0 if first.lstrip().startswith("{") else start)
                raise UserError("{}, line {}: {!r} is of the type {!r}, which the training file "
                                "does not have; it has {}".format(
                                    path, number, sentence.text[start:end], kind,
                                    ", ".join(types)))
    return sentences, scheme


def column_sentences(path, lines):
    """(sentences, Scheme) of lines of a character and its tag; an empty line ends a sentence."""
    sentences, tagged, seen, begun = [], [], {}, []
    for number, line in itertools.chain(lines, [(0, "")]):
        if line.strip():
            char, tag = parsed_column_line(line, "{}, line {}".format(path, number))
            note_prefix(tag, number, seen, path)
            begun.append((number, char, tag))
        elif begun:
            numbers, chars, tags = zip(*begun)
            sentences.append(Sentence(numbers[0], "".join(chars),
                                      tag_schemes.entities_from_tags(tags)))
            tagged.append(list(tags))
            begun = []
    scheme = tag_schemes.scheme_of(seen)
    odd = [sentence.line for sentence, tags in zip(sentences, tagged)
           if tag_schemes.tags_from_entities(sentence.entities, len(tags), scheme) != tags]
    logging.info("%s: %d sentences, tags of the scheme %s", path, len(sentences), scheme.name)
    if odd:
        logging.warning("%s: %d sentences (the first at line %d) have tags that %s does not allow, "
                        "as an entity without its beginning; entities are read from them as "
                        "conlleval does", path, len(odd), odd[0], scheme.name)
    return sentences, scheme


def parsed_column_line(line, where):
    """(character, tag) of a line; UserError says what was expected."""
    place = max(line.rstrip().rfind(" "), line.rstrip().rfind("\t"))
    char, tag = line[:place], line[place + 1:].rstrip()
    if place < 0 or not char:
        raise UserError("{}: no {} in {!r}; {}".format(
            where, "tag" if place < 0 else "character", line, EXPECTED))
    if len(char) != 1:
        raise UserError("{}: {!r} is {} characters; {}".format(where, char, len(char), EXPECTED))
    if tag_schemes.tag_parts(tag) is None:
        raise UserError("{}: {!r} is no tag; expected O, or one of {} with - and a type, as "
                        "B-LOC".format(where, tag, ", ".join(tag_schemes.PREFIXES)))
    return char, tag


def note_prefix(tag, number, seen, path):
    """Adds a tag's prefix to `seen` (prefix -> (line, tag)) if one scheme has all of these."""
    prefix = tag_schemes.tag_parts(tag)[0]
    if prefix in seen:
        return
    seen[prefix] = number, tag
    if tag_schemes.scheme_of(seen) is None:
        others = ["{} (line {})".format(other, line)
                  for mark, (line, other) in sorted(seen.items()) if mark != prefix
                  and mark != tag_schemes.OUTSIDE]
        raise UserError("{}, line {}: the tag {} is of another scheme than {}; one file has one "
                        "of {}".format(path, number, tag, ", ".join(others), ", ".join(
                            "{} ({})".format(scheme.name, " ".join(sorted(set(scheme[1:]))))
                            for scheme in SCHEMES.values())))


def json_sentences(path, lines, need_labels):
    """Sentences of JSON lines: text, and CLUENER's label or a list of entities.

    Of entities that overlap the longest is kept; the others are counted in the log.
    """
    sentences, overlapping = [], 0
    for number, line in lines:
        where = "{}, line {}".format(path, number)
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            text = record["text"]
            spans = json_spans(record)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError("{}: {} ({}); expected a JSON object with text and label: {{type: "
                            "{{entity: [[first, last]]}}}}".format(
                                where, type(error).__name__, error)) from None
        if spans is None and need_labels:
            raise UserError("{}: no label; a labelled file is needed here".format(where))
        for (kind, start, end), words in spans or ():
            if not 0 <= start < end <= len(text) or text[start:end] != words:
                raise UserError("{}: {!r} ({}) is not at {} to {} of the text, where {!r} stands"
                                .format(where, words, kind, start, end - 1, text[start:end]))
        kept = None if spans is None else without_overlaps([entity for entity, _ in spans])
        overlapping += 0 if spans is None else len({entity for entity, _ in spans}) - len(kept)
        sentences.append(Sentence(number, text, kept))
    logging.info("%s: %d sentences%s", path, len(sentences), ", {} entities within others left out"
                 .format(overlapping) if overlapping else "")
    return sentences


def json_spans(record):
    """[(Entity, its text)] of a JSON object, None where it has no labels."""
    if "label" in record:
        return [(Entity(kind, int(first), int(last) + 1), words)
                for kind, entities in record["label"].items()
                for words, places in entities.items() for first, last in places]
    if "entities" in record:
        return [(Entity(entity["type"], int(entity["start"]), int(entity["end"])),
                 entity.get("text", record["text"][int(entity["start"]):int(entity["end"])]))
                for entity in record["entities"]]
    return None


def without_overlaps(entities):
    """The entities in order of their places, without those that meet a longer or earlier one."""
    kept = []
    for entity in sorted(set(entities), key=lambda entity: (entity.start - entity.end, entity)):
        if all(entity.end <= other.start or other.end <= entity.start for other in kept):
            kept.append(entity)
    return sorted(kept, key=lambda entity: entity.start)


def types_found(sentences, path):
    """The types of a training file's entities in order; UserError where there is none."""
    types = sorted({entity.type for sentence in sentences for entity in sentence.entities})
    if not types:
        raise UserError("{}: no entity in {} sentences: nothing to learn".format(
            path, len(sentences)))
    return types


# --- text <-> tokens --------------------------------------------------------------------------


def windows_of(text, tokenizer, limit):
    """The Windows of a text, each of at most `limit` tokens; none is left out.

    A text that is too long is cut behind the last end of a sentence in the second half of what a
    window holds, else behind another mark or before a space, else where it is full. Characters that
    leave no token (spaces, control characters) are in no window's places.
    """
    pieces, last = [], -1
    for piece in tokenizer.tokenize_with_offsets(text):
        if piece.start > last:  # several tokens of one character: the first stands for it
            pieces.append(piece)
            last = piece.start
    windows, first, joined = [], 0, False
    while first < len(pieces):
        cut, cut_joined = len(pieces), False
        if cut - first > limit:
            ranks = [(cut_rank(text, pieces, place), place)
                     for place in range(first + (limit + 1) // 2, first + limit + 1)]
            _, cut = max(ranks)
            cut_joined = not space_before(text, pieces, cut)
        chosen = pieces[first:cut]
        windows.append(Window([(piece.start, piece.end) for piece in chosen],
                              [piece.token for piece in chosen], joined))
        first, joined = cut, cut_joined
    return windows


def cut_rank(text, pieces, place):
    """How well a text can be cut before the piece number `place`; 0: only if it must be."""
    char = text[pieces[place - 1].end - 1]
    if char in SENTENCE_ENDS:
        return 3
    if is_punctuation(char) and unicodedata.category(char) not in ("Ps", "Pi"):
        return 2
    return int(space_before(text, pieces, place))


def space_before(text, pieces, place):
    """Whether a space stands before the piece number `place` of a text."""
    return any(char.isspace() for char in text[pieces[place - 1].end:pieces[place].start])


def window_tags(sentence, window, scheme):
    """The tags of a window's tokens by the sentence's entities."""
    owners = [None] * (len(sentence.text) + 1)
    for number, (_, start, end) in enumerate(sentence.entities):
        owners[start:end] = [number] * (end - start)
    inside, place = [], 0
    for number, group in itertools.groupby(owners[start] for start, _ in window.places):
        length = len(list(group))
        if number is not None:
            inside.append(Entity(sentence.entities[number].type, place, place + length))
        place += length
    return tag_schemes.tags_from_entities(inside, place, scheme)


def text_entities(windows, answers):
    """The entities of a sentence from those of its windows.

    An entity that a cut went through is put together again.

    Args:
      windows: those of the sentence in order.
      answers: for each [(Entity over its tokens, confidence)].
    Returns:
      [(Entity over the sentence's characters, confidence)].
    """
    found, at_end = [], False
    for window, answer in zip(windows, answers):
        for number, ((kind, start, end), confidence) in enumerate(answer):
            first, last = window.places[start][0], window.places[end - 1][1]
            if window.joined and at_end and number == start == 0 and found[-1][0].type == kind:
                former, sure = found.pop()
                first, confidence = former.start, sure * confidence
            found.append((Entity(kind, first, last), confidence))
        at_end = bool(answer) and answer[-1][0].end == len(window.places)
    return found


def cluener_line(number, text, entities):
    """A line of CLUENER's submission: id and label: {type: {entity: [[first, last]]}}."""
    label = collections.OrderedDict()
    for kind, start, end in entities:
        places = label.setdefault(kind, collections.OrderedDict()).setdefault(text[start:end], [])
        places.append([start, end - 1])
    return json.dumps({"id": number, "label": label}, ensure_ascii=False)

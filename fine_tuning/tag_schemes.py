"""Tags and the entities they stand for: schemes, the best valid tags of scores, what was right.

In: entities (type, start, end) or a score for each place and tag.  Out: tags of a scheme, entities
with the probability that they stand there, precision, recall and F1.  No TensorFlow.

A scheme writes the first, inner and last place of an entity and one of a single place:

    BIO    B-LOC I-LOC I-LOC O    B-LOC
    BIOES  B-LOC I-LOC E-LOC O    S-LOC
    BMES   B-LOC M-LOC E-LOC O    S-LOC

Letters for dimensions: B rows, S places of the longest row, T tags.
"""

import collections
import json

import numpy as np

OUTSIDE = "O"

Scheme = collections.namedtuple("Scheme", "name first inner last single")
SCHEMES = collections.OrderedDict((scheme.name, scheme) for scheme in (
    Scheme("BIO", "B", "I", "I", "B"),
    Scheme("BIOES", "B", "I", "E", "S"),
    Scheme("BMES", "B", "M", "E", "S")))
PREFIXES = "BIMES"
OPENING, CONTINUING, CLOSING = "BS", "IME", "ES"

Entity = collections.namedtuple("Entity", "type start end")
Entity.__doc__ = """Places start to end - 1 of a sequence are one entity of a type."""


def scheme_of(prefixes):
    """The Scheme of a file whose tags have these prefixes; None where no scheme has them all."""
    prefixes = set(prefixes) - {OUTSIDE}
    return next((scheme for scheme in SCHEMES.values() if prefixes <= set(scheme[1:])), None)


def tag_parts(tag):
    """(prefix, type) of a tag, (O, "") of O; None for text that is no tag of any scheme."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, hyphen, kind = tag.partition("-")
    return (prefix, kind) if hyphen and kind and len(prefix) == 1 and prefix in PREFIXES else None


def tags_of(scheme, types):
    """All tags of a scheme: O, then those of each type."""
    prefixes = sorted(set(scheme[1:]), key=scheme[1:].index)
    return [OUTSIDE] + ["{}-{}".format(prefix, kind) for kind in types for prefix in prefixes]


def scheme_and_types(tags):
    """(Scheme, types in their order) of all tags of a model; None where they are not of one.

    Types may lack some of the scheme's tags; O has to be among them.
    """
    parts = [tag_parts(tag) for tag in tags]
    scheme = None if None in parts else scheme_of(prefix for prefix, _ in parts)
    if scheme is None or OUTSIDE not in tags:
        return None
    return scheme, list(collections.OrderedDict.fromkeys(kind for _, kind in parts if kind))


def tags_from_entities(entities, length, scheme):
    """The tags of `length` places, on which entities lie that do not overlap."""
    tags = [OUTSIDE] * length
    for kind, start, end in entities:
        marks = [scheme.first] + [scheme.inner] * (end - start - 2) + [scheme.last]
        if end - start == 1:
            marks = [scheme.single]
        tags[start:end] = ["{}-{}".format(mark, kind) for mark in marks]
    return tags


def entities_from_tags(tags):
    """The entities of any tags, also of such as no scheme allows, as conlleval reads them.

    An entity goes on over I, M and E of its own type; a tag that follows nothing begins one.
    """
    entities, start, kind = [], None, ""
    for place, tag in enumerate(list(tags) + [OUTSIDE]):
        prefix, own = tag_parts(tag)
        if start is not None and (prefix not in CONTINUING or own != kind):
            entities.append(Entity(kind, start, place))
            start = None
        if prefix != OUTSIDE and start is None:
            start, kind = place, own
        if prefix in CLOSING:
            entities.append(Entity(kind, start, place + 1))
            start = None
    return entities


# --- scores -> the best valid tags ------------------------------------------------------------


def allowed_transitions(tags):
    """(starts [T], steps [T, T], ends [T]), bool: which tags a valid sequence may begin with, have
    one after the other (from row to column) and end with. All are of one scheme."""
    parts = [tag_parts(tag) for tag in tags]
    closes = any(prefix in CLOSING for prefix, _ in parts)
    unfinished = np.array([closes and prefix in "BIM" for prefix, _ in parts])
    continuing = np.array([prefix in CONTINUING for prefix, _ in parts])
    steps = np.zeros([len(tags)] * 2, bool)
    for row, (prefix, kind) in enumerate(parts):
        goes_on = prefix not in OUTSIDE + CLOSING
        for column, (_, other) in enumerate(parts):
            follows = continuing[column] and goes_on and kind == other
            steps[row, column] = follows if unfinished[row] or continuing[column] else True
    return ~continuing, steps, ~unfinished


class TagDecoder(object):
    """The most probable valid tags of a model that scores places and, with a CRF, steps.

    A tag sequence y has the score sum_s scores[s, y_s] + sum_s transitions[y_s, y_(s+1)], and among
    the valid ones the probability exp(score) / sum of exp(score) over them (Lafferty et al. 2001).

    Attributes:
      tags: T names.
    """

    def __init__(self, tags, transitions=None):
        """Takes the tags of one scheme and a CRF's float [T, T], None for a softmax."""
        self.tags = list(tags)
        starts, steps, ends = allowed_transitions(self.tags)
        self.starts, self.ends = [np.where(mask, 0.0, -np.inf) for mask in (starts, ends)]
        self.steps = np.where(steps, 0.0 if transitions is None else transitions, -np.inf)

    def best(self, scores, lengths):
        """The valid sequences of the highest score, by Viterbi's recursion.

        Args:
          scores: float [B, S, T].  lengths: int [B], places of each row that count, at least 1.
        Returns:
          list of B lists of tag numbers.
        """
        rows = np.arange(len(scores))
        total = scores[:, 0] + self.starts  # [B, T]
        totals, origins = [total], []
        for place in range(1, scores.shape[1]):
            through = total[:, :, None] + self.steps  # [B, T, T]
            origins.append(through.argmax(1))
            total = through.max(1) + scores[:, place]
            totals.append(total)
        at_end = np.stack(totals, 1)[rows, np.asarray(lengths) - 1] + self.ends  # [B, T]
        paths = []
        for row, length in enumerate(lengths):
            path = [int(at_end[row].argmax())]
            for place in range(length - 2, -1, -1):
                path.append(int(origins[place][row, path[-1]]))
            paths.append(path[::-1])
        return paths

    def entities(self, scores, path):
        """[(Entity, its probability)] of one row's scores [S, T] and its tag numbers [S].

        The probability is that of all valid sequences together in which just this entity, with
        this start and this end, stands there.
        """
        found = entities_from_tags([self.tags[number] for number in path])
        if not found:
            return []
        before, after = self._sums(scores)
        whole = log_sum(before[-1] + self.ends)
        answers = []
        for entity in found:
            last = entity.end - 1
            inside = before[entity.start, path[entity.start]] + sum(
                self.steps[path[place - 1], path[place]] + scores[place, path[place]]
                for place in range(entity.start + 1, entity.end))
            # What follows must not carry the entity on.
            onward = self.ends[path[last]]
            if entity.end < len(path):
                carried = [tag_parts(tag)[0] in CONTINUING for tag in self.tags]
                onward = log_sum(np.where(carried, -np.inf, self.steps[path[last]]
                                          + scores[entity.end] + after[entity.end]))
            answers.append((entity, min(1.0, float(np.exp(inside + onward - whole)))))
        return answers

    def _sums(self, scores):
        """Logarithms [S, T] of the sums over all that may stand up to, and behind, each tag."""
        before, after = np.empty([2, len(scores), len(self.tags)])
        before[0] = scores[0] + self.starts
        for place in range(1, len(scores)):
            before[place] = log_sum(before[place - 1][:, None] + self.steps, 0) + scores[place]
        after[-1] = self.ends
        for place in range(len(scores) - 2, -1, -1):
            after[place] = log_sum(self.steps + scores[place + 1] + after[place + 1], 1)
        return before, after


def log_sum(values, axis=None):
    """log(sum(exp(values))) along an axis, of which -inf may be some or all."""
    highest = np.max(values, axis=axis, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, 0.0)
    with np.errstate(divide="ignore"):
        sums = np.log(np.exp(values - highest).sum(axis=axis, keepdims=True)) + highest
    return sums.sum() if axis is None else np.squeeze(sums, axis)


# --- what was right ---------------------------------------------------------------------------


def entity_report(truth, found, types):
    """Precision, recall and F1 of whole entities, for each type and in all.

    Args:
      truth, found: one collection of Entities for each sentence.
      types: names; those in truth or found are added.
    Returns:
      dict for JSON; a figure whose divisor is 0 is 0, as seqeval has it.
    """
    right, there, said = [collections.Counter() for _ in range(3)]
    for expected, answered in zip(truth, found):
        expected, answered = set(expected), set(answered)
        for counts, entities in ((right, expected & answered), (there, expected),
                                 (said, answered)):
            counts.update(entity.type for entity in entities)
    names = sorted(set(types) | set(there) | set(said))
    by_type = {name: entity_figures(right[name], there[name], said[name]) for name in names}
    report = entity_figures(*[sum(counts.values()) for counts in (right, there, said)])
    report["macro_f1"] = sum(row["f1"] for row in by_type.values()) / max(1, len(names))
    return dict(report, sentences=len(truth), types=by_type)


def entity_figures(right, there, said):
    """precision, recall and f1 of counts, with these."""
    return {"precision": right / said if said else 0.0, "recall": right / there if there else 0.0,
            "f1": 2 * right / (there + said) if there + said else 0.0,
            "right": right, "entities": there, "predicted": said}


def entity_report_text(report):
    """An entity_report as lines of text: the totals, then each type."""
    lines = ["{} = {}".format(name, report[name]) for name in sorted(report) if name != "types"]
    lines += ["", "type\tprecision\trecall\tf1\tentities\tpredicted"]
    lines += ["{}\t{precision:.4f}\t{recall:.4f}\t{f1:.4f}\t{entities}\t{predicted}".format(
        name, **row) for name, row in sorted(report["types"].items())]
    return "\n".join(lines) + "\n"


def conll_text(text, tags):
    """A sentence as a character, a space and its tag a line, and an empty line at the end."""
    return "".join("{} {}\n".format(*pair) for pair in zip(text, tags)) + "\n"


def entity_lines(text, entities):
    """A sentence's JSON object: text, and entities with type, start, end (behind the last
    character), text and confidence."""
    return json.dumps({"text": text, "entities": [
        {"type": entity.type, "start": entity.start, "end": entity.end,
         "text": text[entity.start:entity.end], "confidence": round(float(confidence), 6)}
        for entity, confidence in entities]}, ensure_ascii=False)

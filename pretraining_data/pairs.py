"""Sentence-order prediction: cutting documents into pairs of neighbouring segments.

In: where a document's tokens can be cut (segmentation.py).  Out: pairs of four integers, so that
duplicates cost no text.  No TensorFlow.  ALBERT paper, section 3.1, inter-sentence coherence loss.

A document is cut into chunks of up to the wanted length, one after the other, so that every token
gets into one; a chunk is cut into two segments at a random place, and half of the pairs are
swapped. Cuts fall between lines if they can, else after a sentence, else after a comma, and only
where a stretch has no punctuation, between words.
"""

import bisect

import numpy as np

from pretraining_data import segmentation

# A sentence of so many tokens without any punctuation is several that run on: cut between words.
RUN_ON_TOKENS = 24


class Cuts(object):
    """Places where a batch of tokens can be cut.

    Attributes:
      lines, sentences, clauses: sorted lists of token positions; each holds the one before.
      words: sorted int array of positions.
    """

    def __init__(self, segmented):
        levels = segmented.levels
        self.lines, self.sentences, self.clauses = (
            np.flatnonzero(levels >= level).tolist() for level in
            (segmentation.LINE, segmentation.SENTENCE, segmentation.CLAUSE))
        self.words = np.flatnonzero(segmented.starts)


def last_between(places, low, high):
    """The last of the sorted places with low < place <= high, or None."""
    index = bisect.bisect_right(places, high) - 1
    if index >= 0 and places[index] > low:
        return int(places[index])
    return None


def next_after(places, low):
    """The first of the sorted places above low, or None."""
    index = bisect.bisect_right(places, low)
    return places[index] if index < len(places) else None


def random_between(places, low, high, rng):
    """A random one of the sorted places with low < place < high, or None."""
    first = bisect.bisect_right(places, low)
    count = bisect.bisect_left(places, high) - first
    return int(places[first + int(rng.random() * count)]) if count > 0 else None


def chunk_end(cuts, start, end, target, longest):
    """Where a chunk that begins at `start` ends.

    Args:
      cuts: Cuts.
      start, end: the rest of the document, in tokens.
      target: wanted tokens; a target below `longest` still gets two whole sentences if they fit.
      longest: tokens a chunk may have.
    Returns:
      position in (start, end].
    """
    if target < longest:
        second = next_after(cuts.sentences, next_after(cuts.sentences, start) or end) or end
        limit = min(max(start + target, second), start + longest)
        if end <= limit:
            return end
        place = last_between(cuts.sentences, start, limit)
        if place is not None:
            return place
    limit = start + longest
    if end <= limit:
        return end
    for places in (cuts.lines, cuts.sentences, cuts.clauses):
        place = last_between(places, limit - longest // 8, limit)
        if place is not None:
            return place
    return (last_between(cuts.clauses, start, limit) or last_between(cuts.words, start, limit)
            or limit)


def document_chunks(cuts, start, end, longest, short_seq_prob, rng):
    """Yields (start, end) of chunks that hold every token of the document [start, end).

    A left-over last sentence joins the chunk before; where both are too long together, it gets the
    last sentence of that chunk.
    """
    position = start
    while position < end:
        target = longest
        if rng.random() < short_seq_prob:
            target = 2 + int(rng.random() * (longest - 1))
        place = chunk_end(cuts, position, end, target, longest)
        if place < end and last_between(cuts.sentences, place, end - 1) is None:
            if end - position <= longest:
                place = end
            else:
                earlier = last_between(cuts.sentences, position, place - 1)
                if earlier is not None and last_between(cuts.sentences, position, earlier - 1):
                    place = earlier
        if place == end and position > start and next_after(cuts.clauses, position) in (None, end):
            position = earlier_start(cuts, position, max(start, end - longest))
        yield position, place
        position = place


def earlier_start(cuts, position, earliest):
    """Where a last chunk begins that cannot be cut by itself: at the cut before its own start."""
    place = last_between(cuts.clauses, earliest - 1, position - 1)
    return earliest if place is None else place


def split_chunk(cuts, start, end, is_whole_document, rng):
    """A random place for the cut between the two segments of a chunk, or None.

    None: the whole document is one sentence that has no punctuation inside.
    """
    for places in (cuts.lines, cuts.sentences, cuts.clauses):
        place = random_between(places, start, end, rng)
        if place is not None:
            return place
    if is_whole_document and end - start < RUN_ON_TOKENS:
        return None
    quarter = (end - start) // 4
    place = random_between(cuts.words, start + quarter, end - quarter, rng)
    return (start + end) // 2 if place is None and end - start > 1 else place


def document_pairs(cuts, start, end, longest, short_seq_prob, dupe_factor, rng):
    """Pairs of a document, `dupe_factor` times anew.

    Args:
      cuts: Cuts of the batch the document is in.
      start, end: the document's tokens.
      longest: tokens that both segments may have together.
      short_seq_prob: chance of a chunk with a random shorter target.
      dupe_factor: int.
      rng: random.Random.
    Returns:
      list of (start, middle, end, label): segments [start, middle) and [middle, end), label 1 =
      swapped. Empty for a document that cannot be cut.
    """
    pairs = []
    for _ in range(dupe_factor):
        for first, last in document_chunks(cuts, start, end, longest, short_seq_prob, rng):
            middle = split_chunk(cuts, first, last, (first, last) == (start, end), rng)
            if middle is not None:
                pairs.append((first, middle, last, int(rng.random() < 0.5)))
    return pairs

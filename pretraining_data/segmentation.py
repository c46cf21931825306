"""Sentences to token ids, word starts and places to cut, a batch of text at a time.

In: lines of text.  Out: flat arrays over the tokens of all lines.  No TensorFlow.

The fast twin of tokenization.py: nearly every character of Chinese text is a token whatever stands
beside it, so one table lookup turns the code points of a whole batch into ids.  Only the runs of
other characters (letters, digits, kana, accents, …) go through the plain tokenizer, each distinct
run once.  Words are cut by jieba on the raw text; a word's start travels beside its first token.
"""

import collections
import importlib
import re

import numpy as np
from absl import logging

import cli
import tokenization

# ids [T] int32; starts [T] bool: a word begins here; levels [T] uint8: how well the text can be cut
# before this token; line_ends [lines]: number of tokens up to the end of each line.
Segmented = collections.namedtuple("Segmented", "ids starts levels line_ends")

NO_CUT, CLAUSE, SENTENCE, LINE = range(4)  # levels
SENTENCE_ENDS = "。！？；…!?;."
CLAUSE_ENDS = "，、：—～,:~"
CLOSERS = "”’」』）】》〉〕"
END_CLASS, CLOSER_CLASS = (CLAUSE, SENTENCE), 3

IN_RUN, SPACE = -1, -2  # entries of the code point table that are no ids
CODE_POINTS = 0x110000
FIRST_WIDE = 0x2E80  # code points from here on are written without spaces
MAX_MEMO = 200000
MAX_MEMO_RUN = 64

# jieba looks for words inside stretches of these characters only. Its time grows with the square
# of a stretch, so a longer one is cut; real text has none.
JIEBA_BLOCK = "\u4e00-\u9fd5a-zA-Z0-9+#&._%\\-"
MAX_BLOCK = 2000
JIEBA_PARTS = re.compile("[{0}]{{1,{1}}}|[^{0}]+".format(JIEBA_BLOCK, MAX_BLOCK))
JIEBA_WORD = re.compile("[{}]+".format(JIEBA_BLOCK))
USER_WORD = re.compile(r"(\S+)(?:\s+([1-9]\d{0,8}))?(?:\s+[A-Za-z]{1,4})?", re.ASCII)


def load_cutter(name, user_dict=None):
    """Function text -> list of words by jieba or rjieba, its dictionary loaded.

    user_dict: str, a file of own words for jieba, see read_user_dict. Those that jieba never finds,
    because of the characters they hold, are counted in a warning.
    """
    package = importlib.import_module(name)
    if name == "rjieba":
        return package.cut
    package.setLogLevel("WARNING")
    if not user_dict:
        package.initialize()
        return package.lcut
    cutter = package.Tokenizer()  # one of its own, for jieba.lcut keeps what it is told
    cutter.initialize()
    words = read_user_dict(user_dict)
    for word, frequency in words:
        cutter.add_word(word, frequency)
    unseen = [word for word, _ in words if not JIEBA_WORD.fullmatch(word)]
    if unseen:
        logging.warning("--user_dict: %d of %d words have no effect, the first is %r: jieba looks "
                        "for words of Chinese characters, letters, digits and +#&._%%- only",
                        len(unseen), len(words), unseen[0])
    return cutter.lcut


def read_user_dict(path):
    """[(word, frequency or None)] of a file of own words: `word`, `word 5`, `word n`, `word 5 n`.

    Raises:
      UserError: the file cannot be read, is not UTF-8, holds no word, or another kind of line.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as stream:
            lines = [line.strip() for line in stream]
    except (OSError, UnicodeDecodeError) as error:
        raise cli.UserError("--user_dict: {}: {}".format(path, error)) from None
    found = [(number, line, USER_WORD.fullmatch(line))
             for number, line in enumerate(lines, 1) if line]
    for number, line, match in found:
        if not match:
            raise cli.UserError("--user_dict: {}, line {}: {!r} is no word without spaces, then a "
                                "frequency of 1 or more and a tag of at most four letters, each "
                                "if wanted".format(path, number, line[:40]))
    if not found:
        raise cli.UserError("--user_dict: {} holds no word".format(path))
    return [(match.group(1), match.group(2) and int(match.group(2))) for _, _, match in found]


def package_version(name):
    """"jieba-0.42.1", of an importable package: another version may cut other words."""
    try:
        version = getattr(importlib.import_module(name), "__version__", None)
        if version is None:  # rjieba, which needs a Python that has this module
            version = importlib.import_module("importlib.metadata").version(name)
    except ImportError as error:
        raise cli.UserError("--segmenter={0}: the package {0} is not installed (pip install {0}, "
                            "rjieba needs Python 3.9)".format(name)) from error
    return "{}-{}".format(name, version)


def cut_words(cut, text):
    """Words of text, whose lines end in newlines: list of str that joined give the text again."""
    if max(map(len, text.split("\n"))) <= MAX_BLOCK:
        return cut(text)
    return [word for part in JIEBA_PARTS.findall(text) for word in cut(part)]


def character_table(tokenizer):
    """int32 array [CODE_POINTS]: the id of a character that is always a token, SPACE or IN_RUN."""
    vocab, basic = tokenizer.vocab, tokenizer.basic_tokenizer
    table = np.full(CODE_POINTS, IN_RUN, dtype=np.int32)
    for first, last in tokenization.CJK_RANGES:
        table[first:last + 1] = vocab["[UNK]"]
    for first, last in tokenization.CJK_RANGES[-2:]:  # compatibility forms: folding changes them
        table[first:last + 1] = IN_RUN
    for token, index in vocab.items():
        if (len(token) == 1 and basic.tokenize(token) == [token]
                and (tokenization.is_cjk(token) or tokenization.is_punctuation(token))):
            table[ord(token)] = index
    table[[ord(char) for char in " \t\r\n\u00a0\u3000"]] = SPACE
    return table


def end_classes():
    """uint8 array [CODE_POINTS]: CLAUSE, SENTENCE or CLOSER_CLASS for punctuation, else 0."""
    classes = np.zeros(CODE_POINTS, dtype=np.uint8)
    for chars, value in ((CLAUSE_ENDS, CLAUSE), (SENTENCE_ENDS, SENTENCE), (CLOSERS, CLOSER_CLASS)):
        classes[[ord(char) for char in chars]] = value
    return classes


class Segmenter(object):
    """Turns lines into Segmented.

    Args:
      tokenizer: tokenization.FullTokenizer.
      cut: function text -> list of words, or None: words are pieces joined by ##.
    """

    def __init__(self, tokenizer, cut):
        self.tokenizer = tokenizer
        self.cut = cut
        self.table = character_table(tokenizer)
        self.classes = end_classes()
        self.memo = {}

    def segment(self, lines):
        """Segmented of a list of str without newlines."""
        text = "\n".join(lines) + "\n"
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        ids, first, last, inside = self._tokens(text, codes)
        starts = ~inside
        if self.cut is not None:
            words = np.fromiter(map(len, cut_words(self.cut, text)), dtype=np.int64)
            word_of = np.repeat(np.arange(len(words), dtype=np.int32), words)  # [characters]
            starts[1:] &= word_of[first[1:]] != word_of[last[:-1] - 1]
        line_ends = np.searchsorted(first, np.flatnonzero(codes == ord("\n")))
        levels = self._levels(codes, first, last) * starts
        line_starts = np.append(0, line_ends[:-1])
        levels[line_starts[line_starts < len(ids)]] = LINE
        return Segmented(ids, starts, levels, line_ends)

    def _tokens(self, text, codes):
        """(ids, first, last, inside) [T]: token from text[first:last]; inside: a ## piece."""
        values = self.table[codes]
        if "Σ" in text:  # its lower case depends on the letters behind a following punctuation mark
            values[(values >= 0) & ((codes < 0x3400) | (codes >= 0xFE00))] = IN_RUN
        alone = np.flatnonzero(values >= 0)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], values == IN_RUN, [0]])))
        pieces = []
        for begin, end in edges.reshape(-1, 2).tolist():  # [runs, 2]
            for token, start, stop, inner in self._run_pieces(text[begin:end]):
                pieces.append((token, begin + start, begin + stop, inner))
        runs = np.array(pieces, dtype=np.int64).reshape(-1, 4)  # [pieces, 4]
        zeros = np.zeros(len(alone), dtype=np.int64)
        tokens = np.concatenate([np.stack([values[alone], alone, alone + 1, zeros], 1), runs])
        tokens = tokens[np.argsort(tokens[:, 1], kind="stable")]
        ids, first, last, inside = tokens.T
        return ids.astype(np.int32), first, last, inside.astype(bool)

    def _run_pieces(self, run):
        """[(id, start, end, is ## piece)] of a run of characters, remembered."""
        pieces = self.memo.get(run)
        if pieces is None:
            vocab = self.tokenizer.vocab
            pieces = [(vocab[token], start, end, token.startswith("##"))
                      for token, start, end in self.tokenizer.tokenize_with_offsets(run)]
            if len(run) <= MAX_MEMO_RUN and len(self.memo) < MAX_MEMO:
                self.memo[run] = pieces
        return pieces

    def _levels(self, codes, first, last):
        """uint8 [T]: CLAUSE or SENTENCE where punctuation has just ended, closing marks included.

        A mark of ASCII counts only before a space or a wide character: 3.14 and 10:30 stay whole.
        A space beside a wide character is a comma: Chinese has no spaces between words.
        """
        levels = np.zeros(len(first), dtype=np.uint8)
        ends = self.classes[codes[first]]
        before = np.concatenate([[0], ends[:-1]])[:len(ends)]
        second = np.concatenate([[0, 0], ends[:-2]])[:len(ends)]
        before = np.where(before == CLOSER_CLASS, second, before)
        good = (ends == 0) & (before < CLOSER_CLASS)
        gap = first[1:] > last[:-1]
        wide_before, wide = codes[last[:-1] - 1] >= FIRST_WIDE, codes[first[1:]] >= FIRST_WIDE
        good[1:] &= (codes[last[:-1] - 1] >= 128) | gap | wide
        levels[good] = before[good]
        levels[1:][(levels[1:] == NO_CUT) & gap & (wide_before | wide) & (ends[1:] == 0)] = CLAUSE
        return levels

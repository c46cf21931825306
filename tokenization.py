"""WordPiece tokenization for BERT's Chinese vocabulary.

In: text and a vocabulary of one token a line.  Out: tokens, their ids, and where each token stands
in the text.  The plain, readable path: segmentation.py does the same for whole batches with NumPy.
No TensorFlow.  Agrees with BERT's FullTokenizer, known differences: none.

    text -> clean (drop control characters) -> words (spaces; one word for each Chinese character)
         -> lower case without accents -> split at punctuation -> longest pieces of the vocabulary
"""

import collections
import functools
import io
import unicodedata

import cli

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORD_LENGTH = 200  # characters; a longer word without a space becomes one [UNK]
CJK_RANGES = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
              (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))

# A token and the characters text[start:end] it was made from.
Piece = collections.namedtuple("Piece", "token start end")


def convert_to_unicode(text):
    """str of text, which is str or UTF-8 bytes; bytes that are not UTF-8 are dropped."""
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    if isinstance(text, str):
        return text
    raise ValueError("neither str nor bytes: {}".format(type(text)))


def read_tokens(path):
    """The tokens of a vocabulary file, a list in the order of their ids.

    A line ends at "\\n" alone: two tokens of the Chinese vocabulary are U+2028, which
    str.splitlines would take for a line end. A byte order mark at the start is none of them.

    Raises:
      UserError: no such file, not UTF-8, an empty line, a line of several columns.
    """
    try:
        with io.open(path, encoding="utf-8", newline="\n") as stream:
            lines = stream.read().lstrip("\ufeff").split("\n")
    except OSError as error:
        raise cli.UserError("vocabulary {}: {}".format(path, error.strerror)) from error
    except UnicodeDecodeError as error:
        raise cli.UserError("vocabulary {}: not UTF-8 at byte {}".format(
            path, error.start)) from error
    while lines and not lines[-1].strip(" \t\r"):
        lines.pop()
    tokens = [line.strip(" \t\r") for line in lines]
    if "" in tokens:
        raise cli.UserError("vocabulary {}: line {} is empty".format(path, tokens.index("") + 1))
    for number, token in enumerate(tokens, 1):
        if "\t" in token:
            raise cli.UserError("vocabulary {}, line {}: {!r} has a tab; a line is one token and "
                                "nothing else".format(path, number, token))
    return tokens


def load_vocab(path, repeats_allowed=False):
    """OrderedDict token -> id, the number of its line from 0; with repeats that of the first one.

    Raises:
      UserError: see read_tokens; a token twice, a special token missing.
    """
    vocab = collections.OrderedDict()
    for number, token in enumerate(read_tokens(path)):
        if token in vocab and not repeats_allowed:
            raise cli.UserError("vocabulary {}: token {!r} stands in line {} and again in line {}"
                                .format(path, token, vocab[token] + 1, number + 1))
        vocab.setdefault(token, number)
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise cli.UserError("vocabulary {}: {} missing among its {} tokens".format(
            path, ", ".join(missing), len(vocab)))
    return vocab


@functools.lru_cache(maxsize=None)  # a few thousand characters occur in practice
def is_cjk(char):
    """True for a Chinese character, which is a word of its own (kana and hangul are not)."""
    code = ord(char)
    return code >= 0x3400 and any(first <= code <= last for first, last in CJK_RANGES)


@functools.lru_cache(maxsize=None)
def is_space(char):
    """True for what separates words: blanks, tabs, line ends and the Unicode category Zs."""
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


@functools.lru_cache(maxsize=None)
def is_dropped(char):
    """True for characters that leave no trace: NUL, U+FFFD, control and format characters."""
    if char in "\t\n\r":
        return False
    return char in "\x00\ufffd" or unicodedata.category(char) in ("Cc", "Cf")


@functools.lru_cache(maxsize=None)
def is_punctuation(char):
    """True for Unicode punctuation and every ASCII character that is no letter, digit or space."""
    code = ord(char)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(char).startswith("P")


class BasicTokenizer(object):
    """Text to words, before WordPiece."""

    def __init__(self, do_lower_case=True):
        self.do_lower_case = do_lower_case

    def tokenize(self, text):
        """List of words: [str]."""
        return [word for word, _ in self.words(convert_to_unicode(text))]

    def words(self, text):
        """Yields (word, sources): sources[i] is the index in text of the word's character i."""
        for chunk, sources in _chunks(text):
            if self.do_lower_case:
                chunk, sources = _fold(chunk, sources)
            for first, last in _punctuation_spans(chunk):
                yield chunk[first:last], sources[first:last]


def _chunks(text):
    """Yields (chunk, sources) for the parts between spaces; a Chinese character stands alone."""
    chars, sources = [], []
    for index, char in enumerate(text):
        alone = is_cjk(char)
        if alone or is_space(char) or (char.isspace() and not is_dropped(char)):
            if chars:
                yield "".join(chars), sources
            chars, sources = [], []
            if alone:
                yield char, [index]
        elif not is_dropped(char):
            chars.append(char)
            sources.append(index)
    if chars:
        yield "".join(chars), sources


def _fold(chunk, sources):
    """Lower case without accents."""
    if len(chunk) == 1:
        chunk, kept = _fold_text(chunk)
        return chunk, sources * len(kept)
    chunk, kept = _fold_text.__wrapped__(chunk)
    return chunk, [sources[index] for index in kept]


@functools.lru_cache(maxsize=None)
def _fold_text(text):
    """(folded text, for each of its characters the index in text it came from).

    Both mappings may lengthen a character, each by itself, so the indices are repeated by each
    character's own length; the text is mapped as a whole, since a final sigma knows its neighbours.
    """
    if text.isascii():
        return text.lower(), range(len(text))
    mapped = unicodedata.normalize("NFD", text.lower())
    spread = [index for index, char in enumerate(text)
              for _ in unicodedata.normalize("NFD", char.lower())]
    kept = [index for index, char in enumerate(mapped) if unicodedata.category(char) != "Mn"]
    return "".join(mapped[index] for index in kept), [spread[index] for index in kept]


def _punctuation_spans(chunk):
    """Yields (first, last) of each punctuation mark and of each stretch without one."""
    first = 0
    for index, char in enumerate(chunk):
        if is_punctuation(char):
            if first < index:
                yield first, index
            yield index, index + 1
            first = index + 1
    if first < len(chunk):
        yield first, len(chunk)


class WordpieceTokenizer(object):
    """Words to the longest pieces that the vocabulary holds, from left to right."""

    def __init__(self, vocab, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH):
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        self.longest = max(len(token) for token in vocab)

    def tokenize(self, text):
        """Pieces of all words of text, which spaces separate: [str]."""
        return [token for word in convert_to_unicode(text).split()
                for token, _, _ in self.pieces(word)]

    def pieces(self, word):
        """[(token, first, last)] with word[first:last] the piece; one [UNK] for any other word."""
        unknown = [(self.unk_token, 0, len(word))]
        if len(word) > self.max_input_chars_per_word:
            return unknown
        found, first = [], 0
        while first < len(word):
            prefix = "##" if first else ""
            for last in range(min(len(word), first + self.longest), first, -1):
                token = prefix + word[first:last]
                if token in self.vocab:
                    found.append((token, first, last))
                    break
            else:
                return unknown
            first = last
        return found


class FullTokenizer(object):
    """Text to WordPiece tokens and ids.

    Attributes:
      vocab: OrderedDict token -> id.   inv_vocab: dict id -> token.
    """

    def __init__(self, vocab_file, do_lower_case=True):
        self.vocab = load_vocab(vocab_file)
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        self.basic_tokenizer = BasicTokenizer(do_lower_case)
        self.wordpiece_tokenizer = WordpieceTokenizer(self.vocab)

    def tokenize(self, text):
        """List of tokens: [str]."""
        return [piece.token for piece in self.tokenize_with_offsets(text)]

    def tokenize_with_offsets(self, text):
        """List of Piece(token, start, end): token came from text[start:end]."""
        pieces = []
        for word, sources in self.basic_tokenizer.words(convert_to_unicode(text)):
            for token, first, last in self.wordpiece_tokenizer.pieces(word):
                pieces.append(Piece(token, sources[first], sources[last - 1] + 1))
        return pieces

    def convert_tokens_to_ids(self, tokens):
        return [self.vocab[token] for token in tokens]

    def convert_ids_to_tokens(self, ids):
        return [self.inv_vocab[index] for index in ids]

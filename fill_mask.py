"""What does a pre-trained model put in the place of [MASK]?

In: the folder of a pre-training run and texts with one or more [MASK], as arguments or one a line
on standard input, for which the model is loaded once.  Out: for each [MASK] the likeliest tokens
with their probabilities.

    python fill_mask.py --model_dir=output/pretraining '今天[MASK]气很好'
    python fill_mask.py --model_dir=output/pretraining --format=json < lines.txt
"""

import collections
import functools
import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import cli
import layers
import modeling
from fine_tuning.tasks import decoded_or_not
from tokenization import FullTokenizer
from weights import checkpoints
from weights.folders import encoder_files

MASK = "[MASK]"

MOST_PLACES = 256  # of [MASK] in a step: each has a probability for every word of the vocabulary

Candidate = collections.namedtuple("Candidate", "token probability")
MaskedText = collections.namedtuple("MaskedText", "text ids places")
# ids: of [CLS], the tokens and [SEP]; places: of each [MASK] among them.


class MaskFiller(object):
    """A pre-trained model with its head for masked words, loaded once.

    Attributes:
      files: weights.folders.EncoderFiles.  top_k: number of candidates for each [MASK].
      batch_size: texts of a step; no result depends on it.
    """

    def __init__(self, model_dir, top_k=5, batch_size=32, **named):
        """Loads the newest checkpoint of a folder, or the checkpoint named.

        Args:
          model_dir: see weights.folders.encoder_files, as **named.
          top_k, batch_size: see there.
        Raises:
          UserError: no such model, or one without the head for masked words.
        """
        self.files = encoder_files(model_dir, **named)
        self.tokenizer = FullTokenizer(self.files.vocab_file, self.files.do_lower_case)
        config, words = self.files.config, len(self.tokenizer.vocab)
        if words > config.vocab_size:
            raise cli.UserError("--vocab_file {} has {} tokens, the config's vocab_size is "
                                "{}".format(self.files.vocab_file, words, config.vocab_size))
        self.top_k, self.batch_size = min(top_k, words), batch_size
        self.session = tf.Session(graph=tf.Graph())
        with self.session.graph.as_default():
            self.inputs, self.outputs = mask_graph(config, self.top_k, words)
            plan = checkpoints.plan_initialization(self.files.checkpoint, {
                variable.op.name: variable.shape.as_list() for variable in tf.global_variables()},
                "model_dir")
            if plan.missing:
                raise cli.UserError("--model_dir: {} has no head for masked words (variable {}): "
                                    "take a pre-trained model, fine-tuning keeps the encoder "
                                    "alone".format(plan.prefix, plan.missing[0]))
            checkpoints.restore(self.session, plan.prefix)

    def encode(self, text):
        """The MaskedText of a text.

        Raises:
          UserError: the text has no [MASK], or more tokens than the model has positions.
        """
        tokens = masked_tokens(text, self.tokenizer)
        longest = self.files.config.max_position_embeddings
        if MASK not in tokens:
            raise cli.UserError("no {} in the text {!r}".format(MASK, text))
        if len(tokens) > longest:
            raise cli.UserError("a text of {} tokens with [CLS] and [SEP], this model takes "
                                "{}".format(len(tokens), longest))
        return MaskedText(text, self.tokenizer.convert_tokens_to_ids(tokens),
                          [place for place, token in enumerate(tokens) if token == MASK])

    def fill(self, text):
        """The candidates of each [MASK] of a text: a list of top_k Candidates, likeliest first.

        Raises:
          UserError: see encode.
        """
        return self.fill_encoded([self.encode(text)])[0]

    def fill_encoded(self, rows):
        """What `fill` gives, for each of some MaskedTexts, in their order."""
        order = sorted(range(len(rows)), key=lambda row: len(rows[row].ids))
        answers, start = [None] * len(rows), 0
        while start < len(order):
            most = max(len(rows[row].places) for row in order[start:start + self.batch_size])
            chosen = order[start:start + max(1, min(self.batch_size, MOST_PLACES // most))]
            for row, candidates in zip(chosen, self._step([rows[row] for row in chosen])):
                answers[row] = candidates
            start += len(chosen)
        return answers

    def _step(self, rows):
        """fill_encoded for rows that fit in one batch."""
        length, most = [max(map(len, column)) for column in list(zip(*rows))[1:]]
        arrays = (padded([row.ids for row in rows], length),
                  padded([[1] * len(row.ids) for row in rows], length),
                  padded([row.places for row in rows], most))
        probabilities, best = self.session.run(self.outputs, dict(zip(self.inputs, arrays)))
        return [[[Candidate(*pair) for pair in zip(
            self.tokenizer.convert_ids_to_tokens(best[place].tolist()),
            probabilities[place].tolist())]
            for place in range(row * most, row * most + len(rows[row].places))]
            for row in range(len(rows))]


def padded(rows, length):
    """Lists of whole numbers as int32 [rows, length], with 0 behind them."""
    return np.array([row + [0] * (length - len(row)) for row in rows], np.int32)


def masked_tokens(text, tokenizer):
    """[CLS], the tokens of a text in which [MASK] stands for itself, [SEP]."""
    tokens = ["[CLS]"]
    for number, part in enumerate(text.split(MASK)):
        tokens += ([MASK] if number else []) + tokenizer.tokenize(part)
    return tokens + ["[SEP]"]


def mask_graph(config, top_k, words):
    """The placeholders (ids and mask [B, S], positions [B, P]) and the best words there.

    The best words are their probabilities and numbers, [B*P, top_k] each; `words` limits them to
    those that the vocabulary holds.
    """
    inputs = [tf.placeholder(tf.int32, [None, None], name) for name in (
        "ids", "mask", "positions")]
    ids, mask, positions = inputs
    model = modeling.AlbertModel(config, ids, mask, pooler=False)
    unknown = tf.zeros_like(positions)  # [B, P]: the head also computes a loss, not asked for here
    head = modeling.masked_lm_head(layers.gather_positions(model.sequence_output, positions), model,
                                   unknown, tf.cast(unknown, tf.float32))
    return inputs, tf.nn.top_k(tf.nn.softmax(head.logits)[:, :words], top_k)


def filled_text(text, candidates):
    """The text with the likeliest token in the place of each [MASK]."""
    parts = text.split(MASK)
    words = [best[0].token for best in candidates]
    return parts[0] + "".join((word[2:] if word.startswith("##") and len(word) > 2 else word)
                              + part for word, part in zip(words, parts[1:]))


def filled_answer(text, candidates):
    """A text with its candidates as a dict for JSON."""
    return {"text": text, "filled": filled_text(text, candidates),
            "masks": [[candidate._asdict() for candidate in row] for row in candidates]}


def answer_text(text, candidates, form):
    """What is printed for a text: one JSON object, or a line for it and one for each [MASK]."""
    if form == "json":
        return json.dumps(filled_answer(text, candidates), ensure_ascii=False)
    lines = ["{} -> {}".format(text, filled_text(text, candidates))]
    lines += ["  [MASK] {}\t{}".format(number, "\t".join(
        "{} {:.4f}".format(*candidate) for candidate in row))
        for number, row in enumerate(candidates, 1)]
    return "\n".join(lines)


def mask_answers(filler, stream, encoding, form):
    """Yields (what is printed for a line, whether it is an answer) for each line of a stream."""
    for number, text, error in decoded_or_not(stream, "standard input", encoding):
        try:
            if error:
                raise error
            yield answer_text(text, filler.fill(text), form) if text.strip() else "", True
        except cli.UserError as reason:
            where = "" if error else "standard input, line {}: ".format(number)
            yield error_text(text, where + str(reason), form), False


def error_text(text, reason, form):
    """What is printed for a text that cannot be answered."""
    if form == "json":
        return json.dumps({"text": text, "error": reason}, ensure_ascii=False)
    return "ERROR\t" + reason


def define_flags(flag_values):
    """Defines this script's flags."""
    string, boolean = [
        functools.partial(define, flag_values=flag_values)
        for define in (flags.DEFINE_string, flags.DEFINE_bool)]
    string("model_dir", None, "Folder of a pre-trained model, or a checkpoint in it. Required.")
    string("bert_config_file", None, "Model config. Default: the one beside the checkpoint.")
    string("vocab_file", None, "Vocabulary. Default: the one beside the checkpoint, else "
           "./albert_config/vocab.txt.")
    boolean("do_lower_case", None, "Lower-case Latin letters. Default: as the run did, else True.")
    string("input_encoding", "utf-8", "Encoding of standard input; most files are UTF-8.")
    flags.DEFINE_integer("top_k", 5, "Tokens for each [MASK]. Default: fits a line.",
                         lower_bound=1, flag_values=flag_values)
    flags.DEFINE_enum("format", "text", ["text", "json"], "One JSON object for each text, or (the "
                      "default, for the eye) a line for it and one for each [MASK].",
                      flag_values=flag_values)


def main(flag_values, texts=()):
    """Answers each text, or else each line of standard input at once.

    Returns:
      the exit code: 1 if a line was answered by ERROR and the reason.
    """
    tf.logging.set_verbosity(tf.logging.INFO)
    cli.require_flags(flag_values, ["model_dir"])
    filler = MaskFiller(flag_values.model_dir, flag_values.top_k,
                        config_file=flag_values.bert_config_file,
                        vocab_file=flag_values.vocab_file,
                        do_lower_case=flag_values.do_lower_case)
    for text in texts:
        print(answer_text(text, filler.fill(text), flag_values.format), flush=True)
    return cli.print_answers(mask_answers(
        filler, [] if texts else sys.stdin.buffer, flag_values.input_encoding, flag_values.format))


if __name__ == "__main__":
    cli.run(main, define_flags, takes_texts=True)

"""Texts -> vectors: what a pre-trained or fine-tuned encoder makes of each sentence.

In: the folder of a run or a checkpoint, and texts, one a line.  Out: one vector of H numbers for
each line, in order: a .npy file, float32 [lines, H], or JSON lines.

    encoder = Encoder("output/pretraining")
    encoder.encode(["今天天气很好", "明天有雨"])              # float32 [2, H], loaded once

    python extract_features.py --model_dir=output/pretraining --input_file=a.txt --output=a.npy
    echo 今天天气很好 | python extract_features.py --model_dir=output/pretraining
"""

import functools
import io
import itertools
import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import cli
import modeling
from fine_tuning.examples import TextEncoder, padded_arrays
from fine_tuning.tasks import decoded_lines
from tokenization import FullTokenizer
from weights import checkpoints
from weights.folders import encoder_files

POOLINGS = ("mean", "cls", "first_last_mean")
ROWS_AT_ONCE = 1024  # lines that are sorted by length, so that a batch needs little padding


class Encoder(object):
    """An encoder that turns texts into vectors, loaded once.

    Attributes:
      files: weights.folders.EncoderFiles.  cut: texts so far that were longer than allowed.
    """

    def __init__(self, model_dir, pooling="mean", layer=-1, batch_size=32, max_seq_length=None,
                 **named):
        """Loads the encoder.

        Args:
          model_dir: see weights.folders.encoder_files, as **named.
          pooling: "mean": the mean over the text's tokens, [CLS] and [SEP] among them; "cls": the
            vector at [CLS]; "first_last_mean": the mean of "mean" of the first and of this layer.
          layer: 1 to L; 0 is the embeddings' output; negative numbers count from the last, -1.
          batch_size: texts in a step; the result does not depend on it.
          max_seq_length: tokens of a text that are read; None: all that the model can.
        Raises:
          UserError: no such model, layer or length.
        """
        self.files = encoder_files(model_dir, **named)
        config, tokenizer = self.files.config, FullTokenizer(
            self.files.vocab_file, self.files.do_lower_case)
        longest = config.max_position_embeddings
        for name, value, fits, rule in (
                ("max_seq_length", max_seq_length, (max_seq_length or longest) <= longest,
                 "at most the config's max_position_embeddings {}".format(longest)),
                ("layer", layer, -config.num_hidden_layers <= layer <= config.num_hidden_layers,
                 "from -{0} to {0}, this model's layers".format(config.num_hidden_layers)),
                ("pooling", pooling, pooling in POOLINGS, "one of " + ", ".join(POOLINGS)),
                ("vocab_file", self.files.vocab_file, len(tokenizer.vocab) <= config.vocab_size,
                 "of at most {} tokens, the config's vocab_size".format(config.vocab_size))):
            if not fits:
                raise cli.UserError("--{} is {}, must be {}".format(name, value, rule))
        self.text_encoder = TextEncoder(tokenizer, max_seq_length or longest)
        self.batch_size, self.cut = batch_size, 0
        self.session = tf.Session(graph=tf.Graph())
        with self.session.graph.as_default():
            self.inputs = [tf.placeholder(tf.int32, [None, None], name)
                           for name in ("ids", "mask", "segments")]
            self.vectors = pooled(modeling.AlbertModel(
                config, *self.inputs, pooler=False), self.inputs[1],
                                  pooling, layer)
            checkpoints.restore(self.session, self.files.checkpoint)

    def encode(self, texts):
        """float32 [n, H]: the vector of each of n texts, in their order."""
        vectors = np.zeros([len(texts), self.files.config.hidden_size], np.float32)
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        for start in range(0, len(texts), self.batch_size):
            rows = order[start:start + self.batch_size]
            arrays = padded_arrays([self._token_ids(texts[row]) for row in rows])
            vectors[rows] = self.session.run(self.vectors, dict(zip(self.inputs, arrays)))
        return vectors

    def _token_ids(self, text):
        ids, first, was_cut = self.text_encoder(text)
        self.cut += was_cut
        return ids, first


def pooled(model, mask, pooling, layer):
    """One vector [B, H] of each row of a batch; see Encoder.

    Args:
      model: AlbertModel.  mask: int32 [B, S], 1 on tokens and 0 on padding.
      pooling, layer: see Encoder.
    """
    layers = [model.embedding_output] + model.all_encoder_layers
    chosen = layers[layer]
    if pooling == "cls":
        return chosen[:, 0]
    if pooling == "first_last_mean":
        chosen = (layers[1] + chosen) / 2.0
    weights = tf.expand_dims(tf.cast(mask, tf.float32), 2)  # [B, S, 1]
    return tf.reduce_sum(chosen * weights, 1) / tf.reduce_sum(weights, 1)


# --- files ------------------------------------------------------------------------------------


def text_blocks(sources, encoding, rows_at_once):
    """Yields lists of at most rows_at_once lines.

    Args:
      sources: list of paths; "-" is standard input.
      encoding: of them all.
    """
    for source in sources:
        stream = sys.stdin.buffer if source == "-" else io.open(source, "rb")
        lines = (text for _, text in decoded_lines(
            stream, "standard input" if source == "-" else source, encoding))
        for first in lines:
            yield [first] + list(itertools.islice(lines, rows_at_once - 1))


def encoded_blocks(encoder, blocks):
    """Yields (lines, their vectors [n, H]); says how far it is, and of lines what stands out."""
    rows = empty = 0
    for lines in blocks:
        yield lines, encoder.encode(lines)
        rows += len(lines)
        empty += sum(not line.strip() for line in lines)
        if len(lines) > 1:
            tf.logging.info("%d lines", rows)
    tf.logging.info("%d lines: %d cut to %d tokens, %d empty (their vector is that of [CLS] [SEP])",
                    rows, encoder.cut, encoder.text_encoder.max_seq_length, empty)


def json_lines(encoded):
    """Yields a line for each text: {"text": ..., "vector": [H numbers]}."""
    for lines, vectors in encoded:
        for text, vector in zip(lines, vectors):
            yield json.dumps({"text": text, "vector": [float("%.9g" % x) for x in vector]},
                             ensure_ascii=False) + "\n"


def npy_parts(encoded, width):
    """Yields the bytes of a .npy file, float32 [n, width]."""
    blocks = [vectors for _, vectors in encoded]
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {
        "descr": "<f4", "fortran_order": False, "shape": (sum(map(len, blocks)), width)})
    yield header.getvalue()
    for vectors in blocks:
        yield vectors.astype("<f4").tobytes()


def define_flags(flag_values):
    """Defines this script's flags."""
    string, boolean, integer = [
        functools.partial(define, flag_values=flag_values) for define in (
            flags.DEFINE_string, flags.DEFINE_bool, flags.DEFINE_integer)]
    string("model_dir", None, "Folder of a pre-trained or fine-tuned model, or a checkpoint in it. "
           "Required.")
    string("input_file", "-", "Texts, one a line: paths and patterns by commas; - (the default, so "
           "that it sits in a pipe) reads standard input.")
    string("output", "-", "vectors.npy: float32 [lines, H]; vectors.jsonl: a JSON object for each "
           "line; - (the default, as above) prints these.")
    flags.DEFINE_enum("pooling", "mean", POOLINGS, "What a vector is: the mean over the tokens, "
                      "the vector at [CLS], or the mean of the first and the last layer's means. "
                      "Default: the best of them without fine-tuning.", flag_values=flag_values)
    integer("layer", -1, "Layer to read: 1 is the first, 0 the embeddings, negative numbers count "
            "from the last. Default: the last.")
    integer("max_seq_length", None, "Tokens of a text that are read. Default: all positions of the "
            "model.", lower_bound=5)
    integer("batch_size", 32, "Texts in a step; the result does not depend on it. Default: fits "
            "any device.", lower_bound=1)
    string("input_encoding", "utf-8", "Encoding of the texts; most files are UTF-8.")
    string("bert_config_file", None, "Model config. Default: the one beside the checkpoint.")
    string("vocab_file", None, "Vocabulary. Default: the one beside the checkpoint, else "
           "./albert_config/vocab.txt.")
    boolean("do_lower_case", None, "Lower-case Latin letters. Default: as the run did, else True.")


def main(flag_values):
    """Writes or prints a vector for each line of the input."""
    tf.logging.set_verbosity(tf.logging.INFO)
    cli.require_flags(flag_values, ["model_dir"])
    output, from_pipe = flag_values.output, flag_values.input_file == "-"
    if output != "-" and not output.endswith((".npy", ".jsonl")):
        raise cli.UserError("--output is {!r}, must end in .npy or .jsonl, or be -".format(output))
    sources = ["-"] if from_pipe else cli.match_files(flag_values.input_file, "input_file")
    encoder = Encoder(flag_values.model_dir, flag_values.pooling, flag_values.layer,
                      flag_values.batch_size, flag_values.max_seq_length,
                      config_file=flag_values.bert_config_file,
                      vocab_file=flag_values.vocab_file,
                      do_lower_case=flag_values.do_lower_case)
    encoded = encoded_blocks(encoder, text_blocks(
        sources, flag_values.input_encoding,
        1 if from_pipe and output == "-" else ROWS_AT_ONCE))
    if output == "-":
        for line in json_lines(encoded):
            print(line, end="", flush=True)
    elif output.endswith(".npy"):
        cli.write_whole(output, npy_parts(encoded, encoder.files.config.hidden_size))
    else:
        cli.write_whole(output, (line.encode("utf-8") for line in json_lines(encoded)))


if __name__ == "__main__":
    cli.run(main, define_flags)

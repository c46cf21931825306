"""A fine-tuned model's folder -> probabilities of texts, from Python.

In: output_dir of run_classifier.py, or the SavedModel that --do_export wrote.  Out: for each text
or pair of texts the probability of each label.

    predictor = Predictor("output/lcqmc")
    predictor.labels                                   # ["0", "1"]
    predictor.predict([("花呗怎么还款", "如何还花呗")])    # float32 [1, 2], loaded once

A folder describes itself: classifier.json (task, labels, lengths, flags of the run),
albert_config.json and vocab.txt stand beside the checkpoints.
"""

import itertools
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from cli import UserError
from fine_tuning.examples import TextEncoder, padded_arrays
from fine_tuning.report import prediction_line, write_report
from fine_tuning.tasks import decoded_lines
from tokenization import FullTokenizer
from weights import checkpoints

DESCRIPTION, CONFIG, VOCABULARY = "classifier.json", "albert_config.json", "vocab.txt"
OF_A_RUN = ("checkpoint", "model.ckpt-*", "graph.pbtxt", "events.out.*", "eval*", "*.json",
            checkpoints.BEST, VOCABULARY, "test_results.tsv", "saved_model", "*.tflite")
FEATURES = ("input_ids", "input_mask", "segment_ids")
EXTRA = "assets.extra"  # where TensorFlow's loaders expect files that are not theirs


def write_description(folder, description, config, vocab_file):
    """Makes a folder describe itself.

    Args:
      folder: str, made if it is not there.
      description: dict for JSON: task_name, labels, pair, max_seq_length, do_lower_case, ...
      config: AlbertConfig.
      vocab_file: str, copied.
    """
    tf.io.gfile.makedirs(folder)
    with tf.io.gfile.GFile(vocab_file, "rb") as stream:
        vocabulary = stream.read().decode("utf-8")
    checkpoints.write_whole(os.path.join(folder, VOCABULARY), vocabulary)
    checkpoints.write_whole(os.path.join(folder, CONFIG), config.to_json())
    checkpoints.write_whole(os.path.join(folder, DESCRIPTION), json.dumps(
        description, ensure_ascii=False, indent=2, sort_keys=True) + "\n")


def read_description(folder):
    """The dict that write_description wrote, or None where there is none."""
    path = os.path.join(folder, DESCRIPTION)
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path, "rb") as stream:
        return json.loads(stream.read().decode("utf-8"))


def chosen_checkpoint(folder):
    """The best checkpoint where the run was made with --save_best, else the newest, else None."""
    best = None
    if (read_description(folder) or {}).get("save_best"):
        best = checkpoints.newest_checkpoint(os.path.join(folder, checkpoints.BEST))
    return best or checkpoints.newest_checkpoint(folder)


def keep_best(folder, report):
    """Copies folder's newest checkpoint to best/, which describes itself too."""
    best = os.path.join(folder, checkpoints.BEST)
    description = dict(read_description(folder), save_best=False)
    config = modeling.AlbertConfig.from_json_file(os.path.join(folder, CONFIG))
    write_description(best, description, config, os.path.join(folder, VOCABULARY))
    checkpoints.copy_newest(folder, best)
    write_report(best, "eval_results", report)


def set_aside(folder):
    """Moves the model of an earlier run to replaced-1, -2, ... in folder; returns that path."""
    number = 1
    while tf.io.gfile.exists(os.path.join(folder, "replaced-%d" % number)):
        number += 1
    target = os.path.join(folder, "replaced-%d" % number)
    tf.io.gfile.makedirs(target)
    for pattern in OF_A_RUN:
        for path in tf.io.gfile.glob(os.path.join(folder, pattern)):
            tf.io.gfile.rename(path, os.path.join(target, os.path.basename(path)))
    return target


def check_classifier(checkpoint, num_labels, config):
    """Raises UserError unless the checkpoint holds a classifier of this width and label count."""
    shapes = dict(tf.train.list_variables(checkpoint))
    wanted = [num_labels, config.hidden_size]
    found = shapes.get("output_weights")
    if found is None:
        raise UserError("{} has no classifier weights (variable output_weights {}): it is not "
                        "fine-tuned; train with --do_train=True first".format(checkpoint, wanted))
    if list(found) != wanted:
        raise UserError("{}: output_weights is {} where {} labels and hidden size {} need "
                        "{}".format(checkpoint, list(found), num_labels, config.hidden_size,
                                    wanted))


def serving_graph(config, num_labels):
    """Placeholders int32 [B, S] by name, and the probabilities float32 [B, C]; no labels."""
    inputs = {name: tf.placeholder(tf.int32, [None, None], name) for name in FEATURES}
    model = modeling.AlbertModel(config, **inputs)
    head = modeling.classification_head(model.pooled_output, None, num_labels, config)
    return inputs, tf.nn.softmax(head.logits, name="probabilities")


class Predictor(object):
    """A fine-tuned model, loaded once.

    Attributes:
      labels: names in the order of the probability columns.  pair: whether it takes two texts.
      description: what the folder says of itself.
    """

    def __init__(self, folder, batch_size=32):
        """Loads output_dir of a fine-tuning run, or an exported SavedModel.

        Raises:
          UserError: the folder holds no fine-tuned model.
        """
        is_saved_model = tf.io.gfile.exists(os.path.join(folder, "saved_model.pb"))
        home = os.path.join(folder, EXTRA) if is_saved_model else folder
        self.description = read_description(home)
        if self.description is None:
            raise UserError("{} holds no fine-tuned model (no {})".format(folder, DESCRIPTION))
        self.labels = self.description["labels"]
        self.pair = self.description["pair"]
        self.batch_size = batch_size
        tokenizer = FullTokenizer(os.path.join(home, VOCABULARY),
                                  do_lower_case=self.description["do_lower_case"])
        self.encoder = TextEncoder(tokenizer, self.description["max_seq_length"])
        self.session = tf.Session(graph=tf.Graph())
        with self.session.graph.as_default():
            load = self._load_saved_model if is_saved_model else self._load_checkpoint
            self.inputs, self.probabilities = load(folder)

    def _load_saved_model(self, folder):
        try:
            meta = tf.saved_model.load(self.session, ["serve"], folder)
        except ValueError as error:
            raise UserError("{} cannot be loaded by TensorFlow {}; one that 2.15 wrote needs 2.15, "
                            "the run's output_dir works with both ({})".format(
                                folder, tf.__version__, str(error).split(";")[0])) from None
        signature = meta.signature_def["serving_default"]
        return ({name: info.name for name, info in signature.inputs.items()},
                signature.outputs["probabilities"].name)

    def _load_checkpoint(self, folder):
        checkpoint = chosen_checkpoint(folder)
        if checkpoint is None:
            raise UserError("{} holds no checkpoint".format(folder))
        config = modeling.AlbertConfig.from_json_file(os.path.join(folder, CONFIG))
        check_classifier(checkpoint, len(self.labels), config)
        inputs, probabilities = serving_graph(config, len(self.labels))
        checkpoints.restore(self.session, checkpoint)
        return inputs, probabilities

    def predict(self, texts):
        """Probabilities float32 [rows, C], in the order of the rows.

        Args:
          texts: list of (text_a, text_b) for a pair task, of str for one text.
        Raises:
          UserError: a row is of the other kind.
        """
        rows = [(text, None) if isinstance(text, str) else tuple(text) for text in texts]
        for number, (_, text_b) in enumerate(rows, 1):
            if (text_b is not None) != self.pair:
                raise UserError("row {}: this model ({}) takes {}".format(
                    number, self.description["task_name"],
                    "pairs of texts" if self.pair else "one text at a time"))
        results = np.zeros([len(rows), len(self.labels)], np.float32)
        order = sorted(range(len(rows)), key=lambda row: len(rows[row][0] + (rows[row][1] or "")))
        for start in range(0, len(rows), self.batch_size):
            chosen = order[start:start + self.batch_size]
            results[chosen] = self.run(*padded_arrays(self.encoder, [rows[row] for row in chosen]))
        return results

    def run(self, input_ids, input_mask, segment_ids):
        """Probabilities float32 [B, C] of token ids, mask and segments int32 [B, S]."""
        arrays = dict(zip(FEATURES, (input_ids, input_mask, segment_ids)))
        return self.session.run(self.probabilities, {
            self.inputs[name]: array for name, array in arrays.items()})

    def answers(self, stream, name, encoding, rows_at_once):
        """Yields (line number, line, probabilities [C]) for each line of a binary stream, in order.

        A pair stands in one line with a tab between; a label in a third column is ignored. An
        empty line has None for probabilities.

        Args:
          stream: binary, say sys.stdin.buffer.  name: str for messages.
          encoding: of the stream.
          rows_at_once: lines read before an answer is due; 1 for a dialogue through a pipe.
        Raises:
          UserError: a line without its tab.
        """
        lines = decoded_lines(stream, name, encoding)
        while True:
            block = list(itertools.islice(lines, rows_at_once))
            if not block:
                return
            texts = [self._texts(line, "{}, line {}".format(name, number))
                     for number, line in block if line.strip()]
            results = iter(self.predict(texts))
            for number, line in block:
                yield number, line, next(results) if line.strip() else None

    def _texts(self, line, where):
        if not self.pair:
            return line
        cells = line.split("\t")
        if len(cells) not in (2, 3):
            raise UserError("{}: {} columns where a pair has 2 with a tab between".format(
                where, len(cells)))
        return cells[0], cells[1]


def answer_lines(model, stream, encoding):
    """Yields a line of test_results.tsv for each line of a binary stream, before the next is read.

    An empty line is answered by an empty one.
    """
    for number, _, probabilities in model.answers(stream, "standard input", encoding, 1):
        yield "" if probabilities is None else prediction_line(number, probabilities, model.labels)

"""A fine-tuned model's folder -> a model that answers: the one engine for files, pipes and Python.

In: output_dir of a fine-tuning run, or the SavedModel that --do_export wrote.  Out: for each text
or pair of texts the probability of each label.

    predictor = Predictor("output/lcqmc")
    predictor.labels                                   # ["0", "1"]
    predictor.predict([("花呗怎么还款", "如何还花呗")])    # float32 [1, 2], loaded once

A folder describes itself: classifier.json (task, labels, lengths, flags of the run),
albert_config.json and vocab.txt stand beside the checkpoints. Another kind of head has a file of
its own name. What a kind of head needs to predict is a subclass of FineTunedModel.
"""

import collections
import itertools
import json
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

import devices
import modeling
from cli import UserError, write_whole
from fine_tuning import tasks
from fine_tuning.examples import TextEncoder, padded_arrays
from fine_tuning.outcomes import outcome_of
from fine_tuning.tag_schemes import SCHEMES, tags_of
from tokenization import FullTokenizer
from weights import checkpoints

HEADS = ("classifier", "labelling", "reading")  # a folder's description is in the file <head>.json
DESCRIPTION = "{}.json"
CONFIG, VOCABULARY = "albert_config.json", "vocab.txt"
OF_A_RUN = ("checkpoint", "model.ckpt-*", "graph.pbtxt", "events.out.*", "eval*", "*.json",
            checkpoints.BEST, "test_results.tsv", "predictions.*", "saved_model", "export",
            "*.tflite", "*.onnx")
OF_LABELS = ("labels", "scheme", "types")  # keys of a description, see labels_in
FEATURES = ("input_ids", "input_mask", "segment_ids")
EXPORTS = "export"  # in output_dir: export/<name>/<version>/ is a SavedModel
SAVED_MODEL = "saved_model.pb"  # the file by which a folder is one
EXTRA = "assets.extra"  # where TensorFlow's loaders expect files that are not theirs
SECONDS_BETWEEN_LINES = 20  # of the progress of a long evaluation or prediction

ModelFiles = collections.namedtuple("ModelFiles", "description config vocab_file checkpoint")
ModelFiles.__doc__ = """What a fine-tuned model consists of.

description: dict, see write_description.  config: AlbertConfig.  vocab_file, checkpoint: paths.
"""

# --- a folder that describes itself -----------------------------------------------------------


def write_description(folder, description, config, vocab_file):
    """Makes a folder describe itself, in the file of its head.

    Args:
      folder: str, made if it is not there.
      description: dict for JSON: head (one of HEADS), task_name, max_seq_length, do_lower_case, ...
      config: AlbertConfig.
      vocab_file: str, copied.
    """
    tf.io.gfile.makedirs(folder)
    with tf.io.gfile.GFile(vocab_file, "rb") as stream:
        vocabulary = stream.read().decode("utf-8")
    write_whole(os.path.join(folder, VOCABULARY), vocabulary)
    write_whole(os.path.join(folder, CONFIG), config.to_json())
    write_json(folder, description)


def write_json(folder, description):
    """Writes a description under its head's name."""
    write_whole(
        os.path.join(folder, DESCRIPTION.format(description["head"])),
        json.dumps(description, ensure_ascii=False, indent=2, sort_keys=True) + "\n")


def read_description(folder):
    """The dict that write_description wrote, or None where there is none."""
    for head in HEADS:
        path = os.path.join(folder, DESCRIPTION.format(head))
        if tf.io.gfile.exists(path):
            with tf.io.gfile.GFile(path, "rb") as stream:
                return dict(json.loads(stream.read().decode("utf-8")), head=head)
    return None


def labels_in(description):
    """Names of the columns of a head's scores, None where a description says none.

    Those of a labelling model are all tags of its scheme and types, in the order of tags_of; a
    converted model, whose order is another, says "labels" too.
    """
    if "labels" not in description and "scheme" in description:
        return tags_of(SCHEMES[description["scheme"]], description["types"])
    return description.get("labels")


def chosen_checkpoint(folder):
    """The best checkpoint where the run was made with --save_best, else the newest, else None."""
    best = None
    if (read_description(folder) or {}).get("save_best"):
        best = checkpoints.newest_checkpoint(os.path.join(folder, checkpoints.BEST))
    return best or checkpoints.newest_checkpoint(folder)


def model_files(folder, checkpoint=None):
    """The ModelFiles of a fine-tuned folder; checkpoint: default, the chosen_checkpoint.

    Raises:
      UserError: the folder does not describe itself, or holds no checkpoint.
    """
    description = read_description(folder)
    if description is None:
        raise UserError("{} holds no fine-tuned model (no {})".format(
            folder, " or ".join(map(DESCRIPTION.format, HEADS))))
    checkpoint = checkpoint or chosen_checkpoint(folder)
    if checkpoint is None:
        raise UserError("{} holds no checkpoint".format(folder))
    return ModelFiles(description, modeling.AlbertConfig.from_json_file(
        os.path.join(folder, CONFIG)), os.path.join(folder, VOCABULARY), checkpoint)


def keep_best(folder):
    """Copies folder's newest checkpoint to best/, which describes itself too; returns best/."""
    best = os.path.join(folder, checkpoints.BEST)
    copy_model(model_files(folder, checkpoints.newest_checkpoint(folder)), best)
    return best


def copy_model(files, folder):
    """Makes a model, the newest of its own folder, that of another one, which describes itself.

    files: ModelFiles.
    """
    write_description(folder, dict(files.description, save_best=False), files.config,
                      files.vocab_file)
    checkpoints.copy_newest(os.path.dirname(files.checkpoint), folder)


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
    vocabulary = os.path.join(folder, VOCABULARY)  # it may be the one that the new run is given
    if tf.io.gfile.exists(vocabulary):
        tf.io.gfile.copy(vocabulary, os.path.join(target, VOCABULARY))
    return target


def versions_in(folder):
    """Numbers of the SavedModels <folder>/<number>/, as TensorFlow Serving looks for them."""
    if not tf.io.gfile.isdir(folder):
        return []
    names = [os.path.basename(os.path.dirname(path)) for path in tf.io.gfile.glob(
        os.path.join(folder, "*", SAVED_MODEL))]
    return [int(name) for name in names if name.isdigit()]


def saved_model_in(folder):
    """The SavedModel that a folder is, else the newest of its versions, else None."""
    if tf.io.gfile.exists(os.path.join(folder, SAVED_MODEL)):
        return folder
    versions = versions_in(folder)
    return os.path.join(folder, str(max(versions))) if versions else None


# --- the engine -------------------------------------------------------------------------------


class FineTunedModel(object):
    """A fine-tuned model's graph and weights in a session, loaded once; a subclass knows its head.

    Attributes:
      HEAD: of a subclass, one of HEADS.
      SERVED: of a subclass, names of the outputs that a SavedModel has.
      POOLER: of a subclass, whether its head stands on the pooled output.
      files: ModelFiles; of a SavedModel without checkpoint.
      description: what the folder says of itself.  tokenizer: FullTokenizer.
      batch_size: rows of a step; no result depends on it.
      pad_to: length that every batch is padded to; None: its longest row.
      session, inputs, outputs: where it runs, and its tensors by name.
    """

    HEAD = SERVED = None
    POOLER = True

    def __init__(self, source, batch_size=32, pad_to=None, session_config=None):
        """Loads a model.

        Args:
          source: output_dir of a fine-tuning run, an exported SavedModel or the folder of its
            versions, or ModelFiles.
          batch_size, pad_to: see there.  session_config: ConfigProto; default: the usual one.
        Raises:
          UserError: there is no fine-tuned model with this head.
        """
        is_path = not isinstance(source, ModelFiles)
        saved_model = saved_model_in(source) if is_path else None
        folder = os.path.join(saved_model, EXTRA) if saved_model else source
        self.files = model_files(folder, "in " + SAVED_MODEL if saved_model else None) if (
            is_path) else source
        self.description = self.files.description
        if self.description["head"] != self.HEAD:
            raise UserError("{} holds a model with the head {!r}, not {!r}".format(
                source if is_path else source.checkpoint, self.description["head"], self.HEAD))
        self.tokenizer = FullTokenizer(self.files.vocab_file,
                                       do_lower_case=self.description["do_lower_case"])
        self.batch_size, self.pad_to = batch_size, pad_to
        self.session = tf.Session(graph=tf.Graph(),
                                  config=session_config or devices.session_config())
        with self.session.graph.as_default():
            self.inputs, self.outputs = (self._load_saved_model(saved_model) if saved_model
                                         else self._load_checkpoint())

    def head_outputs(self, model):
        """The head's output tensors by name, for a modeling.AlbertModel; no labels."""
        raise NotImplementedError

    def scores_of(self, outputs, input_mask):
        """Probabilities float32 [rows, C] of a batch's outputs, by which an export is compared."""
        raise NotImplementedError

    def serving_graph(self):
        """(inputs, outputs) by name: placeholders int32 [B, S] and the head's outputs."""
        inputs = {name: tf.placeholder(tf.int32, [None, None], name) for name in FEATURES}
        return inputs, self.head_outputs(modeling.AlbertModel(
            self.files.config, pooler=self.POOLER, **inputs))

    def _load_saved_model(self, folder):
        try:
            meta = tf.saved_model.load(self.session, ["serve"], folder)
        except ValueError as error:
            raise UserError("{} cannot be loaded by TensorFlow {}; one that 2.15 wrote needs 2.15, "
                            "the run's output_dir works with both ({})".format(
                                folder, tf.__version__, str(error).split(";")[0])) from None
        signature = meta.signature_def["serving_default"]
        return [{name: self.session.graph.get_tensor_by_name(info.name)
                 for name, info in tensors.items()}
                for tensors in (signature.inputs, signature.outputs)]

    def _load_checkpoint(self):
        tensors = self.serving_graph()
        checkpoint = self.files.checkpoint
        variables = {v.op.name: v.shape.as_list() for v in tf.trainable_variables()}
        missing = sorted(set(variables) - set(checkpoints.match_variables(
            checkpoint, dict(tf.train.list_variables(checkpoint)), variables)))
        if missing:
            raise UserError("{} has no {} weights (variables {}): it is not fine-tuned; train with "
                            "--do_train=True first".format(
                                checkpoint, self.HEAD, ", ".join(missing)))
        checkpoints.restore(self.session, checkpoint)
        return tensors

    def output_arrays(self, input_ids, input_mask, segment_ids):
        """The outputs as arrays by name, for token ids, mask and segments int32 [B, S]."""
        arrays = dict(zip(FEATURES, (input_ids, input_mask, segment_ids)))
        return self.session.run(self.outputs, {
            self.inputs[name]: array for name, array in arrays.items()})

    def scores(self, input_ids, input_mask, segment_ids):
        """scores_of the batch int32 [B, S]."""
        return self.scores_of(self.output_arrays(input_ids, input_mask, segment_ids), input_mask)

    def batches(self, encoded):
        """Yields (row numbers [B], outputs as arrays by name); rows of like length together.

        encoded: a sequence of (ids, length of the first segment), say examples.EncodedRows; rows
          without ids are left out.
        """
        lengths = np.array([len(encoded[row][0]) for row in range(len(encoded))])
        order = np.argsort(lengths, kind="stable")
        order = order[lengths[order] > 0]
        last_line = time.time()
        for start in range(0, len(order), self.batch_size):
            rows = order[start:start + self.batch_size]
            yield rows, self.output_arrays(*padded_arrays([encoded[row] for row in rows],
                                                          self.pad_to))
            if time.time() - last_line > SECONDS_BETWEEN_LINES:
                tf.logging.info("%d of %d rows, shortest first", start + len(rows), len(order))
                last_line = time.time()

    def collected(self, encoded, names):
        """Outputs of all rows, in their order: an array float32 [rows, ...] for each of names.

        A row without ids has zeros.
        """
        results = {}
        for rows, outputs in self.batches(encoded):
            for name in names:
                if name not in results:
                    results[name] = np.zeros((len(encoded),) + outputs[name].shape[1:], np.float32)
                results[name][rows] = outputs[name]
        return [results[name] for name in names]


def task_of(description):
    """The Task that a classifier's folder describes; plain lines where it does not know it."""
    if description["task_name"]:
        return tasks.task_named(description["task_name"], description["columns"],
                                outcome=description.get("outcome"))
    return tasks.task_named("tsv", ",".join(
        tasks.PAIR_THEN_LABEL if description["pair"] else tasks.TEXT_THEN_LABEL),
        outcome=description.get("outcome"))


class Predictor(FineTunedModel):
    """A fine-tuned classifier, loaded once.

    Attributes:
      outcome: see outcomes.  labels: names in the order of the columns of what it predicts.
      pair: whether it takes two texts;
        None where its folder does not say, as of a converted Hugging Face model.
      task: tasks.Task, by which lines are read.  encoder: TextEncoder.
    """

    HEAD = "classifier"

    def __init__(self, source, batch_size=32, pad_to=None, session_config=None):
        """Loads output_dir of a fine-tuning run, or an exported SavedModel; see FineTunedModel."""
        super().__init__(source, batch_size, pad_to, session_config)
        self.outcome = outcome_of(self.description)
        self.SERVED = (self.outcome.SERVED,)
        self.labels = self.outcome.labels
        self.pair = self.description["pair"]
        self.task = task_of(self.description)
        self.encoder = TextEncoder(self.tokenizer, self.description["max_seq_length"])

    def head_outputs(self, model):
        """The outcome's outputs float32 [B, C]."""
        head = modeling.classification_head(
            model.pooled_output, None, len(self.description["labels"]), self.files.config)
        return outcome_of(self.description).outputs(head.logits)

    def scores_of(self, outputs, input_mask):
        """Probabilities or scores float32 [B, C]; they are the output itself."""
        del input_mask
        return outputs[self.outcome.SERVED]

    def predict(self, texts):
        """Probabilities (or scores) float32 [rows, C], in the order of the rows.

        Args:
          texts: list of (text_a, text_b) for a pair task, of str for one text.
        Raises:
          UserError: a row is of the other kind.
        """
        rows = [(text, None) if isinstance(text, str) else tuple(text) for text in texts]
        for number, (_, text_b) in enumerate(rows, 1):
            if self.pair is not None and (text_b is not None) != self.pair:
                raise UserError("row {}: this model ({}) takes {}".format(
                    number, self.description["task_name"],
                    "pairs of texts" if self.pair else "one text at a time"))
        if not rows:
            return np.zeros([0, len(self.labels)], np.float32)
        return self.collected([self.encoder(*row)[:2] for row in rows], self.SERVED)[0]

    def answers(self, stream, name, encoding, rows_at_once):
        """Yields (line number, line, answer) for each line of a binary stream, in order.

        A line reads as a row of the task's files, with or without its label. The answer is
        probabilities [C], None for an empty line, or a UserError for a line that does not read.

        Args:
          stream: binary, say sys.stdin.buffer.  name: str for messages.
          encoding: of the stream.
          rows_at_once: lines read before an answer is due; 1 for a dialogue through a pipe.
        """
        lines = tasks.decoded_or_not(stream, name, encoding)
        while True:
            block = list(itertools.islice(lines, rows_at_once))
            if not block:
                return
            rows = [error or self._row(name, number, line) for number, line, error in block]
            results = iter(self.predict([
                row.text_a if row.text_b is None else (row.text_a, row.text_b)
                for row in rows if isinstance(row, tasks.Row) and row.text_a is not None]))
            for (number, line, _), row in zip(block, rows):
                if isinstance(row, tasks.Row):
                    row = None if row.text_a is None else next(results)
                yield number, line, row

    def _row(self, name, number, line):
        """The Row of a line, or the UserError that says why it is none."""
        task = self.task
        if self.pair is None:
            task = task_of(dict(self.description, pair="\t" in line))
        try:
            return tasks.checked_row(task, tasks.row_of_line(task, name, number, line), name,
                                     self.labels)
        except UserError as error:
            return error

    def answer_lines(self, stream, encoding):
        """Yields (line of test_results.tsv, whether it is a row or empty) for each line of bytes.

        The line comes before the next is read. An empty one is answered by an empty one, one that
        does not read by its number, ERROR and the reason.
        """
        for number, _, answer in self.answers(stream, "standard input", encoding, 1):
            if isinstance(answer, UserError):
                yield "{}\tERROR\t{}".format(number, answer), False
            else:
                yield "" if answer is None else self.outcome.line(number, answer), True

"""A fine-tuned model -> files to serve it: a SavedModel, and TFLite files that are checked.

In: the folder of a fine-tuned model.  Out: saved_model/ (signature serving_default: token ids in,
probabilities out, any batch size and length; no labels) with the vocabulary in assets.extra, so
that predictor.Predictor takes texts from it; on TensorFlow 2.15 also classifier.tflite and
classifier_dynamic.tflite (weights of 8 bits), compared with the model itself on real rows.
"""

import collections
import os

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from cli import UserError
from fine_tuning.predictor import (
    CONFIG,
    EXTRA,
    FEATURES,
    VOCABULARY,
    Predictor,
    chosen_checkpoint,
    serving_graph,
    write_description,
)
from weights import checkpoints

# Largest difference of a probability that is allowed, and the gap of the two top classes from
# which on they must rank alike.
Tolerance = collections.namedtuple("Tolerance", "difference gap")
TOLERANCES = {"classifier.tflite": Tolerance(1e-4, 0.0),
              "classifier_dynamic.tflite": Tolerance(0.02, 0.04)}


def export_and_check(folder, batches):
    """Writes saved_model/ and, with TensorFlow 2.15, the TFLite files into a fine-tuned folder.

    Args:
      folder: output_dir of the fine-tuning run.
      batches: list of (input_ids, input_mask, segment_ids) to compare them on.
    Yields:
      one line of result for each file.
    Raises:
      UserError: a file does not agree with the model.
    """
    model = Predictor(folder)
    expected = np.concatenate([model.run(*batch) for batch in batches])
    target = os.path.join(folder, "saved_model")
    export_saved_model(folder, model.description, target)
    served = Predictor(target)
    difference, wrong = compare(
        expected, np.concatenate([served.run(*batch) for batch in batches]), Tolerance(1e-6, 1e-6))
    if not difference <= 1e-6 or wrong:
        raise UserError("{}: probabilities differ by {:.2g} from the model's".format(
            target, difference))
    yield "{}: on {} rows the probabilities differ by at most {:.2g}".format(
        target, len(expected), difference)
    if tf.__version__ < "2":
        yield ("no TFLite file: it needs the converter of TensorFlow 2.15 "
               "(PYTHON=python3.11 ./setup.sh), this is {}".format(tf.__version__))
        return
    for path in export_tflite(target, folder):
        yield check_tflite(path, batches, expected)


def export_saved_model(folder, description, target):
    """Writes the SavedModel of a fine-tuned folder to `target`, which is replaced.

    Args:
      folder: output_dir of the fine-tuning run.  description: what it says of itself.
      target: folder of the SavedModel.
    Raises:
      UserError: `target` is there but is no SavedModel.
    """
    config = modeling.AlbertConfig.from_json_file(os.path.join(folder, CONFIG))
    if tf.io.gfile.exists(target):
        if not tf.io.gfile.exists(os.path.join(target, "saved_model.pb")):
            raise UserError("{} is in the way: it is no SavedModel".format(target))
        tf.io.gfile.rmtree(target)
    with tf.Graph().as_default(), tf.Session() as session:
        inputs, probabilities = serving_graph(config, len(description["labels"]))
        checkpoints.restore(session, chosen_checkpoint(folder))
        tf.saved_model.simple_save(session, target, inputs, {"probabilities": probabilities})
    write_description(os.path.join(target, EXTRA), description, config,
                      os.path.join(folder, VOCABULARY))


def export_tflite(saved_model, folder):
    """Converts the SavedModel; writes classifier.tflite and classifier_dynamic.tflite to folder.

    Returns:
      paths of the two files; needs TensorFlow 2.15's converter.
    """
    paths = []
    for name, optimizations in (("classifier.tflite", []),
                                ("classifier_dynamic.tflite", [tf.lite.Optimize.DEFAULT])):
        converter = tf.lite.TFLiteConverter.from_saved_model(saved_model)
        converter.optimizations = optimizations
        content = converter.convert()
        paths.append(os.path.join(folder, name))
        checkpoints.write_whole(paths[-1], content)
    return paths


class LiteModel(object):
    """A .tflite file of a classifier, run by TensorFlow's interpreter."""

    def __init__(self, path):
        self.interpreter = tf.lite.Interpreter(model_path=path)
        self.inputs = {name: detail["index"] for detail in self.interpreter.get_input_details()
                       for name in FEATURES if name in detail["name"]}
        self.output = self.interpreter.get_output_details()[0]["index"]

    def run(self, input_ids, input_mask, segment_ids):
        """Probabilities float32 [B, C] of token ids, mask and segments int32 [B, S]."""
        arrays = dict(zip(FEATURES, (input_ids, input_mask, segment_ids)))
        for name, array in arrays.items():
            self.interpreter.resize_tensor_input(self.inputs[name], array.shape)
        self.interpreter.allocate_tensors()
        for name, array in arrays.items():
            self.interpreter.set_tensor(self.inputs[name], array)
        self.interpreter.invoke()
        return self.interpreter.get_tensor(self.output)


def compare(expected, found, tolerance):
    """(largest difference, rows that rank another class first though they must not).

    Args:
      expected, found: probabilities [rows, C].
      tolerance: Tolerance; rows whose two top classes are nearer than its gap may rank otherwise.
    """
    top = np.sort(expected, axis=1)
    counts = (top[:, -1] - top[:, -2] > tolerance.gap) if tolerance.gap else True
    differs = (expected.argmax(1) != found.argmax(1)) & counts
    return float(np.abs(expected - found).max()), int(differs.sum())


def check_tflite(path, batches, expected):
    """One line of comparison for a TFLite file.

    Args:
      path: .tflite file.  batches: list of (input_ids, input_mask, segment_ids).
      expected: probabilities [rows, C] of the same rows.
    Raises:
      UserError: it differs by more than its kind may.
    """
    name = os.path.basename(path)
    model = LiteModel(path)
    found = np.concatenate([model.run(*batch) for batch in batches])
    difference, wrong = compare(expected, found, TOLERANCES[name])
    line = ("{}: {:,} bytes; on {} rows the probabilities differ by at most {:.2g}, {} rows rank "
            "another label first".format(name, os.path.getsize(path), len(found), difference,
                                         int((expected.argmax(1) != found.argmax(1)).sum())))
    if not difference <= TOLERANCES[name].difference or wrong:
        raise UserError("{}; allowed are {:g} and 0 rows whose two best labels differ by more "
                        "than {:g}".format(line, *TOLERANCES[name]))
    return line

"""A fine-tuned model -> files to serve it: a SavedModel, and TFLite files that are checked.

In: a fine-tuned model.  Out: saved_model/ (signature serving_default: token ids in, the head's
outputs out, any batch size and length; no labels) with the vocabulary in assets.extra, so
that predictor.Predictor takes texts from it; on TensorFlow 2.15 also <name>.tflite and
<name>_dynamic.tflite (weights of 8 bits), compared with the model itself on real rows.
"""

import collections
import os

import numpy as np
import tensorflow.compat.v1 as tf

from cli import UserError, write_whole
from fine_tuning.predictor import EXTRA, FEATURES, write_description

# Largest difference of a probability that is allowed, and the gap of the two top classes from
# which on they must rank alike.
Tolerance = collections.namedtuple("Tolerance", "difference gap")
EXACT, DYNAMIC = Tolerance(1e-4, 0.0), Tolerance(0.02, 0.04)
SAVED_MODEL = Tolerance(1e-6, 1e-6)


def export_and_check(model, folder, name, batches):
    """Writes saved_model/ and, with TensorFlow 2.15, the TFLite files into a fine-tuned folder.

    Args:
      model: predictor.FineTunedModel of the folder.
      folder: output_dir of the fine-tuning run.
      name: of the TFLite files.
      batches: list of (input_ids, input_mask, segment_ids) to compare them on.
    Yields:
      one line of result for each file.
    Raises:
      UserError: a file does not agree with the model.
    """
    expected = [model.scores(*batch) for batch in batches]
    target = os.path.join(folder, "saved_model")
    export_saved_model(model, target)
    served = type(model)(target)
    difference, wrong, _ = compare(expected, [served.scores(*batch) for batch in batches],
                                   SAVED_MODEL)
    if not difference <= SAVED_MODEL.difference or wrong:
        raise UserError("{}: probabilities differ by {:.2g} from the model's".format(
            target, difference))
    yield "{}: on {} rows the probabilities differ by at most {:.2g}".format(
        target, sum(map(len, expected)), difference)
    if tf.__version__ < "2":
        yield ("no TFLite file: it needs the converter of TensorFlow 2.15 "
               "(PYTHON=python3.11 ./setup.sh), this is {}".format(tf.__version__))
        return
    for path, tolerance in export_tflite(target, folder, name):
        yield check_tflite(path, model, batches, expected, tolerance)


def export_saved_model(model, target):
    """Writes the SavedModel of a fine-tuned model to the folder `target`, which is replaced.

    Raises:
      UserError: `target` is there but is no SavedModel.
    """
    if tf.io.gfile.exists(target):
        if not tf.io.gfile.exists(os.path.join(target, "saved_model.pb")):
            raise UserError("{} is in the way: it is no SavedModel".format(target))
        tf.io.gfile.rmtree(target)
    with model.session.graph.as_default():
        tf.saved_model.simple_save(model.session, target, model.inputs, {
            name: model.outputs[name] for name in model.SERVED})
    write_description(os.path.join(target, EXTRA), model.description, model.files.config,
                      model.files.vocab_file)


def export_tflite(saved_model, folder, name):
    """Converts the SavedModel; writes <name>.tflite and <name>_dynamic.tflite to folder.

    Returns:
      [(path, Tolerance)] of the two files; needs TensorFlow 2.15's converter.
    """
    written = []
    for ending, optimizations, tolerance in ((".tflite", [], EXACT), (
            "_dynamic.tflite", [tf.lite.Optimize.DEFAULT], DYNAMIC)):
        converter = tf.lite.TFLiteConverter.from_saved_model(saved_model)
        converter.optimizations = optimizations
        path = os.path.join(folder, name + ending)
        write_whole(path, converter.convert())
        written.append((path, tolerance))
    return written


class LiteModel(object):
    """A .tflite file, run by TensorFlow's interpreter; its tensors have the SavedModel's names."""

    def __init__(self, path, outputs):
        """outputs: names."""
        self.interpreter = tf.lite.Interpreter(model_path=path)
        self.inputs, self.outputs = [
            {name: detail["index"] for name in names for detail in details
             if name in detail["name"]}
            for names, details in ((FEATURES, self.interpreter.get_input_details()),
                                   (outputs, self.interpreter.get_output_details()))]

    def output_arrays(self, input_ids, input_mask, segment_ids):
        """The outputs as arrays by name, for token ids, mask and segments int32 [B, S]."""
        arrays = dict(zip(FEATURES, (input_ids, input_mask, segment_ids)))
        for name, array in arrays.items():
            self.interpreter.resize_tensor_input(self.inputs[name], array.shape)
        self.interpreter.allocate_tensors()
        for name, array in arrays.items():
            self.interpreter.set_tensor(self.inputs[name], array)
        self.interpreter.invoke()
        return {name: self.interpreter.get_tensor(index) for name, index in self.outputs.items()}


def compare(expected, found, tolerance):
    """How far served probabilities are from the model's, over some batches.

    Args:
      expected, found: lists of probabilities [rows, C].
      tolerance: Tolerance; rows whose two top classes are nearer than its gap may rank otherwise.
    Returns:
      (largest difference, rows that rank another class first though they must not, such rows
      whether they must not or may).
    """
    difference = wrong = other = 0
    for wanted, given in zip(expected, found):
        top = np.sort(wanted, axis=1)
        differs = wanted.argmax(1) != given.argmax(1)
        counts = top[:, -1] - top[:, -2] > tolerance.gap if tolerance.gap else True
        difference = max(difference, float(np.abs(wanted - given).max()))
        wrong += int((differs & counts).sum())
        other += int(differs.sum())
    return difference, wrong, other


def check_tflite(path, model, batches, expected, tolerance):
    """One line of comparison for a TFLite file.

    Args:
      path: .tflite file.  model: FineTunedModel, which knows what to compare.
      batches: list of (input_ids, input_mask, segment_ids).
      expected: model.scores of each.  tolerance: Tolerance.
    Raises:
      UserError: it differs by more than its kind may.
    """
    served = LiteModel(path, model.SERVED)
    found = [model.scores_of(served.output_arrays(*batch), batch[1]) for batch in batches]
    difference, wrong, other = compare(expected, found, tolerance)
    line = ("{}: {:,} bytes; on {} rows the probabilities differ by at most {:.2g}, {} rows rank "
            "another label first".format(os.path.basename(path), os.path.getsize(path),
                                         sum(map(len, found)), difference, other))
    if not difference <= tolerance.difference or wrong:
        raise UserError("{}; allowed are {:g} and 0 rows whose two best labels differ by more "
                        "than {:g}".format(line, *tolerance))
    return line

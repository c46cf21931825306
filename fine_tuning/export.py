"""A fine-tuned model -> files to serve it, each compared with the model itself on real rows.

In: a fine-tuned model.  Out: export/<name>/<version>/, a SavedModel as TensorFlow Serving looks for
it (signature serving_default: token ids in, the head's outputs out, any batch size and length; no
labels) with the vocabulary in assets.extra, so that predictor.Predictor takes texts from it; on
TensorFlow 2.15 also <name>.tflite and <name>_dynamic.tflite (weights of 8 bits), and <name>.onnx
where it is asked for.
"""

import collections
import os

import numpy as np
import tensorflow.compat.v1 as tf

from cli import UserError, write_whole
from fine_tuning import portable
from fine_tuning.predictor import (
    EXPORTS,
    EXTRA,
    SAVED_MODEL,
    saved_model_in,
    versions_in,
    write_description,
)

# Largest difference of a probability that is allowed, and the gap of the two top classes from
# which on they must rank alike.
Tolerance = collections.namedtuple("Tolerance", "difference gap")
EXACT, DYNAMIC = Tolerance(1e-4, 0.0), Tolerance(0.02, 0.04)
SAVED, ONNX = Tolerance(1e-6, 1e-6), Tolerance(1e-5, 1e-5)
UNFINISHED = "unfinished"  # a version that is not checked yet; TensorFlow Serving sees numbers only


def export_and_check(model, folder, name, batches, with_onnx=False):
    """Writes a new version of the SavedModel, and the other files, into a fine-tuned folder.

    Args:
      model: predictor.FineTunedModel of the folder.
      folder: output_dir of the fine-tuning run.
      name: of the model: export/<name>/<version>/, <name>.tflite, <name>.onnx.
      batches: list of (input_ids, input_mask, segment_ids) to compare them on.
      with_onnx: whether an ONNX file is asked for.
    Yields:
      one line of result for each file.
    Raises:
      UserError: a file does not agree with the model; it is not left behind.
    """
    expected = [model.scores(*batch) for batch in batches]
    versions = os.path.join(folder, EXPORTS, name)
    unfinished = os.path.join(versions, UNFINISHED)
    if tf.io.gfile.exists(unfinished):  # of an export that was killed
        tf.io.gfile.rmtree(unfinished)
    export_saved_model(model, unfinished)
    served = type(model)(unfinished)
    difference, wrong, _ = compare(expected, [served.scores(*batch) for batch in batches], SAVED)
    if not difference <= SAVED.difference or wrong:
        tf.io.gfile.rmtree(unfinished)
        raise UserError("the SavedModel's probabilities differ by {:.2g} from the model's".format(
            difference))
    target = os.path.join(versions, str(max(versions_in(versions), default=0) + 1))
    tf.io.gfile.rename(unfinished, target)
    yield "{}: on {} rows the probabilities differ by at most {:.2g}".format(
        target, sum(map(len, expected)), difference)
    if saved_model_in(os.path.join(folder, "saved_model")):
        tf.logging.warning("%s is an earlier export, which stays as it is: the model is now in %s",
                           os.path.join(folder, "saved_model"), versions)
    for ending, content, runner, tolerance in other_files(model, target, with_onnx):
        path = os.path.join(folder, name + ending)
        line = check_file(path, content, runner, model, batches, expected, tolerance)
        write_whole(path, content)
        yield line
    if tf.__version__ < "2":
        yield ("no TFLite file: it needs the converter of TensorFlow 2.15 "
               "(PYTHON=python3.11 ./setup.sh), this is {}".format(tf.__version__))


def export_saved_model(model, target):
    """Writes the SavedModel of a fine-tuned model to the folder `target`, which is replaced.

    Raises:
      UserError: `target` is there but is no SavedModel.
    """
    if tf.io.gfile.exists(target):
        if not tf.io.gfile.exists(os.path.join(target, SAVED_MODEL)):
            raise UserError("{} is in the way: it is no SavedModel".format(target))
        tf.io.gfile.rmtree(target)
    with model.session.graph.as_default():
        tf.saved_model.simple_save(model.session, target, model.inputs, {
            name: model.outputs[name] for name in model.SERVED})
    write_description(os.path.join(target, EXTRA), model.description, model.files.config,
                      model.files.vocab_file)


def other_files(model, saved_model, with_onnx):
    """Yields (ending of the name, content, what runs it, Tolerance) of the files beside it."""
    if tf.__version__ >= "2":
        for ending, optimizations, tolerance in ((".tflite", [], EXACT), (
                "_dynamic.tflite", [tf.lite.Optimize.DEFAULT], DYNAMIC)):
            yield (ending, portable.tflite_bytes(saved_model, model.SERVED, optimizations),
                   portable.LiteModel, tolerance)
    if with_onnx:
        yield ".onnx", portable.onnx_bytes(model), portable.OnnxModel, ONNX


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


def check_file(path, content, runner, model, batches, expected, tolerance):
    """One line of comparison for a file that is to be written.

    Args:
      path: of the file.  content: bytes.  runner: class of portable that runs them.
      model: FineTunedModel, which knows what to compare.
      batches: list of (input_ids, input_mask, segment_ids).
      expected: model.scores of each.  tolerance: Tolerance.
    Raises:
      UserError: it differs by more than its kind may.
    """
    served = runner(content)
    found = [model.scores_of(served.output_arrays(*batch), batch[1]) for batch in batches]
    difference, wrong, other = compare(expected, found, tolerance)
    line = ("{}: {:,} bytes; on {} rows the probabilities differ by at most {:.2g}, {} rows rank "
            "another label first".format(os.path.basename(path), len(content),
                                         sum(map(len, found)), difference, other))
    if not difference <= tolerance.difference or wrong:
        raise UserError("{}; allowed are {:g} and 0 rows whose two best labels differ by more "
                        "than {:g}".format(line, *tolerance))
    return line

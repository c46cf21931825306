"""The curves of a training as a picture: losses, accuracies, rate, gradient norm, speed.

In: the event files in a run's folder.  Out: curves.png there. Needs matplotlib, which nothing else
here does.
"""

import collections
import importlib
import io
import os

import tensorflow.compat.v1 as tf

from cli import UserError, write_whole

PICTURE = "curves.png"
COLUMNS = 3


def read_scalars(folder):
    """{tag: {step: value}} of the event files in a folder, {} where there are none.

    A step that two files hold, because a run was killed and went on, has the later file's value.
    """
    scalars = collections.OrderedDict()
    pattern = os.path.join(folder, "events.out.tfevents.*")
    for path in sorted(tf.io.gfile.glob(pattern)) if tf.io.gfile.isdir(folder) else ():
        try:
            for event in tf.train.summary_iterator(path):
                for value in event.summary.value:
                    if value.HasField("simple_value"):
                        scalars.setdefault(value.tag, {})[event.step] = value.simple_value
                    elif value.tensor.dtype == tf.float32.as_datatype_enum:  # by a TPU's host
                        scalars.setdefault(value.tag, {})[event.step] = float(
                            tf.make_ndarray(value.tensor))
        except tf.errors.DataLossError:
            tf.logging.warning("%s is cut off, as a killed run leaves it", path)
    return scalars


def require_matplotlib():
    """matplotlib's pyplot, drawing into files; raises UserError where it is missing."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise UserError("the curves need matplotlib ({}): pip install matplotlib".format(
            error)) from None


def draw(scalars, evaluated):
    """PNG bytes with one plot for each tag.

    Args:
      scalars: {tag: {step: value}} of the training.
      evaluated: the same of the evaluations; drawn as points into the training's plots.
    """
    pyplot = require_matplotlib()
    rows = -(-len(scalars) // COLUMNS)
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=(5 * COLUMNS, 3 * rows), squeeze=False)
    for place, axis in enumerate(axes.flat):
        if place >= len(scalars):
            axis.axis("off")
            continue
        tag, points = list(scalars.items())[place]
        axis.plot(*zip(*sorted(points.items())), label="training")
        if tag in evaluated:
            axis.plot(*zip(*sorted(evaluated[tag].items())), "o", label="evaluation")
            axis.legend()
        axis.set_title(tag)
        axis.set_xlabel("step")
        axis.grid(True, alpha=0.3)
    figure.tight_layout()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=80)
    pyplot.close(figure)
    return picture.getvalue()


def plot_run(output_dir):
    """Writes curves.png of a run; returns its path.

    Raises:
      UserError: there is nothing to draw, or nothing to draw with.
    """
    scalars = read_scalars(output_dir)
    if not scalars:
        raise UserError("--output_dir {!r} holds no scalars of a training".format(output_dir))
    picture = draw(scalars, read_scalars(os.path.join(output_dir, "eval")))
    path = os.path.join(output_dir, PICTURE)
    write_whole(path, picture)
    tf.logging.info("curves: %s", path)
    return path

"""Scores of examples, and training that stops when they no longer rise.

In: an Estimator and encoded examples.  Out: scores and reports; training in parts with an
evaluation after each, of which evaluations.tsv keeps a line.
"""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from fine_tuning.examples import label_numbers
from fine_tuning.report import class_report
from weights.checkpoints import write_whole

EVALUATIONS = "evaluations.tsv"
COLUMNS_OF_EVALUATIONS = "step\taccuracy\tmacro_f1\tloss\n"


def scores(estimator, input_fn, examples, checkpoint):
    """Probabilities and log-probabilities float32 [rows, C] of encoded examples, in file order.

    checkpoint: path; None takes the weights that the Estimator's graph is initialised with.
    """
    probabilities = log_probs = None
    for batch in estimator.predict(input_fn, checkpoint_path=checkpoint,
                                   yield_single_examples=False):
        if probabilities is None:
            shape = [examples.rows, batch["probabilities"].shape[1]]
            probabilities, log_probs = np.zeros([2] + shape, np.float32)
        real = batch["weight"] > 0
        rows = batch["row"][real]
        probabilities[rows] = batch["probabilities"][real]
        log_probs[rows] = batch["log_probs"][real]
    return probabilities, log_probs


def report_of(log_probs, examples, labels):
    """The class_report of scores for labelled examples: each row once, whatever the batches."""
    truth = label_numbers(examples)
    confusion = np.zeros([len(labels)] * 2, np.int64)
    np.add.at(confusion, (truth, log_probs.argmax(1)), 1)
    losses = -log_probs[np.arange(len(truth)), truth]
    return class_report(confusion, labels, losses.mean(dtype=np.float64))


class Evaluations(object):
    """The evaluations of one training run: which step was best, and how long ago.

    Attributes:
      lines: list of (step, accuracy, macro_f1, loss).
    """

    def __init__(self, folder, start_step):
        """Reads evaluations.tsv, up to the step from which training goes on."""
        self.path = os.path.join(folder, EVALUATIONS)
        self.lines = []
        if tf.io.gfile.exists(self.path):
            with tf.io.gfile.GFile(self.path, "r") as stream:
                cells = [line.split("\t") for line in stream.read().splitlines()[1:]]
            self.lines = [(int(step),) + tuple(map(float, figures)) for step, *figures in cells
                          if int(step) <= start_step]

    def add(self, step, report):
        """Notes an evaluation in the file; returns whether its accuracy is the best so far."""
        is_best = all(report["accuracy"] > accuracy for _, accuracy, _, _ in self.lines)
        self.lines.append((step, report["accuracy"], report["macro_f1"], report["loss"]))
        write_whole(self.path, COLUMNS_OF_EVALUATIONS + "".join(
            "{}\t{!r}\t{!r}\t{!r}\n".format(*line) for line in self.lines))
        return is_best

    def without_gain(self):
        """Number of evaluations since the best one."""
        accuracies = [line[1] for line in self.lines]
        return len(accuracies) - 1 - accuracies.index(max(accuracies)) if accuracies else 0


def train_in_parts(train_to, evaluate, evaluations, start, stop, every, patience, on_best):
    """Trains from step `start` to `stop`, evaluating on the way.

    Args:
      train_to: function(step), trains up to that step and saves a checkpoint.
      evaluate: function() -> report of the newest checkpoint on the dev file.
      evaluations: Evaluations.
      start, stop: steps.  every: steps between evaluations.
      patience: evaluations without a better accuracy after which training stops; 0 never stops.
      on_best: function(report), called for each best one.
    Returns:
      the step at which training ended.
    """
    step = start
    while step < stop:
        if patience and evaluations.without_gain() >= patience:
            tf.logging.info("stopped early at step %d of %d: %d evaluations without a better "
                            "accuracy (--patience=%d)", step, stop,
                            evaluations.without_gain(), patience)
            break
        step = min(stop, (step // every + 1) * every)
        train_to(step)
        report = evaluate()
        is_best = evaluations.add(step, report)
        tf.logging.info("step %d of %d: dev accuracy %.4f, macro-F1 %.4f, loss %.4f%s", step, stop,
                        report["accuracy"], report["macro_f1"], report["loss"],
                        ", the best so far" if is_best else "")
        if is_best:
            on_best(report)
    return step

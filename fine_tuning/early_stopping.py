"""Training in parts with an evaluation after each, that stops when the evaluations no longer rise.

In: functions that train and evaluate.  Out: evaluations.tsv, a line for each evaluation.
"""

import os

import tensorflow.compat.v1 as tf

from cli import write_whole

EVALUATIONS = "evaluations.tsv"


class Evaluations(object):
    """The evaluations of one training run: which step was best, and how long ago.

    Attributes:
      names: of the figures that are kept; the first is the one that has to rise.
      lines: list of (step, figures ...).
    """

    def __init__(self, folder, names, start_step):
        """Reads evaluations.tsv, up to the step from which training goes on."""
        self.path = os.path.join(folder, EVALUATIONS)
        self.names, self.lines = tuple(names), []
        if tf.io.gfile.exists(self.path):
            with tf.io.gfile.GFile(self.path, "r") as stream:
                cells = [line.split("\t") for line in stream.read().splitlines()[1:]]
            self.lines = [(int(step),) + tuple(map(float, figures)) for step, *figures in cells
                          if int(step) <= start_step]

    def lacks(self, step):
        """Whether this step has not been evaluated."""
        return all(line[0] != step for line in self.lines)

    def add(self, step, report, keep_best):
        """Notes an evaluation in the file and the log; one that is the best so far is kept first.

        Whoever is killed in between finds no line, and evaluates again.
        """
        figures = tuple(report[name] for name in self.names)
        is_best = all(figures[0] > line[1] for line in self.lines)
        if is_best:
            keep_best(report)
        self.lines.append((step,) + figures)
        write_whole(self.path, "\t".join(("step",) + self.names) + "\n" + "".join(
            "\t".join(map(repr, line)) + "\n" for line in self.lines))
        tf.logging.info("step %d: on dev %s%s", step, ", ".join(
            "%s %.4f" % pair for pair in zip(self.names, figures)),
            ", the best so far" if is_best else "")

    def without_gain(self):
        """Number of evaluations since the best one."""
        figures = [line[1] for line in self.lines]
        return len(figures) - 1 - figures.index(max(figures)) if figures else 0


def train_in_parts(train_to, evaluate, evaluations, start, stop, every, patience, keep_best):
    """Trains from step `start` to `stop`, evaluating on the way.

    A run that was killed before it had evaluated its last checkpoint does that first.

    Args:
      train_to: function(step), trains up to that step and saves a checkpoint.
      evaluate: function() -> report of the newest checkpoint on the dev file.
      evaluations: Evaluations.
      start, stop: steps.  every: steps between evaluations.
      patience: evaluations without a better one after which training stops; 0 never stops.
      keep_best: function(report), called for each best one.
    """
    step = start
    if start and (start % every == 0 or start >= stop) and evaluations.lacks(start):
        evaluations.add(start, evaluate(), keep_best)
    while step < stop:
        if patience and evaluations.without_gain() >= patience:
            tf.logging.info("stopped early at step %d of %d: %d evaluations without a better %s "
                            "(--patience=%d)", step, stop, evaluations.without_gain(),
                            evaluations.names[0], patience)
            break
        step = min(stop, (step // every + 1) * every)
        train_to(step)
        evaluations.add(step, evaluate(), keep_best)

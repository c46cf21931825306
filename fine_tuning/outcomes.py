"""What a row of a classification file is to get: one class of several, any number of them, a score.

In: the cells of a label column; the head's logits.  Out: numbers to learn, losses, predictions,
reports. Each kind is a class with the same methods, whose instance knows the labels:

  classes     one of C labels; softmax
  label_sets  none, one or several of C labels, "a,b" or - in a cell; a sigmoid and a threshold each
  score       a number; the logit itself, squared error
"""

import collections

import numpy as np
import tensorflow.compat.v1 as tf

from cli import UserError
from fine_tuning import tasks, techniques
from fine_tuning.report import class_report_text, report_of, shares_of

NO_LABEL = -1
LEAST = 1e-7  # probability in a logarithm
OF_CLASSES = ("class_weights", "focal_gamma", "label_smoothing", "rdrop_weight")  # flags


class Classes(object):
    """One class of several.

    Attributes:
      NAME: of --outcome.  FIGURES: of a report that an evaluation keeps, the one to go by first.
      SERVED: the output that is the answer, [B, C].  KEPT: outputs that a report is made of.
      labels: C names.
    """

    NAME, FIGURES = "classes", ("accuracy", "macro_f1", "loss")
    SERVED, KEPT = "probabilities", ("probabilities", "log_probs")

    def __init__(self, labels, description=None):
        """labels: C names.  description: of the model, see predictor.write_description."""
        self.labels = list(labels)
        self.numbers = {label: number for number, label in enumerate(labels)}
        del description

    def description(self):
        """What a model's folder says of it, see predictor.write_description."""
        return {"outcome": self.NAME, "labels": self.labels}

    def targets(self, label):
        """The numbers to learn for a label's text, a list; NO_LABEL for None."""
        return [self.numbers.get(label, NO_LABEL)]

    def counts(self, targets):
        """How many of the targets of a file have each label, [C]."""
        return np.bincount(targets[targets >= 0], minlength=len(self.labels))

    def counts_text(self, targets):
        """What occurs among the targets of a file, and how often, for the log."""
        return "rows of each label: " + ", ".join(
            "{} {}".format(*pair) for pair in zip(self.labels, self.counts(targets)))

    def losses(self, logits, targets, chosen):
        """The loss of each row [B]; logits [B, C], targets [B], chosen: techniques.Techniques."""
        return techniques.classification_losses(logits, targets, chosen)

    def progress(self, logits, targets):
        """{name: [B]} whose mean over the rows is logged in training."""
        right = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), targets)
        return {"accuracy": tf.cast(right, tf.float32)}

    def outputs(self, logits):
        """The head's outputs by name, float32 [B, C], for logits [B, C]."""
        return {"probabilities": tf.nn.softmax(logits, name="probabilities"),
                "log_probs": tf.nn.log_softmax(logits)}

    def report(self, kept, targets):
        """A dict for JSON.

        Args:
          kept: of each model the arrays of KEPT, [rows, C]; several models answer by their mean.
          targets: int32 [rows], or [rows, C]; NO_LABEL for rows that do not count.
        """
        log_probs = np.logaddexp.reduce([arrays[1] for arrays in kept]) - np.log(len(kept))
        return report_of(log_probs, targets, self.labels)

    def report_text(self, report):
        """A report as lines of text."""
        return class_report_text(report)

    def answer(self, row, digits):
        """A dict for JSON of one row of SERVED, [C], rounded to so many digits."""
        return {"label": self.labels[int(row.argmax())],
                "probabilities": self.rounded(row, digits)}

    def rounded(self, row, digits):
        """{label: value} of a row."""
        return {label: round(float(value), digits) for label, value in zip(self.labels, row)}

    def header(self):
        """The first line of test_results.tsv."""
        return "\t".join(["row", "label", "confidence"] + [
            "p({})".format(label) for label in self.labels])

    def line(self, number, row):
        """A line of test_results.tsv: row number from 1, what is predicted, the values of SERVED.

        row: of SERVED, [C].
        """
        best = int(row.argmax())
        return "\t".join([str(number), self.labels[best]] + [
            "{:.9g}".format(value) for value in [row[best]] + list(row)])


class LabelSets(Classes):
    """None, one or several of C labels, each by itself."""

    NAME, FIGURES = "label_sets", ("micro_f1", "macro_f1", "loss")
    KEPT = ("probabilities",)

    def __init__(self, labels, description=None):
        """The thresholds [C] from which a label is predicted are the model's own, else 1/2."""
        super().__init__(labels)
        known = (description or {}).get("thresholds")
        self.thresholds = np.array(known or [0.5] * len(self.labels))

    def description(self):
        return dict(super().description(), thresholds=self.thresholds.tolist())

    def targets(self, label):
        if label is None:
            return [NO_LABEL] * len(self.labels)
        members = tasks.members_of(label)
        return [int(name in members) for name in self.labels]

    def counts(self, targets):
        return (targets == 1).sum(0)

    def losses(self, logits, targets, chosen):
        del chosen
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(targets, tf.float32), logits=logits), axis=-1)

    def progress(self, logits, targets):
        right = tf.equal(tf.cast(logits > 0, tf.int32), targets)  # [B, C]
        return {"accuracy": tf.reduce_mean(tf.cast(right, tf.float32), axis=-1)}

    def outputs(self, logits):
        return {"probabilities": tf.nn.sigmoid(logits, name="probabilities")}

    def report(self, kept, targets):
        counted = (targets >= 0).all(1)
        probabilities = np.mean([arrays[0] for arrays in kept], axis=0)[counted]
        truth = targets[counted] == 1  # [rows, C]
        predicted = probabilities >= self.thresholds
        hits, truths, guesses = [values.sum(0) for values in (truth & predicted, truth, predicted)]
        each = {label: dict(shares_of(*map(int, counts[:3])), threshold=float(counts[3]))
                for label, *counts in zip(self.labels, hits, truths, guesses, self.thresholds)}
        right = np.clip(np.where(truth, probabilities, 1 - probabilities), LEAST, 1)
        micro = shares_of(int(hits.sum()), int(truths.sum()), int(guesses.sum()))
        return {"examples": len(truth), "micro_f1": micro["f1"],
                "micro_precision": micro["precision"], "micro_recall": micro["recall"],
                "macro_f1": sum(row["f1"] for row in each.values()) / len(self.labels),
                "exact": float((truth == predicted).all(1).mean()),
                "loss": float(-np.log(right).mean(dtype=np.float64)), "labels": self.labels,
                "classes": each}

    def report_text(self, report):
        lines = ["{} = {}".format(name, report[name]) for name in (
            "examples", "micro_f1", "micro_precision", "micro_recall", "macro_f1", "exact", "loss")]
        lines += ["", "label\tprecision\trecall\tf1\texamples\tthreshold"]
        lines += ["{}\t{precision:.4f}\t{recall:.4f}\t{f1:.4f}\t{examples}\t{threshold:.4f}".format(
            label, **report["classes"][label]) for label in report["labels"]]
        return "\n".join(lines) + "\n"

    def predicted(self, row):
        """The labels of a row of probabilities [C]."""
        return [label for label, value, least in zip(self.labels, row, self.thresholds)
                if value >= least]

    def answer(self, row, digits):
        return {"labels": self.predicted(row), "probabilities": self.rounded(row, digits)}

    def header(self):
        return "\t".join(["row", "labels"] + ["p({})".format(label) for label in self.labels])

    def line(self, number, row):
        members = tasks.LABEL_SEPARATOR.join(self.predicted(row)) or tasks.NO_MEMBER
        return "\t".join([str(number), members] + ["{:.9g}".format(value) for value in row])


class Score(Classes):
    """A number; what is learned are its bits as int32, since all files of rows hold int32."""

    NAME, FIGURES = "score", ("pearson", "spearman", "loss")
    SERVED, KEPT = "scores", ("scores",)

    def targets(self, label):
        if label is None:
            return [NO_LABEL]  # the bits of no number
        return [int(np.float32(label).view(np.int32))]

    def counts(self, targets):
        return np.array([(targets != NO_LABEL).sum()])

    def counts_text(self, targets):
        scores = targets[targets != NO_LABEL].view(np.float32)
        if not len(scores):
            return "no scores"
        return "scores from {:g} to {:g}, on average {:.4g}".format(
            scores.min(), scores.max(), scores.mean(dtype=np.float64))

    def losses(self, logits, targets, chosen):
        del chosen
        return tf.square(logits[:, 0] - tf.bitcast(targets, tf.float32))

    def progress(self, logits, targets):
        return {}

    def outputs(self, logits):
        return {"scores": tf.identity(logits, "scores")}

    def report(self, kept, targets):
        counted = targets != NO_LABEL
        scores = np.mean([arrays[0] for arrays in kept], axis=0)[counted, 0].astype(np.float64)
        truth = targets[counted].view(np.float32).astype(np.float64)
        return {"examples": len(truth), "pearson": correlation(scores, truth),
                "spearman": correlation(ranks(scores), ranks(truth)),
                "loss": float(np.square(scores - truth).mean())}

    def report_text(self, report):
        return "".join("{} = {}\n".format(*item) for item in report.items())

    def answer(self, row, digits):
        return self.rounded(row, digits)

    def header(self):
        return "row\tscore"

    def line(self, number, row):
        return "{}\t{:.9g}".format(number, row[0])


KINDS = collections.OrderedDict((kind.NAME, kind) for kind in (Classes, LabelSets, Score))


def outcome_of(description):
    """The outcome that a model's folder describes."""
    return KINDS[description.get("outcome", Classes.NAME)](description["labels"], description)


def check_techniques(outcome, settings):
    """Raises UserError for a flag of classes alone that is set with another outcome."""
    for name in OF_CLASSES if outcome.NAME != Classes.NAME else ():
        if getattr(settings, name):
            raise UserError("--{} is {}: it is for one class of several, not for --outcome={}"
                            .format(name, getattr(settings, name), outcome.NAME))


def correlation(first, second):
    """Pearson's correlation of two float arrays [rows]; 0 where one of them is constant."""
    first, second = first - first.mean(), second - second.mean()
    scale = np.sqrt(np.square(first).sum() * np.square(second).sum())
    return float((first * second).sum() / scale) if scale else 0.0


def ranks(values):
    """The rank of each of the values [rows] from 1; equal ones share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[place]


def best_thresholds(probabilities, truth):
    """For each label the threshold of the best F1, midway between two neighbouring probabilities.

    Args:
      probabilities: float32 [rows, C].  truth: bool [rows, C].
    Returns:
      C floats; 1/2 for a label that never occurs.
    """
    found = []
    for column, is_true in zip(probabilities.T, truth.T):
        order = np.argsort(-column, kind="stable")
        values, hits = column[order].astype(np.float64), np.cumsum(is_true[order])
        f1 = 2.0 * hits / (np.arange(1, len(values) + 1) + is_true.sum())
        f1[:-1][values[:-1] == values[1:]] = 0.0  # no threshold tells equal ones apart
        last = int(f1.argmax())
        following = values[last + 1] if last + 1 < len(values) else 0.0
        found.append(float((values[last] + following) / 2) if is_true.any() else 0.5)
    return found

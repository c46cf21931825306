"""What a classifier got right: reports as JSON and text, predictions as a table.

In: counts of (true label, predicted label), or probabilities.  Out: eval_results*.json and .txt,
test_results.tsv.
"""

import json
import os

import numpy as np

from cli import write_whole


def class_report(confusion, labels, loss):
    """Accuracy, macro-F1 and the figures of each class.

    Args:
      confusion: int [C, C], rows by true label, columns by predicted label.
      labels: C names.
      loss: mean loss over the examples.
    Returns:
      dict for JSON. A class that is neither there nor predicted counts 0 in macro_f1.
    """
    confusion = np.asarray(confusion, np.int64)
    hits, truths, guesses = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    classes = {}
    for number, label in enumerate(labels):
        classes[label] = shares_of(int(hits[number]), int(truths[number]), int(guesses[number]))
    return {"examples": int(confusion.sum()),
            "accuracy": int(hits.sum()) / int(confusion.sum()),
            "macro_f1": sum(row["f1"] for row in classes.values()) / len(labels),
            "loss": float(loss), "labels": list(labels), "classes": classes,
            "confusion": confusion.tolist()}


def shares_of(hits, truths, guesses):
    """Precision, recall, F1 and examples of a label; each is 0 where it has no denominator.

    hits: how many were right.  truths: how many there are.  guesses: how many were predicted.
    """
    return {"precision": hits / guesses if guesses else 0.0,
            "recall": hits / truths if truths else 0.0,
            "f1": 2 * hits / (truths + guesses) if truths + guesses else 0.0, "examples": truths}


def class_report_text(report):
    """A class_report as lines of text: the totals, each class, the confusion counts."""
    lines = ["{} = {}".format(name, report[name])
             for name in ("examples", "accuracy", "macro_f1", "loss")]
    lines += ["", "label\tprecision\trecall\tf1\texamples"]
    lines += ["{}\t{precision:.4f}\t{recall:.4f}\t{f1:.4f}\t{examples}".format(
        label, **report["classes"][label]) for label in report["labels"]]
    lines += ["", "true \\ predicted\t" + "\t".join(report["labels"])]
    lines += [label + "\t" + "\t".join(map(str, counts))
              for label, counts in zip(report["labels"], report["confusion"])]
    return "\n".join(lines) + "\n"


def report_of(log_probs, truth, labels):
    """The class_report of log-probabilities float32 [rows, C] and label numbers [rows].

    Rows with a number below 0 (blank lines) do not count.
    """
    log_probs, truth = log_probs[truth >= 0], truth[truth >= 0]
    confusion = np.zeros([len(labels)] * 2, np.int64)
    np.add.at(confusion, (truth, log_probs.argmax(1)), 1)
    losses = -log_probs[np.arange(len(truth)), truth]
    return class_report(confusion, labels, losses.mean(dtype=np.float64))


def write_report(folder, name, report, text):
    """Writes <name>.json and <name>.txt into folder; returns the text file's path."""
    content = json.dumps(report, ensure_ascii=False, indent=2) + "\n"
    write_whole(os.path.join(folder, name + ".json"), content)
    path = os.path.join(folder, name + ".txt")
    write_whole(path, text)
    return path


def write_predictions(path, answers, outcome):
    """Writes answers [rows, C] as test_results.tsv with its header.

    A row that is not a number, of a blank line of the input, is an empty line.
    outcome: see outcomes.
    """
    lines = [outcome.header()] + ["" if np.isnan(row).any() else outcome.line(number, row)
                                  for number, row in enumerate(answers, 1)]
    write_whole(path, "\n".join(lines) + "\n")


def write_submission(path, ids, probabilities, labels):
    """Writes what CLUE's site takes: a JSON object with id and label in each line.

    Args:
      path: of the file.  ids: of the rows.  probabilities: [rows, C].  labels: C names.
    """
    write_whole(path, "".join(json.dumps(
        {"id": number, "label": labels[int(np.argmax(row))]}, ensure_ascii=False) + "\n"
        for number, row in zip(ids, probabilities)))

"""What pre-training gains on real tasks, within a given time.

In: a corpus, a held-out part of it, and a folder of classification data.
Out: a table on standard output: each task fine-tuned from scratch and from the pre-trained model,
over several seeds, each arm at the learning rate that its development rows chose; and the
pre-trained model's figures on the held-out text. Every run is a line of results.jsonl in
--output_dir; a run that stands there is not made again, so that a killed benchmark goes on.

    python benchmarks/pretraining_gain.py --corpus=train.txt.xz --heldout=heldout.txt.xz \\
      --data_dir=data_sets --minutes=20
    python benchmarks/pretraining_gain.py --pretrained=my_model --data_dir=data_sets

Where a data set has no labelled test file, or no training file, here are the rules: LCQMC is
trained on its dev file; every eleventh of these rows chooses the rate and is not trained on. AFQMC
and TNEWS are tested on dev; every twentieth training row chooses the rate. Both arms see the same
rows, epochs and seeds.
"""

import collections
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from absl import flags

import cli

# files: the training rows, the rows that choose (a number: every so many training rows), the test.
Subject = collections.namedtuple("Subject", "name task columns files max_seq_length epochs")
SUBJECTS = collections.OrderedDict((subject.name, subject) for subject in (
    Subject("lcqmc", "lcqmc", None, ("lcqmc/dev.txt", 11, "lcqmc/test.txt"), 64, 3),
    Subject("thucnews", "thucnews", None, (
        "thucnews_titles/train.txt", "thucnews_titles/dev.txt", "thucnews_titles/test.txt"), 48, 2),
    Subject("chnsenticorp", "chnsenticorp", None, (
        "chnsenticorp/train.tsv", "chnsenticorp/dev.tsv", "chnsenticorp/test.tsv"), 128, 3),
    Subject("book_review", "chnsenticorp", None, (
        "book_review/train.tsv", "book_review/dev.tsv", "book_review/test.tsv"), 96, 2),
    Subject("afqmc", "tsv", "text_a,text_b,label", (
        "afqmc/train.txt", 20, "afqmc/dev.txt"), 64, 2),
    Subject("tnews", "tsv", "text_a,label", ("tnews/train.tsv", 20, "tnews/dev.tsv"), 48, 2)))
SCRATCH, PRETRAINED = "from scratch", "pre-trained"
CALIBRATION_STEPS = 30  # after which the speed of a step is known


def define_flags(flag_values):
    """Defines this script's flags."""
    for name, default, text in (
            ("corpus", None, "Text to pre-train on. Required without --pretrained."),
            ("heldout", None, "Text of the same kind, to evaluate on. Required likewise."),
            ("data_dir", None, "Folder of the classification data. Required."),
            ("output_dir", "output/gain", "Folder of all that is made. Default: not under git."),
            ("pretrained", None, "Folder of a model to fine-tune in place of pre-training one."),
            ("bert_config_file", "albert_config/albert_config_tiny.json",
             "Model config. Default: the one that a CPU trains in minutes."),
            ("vocab_file", "albert_config/vocab.txt", "Vocabulary. Default: the one of set-up."),
            ("tasks", "lcqmc,thucnews,chnsenticorp", "Tasks, by commas, of: {}. Default: three of "
             "different kinds.".format(", ".join(SUBJECTS))),
            ("rates", "1e-4,2e-4,4e-4", "Learning rates of fine-tuning to choose from. Default: "
             "around the best of a tiny model."),
            ("seeds", "1,2,3", "Seeds of fine-tuning. Default: the fewest that show a spread."),
            ("data_flags", "", "Further flags of create_pretraining_data.py, by spaces. Default: "
             "whole words."),
            ("precision", "fp32", "Number format of pre-training. Default: runs everywhere.")):
        flags.DEFINE_string(name, default, text, flag_values=flag_values)
    for name, default, text in (
            ("max_seq_length", 128, "Length of pre-training. Default: most texts are shorter."),
            ("train_batch_size", 32, "Batch of pre-training. Default: measured to learn fastest."),
            ("max_train_rows", 0, "First training rows of a task to use. Default: 0, all.")):
        flags.DEFINE_integer(name, default, text, flag_values=flag_values)
    flags.DEFINE_float("minutes", 20.0, "Wall time of pre-training. Default: a coffee.",
                       flag_values=flag_values)


def run_command(script, arguments):
    """Runs a script of the repository; returns its wall seconds; UserError holds its last line."""
    started = time.time()
    command = [sys.executable, os.path.join(ROOT, script)] + [
        "--{}={}".format(name, value) for name, value in arguments.items() if value is not None]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, encoding="utf-8")
    if done.returncode:
        raise cli.UserError("{}: {}".format(script, done.stderr.strip().splitlines()[-1]))
    return time.time() - started


def figures_of(path):
    """The name = value lines of a results file as a dict of floats."""
    with open(path, encoding="utf-8") as stream:
        return {name: float(value) for name, value in (line.split(" = ") for line in stream)}


# --- pre-training -----------------------------------------------------------------------------


def pretraining_records(settings):
    """Makes the records of both texts, with masks that follow the epoch and masks that stay."""
    predictions = int(settings.max_seq_length * 0.15) + 1
    shared = dict(vocab_file=settings.vocab_file, max_seq_length=settings.max_seq_length,
                  max_predictions_per_seq=predictions,
                  **dict(flag.lstrip("-").split("=", 1) for flag in settings.data_flags.split()))
    files = {}
    for name, text, more in (("train", settings.corpus, dict(masking="dynamic")),
                             ("heldout", settings.heldout, dict(dupe_factor=2))):
        folder = os.path.join(settings.output_dir, "records_" + name)
        os.makedirs(folder, exist_ok=True)
        run_command("create_pretraining_data.py", dict(
            shared, input_file=text, output_file=os.path.join(folder, "tf.tfrecord"), **more))
        files[name] = folder
    return dict(input_file=files["train"], eval_input_file=files["heldout"],
                max_seq_length=settings.max_seq_length, max_predictions_per_seq=predictions)


def seconds_a_step(seconds_of, short, long):
    """Seconds of a step without the start-up: by how much a run of `long` steps takes longer.

    seconds_of: function(number of steps) -> seconds of a run.
    """
    first = seconds_of(short)
    return (seconds_of(long) - first) / (long - short)


def pretrained_model(settings):
    """Pre-trains for --minutes; returns (folder, held-out figures, steps, seconds)."""
    folder = os.path.join(settings.output_dir, "pretraining")
    shared = dict(pretraining_records(settings), bert_config_file=settings.bert_config_file,
                  train_batch_size=settings.train_batch_size, precision=settings.precision)
    timed = os.path.join(settings.output_dir, "calibration")

    def seconds_of(steps):
        shutil.rmtree(timed, ignore_errors=True)
        return run_command("run_pretraining.py", dict(
            shared, output_dir=timed, do_train=True, num_train_steps=steps, num_warmup_steps=0))

    seconds = seconds_a_step(seconds_of, CALIBRATION_STEPS, 2 * CALIBRATION_STEPS)
    steps = max(1, int(settings.minutes * 60 / seconds))
    print("{} steps of {:.3f} s".format(steps, seconds), flush=True)
    spent = run_command("run_pretraining.py", dict(
        shared, output_dir=folder, do_train=True, do_eval=True, num_train_steps=steps,
        num_warmup_steps=min(100, steps // 10)))
    return folder, figures_of(os.path.join(folder, "eval_results.txt")), steps, spent


# --- fine-tuning ------------------------------------------------------------------------------


def task_folder(subject, settings):
    """The task's rows in a folder of its own, as the rules above cut them; returns the folder."""
    folder = os.path.join(settings.output_dir, "data_" + subject.name)
    os.makedirs(folder, exist_ok=True)
    train, chooser, test = subject.files
    ending = {"tsv": ".tsv", "chnsenticorp": ".tsv"}.get(subject.task, ".txt")

    def lines_of(name):
        with open(os.path.join(settings.data_dir, name), encoding="utf-8", newline="\n") as stream:
            return stream.readlines()

    rows = lines_of(train)
    header = rows[:1] if rows[0].startswith("label\t") else []
    rows = rows[len(header):]
    if isinstance(chooser, int):
        dev = header + rows[chooser - 1::chooser]
        rows = [row for number, row in enumerate(rows, 1) if number % chooser]
    else:
        dev = lines_of(chooser)
    if settings.max_train_rows:
        rows = rows[:settings.max_train_rows]
    for name, found in (("train", header + rows), ("dev", dev), ("test", lines_of(test))):
        with open(os.path.join(folder, name + ending), "w", encoding="utf-8",
                  newline="\n") as stream:
            stream.writelines(found)
    return folder


class Results(object):
    """The runs made so far, a line of JSON each, by (task, arm, rate, seed)."""

    def __init__(self, folder):
        """Reads what earlier calls have left in the folder."""
        self.path = os.path.join(folder, "results.jsonl")
        self.found = {}
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as stream:
                for line in stream:
                    row = json.loads(line)
                    self.found[tuple(row["key"])] = row

    def add(self, key, **row):
        """Notes a run's figures and returns them."""
        self.found[key] = dict(row, key=key)
        with open(self.path, "a", encoding="utf-8", newline="\n") as stream:
            stream.write(json.dumps(self.found[key]) + "\n")
        return self.found[key]


def fine_tuned(subject, data, checkpoint, rate, seed, settings, results):
    """Accuracy on the choosing and the test rows of one fine-tuning: dict with dev and test."""
    key = (subject.name, PRETRAINED if checkpoint else SCRATCH, rate, seed)
    if key in results.found:
        return results.found[key]
    folder = os.path.join(settings.output_dir, "fine_tuning")
    shutil.rmtree(folder, ignore_errors=True)
    shared = dict(task_name=subject.task, columns=subject.columns, data_dir=data,
                  vocab_file=settings.vocab_file, bert_config_file=settings.bert_config_file,
                  max_seq_length=subject.max_seq_length, output_dir=folder, do_eval=True)
    seconds = run_command("run_classifier.py", dict(
        shared, do_train=True, train_batch_size=32, learning_rate=rate, random_seed=seed,
        num_train_epochs=subject.epochs, init_checkpoint=checkpoint))
    run_command("run_classifier.py", dict(shared, eval_split="test"))
    accuracy = {}
    for split, name in (("dev", "eval_results.json"), ("test", "eval_results_test.json")):
        with open(os.path.join(folder, name), encoding="utf-8") as stream:
            accuracy[split] = json.load(stream)["accuracy"]
    row = results.add(key, seconds=seconds, **accuracy)
    print("{} {} rate {} seed {}: dev {dev:.4f} test {test:.4f}".format(*key, **row), flush=True)
    return row


def task_line(subject, checkpoint, settings, results):
    """A line of the table: both arms of a task, each at its own best rate."""
    data, arms = task_folder(subject, settings), []
    rates, seeds = settings.rates.split(","), settings.seeds.split(",")
    for start in (None, checkpoint):
        best = max(rates, key=lambda rate: fine_tuned(
            subject, data, start, rate, seeds[0], settings, results)["dev"])
        tests = [100 * fine_tuned(subject, data, start, best, seed, settings, results)["test"]
                 for seed in seeds]
        arms.append((statistics.mean(tests), statistics.pstdev(tests), best))
    (scratch, spread, rate), (gained, spread_gained, rate_gained) = arms
    return "| {} | {:.1f} ± {:.1f} ({}) | {:.1f} ± {:.1f} ({}) | {:+.1f} |".format(
        subject.name, scratch, spread, rate, gained, spread_gained, rate_gained, gained - scratch)


def main(flag_values):
    """Pre-trains unless a model is given, fine-tunes both arms, prints the tables."""
    cli.require_flags(flag_values, ["data_dir"] + (
        [] if flag_values.pretrained else ["corpus", "heldout"]))
    settings = cli.settings_of(flag_values)
    unknown = sorted(set(settings.tasks.split(",")) - set(SUBJECTS))
    if unknown:
        raise cli.UserError("--tasks: unknown task {!r}; known are {}".format(
            unknown[0], ", ".join(SUBJECTS)))
    os.makedirs(settings.output_dir, exist_ok=True)
    results, checkpoint = Results(settings.output_dir), settings.pretrained
    if not checkpoint:
        made = results.found.get(("pretraining",))
        if not made:
            folder, heldout, steps, seconds = pretrained_model(settings)
            made = results.add(("pretraining",), folder=folder, heldout=heldout, steps=steps,
                               seconds=seconds)
        checkpoint = made["folder"]
        print("\n| steps | minutes | held-out MLM loss | MLM accuracy | SOP accuracy |\n"
              "| --- | --- | --- | --- | --- |\n| {} | {:.1f} | {:.3f} | {:.4f} | {:.4f} |".format(
                  made["steps"], made["seconds"] / 60, made["heldout"]["mlm_loss"],
                  made["heldout"]["mlm_accuracy"], made["heldout"]["sop_accuracy"]), flush=True)
    lines = [task_line(SUBJECTS[name], checkpoint, settings, results)
             for name in settings.tasks.split(",")]
    print("\n| task | from scratch (rate) | pre-trained (rate) | gain |\n"
          "| --- | --- | --- | --- |\n" + "\n".join(lines))


if __name__ == "__main__":
    cli.run(main, define_flags)

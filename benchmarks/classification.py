"""What the tiny model reaches on real classification data, at what cost, and how fast it goes.

In: a folder with lcqmc/{dev,test}.txt, thucnews_titles/{dev,test}.txt and
chnsenticorp/{train,test}.tsv.
Out: two tables on standard output. LCQMC's and THUCNews' training files are not in that folder, so
their dev files are trained on. The learning rate was settled on THUCNews; nothing else is tuned.

    python benchmarks/classification.py --data_dir=data_sets
    python benchmarks/classification.py --data_dir=data_sets --init_checkpoint=albert_tiny_zh
"""

import collections
import functools
import os
import shutil
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import tensorflow.compat.v1 as tf
from absl import flags

import cli
import modeling
import run_classifier
from benchmarks import measuring
from fine_tuning import tasks, techniques
from fine_tuning.examples import TextEncoder, cached_examples
from fine_tuning.outcomes import Classes
from tokenization import FullTokenizer

Subject = collections.namedtuple("Subject", "task folder files max_seq_length epochs")
SUBJECTS = (
    Subject("lcqmc", "lcqmc", {"dev.txt": "train.txt", "test.txt": "test.txt"}, 128, 3),
    Subject("thucnews", "thucnews_titles", {"dev.txt": "train.txt", "test.txt": "test.txt"}, 64,
            3),
    Subject("chnsenticorp", "chnsenticorp", {"train.tsv": "train.tsv", "test.tsv": "test.tsv"},
            64, 2))
LONGEST = 128  # the padded run of the speed table
BATCH = 32


def define_flags(flag_values):
    """Defines this script's flags."""
    measuring.define_flags(flag_values)
    string = functools.partial(flags.DEFINE_string, flag_values=flag_values)
    string("init_checkpoint", None, "Checkpoint to start from. Default: none, from scratch.")
    string("tasks", ",".join(subject.task for subject in SUBJECTS),
           "Tasks to train, by commas; empty for the speed table alone. Default: all.")
    flags.DEFINE_float("learning_rate", 1e-4, "Learning rate. Default: tiny learns with it; from "
                       "scratch it stays at chance with 3e-4 and above.", flag_values=flag_values)


# --- accuracy ---------------------------------------------------------------------------------


def prepared_folder(subject, settings):
    """The data in a folder of its own, under the names that the task expects."""
    folder = os.path.join(settings.output_dir, subject.task + "_data")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for there, here in subject.files.items():
        shutil.copy(os.path.join(settings.data_dir, subject.folder, there),
                    os.path.join(folder, here))
    return folder


def command_of(subject, settings):
    """The command that trains and evaluates a subject."""
    arguments = [
        ("task_name", subject.task), ("data_dir", prepared_folder(subject, settings)),
        ("vocab_file", settings.vocab_file), ("bert_config_file", settings.bert_config_file),
        ("output_dir", os.path.join(settings.output_dir, subject.task)),
        ("max_seq_length", subject.max_seq_length), ("num_train_epochs", subject.epochs),
        ("train_batch_size", BATCH), ("learning_rate", settings.learning_rate),
        ("do_train", True), ("do_eval", True), ("eval_split", "test"), ("do_predict", True)]
    if settings.init_checkpoint:
        arguments.append(("init_checkpoint", settings.init_checkpoint))
    return ["run_classifier.py"] + ["--{}={}".format(*item) for item in arguments]


def accuracy_table(settings):
    """Trains each of the subjects chosen; prints a line for each."""
    titles = ("task", "epochs", "test rows", "most frequent class", "accuracy", "macro-F1",
              "CPU-s", "s")
    print("\n| " + " | ".join(titles) + " |\n|" + " --- |" * len(titles), flush=True)
    commands = []
    for subject in SUBJECTS:
        if subject.task not in settings.tasks.split(","):
            continue
        commands.append(command_of(subject, settings))
        report, printed, cpu, wall = measuring.measured(
            commands[-1], os.path.join(settings.output_dir, subject.task),
            "eval_results_test.json")
        if "accuracy = {}\n".format(report["accuracy"]) not in printed:
            raise cli.UserError("the printed accuracy is not the report's")
        largest = max(row["examples"] for row in report["classes"].values())
        print("| {} | {} | {} | {:.4f} | {:.4f} | {:.4f} | {:.0f} | {:.0f} |".format(
            subject.task, subject.epochs, report["examples"], largest / report["examples"],
            report["accuracy"], report["macro_f1"], cpu, wall), flush=True)
    print("\n" + "\n".join("python " + " ".join(command) for command in commands))


# --- speed ------------------------------------------------------------------------------------


def speed_table(settings):
    """Prints how much is gained by padding to the longest row of a batch, on LCQMC's test file."""
    task = tasks.task_named("lcqmc")
    encoder = TextEncoder(FullTokenizer(settings.vocab_file), LONGEST)
    outcome = Classes(task.labels)
    examples = cached_examples(
        task, outcome, os.path.join(settings.data_dir, "lcqmc", "test.txt"), encoder,
        os.path.join(settings.output_dir, "encoded"), "utf-8", True)
    config = modeling.AlbertConfig.from_json_file(settings.bert_config_file)
    plain = techniques.Techniques(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, None)
    objective = run_classifier.classifier_objective(config, outcome, 0.0, plain)

    def prediction(features):
        return run_classifier.classifier(features, config, len(task.labels)).log_probs

    for line in measuring.padding_lines(
            "LCQMC", examples, BATCH, LONGEST, settings.speed_batches, objective, prediction):
        print(line, flush=True)


def main(flag_values):
    """Prints both tables."""
    cli.require_flags(flag_values, ["data_dir"])
    settings = cli.settings_of(flag_values)
    print("TensorFlow {}, {} cores".format(tf.__version__, os.cpu_count()), flush=True)
    if settings.speed_batches:
        speed_table(settings)
    if settings.tasks:
        accuracy_table(settings)


if __name__ == "__main__":
    cli.run(main, define_flags)

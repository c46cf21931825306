"""What the tiny model reaches on real classification data, at what cost, and how fast it goes.

In: a folder with lcqmc/{dev,test}.txt, thucnews_titles/{dev,test}.txt and
chnsenticorp/{train,test}.tsv.
Out: two tables on standard output. LCQMC's and THUCNews' training files are not in that folder, so
their dev files are trained on. The learning rate was settled on THUCNews; nothing else is tuned.

    python benchmarks/classification.py --data_dir=data_sets
    python benchmarks/classification.py --data_dir=data_sets --init_checkpoint=albert_tiny_zh
"""

import collections
import json
import os
import resource
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import tensorflow.compat.v1 as tf
from absl import flags

import cli
import modeling
import optimization
import run_classifier
from fine_tuning import tasks
from fine_tuning.examples import TextEncoder, cached_examples, example_batches
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
WARM_UP = 5  # batches before the clock starts


def define_flags(flag_values):
    """Defines this script's flags."""
    for name, default, text in (
            ("data_dir", None, "Folder of the data sets. Required."),
            ("output_dir", "output/benchmark", "Folder of the models. Default: not under git."),
            ("bert_config_file", "albert_config/albert_config_tiny.json",
             "Model config. Default: the one that a CPU trains in minutes."),
            ("vocab_file", "albert_config/vocab.txt", "Vocabulary. Default: the one of set-up."),
            ("init_checkpoint", None, "Checkpoint to start from. Default: none, from scratch."),
            ("tasks", ",".join(subject.task for subject in SUBJECTS),
             "Tasks to train, by commas; empty for the speed table alone. Default: all.")):
        flags.DEFINE_string(name, default, text, flag_values=flag_values)
    flags.DEFINE_float("learning_rate", 1e-4, "Learning rate. Default: tiny learns with it; from "
                       "scratch it stays at chance with 3e-4 and above.", flag_values=flag_values)
    flags.DEFINE_integer("speed_batches", 40, "Batches of the speed table, 0 leaves it out. "
                         "Default: a minute's work.", flag_values=flag_values)


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


def measured(command, output):
    """Runs a command that writes to the folder `output`.

    Returns:
      (report of the test file, CPU seconds, wall seconds).
    """
    shutil.rmtree(output, ignore_errors=True)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    done = subprocess.run([sys.executable] + command, cwd=os.getcwd(), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True, encoding="utf-8")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise cli.UserError(done.stderr.strip().splitlines()[-1])
    with open(os.path.join(output, "eval_results_test.json"), encoding="utf-8") as stream:
        report = json.load(stream)
    if "accuracy = {}\n".format(report["accuracy"]) not in done.stdout.split("\n\n")[0] + "\n":
        raise cli.UserError("the printed accuracy is not the report's")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return report, cpu, time.time() - started


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
        report, cpu, wall = measured(commands[-1], os.path.join(settings.output_dir, subject.task))
        largest = max(row["examples"] for row in report["classes"].values())
        print("| {} | {} | {} | {:.4f} | {:.4f} | {:.4f} | {:.0f} | {:.0f} |".format(
            subject.task, subject.epochs, report["examples"], largest / report["examples"],
            report["accuracy"], report["macro_f1"], cpu, wall), flush=True)
    print("\n" + "\n".join("python " + " ".join(command) for command in commands))


# --- speed ------------------------------------------------------------------------------------


def speed(examples, config, num_labels, training, pad_to, batches):
    """(examples per second, examples per CPU second) of training or prediction."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        data = example_batches(examples, BATCH, 1, pad_to)
        iterator = tf.data.make_initializable_iterator(data)
        features = iterator.get_next()
        head = run_classifier.classifier(
            features, config, num_labels, 0.1 if training else 0.0,
            tf.cast(tf.train.get_or_create_global_step(), tf.int32), training=training)
        step = head.log_probs
        if training:
            loss = modeling.softmax_head(head.logits, features["label_ids"]).loss
            step = optimization.create_optimizer(loss, 1e-4, 1000, 0, optimizer="adamw").op
        session.run([iterator.initializer, tf.global_variables_initializer()])
        for _ in range(WARM_UP):
            session.run(step)
        wall, cpu = time.time(), time.process_time()
        for _ in range(batches):
            session.run(step)
        rows = BATCH * batches
        return rows / (time.time() - wall), rows / (time.process_time() - cpu)


def speed_table(settings):
    """Prints how much is gained by padding to the longest row of a batch, on LCQMC's test file."""
    task = tasks.task_named("lcqmc")
    encoder = TextEncoder(FullTokenizer(settings.vocab_file), LONGEST)
    examples = cached_examples(
        task, task.labels, os.path.join(settings.data_dir, "lcqmc", "test.txt"), encoder,
        os.path.join(settings.output_dir, "encoded"), "utf-8", True)
    config = modeling.AlbertConfig.from_json_file(settings.bert_config_file)
    print("\n| LCQMC, batch {}, max_seq_length {} | longest of the batch | padded to {} | factor "
          "|\n| --- | --- | --- | --- |".format(BATCH, LONGEST, LONGEST))
    for title, training in (("training", True), ("prediction", False)):
        short = speed(examples, config, len(task.labels), training, None,
                      settings.speed_batches)
        padded = speed(examples, config, len(task.labels), training, LONGEST,
                       settings.speed_batches)
        for unit, few, many in zip(("examples/s", "examples/CPU-s"), short, padded):
            print("| {}, {} | {:.1f} | {:.1f} | {:.2f} |".format(
                title, unit, few, many, few / many), flush=True)


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

"""What a model reaches on real sequence labelling, with and without a CRF, and how fast it goes.

In: a folder with msra/{train,test}.txt, resume/{train,test}.char.bmes, cluener/{train,dev}.json.
Out: two tables on standard output. Of the training files the first --rows sentences are used;
CLUENER's test file has no labels, so its dev file is tested on. Nothing is tuned.

    python benchmarks/labelling.py --data_dir=data_sets
    python benchmarks/labelling.py --data_dir=data_sets --rows=0 --init_checkpoint=albert_tiny_zh
"""

import collections
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import time
import types

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import tensorflow.compat.v1 as tf
from absl import flags

import cli
import modeling
import optimization
import run_ner
from fine_tuning import labelling, step, tag_schemes
from fine_tuning.examples import example_batches
from tokenization import FullTokenizer
from training import run_settings

NerData = collections.namedtuple("NerData", "task files tested")
SETS = (
    NerData("msra", ("train.txt", "test.txt"), "test"),
    NerData("resume", ("train.char.bmes", "test.char.bmes"), "test"),
    NerData("cluener", ("train.json", "dev.json"), "dev"))
LONGEST, BATCH = 128, 32
WARM_UP = 5  # batches before the clock starts


def define_flags(flag_values):
    """Defines this script's flags."""
    for name, default, text in (
            ("data_dir", None, "Folder of the data sets. Required."),
            ("output_dir", "output/benchmark_ner", "Folder of the models. Default: not under git."),
            ("bert_config_file", "albert_config/albert_config_tiny.json",
             "Model config. Default: the one that a CPU trains in minutes."),
            ("vocab_file", "albert_config/vocab.txt", "Vocabulary. Default: the one of set-up."),
            ("init_checkpoint", None, "Checkpoint to start from. Default: none, from scratch."),
            ("tasks", ",".join(data.task for data in SETS),
             "Data sets to train on, by commas; empty for the speed table alone. Default: all.")):
        flags.DEFINE_string(name, default, text, flag_values=flag_values)
    flags.DEFINE_integer("rows", 3000, "Sentences of each training file, 0 takes all. Default: "
                         "minutes of work.", flag_values=flag_values)
    flags.DEFINE_integer("epochs", 5, "Passes over them. Default: run_ner.py's.",
                         flag_values=flag_values)
    flags.DEFINE_float("learning_rate", 3e-4, "Learning rate. Default: tiny learns with it.",
                       flag_values=flag_values)
    flags.DEFINE_integer("speed_batches", 40, "Batches of the speed table, 0 leaves it out. "
                         "Default: a minute's work.", flag_values=flag_values)


# --- F1 ---------------------------------------------------------------------------------------


def first_sentences(text, rows):
    """The first `rows` sentences of a file's text, all for 0."""
    between = "\n" if text.startswith("{") else "\n\n"
    sentences = text.strip("\n").split(between)
    return between.join(sentences[:rows or None]) + "\n"


def shortened_folder(data, settings):
    """The data in a folder of its own, the training file cut to --rows sentences."""
    folder = os.path.join(settings.output_dir, data.task + "_data")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name, rows in zip(data.files, (settings.rows, 0)):
        with io.open(os.path.join(settings.data_dir, data.task, name),
                     encoding="utf-8") as stream:
            text = first_sentences(stream.read(), rows)
        with io.open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
    return folder


def ner_command(data, settings, with_crf):
    """The command that trains and tests on a data set, and its output folder."""
    output = os.path.join(settings.output_dir, data.task + ("_crf" if with_crf else ""))
    arguments = [
        ("task_name", data.task), ("data_dir", shortened_folder(data, settings)),
        ("vocab_file", settings.vocab_file), ("bert_config_file", settings.bert_config_file),
        ("output_dir", output), ("max_seq_length", LONGEST), ("train_batch_size", BATCH),
        ("num_train_epochs", settings.epochs), ("learning_rate", settings.learning_rate),
        ("crf", with_crf), ("do_train", True), ("do_eval", True), ("eval_split", data.tested)]
    if settings.init_checkpoint:
        arguments.append(("init_checkpoint", settings.init_checkpoint))
    return ["run_ner.py"] + ["--{}={}".format(*item) for item in arguments], output


def f1_table(settings):
    """Trains on each of the data sets chosen; prints a line for each."""
    titles = ("data", "CRF", "sentences", "entities tested", "precision", "recall", "F1", "CPU-s",
              "s")
    print("\n| " + " | ".join(titles) + " |\n|" + " --- |" * len(titles), flush=True)
    commands = []
    for data, with_crf in [(data, with_crf) for data in SETS for with_crf in (False, True)
                           if data.task in settings.tasks.split(",")]:
        command, output = ner_command(data, settings, with_crf)
        commands.append(command)
        shutil.rmtree(output, ignore_errors=True)
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
        done = subprocess.run([sys.executable] + command, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, encoding="utf-8")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise cli.UserError(done.stderr.strip().splitlines()[-1])
        name = "eval_results_test.json" if data.tested == "test" else "eval_results.json"
        with io.open(os.path.join(output, name), encoding="utf-8") as stream:
            report = json.load(stream)
        print("| {} | {} | {} | {entities} | {precision:.4f} | {recall:.4f} | {f1:.4f} | {:.0f} | "
              "{:.0f} |".format(
                  data.task, "yes" if with_crf else "no", settings.rows or "all",
                  after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
                  time.time() - started, **report), flush=True)
    print("\n" + "\n".join("python " + " ".join(command) for command in commands))


# --- speed ------------------------------------------------------------------------------------


def training_rate(examples, config, tags, pad_to, batches):
    """(examples per second, examples per CPU second) of training."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        iterator = tf.data.make_initializable_iterator(
            example_batches(examples, BATCH, 1, pad_to))
        features = iterator.get_next()
        settings = types.SimpleNamespace(crf=False, classifier_dropout=0.1)
        scalars, gradients = step.head_step(
            features, run_ner.tagger_objective(config, tags, settings),
            run_settings.Training(BATCH, 1e-4, 1000, 0, "adamw"))
        update = optimization.create_optimizer(scalars["loss"], 1e-4, 1000, 0, optimizer="adamw",
                                               gradients=gradients).op
        session.run([iterator.initializer, tf.global_variables_initializer()])
        for _ in range(WARM_UP):
            session.run(update)
        wall, cpu = time.time(), time.process_time()
        for _ in range(batches):
            session.run(update)
        rows = BATCH * batches
        return rows / (time.time() - wall), rows / (time.process_time() - cpu)


def padding_table(settings):
    """Prints how much is gained by padding to the longest row of a batch, on --rows of MSRA."""
    folder = shortened_folder(SETS[0], settings)
    task = labelling.TASKS[SETS[0].task]
    source = os.path.join(folder, SETS[0].files[0])
    sentences, scheme = run_ner.read_tagged(source, "utf-8")
    found = labelling.types_found(sentences, source)
    data = run_ner.NerTask(task, folder, "utf-8", scheme, found, FullTokenizer(settings.vocab_file),
                           LONGEST, os.path.join(folder, "encoded"))
    examples = run_ner.encode_windows(data, sentences)
    config = modeling.AlbertConfig.from_json_file(settings.bert_config_file)
    print("\n| MSRA, training, batch {}, max_seq_length {} | longest of the batch | padded to {} | "
          "factor |\n| --- | --- | --- | --- |".format(BATCH, LONGEST, LONGEST))
    short, padded = [training_rate(examples, config, tag_schemes.tags_of(scheme, found), pad_to,
                                   settings.speed_batches) for pad_to in (None, LONGEST)]
    for unit, few, many in zip(("examples/s", "examples/CPU-s"), short, padded):
        print("| {} | {:.1f} | {:.1f} | {:.2f} |".format(unit, few, many, few / many), flush=True)


def main(flag_values):
    """Prints both tables."""
    cli.require_flags(flag_values, ["data_dir"])
    settings = cli.settings_of(flag_values)
    print("TensorFlow {}, {} cores".format(tf.__version__, os.cpu_count()), flush=True)
    if settings.speed_batches:
        padding_table(settings)
    if settings.tasks:
        f1_table(settings)


if __name__ == "__main__":
    cli.run(main, define_flags)

"""What a model reaches on real sequence labelling, from scratch and pre-trained, and how fast.

In: a folder with msra/{train,test}.txt, resume/{train,test}.char.bmes, cluener/{train,dev}.json.
Out: two tables on standard output. Of the training files the first --rows sentences are used;
CLUENER's test file has no labels, so its dev file is tested on. Nothing is tuned.

    python benchmarks/labelling.py --data_dir=data_sets
    python benchmarks/labelling.py --data_dir=data_sets --rows=0 --pretrained=albert_tiny_zh
"""

import collections
import functools
import io
import itertools
import os
import shutil
import sys
import types

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import tensorflow.compat.v1 as tf
from absl import flags

import cli
import modeling
import run_ner
from benchmarks import measuring, pretraining_gain
from fine_tuning import labelling, tag_schemes
from tokenization import FullTokenizer

NerData = collections.namedtuple("NerData", "task files tested")
SETS = (
    NerData("msra", ("train.txt", "test.txt"), "test"),
    NerData("resume", ("train.char.bmes", "test.char.bmes"), "test"),
    NerData("cluener", ("train.json", "dev.json"), "dev"))
LONGEST, SPEED_BATCH = 128, 32


def define_flags(flag_values):
    """Defines this script's flags."""
    measuring.define_flags(flag_values, "output/benchmark_ner")
    string = functools.partial(flags.DEFINE_string, flag_values=flag_values)
    string("pretrained", None, "Checkpoint or folder to start from, beside runs from scratch. "
           "Default: none, from scratch alone.")
    string("tasks", ",".join(data.task for data in SETS),
           "Data sets to train on, by commas; empty for the speed table alone. Default: all.")
    string("decoders", "softmax,crf", "With a softmax for each tag, a CRF, or both. Default: both.")
    flags.DEFINE_integer("rows", 3000, "Sentences of each training file, 0 takes all. Default: "
                         "minutes of work.", flag_values=flag_values)
    flags.DEFINE_integer("epochs", 5, "Passes over them. Default: run_ner.py's.",
                         flag_values=flag_values)
    flags.DEFINE_integer("train_batch_size", 16, "Sentences of a step. Default: few rows then give "
                         "steps enough.", flag_values=flag_values)
    flags.DEFINE_float("learning_rate", 1e-3, "Learning rate. Default: tiny learns with it.",
                       flag_values=flag_values)


# --- F1 ---------------------------------------------------------------------------------------


def first_sentences(text, rows):
    """The first `rows` sentences of a file's text, all for 0."""
    between = "\n" if text.startswith("{") else "\n\n"
    sentences = text.strip("\n").split(between)
    return between.join(sentences[:rows or None]) + "\n"


def shortened_folder(data, settings):
    """The data in a folder of its own, the training file cut to --rows sentences."""
    folder = os.path.join(settings.output_dir, data.task)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name, rows in zip(data.files, (settings.rows, 0)):
        with io.open(os.path.join(settings.data_dir, data.task, name),
                     encoding="utf-8") as stream:
            text = first_sentences(stream.read(), rows)
        with io.open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
    return folder


def ner_command(data, settings, start, decoder):
    """The command that trains and tests on a data set, and its output folder.

    start: the checkpoint, or None.  decoder: "softmax" or "crf".
    """
    output = os.path.join(settings.output_dir, "{}_{}_{}".format(
        data.task, "pretrained" if start else "scratch", decoder))
    arguments = [
        ("task_name", data.task), ("data_dir", os.path.join(settings.output_dir, data.task)),
        ("vocab_file", settings.vocab_file), ("bert_config_file", settings.bert_config_file),
        ("output_dir", output), ("max_seq_length", LONGEST),
        ("train_batch_size", settings.train_batch_size),
        ("num_train_epochs", settings.epochs), ("learning_rate", settings.learning_rate),
        ("crf", decoder == "crf"), ("do_train", True), ("do_eval", True),
        ("eval_split", data.tested)]
    if start:
        arguments.append(("init_checkpoint", start))
    return ["run_ner.py"] + ["--{}={}".format(*item) for item in arguments], output


def f1_table(settings):
    """Trains on each of the data sets chosen; prints a line for each."""
    titles = ("data", "start", "decoder", "sentences", "entities tested", "precision", "recall",
              "F1", "CPU-s", "s")
    print("\n| " + " | ".join(titles) + " |\n|" + " --- |" * len(titles), flush=True)
    commands = []
    for data, start, decoder in itertools.product(
            SETS, [None] + [settings.pretrained] * bool(settings.pretrained),
            settings.decoders.split(",")):
        if data.task not in settings.tasks.split(","):
            continue
        shortened_folder(data, settings)
        command, output = ner_command(data, settings, start, decoder)
        commands.append(command)
        report, _, cpu, wall = measuring.measured(
            command, output, "eval_results_test.json" if data.tested == "test" else
            "eval_results.json")
        print("| {} | {} | {} | {} | {entities} | {precision:.4f} | {recall:.4f} | {f1:.4f} | "
              "{:.0f} | {:.0f} |".format(
                  data.task, pretraining_gain.PRETRAINED if start else pretraining_gain.SCRATCH,
                  decoder, settings.rows or "all", cpu, wall, **report), flush=True)
    print("\n" + "\n".join("python " + " ".join(command) for command in commands))


# --- speed ------------------------------------------------------------------------------------


def padding_on_msra(settings):
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
    tags = tag_schemes.tags_of(scheme, found)
    objective = run_ner.tagger_objective(
        config, tags, types.SimpleNamespace(crf=False, classifier_dropout=0.0))
    for line in measuring.padding_lines(
            "MSRA", examples, SPEED_BATCH, LONGEST, settings.speed_batches, objective):
        print(line, flush=True)


def main(flag_values):
    """Prints both tables."""
    cli.require_flags(flag_values, ["data_dir"])
    settings = cli.settings_of(flag_values)
    print("TensorFlow {}, {} cores".format(tf.__version__, os.cpu_count()), flush=True)
    if settings.speed_batches:
        padding_on_msra(settings)
    if settings.tasks:
        f1_table(settings)


if __name__ == "__main__":
    cli.run(main, define_flags)

"""What a model reaches on real reading comprehension, from scratch and pre-trained, and how fast.

In: a folder with cmrc2018/cmrc2018_{train,dev}.json.
Out: two tables on standard output. Of both files the first passages are used that hold --questions
and --dev_questions questions. Nothing is tuned.

    python benchmarks/reading.py --data_dir=data_sets --pretrained=albert_tiny_zh
    python benchmarks/reading.py --data_dir=data_sets --questions=0 --dev_questions=0
"""

import functools
import io
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import tensorflow.compat.v1 as tf
from absl import flags

import cli
import modeling
import run_mrc
from benchmarks import measuring, pretraining_gain
from fine_tuning import reading
from tokenization import FullTokenizer

TASK = "cmrc2018"
FILES = ("cmrc2018_train.json", "cmrc2018_dev.json")
LONGEST = 512  # of the speed table
STRIDE, QUERY, BATCH = 128, 64, 16


def define_flags(flag_values):
    """Defines this script's flags."""
    measuring.define_flags(flag_values, "output/benchmark_mrc")
    integer, real = [functools.partial(define, flag_values=flag_values) for define in (
        flags.DEFINE_integer, flags.DEFINE_float)]
    flags.DEFINE_string("pretrained", None, "Checkpoint or folder to start from, beside a run from "
                        "scratch. Default: none, from scratch alone.", flag_values=flag_values)
    integer("questions", 1000, "Questions to train on, 0 takes all and -1 leaves the table out. "
            "Default: minutes of work.")
    integer("dev_questions", 500, "Questions to answer, 0 takes all. Default: as many minutes.")
    integer("max_seq_length", 256, "Length of training and evaluation. Default: half the time of "
            "512.")
    integer("epochs", 2, "Passes over the questions. Default: run_mrc.py's.")
    real("learning_rate", 3e-4, "Learning rate. Default: tiny learns with it.")


def first_questions(data, count):
    """SQuAD-like data cut to the first passages that hold `count` questions; all for 0."""
    kept, found = [], 0
    for article in data["data"]:
        if count and found >= count:
            break
        kept.append(article)
        found += sum(len(paragraph["qas"]) for paragraph in article["paragraphs"])
    return dict(data, data=kept), found


def shortened_files(settings):
    """Writes both files cut to their first questions; returns (folder, questions of each)."""
    folder = os.path.join(settings.output_dir, "data")
    os.makedirs(folder, exist_ok=True)
    counts = []
    for name, count in zip(FILES, (max(settings.questions, 0), settings.dev_questions)):
        with io.open(os.path.join(settings.data_dir, TASK, name), encoding="utf-8") as stream:
            data, found = first_questions(json.load(stream), count)
        cli.write_whole(os.path.join(folder, name), json.dumps(data, ensure_ascii=False))
        counts.append(found)
    return folder, counts


def score_table(settings):
    """Trains from scratch and from --pretrained; prints a line for each."""
    folder, counts = shortened_files(settings)
    titles = ("start", "questions", "questions of dev", "EM", "F1", "CPU-s", "s")
    print("\n| " + " | ".join(titles) + " |\n|" + " --- |" * len(titles), flush=True)
    commands = []
    for start in [None] + [settings.pretrained] * bool(settings.pretrained):
        output = os.path.join(settings.output_dir, "pretrained" if start else "scratch")
        arguments = [
            ("task_name", TASK), ("data_dir", folder), ("vocab_file", settings.vocab_file),
            ("bert_config_file", settings.bert_config_file), ("output_dir", output),
            ("max_seq_length", settings.max_seq_length), ("num_train_epochs", settings.epochs),
            ("learning_rate", settings.learning_rate), ("train_batch_size", BATCH),
            ("do_train", True), ("do_eval", True)]
        if start:
            arguments.append(("init_checkpoint", start))
        commands.append(["run_mrc.py"] + ["--{}={}".format(*item) for item in arguments])
        report, _, cpu, wall = measuring.measured(commands[-1], output, "eval_results.json")
        print("| {} | {} | {} | {exact_match:.2f} | {f1:.2f} | {:.0f} | {:.0f} |".format(
            pretraining_gain.PRETRAINED if start else pretraining_gain.SCRATCH, counts[0],
            counts[1], cpu, wall, **report), flush=True)
    print("\n" + "\n".join("python " + " ".join(command) for command in commands))


def padding_on_cmrc(settings):
    """Prints how much is gained by padding to the longest row of a batch, on CMRC 2018."""
    folder, _ = shortened_files(settings)
    encoder = reading.WindowEncoder(FullTokenizer(settings.vocab_file), LONGEST, STRIDE, QUERY)
    data = run_mrc.MrcData(reading.TASKS[TASK], {"train": os.path.join(folder, FILES[0])}, encoder,
                           "utf-8", False, os.path.join(settings.output_dir, "encoded"))
    examples = run_mrc.encode_passages(data)
    print("\n{} windows of {:.0f} tokens on average".format(
        examples.rows, examples.tokens / examples.rows))
    config = modeling.AlbertConfig.from_json_file(settings.bert_config_file)
    for line in measuring.padding_lines(
            "CMRC 2018", examples, BATCH, LONGEST, settings.speed_batches,
            run_mrc.reader_objective(config)):
        print(line, flush=True)


def main(flag_values):
    """Prints both tables."""
    cli.require_flags(flag_values, ["data_dir"])
    settings = cli.settings_of(flag_values)
    print("TensorFlow {}, {} cores".format(tf.__version__, os.cpu_count()), flush=True)
    if settings.speed_batches:
        padding_on_cmrc(settings)
    if settings.questions >= 0:
        score_table(settings)


if __name__ == "__main__":
    cli.run(main, define_flags)

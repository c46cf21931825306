"""What the benchmarks of fine-tuning share: their flags, a run and its cost, rows a second.

In: the command of a run, or encoded examples and what is computed of a batch.  Out: a run's report
with its seconds; a table of what padding to the longest row of a batch gains.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time

import tensorflow.compat.v1 as tf
from absl import flags

import cli
import optimization
from fine_tuning import step
from fine_tuning.examples import example_batches
from training import run_settings

WARM_UP = 2  # batches before the clock starts


def define_flags(flag_values, output_dir="output/benchmark"):
    """Defines the flags of every benchmark of fine-tuning; output_dir: the flag's default."""
    for name, default, text in (
            ("data_dir", None, "Folder of the data sets. Required."),
            ("output_dir", output_dir, "Folder of the models. Default: not under git."),
            ("bert_config_file", "albert_config/albert_config_tiny.json",
             "Model config. Default: the one that a CPU trains in minutes."),
            ("vocab_file", "albert_config/vocab.txt", "Vocabulary. Default: the one of set-up.")):
        flags.DEFINE_string(name, default, text, flag_values=flag_values)
    flags.DEFINE_integer("speed_batches", 40, "Batches of the speed table, 0 leaves it out. "
                         "Default: a minute's work.", flag_values=flag_values)


def measured(command, output, report_name):
    """Runs a script's command, a list, that writes to the folder `output`.

    Returns:
      (the report of that name in it, standard output, CPU seconds, wall seconds).
    """
    shutil.rmtree(output, ignore_errors=True)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    done = subprocess.run([sys.executable] + command, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True, encoding="utf-8")
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.time() - started
    if done.returncode:
        raise cli.UserError(done.stderr.strip().splitlines()[-1])
    with open(os.path.join(output, report_name), encoding="utf-8") as stream:
        report = json.load(stream)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return report, done.stdout, cpu, wall


def training_on(features, objective, batch_size):
    """What trains a batch and gives its loss; objective: step.Objective."""
    scalars, gradients = step.head_step(
        features, objective, run_settings.Training(batch_size, 1e-4, 1000, 0, "adamw"))
    update = optimization.create_optimizer(scalars["loss"], 1e-4, 1000, 0, optimizer="adamw",
                                           gradients=gradients).op
    return [update, scalars["loss"]]


def rates(examples, batch_size, pad_to, batches, step_of):
    """(rows per second, rows per CPU second, what each batch gave) of batches one after the other.

    Args:
      examples: examples.Examples.  pad_to: see example_batches.
      step_of: function(features) -> what is run for a batch.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        iterator = tf.data.make_initializable_iterator(
            example_batches(examples, batch_size, 1, pad_to))
        fetched = step_of(iterator.get_next())
        session.run([iterator.initializer, tf.global_variables_initializer()])
        results = [session.run(fetched) for _ in range(WARM_UP)]
        wall, cpu = time.time(), time.process_time()
        results += [session.run(fetched) for _ in range(batches)]
        rows = batch_size * batches
        return rows / (time.time() - wall), rows / (time.process_time() - cpu), results


def padding_lines(title, examples, batch_size, longest, batches, objective, prediction=None):
    """Yields the lines of a table: batches padded to their longest row, and to the full length.

    Args:
      objective: step.Objective to train on; the largest difference that the padding makes to a
        batch's loss is told, too.
      prediction: step_of as of rates, measured beside the training, or None.
    """
    steps = [("training", lambda features: training_on(features, objective, batch_size))]
    if prediction:
        steps.append(("prediction", prediction))
    yield ("\n| {}, batch {}, max_seq_length {} | longest of the batch | padded to {} | factor "
           "|".format(title, batch_size, longest, longest))
    yield "| --- | --- | --- | --- |"
    told = []
    for name, step_of in steps:
        short, padded = [rates(examples, batch_size, pad_to, batches, step_of)
                         for pad_to in (None, longest)]
        for unit, few, many in zip(("examples/s", "examples/CPU-s"), short, padded):
            yield "| {}, {} | {:.1f} | {:.1f} | {:.2f} |".format(
                name, unit, few, many, few / many)
        if isinstance(short[2][0], list):
            losses = [[result[-1] for result in results] for results in (short[2], padded[2])]
            told.append("\n{}: the loss of a batch differs by {:.1e} at most, at {:.2f}".format(
                name, max(abs(one - other) for one, other in zip(*losses)), losses[0][-1]))
    for line in told:
        yield line

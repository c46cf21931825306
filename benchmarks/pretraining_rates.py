"""Which optimizer and learning rate fit a batch: pre-training for equal CPU time, a table.

In: records to train on and records held out. Out: a table on standard output: for each batch,
optimizer and rate the held-out MLM loss and accuracy after --cpu_seconds of a small model (two
layers, 128 wide, unless a config is given). Every run is a line of results.jsonl in --output_dir;
a run that stands there is not made again, so that a killed benchmark goes on.

    python benchmarks/pretraining_rates.py --input_file=records/train --eval_input_file=records/held
"""

import functools
import json
import os
import resource
import shutil
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from absl import flags

import cli
from benchmarks import pretraining_gain

SMALL = dict(
    attention_probs_dropout_prob=0.0, embedding_size=128, hidden_act="gelu",
    hidden_dropout_prob=0.0, hidden_size=128, initializer_range=0.02, intermediate_size=512,
    ln_type="postln", max_position_embeddings=512, num_attention_heads=4, num_hidden_layers=2,
    type_vocab_size=2, vocab_size=21128)
CASES = ("16:adamw:0.00025/0.0005/0.001,16:lamb:0.001/0.004,"
         "64:adamw:0.0005/0.001/0.002,64:lamb:0.002/0.008,"
         "512:adamw:0.001/0.002/0.004,512:lamb:0.004/0.016")


def define_flags(flag_values):
    """Defines this script's flags."""
    for name, default, text in (
            ("input_file", None, "Records to train on. Required."),
            ("eval_input_file", None, "Records of the same kind, held out. Required."),
            ("output_dir", "output/rates", "Folder of all that is made. Default: not under git."),
            ("bert_config_file", None, "Model config. Default: two layers, 128 wide."),
            ("cases", CASES, "batch:optimizer:rate/rate/…, by commas. Default: rates around each "
             "batch's best.")):
        flags.DEFINE_string(name, default, text, flag_values=flag_values)
    for name, default, text in (
            ("max_seq_length", 64, "Length of the records. Default: cheap."),
            ("max_predictions_per_seq", 10, "Masked places of the records. Default: 15 % of 64."),
            ("cpu_seconds", 90, "CPU time of each run. Default: leaves the unigram plateau.")):
        flags.DEFINE_integer(name, default, text, flag_values=flag_values)


def trained(arguments, settings):
    """Runs run_pretraining.py in a fresh folder; returns (the folder, CPU-seconds)."""
    folder = os.path.join(settings.output_dir, "run")
    shutil.rmtree(folder, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pretraining_gain.run_command("run_pretraining.py", dict(arguments, output_dir=folder))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return folder, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seconds_of_steps(arguments, settings, steps):
    """CPU-seconds of a run of so many steps."""
    return trained(dict(arguments, num_train_steps=steps, num_warmup_steps=0), settings)[1]


def rate_line(arguments, rate, seconds, settings):
    """Trains for the CPU time and evaluates; returns the run's line as a dict."""
    steps = max(2, int(settings.cpu_seconds / seconds))
    folder, _ = trained(dict(
        arguments, learning_rate=rate, num_train_steps=steps, do_eval=True, max_eval_steps=40,
        eval_input_file=settings.eval_input_file), settings)
    found = pretraining_gain.figures_of(os.path.join(folder, "eval_results.txt"))
    return dict(steps=steps, loss=found["mlm_loss"], accuracy=found["mlm_accuracy"])


def main(flag_values):
    """Measures every case that is not known yet and prints the table."""
    cli.require_flags(flag_values, ["input_file", "eval_input_file"])
    settings = cli.settings_of(flag_values)
    os.makedirs(settings.output_dir, exist_ok=True)
    config = settings.bert_config_file or os.path.join(settings.output_dir, "config.json")
    if not settings.bert_config_file:
        with open(config, "w", encoding="utf-8", newline="\n") as stream:
            json.dump(SMALL, stream)
    shared = dict(input_file=settings.input_file, bert_config_file=config, do_train=True,
                  max_seq_length=settings.max_seq_length, precision="fp32",
                  max_predictions_per_seq=settings.max_predictions_per_seq)
    results = pretraining_gain.Results(settings.output_dir)
    print("| batch | optimizer | rate | steps | MLM loss | MLM accuracy |\n"
          "| --- | --- | --- | --- | --- | --- |", flush=True)
    for case in settings.cases.split(","):
        batch, optimizer, rates = case.split(":")
        arguments = dict(shared, train_batch_size=int(batch), optimizer=optimizer)
        timing = ("seconds", batch, optimizer)
        if timing not in results.found:
            short = max(1, 256 // int(batch))
            results.add(timing, seconds=pretraining_gain.seconds_a_step(
                functools.partial(seconds_of_steps, arguments, settings), short, 3 * short))
        for rate in rates.split("/"):
            key = (batch, optimizer, rate)
            row = results.found.get(key) or results.add(key, **rate_line(
                arguments, rate, results.found[timing]["seconds"], settings))
            print("| {} | {} | {} | {steps} | {loss:.3f} | {accuracy:.4f} |".format(*key, **row),
                  flush=True)


if __name__ == "__main__":
    cli.run(main, define_flags)

"""Speed and memory of a pre-training step, for each setting in a process of its own.

In: model sizes, lengths and settings.  Out: a table on stdout: steps/s, tokens/s, CPU-seconds a
step, peak memory beside the estimate, and the model's arithmetic as a share of what a plain matrix
product reaches in the same process.

  python benchmarks/pretraining.py --cases=tiny:32:128:20,base:4:512:76 \
    --settings=",--recompute=true" --pythons=.venv-tf1/bin/python,.venv-tf2/bin/python
"""

import collections
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from absl import flags  # noqa: E402

import cli  # noqa: E402
import device_memory  # noqa: E402
import devices  # noqa: E402
import host_allocator  # noqa: E402
import modeling  # noqa: E402
import precision  # noqa: E402
import run_pretraining  # noqa: E402

MATRIX = 2048  # rows and columns of the plain matrix product
ROW = ("| {tensorflow} | {} | {} | {steps_per_second:.3g} | {tokens_per_second:.0f} | "
       "{cpu_seconds:.2f} | {peak:.0f} | {estimate:.0f} | {share:.0%} |")
WARM_UP = 2  # steps that are not counted


def define_flags(flag_values):
    """Defines this script's flags."""
    string = functools.partial(flags.DEFINE_string, flag_values=flag_values)
    string("cases", "tiny:32:128:20",
           "model:batch:length:predictions, by commas. Default: the reference figure's.")
    string("settings", "",
           "Flags of run_pretraining.py for each row, by commas, several of one row by blanks. "
           "Default: one row without any.")
    string("pythons", sys.executable, "Interpreters, by commas. Default: this one.")
    string("measure", None, "Case that this process measures. Default: none, start processes.")
    flags.DEFINE_integer("steps", 5, "Steps that are counted. Default: some seconds' work.",
                         flag_values=flag_values)
    flags.DEFINE_integer("repeat", 1, "Processes of a row; the fastest counts. Default: one.",
                         flag_values=flag_values)


def random_batch(config, batch_size, length, predictions):
    """Features of batch_size full sequences of random words: name -> array."""
    rng = np.random.RandomState(0)
    positions = np.linspace(1, length - 2, predictions).astype(np.int32)
    return {"input_ids": rng.randint(config.vocab_size, size=[batch_size, length], dtype=np.int32),
            "input_mask": np.ones([batch_size, length], np.int32),
            "segment_ids": np.zeros([batch_size, length], np.int32),
            "masked_lm_positions": np.tile(positions, [batch_size, 1]),
            "masked_lm_ids": rng.randint(config.vocab_size, size=[batch_size, predictions],
                                         dtype=np.int32),
            "masked_lm_weights": np.ones([batch_size, predictions], np.float32),
            "next_sentence_labels": rng.randint(2, size=[batch_size], dtype=np.int32)}


def model_flops(config, batch_size, length, predictions):
    """Floating-point operations of the matrix products of a step, without any recomputation."""
    hidden = config.hidden_size
    layer = length * (4 * hidden * hidden + 2 * hidden * config.intermediate_size
                      + 2 * length * hidden)
    head = predictions * (hidden * hidden + config.embedding_size * (hidden + config.vocab_size))
    embeddings = length * config.embedding_size * hidden
    forward = 2 * batch_size * (config.num_hidden_layers * layer + head + embeddings)
    return 3 * forward  # the gradient takes two products for each one


def used():
    """CPU-seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_megabytes():
    """The most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def timed(run, count):
    """(median CPU-seconds, median seconds) of `count` calls of run()."""
    samples = []
    for _ in range(count):
        cpu, clock = used(), time.time()
        run()
        samples.append((used() - cpu, time.time() - clock))
    return np.median(samples, axis=0)


def matmul_rate():
    """Floating-point operations of a plain product of matrices in a CPU-second."""
    with tf.Graph().as_default(), tf.Session() as session:
        matrix = tf.get_variable("matrix", initializer=tf.ones([MATRIX, MATRIX]))
        product = tf.matmul(matrix, matrix)
        session.run(tf.global_variables_initializer())
        session.run(product.op)
        return 2.0 * MATRIX ** 3 / timed(lambda: session.run(product.op), 7)[0]


def measure(case, steps, arguments):
    """Runs the steps of one row in this process; returns its figures by name."""
    size, batch_size, length, predictions = case.split(":")
    lengths = int(batch_size), int(length), int(predictions)
    config = modeling.AlbertConfig.from_json_file(
        os.path.join(ROOT, "albert_config", "albert_config_{}.json".format(size)))
    values = flags.FlagValues()
    run_pretraining.define_flags(values)
    values(["run_pretraining.py", "--train_batch_size=" + batch_size, "--max_seq_length=" + length,
            "--max_predictions_per_seq=" + predictions,
            "--output_dir=" + tempfile.gettempdir()] + arguments)
    run = cli.settings_of(values)
    host_allocator.keep_freed_memory(run.recompute != "true")
    session_config = precision.configure(devices.session_config(), run.precision, run.xla)
    with tf.Graph().as_default():
        features = {name: tf.placeholder_with_default(value, value.shape)
                    for name, value in random_batch(config, *lengths).items()}
        spec = run_pretraining.model_function(config, run, None)(
            features, None, tf.estimator.ModeKeys.TRAIN, {})
        with tf.Session(config=session_config) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            for _ in range(WARM_UP):
                session.run([spec.loss, spec.train_op])
            cpu, clock = timed(lambda: session.run([spec.loss, spec.train_op]), steps)
    peak = peak_megabytes()  # before the matrix product has its say
    rows = run.micro_batch_size or lengths[0]
    estimate = device_memory.step_bytes(
        config, device_memory.Shape(*lengths[1:]), rows, lengths[0], run.recompute == "true")
    return collections.OrderedDict([
        ("tensorflow", tf.__version__), ("steps_per_second", 1.0 / clock),
        ("tokens_per_second", lengths[0] * lengths[1] / clock), ("cpu_seconds", cpu),
        ("peak", peak), ("estimate", estimate / 2.0 ** 20),
        ("share", model_flops(config, *lengths) / cpu / matmul_rate())])


def measure_elsewhere(python, case, steps, setting):
    """measure() in a process of its own, whose peak memory is the row's alone."""
    command = [python, os.path.abspath(__file__), "--measure=" + case, "--steps={}".format(steps),
               "--settings=" + setting]
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if finished.returncode:
        raise cli.UserError("{} failed:\n{}".format(
            " ".join(command), finished.stderr.decode("utf-8", "replace")[-3000:]))
    return json.loads(finished.stdout.decode("utf-8").splitlines()[-1])


def main(flag_values):
    """Measures one row, or starts a process for each row and prints the table."""
    if flag_values.measure:
        sys.stdout.write(json.dumps(measure(
            flag_values.measure, flag_values.steps, flag_values.settings.split())) + "\n")
        return
    print("| TensorFlow | model, batch, length, predictions | flags | steps/s | tokens/s | "
          "CPU-s a step | peak MB | estimate MB | of matmul |\n" + "|---" * 9 + "|")
    for case in flag_values.cases.split(","):
        for setting in flag_values.settings.split(","):
            for python in flag_values.pythons.split(","):
                rows = [measure_elsewhere(python, case, flag_values.steps, setting)
                        for _ in range(flag_values.repeat)]
                row = min(rows, key=lambda found: found["cpu_seconds"])
                print(ROW.format(case.replace(":", ", "), setting or "—", **row))
                sys.stdout.flush()


if __name__ == "__main__":
    cli.run(main, define_flags)

"""Speed and memory of a pre-training step, for each setting in a process of its own.

In: model sizes, lengths and settings.  Out: a table on stdout: steps/s, tokens/s, CPU-seconds a
step, peak memory beside the estimate, and the model's arithmetic as a share of what a plain matrix
product reaches in the same process. Or a table of how many sequences devices hold by the estimate.
Or, of records, a table of what leaving padding out gains: CPU-seconds for 1000 tokens that are no
padding, of processes that compute the padding and of processes that do not, one of each in turn.

  python benchmarks/pretraining_step.py --cases=tiny:32:128:20,base:4:512:76 \
    --settings=",--recompute=true" --pythons=.venv-tf1/bin/python,.venv-tf2/bin/python
  python benchmarks/pretraining_step.py --cases=base:1:128:20,base:1:512:76 --devices=12,24,80
  python benchmarks/pretraining_step.py --cases=tiny:32:512:76 --records="data/tf*.tfrecord"
"""

import collections
import functools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import cli
import devices
import modeling
import run_pretraining
from pretraining import reader
from training import memory, micro_batches, run_settings

CASE = re.compile(r"(tiny|base|large|xlarge|xxlarge)(:[1-9]\d*){3}$")
STATUS = "/proc/self/status"  # getrusage counts what the parent held when it was forked
MATRIX = 2048  # rows and columns of the plain matrix product
HEADER = ("| TensorFlow | model, batch, length, predictions | flags | steps/s | tokens/s | "
          "CPU-s a step | peak MB | estimate MB | of matmul |")
PADDING_HEADER = ("| TensorFlow | model, batch, length, predictions | flags | padding | "
                  "CPU-s for 1000 tokens, padded | without padding | ratio | peak MB, padded | "
                  "without padding |")
PADDING_ROW = ("| {tensorflow} | {} | {} | {padding:.0%} | {:.3f} | {:.3f} | {:.2f} | {:.0f} | "
               "{:.0f} |")
ROW = ("| {tensorflow} | {} | {} | {steps_per_second:.3g} | {tokens_per_second:.0f} | "
       "{cpu_seconds:.2f} | {peak:.0f} | {estimate:.0f} | {share:.0%} |")


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
    string("devices", None,
           "Memory of devices in GB, by commas: prints how many sequences they hold by the "
           "estimate, without and with --recompute. Default: none, measure.")
    string("records", None,
           "TFRecords, whose steps are measured with and without their padding in place of random "
           "words. Default: none, full sequences.")
    flags.DEFINE_bool("padded", False, "With --measure and --records: compute the padding. Off: as "
                      "run_pretraining.py.", flag_values=flag_values)
    flags.DEFINE_integer("steps", 5, "Steps that are counted. Default: some seconds' work.",
                         flag_values=flag_values)
    flags.DEFINE_integer("warm_up", 2, "Steps before, which are not counted. Default: until the "
                         "memory is taken and the graph is optimised.", flag_values=flag_values)
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
    """Floating-point operations of the matrix products of a step, without any recomputation.

    The last layer computes the masked positions and [CLS] only, but key and value of all.
    """
    hidden = config.hidden_size
    key_and_value = 2 * hidden * hidden
    others = key_and_value + 2 * hidden * config.intermediate_size + 2 * length * hidden
    layers = (config.num_hidden_layers * length * key_and_value
              + ((config.num_hidden_layers - 1) * length + 1 + predictions) * others)
    head = predictions * (hidden * hidden + config.embedding_size * (hidden + config.vocab_size))
    embeddings = length * config.embedding_size * hidden
    return 3 * 2 * batch_size * (layers + head + embeddings)  # 3: a gradient takes two products


def used():
    """CPU-seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_megabytes():
    """The most memory that this program ever held."""
    if os.path.exists(STATUS):
        with open(STATUS, encoding="utf-8") as stream:
            return int(re.search(r"VmHWM:\s+(\d+)", stream.read()).group(1)) / 1024.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def timed(run, count, of=np.median):
    """(CPU-seconds, seconds), the medians of `count` calls of run(), or what else `of` takes."""
    samples = []
    for _ in range(count):
        cpu, clock = used(), time.time()
        run()
        samples.append((used() - cpu, time.time() - clock))
    return of(samples, axis=0)


def matmul_rate():
    """Floating-point operations of a plain product of matrices in a CPU-second."""
    with tf.Graph().as_default(), tf.Session() as session:
        matrix = tf.get_variable("matrix", initializer=tf.ones([MATRIX, MATRIX]))
        product = tf.matmul(matrix, matrix)
        session.run(tf.global_variables_initializer())
        session.run(product.op)
        return 2.0 * MATRIX ** 3 / timed(lambda: session.run(product.op), 15, np.min)[0]


def model_of(case):
    """The config that a case names."""
    return modeling.AlbertConfig.from_json_file(os.path.join(
        ROOT, "albert_config", "albert_config_{}.json".format(case.split(":")[0])))


def lengths_of(case):
    """(batch, length, predictions) of a case."""
    return tuple(map(int, case.split(":")[1:]))


def check_flags(asked):
    """Raises UserError for what cannot be measured, before anything is."""
    for case in asked.cases.split(","):
        if not CASE.match(case):
            raise cli.UserError("--cases: {!r} is not of the form model:batch:length:predictions "
                                "with a model of albert_config, say tiny:32:128:20".format(case))
    cli.require_within(asked, 1, cli.MOST, "steps", "repeat")
    cli.require_within(asked, 0, cli.MOST, "warm_up")
    for python in asked.pythons.split(","):
        if not shutil.which(python):
            raise cli.UserError("--pythons: {!r} is no program".format(python))
    if asked.devices and not re.match(r"\d+(\.\d+)?(,\d+(\.\d+)?)*$", asked.devices):
        raise cli.UserError("--devices: {!r} is no list of numbers, say 12,24,80".format(
            asked.devices))


def settled(config, lengths, arguments, padded=False):
    """(Engine, Training) as run_pretraining.py would make them of its arguments.

    padded: bool, whether all of the padding is computed, of the whole batch at once if it fits.
    """
    values = flags.FlagValues()
    run_pretraining.define_flags(values)
    values(["run_pretraining.py", "--do_train", "--output_dir=" + tempfile.gettempdir()]
           + ["--{}={}".format(*pair) for pair in zip(
               ("train_batch_size", "max_seq_length", "max_predictions_per_seq"), lengths)]
           + arguments)
    settings = run_pretraining.with_fitting_values(cli.settings_of(values), config)
    run_pretraining.check_settings(settings, config)
    chosen = devices.choose(settings.num_devices or 1)
    if chosen.strategy or settings.use_tpu:
        raise cli.UserError("--settings: {} asks for more than one device, a row is measured on "
                            "one".format(" ".join(arguments)))
    micro_batches.check_micro_batch_size(settings.micro_batch_size, settings.train_batch_size)
    engine = run_settings.engine_of(settings, None, chosen)
    if padded:
        engine = engine._replace(fixed_shapes=True)
    return engine, run_pretraining.training_of(settings, config, engine, settings.train_batch_size)


def built(config, lengths, engine, training, records):
    """(EstimatorSpec, tokens of a step that are no padding), of records or of random words."""
    if records:
        source = reader.peek(reader.find_files(records, "records"), *lengths[1:],
                             flag_name="records", vocab_size=config.vocab_size)
        features = tf.data.make_one_shot_iterator(
            reader.training_dataset(source, lengths[0], engine.random_seed)).get_next()
    else:
        features = {name: tf.placeholder_with_default(value, value.shape)
                    for name, value in random_batch(config, *lengths).items()}
    spec = run_pretraining.model_function(config, engine, training)(
        features, None, tf.estimator.ModeKeys.TRAIN, {})
    return spec, tf.reduce_sum(features["input_mask"])


def measure(case, steps, warm_up, arguments, records=None, padded=False):
    """Runs the steps of one row in this process; returns its figures by name."""
    config, lengths = model_of(case), lengths_of(case)
    engine, training = settled(config, lengths, arguments, padded)
    memory.keep_freed_memory(not training.recompute)
    with tf.Graph().as_default():
        spec, tokens = built(config, lengths, engine, training, records)
        words = []
        with tf.Session(config=engine.session_config) as session:
            def run():
                words.append(session.run([tokens, spec.loss, spec.train_op])[0])

            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            timed(run, warm_up)
            del words[:]
            cpu, clock = timed(run, steps, np.mean if records else np.median)
    peak = peak_megabytes()  # before the matrix product has its say
    estimate = memory.step_bytes(config, memory.Shape(*lengths[1:]), training.micro_batch_size,
                                 lengths[0], training.recompute)
    return collections.OrderedDict([
        ("tensorflow", tf.__version__), ("steps_per_second", 1.0 / clock),
        ("tokens_per_second", np.mean(words) / clock), ("cpu_seconds", cpu),
        ("peak", peak), ("estimate", estimate / 2.0 ** 20),
        ("padding", 1.0 - np.mean(words) / (lengths[0] * lengths[1])),
        ("cpu_of_1000", 1000.0 * cpu / np.mean(words)),
        ("share", model_flops(config, *lengths) / cpu / matmul_rate())])


def measure_elsewhere(python, case, asked, setting, *arguments):
    """measure() in a process of its own, whose peak memory is the row's alone."""
    command = [python, os.path.abspath(__file__), "--measure=" + case,
               "--steps={}".format(asked.steps), "--warm_up={}".format(asked.warm_up),
               "--settings=" + setting] + list(arguments)
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if finished.returncode:
        raise cli.UserError("{} failed:\n{}".format(
            " ".join(command), finished.stderr.decode("utf-8", "replace")[-3000:]))
    return json.loads(finished.stdout.decode("utf-8").splitlines()[-1])


def step_row(python, case, asked, setting):
    """A row of what a full step takes."""
    rows = [measure_elsewhere(python, case, asked, setting) for _ in range(asked.repeat)]
    row = min(rows, key=lambda found: found["cpu_seconds"])
    return ROW.format(case.replace(":", ", "), setting or "—", **row)


def padding_row(python, case, asked, setting):
    """A row of what the records take with and without their padding."""
    rows = [[measure_elsewhere(python, case, asked, setting, "--records=" + asked.records, extra)
             for extra in ("--padded", "--nopadded")] for _ in range(asked.repeat)]
    cpu, peak = [[min(row[name] for row in column) for column in zip(*rows)]
                 for name in ("cpu_of_1000", "peak")]
    return PADDING_ROW.format(case.replace(":", ", "), setting or "—", cpu[0], cpu[1],
                              cpu[1] / cpu[0], *peak, **rows[0][0])


def print_capacities(cases, gigabytes):
    """Prints how many sequences devices of so many GB compute at once, without / with recompute."""
    print("| model, length, predictions |" + "".join(" {} GB |".format(size) for size in gigabytes)
          + "\n" + "|---" * (1 + len(gigabytes)) + "|")
    for case in cases:
        shape = memory.Shape(*lengths_of(case)[1:])
        found = ["{} / {}".format(*[memory.capacity(
            model_of(case), shape, float(size) * 2 ** 30, again) for again in (False, True)])
                 for size in gigabytes]
        print("| {}, {}, {} | ".format(case.split(":")[0], *shape) + " | ".join(found) + " |")


def main(flag_values):
    """Measures one row, or starts a process for each row and prints the table."""
    cases = flag_values.cases.split(",")
    check_flags(cli.settings_of(flag_values))
    if flag_values.measure:
        sys.stdout.write(json.dumps(measure(
            flag_values.measure, flag_values.steps, flag_values.warm_up,
            flag_values.settings.split(), flag_values.records, flag_values.padded)) + "\n")
        return
    if flag_values.devices:
        print_capacities(cases, flag_values.devices.split(","))
        return
    header, row_of = (PADDING_HEADER, padding_row) if flag_values.records else (HEADER, step_row)
    print(header + "\n" + "|---" * (header.count("|") - 1) + "|")
    asked = cli.settings_of(flag_values)
    for case in cases:
        for setting in flag_values.settings.split(","):
            for python in flag_values.pythons.split(","):
                print(row_of(python, case, asked, setting))
                sys.stdout.flush()


if __name__ == "__main__":
    cli.run(main, define_flags)

"""Damaged and hostile input through the real scripts: each run succeeds or ends in one line.

In: nothing but a seed; the whole input is made here, then mutated: text, vocabulary, config,
records, rows and Hugging Face folders.  Out: for each kind how many runs succeeded, were refused
and failed; a failed run's input stays in --output_dir with its traceback, and the exit code is 1.

    python benchmarks/fuzz.py --seconds=600
"""

import collections
import json
import os
import random
import shutil
import signal
import string
import sys
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import cli
import convert_checkpoint
import create_pretraining_data
import modeling
import run_classifier
import run_pretraining
from fine_tuning import predictor
from pretraining_data.records import read_records
from weights import checkpoints, formats, layouts

SLOWEST = 60  # seconds that a run may take before it counts as hung
SENTENCES = ("清晨的渔港很热闹。", "渔民把新鲜的鱼搬上岸。", "他们用5G手机查询路线。",
             "The new bridge, 2019.")
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 16, "max_position_embeddings": 32, "embedding_size": 8}
PIECES = (b"\x00", b"\r", b"\n\n\n", b"\t", b"\xff\xfe", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b'"',
          b"[MASK]", b"##", b"\xed\xa0\x80", b"\xe3\x80\x80", b"9" * 400,
          b"\xf0\x9f\x98\x80" * 50, b"{", b"}", b"version https://git-lfs.github.com/spec/v1\n")
VALUES = (None, True, -1, 0, 1, 2, 7, 8, 16, 0.5, 2 ** 31, 2 ** 70, 1e308, float("inf"),
          float("nan"), "", "0", "x" * 500, [], [1, [2]], {}, {"a": {}}, "../x", "gelu", "\ud800")

Seeds = collections.namedtuple("Seeds", "vocab text config records huggingface classifier rows")
# What one run is given. leftover: a path that must not be there after a run that was refused.
Case = collections.namedtuple("Case", "script arguments leftover")


def define_flags(flag_values):
    """Defines this script's flags."""
    flags.DEFINE_integer("seed", 1, "Seed of all mutations. Default: any will do.",
                         flag_values=flag_values)
    flags.DEFINE_float("seconds", 300, "How long to go on. Default: some hundred runs.",
                       flag_values=flag_values)
    flags.DEFINE_string("output_dir", "output/fuzz", "Folder of the inputs. Default: not under "
                        "git.", flag_values=flag_values)
    flags.DEFINE_multi_enum("kinds", sorted(KINDS), sorted(KINDS), "What to mutate. Default: all.",
                            flag_values=flag_values)


# ---- sound input -------------------------------------------------------------------------------


def write_bytes(path, content):
    """Writes bytes; returns the path."""
    with open(path, "wb") as stream:
        stream.write(content)
    return path


def read_bytes_of(path):
    """The bytes of a file."""
    with open(path, "rb") as stream:
        return stream.read()


def make_seeds(folder):
    """Writes sound input of every kind into a new folder: Seeds of paths."""
    os.makedirs(folder)

    def path(name):
        return os.path.join(folder, name)
    characters = sorted(set("".join(SENTENCES) + string.ascii_lowercase + string.digits) - {" "})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + characters + [
        "##" + character for character in characters]
    vocab = write_bytes(path("vocab.txt"), ("\n".join(tokens) + "\n").encode("utf-8"))
    document = "\n".join(SENTENCES[start % 4] for start in range(9))
    text = write_bytes(path("text.txt"), "\n\n".join([document] * 3).encode("utf-8"))
    config = dict(SIZES, vocab_size=len(tokens))
    records = path("tf_text.tfrecord")
    run_in_process(create_pretraining_data, pair_arguments(text, vocab, records))
    google = write_model(path("google"), dict(config, num_hidden_groups=1), vocab,
                         layouts.Heads(True, True, True, 0))
    run_in_process(convert_checkpoint, ["--from=" + google, "--to=" + path("hf"),
                                        "--format=huggingface"])
    classifier = write_model(path("classifier"), config, vocab,
                             layouts.Heads(True, False, False, 2))
    predictor.write_description(classifier, {
        "head": "classifier", "task_name": "tsv", "columns": "text_a,text_b", "data_dir": None,
        "labels": ["0", "1"], "pair": True, "max_seq_length": 24, "do_lower_case": True,
        "input_encoding": "utf-8"},
        modeling.AlbertConfig(**config), vocab)
    rows = write_bytes(path("rows.tsv"), "".join("{}\t{}\n".format(
        SENTENCES[row % 4], SENTENCES[row * 3 % 4]) for row in range(8)).encode("utf-8"))
    return Seeds(vocab, text, write_bytes(path("config.json"), json.dumps(config).encode("utf-8")),
                 records, path("hf"), classifier, rows)


def write_model(folder, config, vocab, heads):
    """A folder with random weights, config and vocabulary; returns it."""
    os.makedirs(folder)
    config_file = write_bytes(os.path.join(folder, "albert_config.json"),
                              json.dumps(config).encode("utf-8"))
    shutil.copy(vocab, os.path.join(folder, "vocab.txt"))
    rng = np.random.RandomState(1)
    checkpoints.write_checkpoint(folder, "model.ckpt", {
        name: rng.normal(size=shape).astype(np.float32) for name, shape in formats.variables_with(
            modeling.AlbertConfig.from_json_file(config_file), heads).items()})
    return folder


def pair_arguments(text, vocab, target):
    """Arguments of create_pretraining_data.py for toy sizes."""
    return ["--input_file=" + text, "--vocab_file=" + vocab, "--output_file=" + target,
            "--max_seq_length=24", "--max_predictions_per_seq=3", "--dupe_factor=1",
            "--num_workers=1", "--num_shards=1"]


# ---- mutation ----------------------------------------------------------------------------------


def mutated_bytes(content, rng, pieces=PIECES):
    """The content, bytes or str with str pieces, with one to three of its places changed."""
    empty = content[:0]
    for _ in range(rng.randint(1, 3)):
        start = rng.randint(0, len(content))
        end = min(len(content), start + rng.choice([1, 1, 7, 60]))
        piece = rng.choice([empty, rng.choice(pieces), content[start:end] * 2,
                            content[:end - start]])
        content = content[:start] + piece + content[rng.choice([start, end]):]
        if rng.random() < 0.1:
            content = content[:start]
    return content


def mutated_text(path, rng):
    """The bytes of a text file, changed between its characters or anywhere."""
    content = read_bytes_of(path)
    if rng.random() < 0.2:
        return mutated_bytes(content, rng)
    pieces = [piece.decode("utf-8", "replace") for piece in PIECES]
    return mutated_bytes(content.decode("utf-8"), rng, pieces).encode("utf-8")


def mutated_json(text, rng):
    """A JSON object's text with one to three of its values changed, or bytes that are no JSON."""
    if rng.random() < 0.2:
        return mutated_bytes(text, rng)
    values = json.loads(text.decode("utf-8"))
    for _ in range(rng.randint(1, 3)):
        key = rng.choice(sorted(values) + ["unknown"])
        if rng.random() < 0.2:
            values.pop(key, None)
        else:
            values[key] = rng.choice(VALUES)
    return json.dumps(values).encode("utf-8")


def mutated_records(path, rng):
    """The bytes of a record file, changed on the disk's level or inside of some of its records."""
    if rng.random() < 0.3:
        return mutated_bytes(read_bytes_of(path), rng)
    target = path + ".mutated"
    with tf.python_io.TFRecordWriter(target) as writer:
        for record in read_records(path):
            writer.write(mutated_example(record, rng) if rng.random() < 0.3 else record)
    return read_bytes_of(target)


def mutated_example(record, rng):
    """A serialized Example with one feature changed, or bytes that are none."""
    if rng.random() < 0.2:
        return mutated_bytes(record, rng)
    example = tf.train.Example.FromString(record)
    features = example.features.feature
    feature = features[rng.choice(sorted(features))]
    numbers = feature.int64_list.value or feature.float_list.value
    change = rng.randint(0, 3)
    if change == 0 or not numbers:
        feature.Clear()
    elif change == 1:
        feature.bytes_list.value.append(b"x")
    elif change == 2:
        numbers.pop()
    else:
        numbers[rng.randrange(len(numbers))] = rng.choice([-1, 5, 1000, 2 ** 31, 2 ** 40 + 5])
    return example.SerializeToString()


# ---- one case of each kind ---------------------------------------------------------------------


def text_case(seeds, folder, rng):
    """Data creation from mutated text."""
    text = write_bytes(os.path.join(folder, "text.txt"), mutated_text(
        seeds.text, rng))
    target = os.path.join(folder, "tf.tfrecord")
    return Case(create_pretraining_data, pair_arguments(text, seeds.vocab, target), target)


def vocabulary_case(seeds, folder, rng):
    """Data creation with a mutated vocabulary."""
    vocab = write_bytes(os.path.join(folder, "vocab.txt"), mutated_text(
        seeds.vocab, rng))
    target = os.path.join(folder, "tf.tfrecord")
    return Case(create_pretraining_data, pair_arguments(seeds.text, vocab, target), target)


def config_case(seeds, folder, rng):
    """Conversion of a sound checkpoint with a mutated config."""
    config = write_bytes(os.path.join(folder, "config.json"), mutated_json(
        read_bytes_of(seeds.config), rng))
    target = os.path.join(folder, "out")
    return Case(convert_checkpoint, [
        "--from=" + os.path.join(seeds.classifier, "model.ckpt"), "--to=" + target,
        "--bert_config_file=" + config, "--format=" + rng.choice(formats.FORMATS)], target)


def records_case(seeds, folder, rng):
    """Pre-training and evaluation on mutated records."""
    records = write_bytes(os.path.join(folder, "tf.tfrecord"), mutated_records(seeds.records, rng))
    arguments = ["--input_file=" + records, "--output_dir=" + os.path.join(folder, "out"),
                 "--bert_config_file=" + seeds.config, "--max_seq_length=24",
                 "--max_predictions_per_seq=3", "--do_train", "--train_batch_size=4",
                 "--num_train_steps=1", "--num_warmup_steps=0"]
    return Case(run_pretraining, arguments + rng.choice([[], ["--skip_corrupt_records"]]), None)


def rows_case(seeds, folder, rng):
    """Prediction of mutated rows."""
    classifier = shutil.copytree(seeds.classifier, os.path.join(folder, "classifier"))
    rows = write_bytes(os.path.join(folder, "rows.tsv"), mutated_text(
        seeds.rows, rng))
    return Case(run_classifier, ["--output_dir=" + classifier, "--do_predict",
                                 "--predict_file=" + rows], None)


def huggingface_case(seeds, folder, rng):
    """Conversion of a mutated Hugging Face folder."""
    source, target = os.path.join(folder, "hf"), os.path.join(folder, "out")
    shutil.copytree(seeds.huggingface, source)
    name = rng.choice(sorted(os.listdir(source)) + ["config.json"] * 3)
    path = os.path.join(source, name)
    mutate = mutated_json if name.endswith(".json") else mutated_bytes
    write_bytes(path, mutate(read_bytes_of(path), rng))
    if rng.random() < 0.1:
        os.rename(os.path.join(source, "model.safetensors"), os.path.join(source, rng.choice(
            ["model.bin", "model-1.safetensors", "pytorch_model.bin"])))
    return Case(convert_checkpoint, [
        "--from=" + source, "--to=" + target, "--format=" + rng.choice(formats.FORMATS)], target)


KINDS = {"text": text_case, "vocabulary": vocabulary_case, "config": config_case,
         "records": records_case, "rows": rows_case, "huggingface": huggingface_case}


# ---- running -----------------------------------------------------------------------------------


def run_in_process(script, arguments):
    """Runs a script's main() with flags of its own."""
    values = flags.FlagValues()
    script.define_flags(values)
    values([script.__name__] + arguments)
    with tf.Graph().as_default():
        return script.main(values)


def stop_hung(*_):
    """Handler of the alarm."""
    raise TimeoutError("the run took more than {} seconds".format(SLOWEST))


def outcome(case):
    """("succeeded" or "refused" or "failed", what was said)."""
    signal.signal(signal.SIGALRM, stop_hung)
    signal.alarm(SLOWEST)
    try:
        code, said = run_in_process(case.script, case.arguments), ""
    except cli.UserError as error:
        code, said = 1, str(error)
    except Exception:  # whatever it is, it is the fault that is looked for
        return "failed", traceback.format_exc()
    finally:
        signal.alarm(0)
    if "\n" in said.strip():
        return "failed", "more than one line: " + said
    if code and case.leftover and os.path.exists(case.leftover):
        return "failed", "{} is there although the run was refused: {}".format(case.leftover, said)
    return ("refused", said) if code else ("succeeded", "")


def try_once(kind, seeds, folder, rng):
    """Mutates, runs and judges once; the input stays in folder if the run fails: see outcome."""
    os.makedirs(folder)
    case = KINDS[kind](seeds, folder, rng)
    verdict, said = outcome(case)
    if verdict == "failed":
        write_bytes(os.path.join(folder, "failure.txt"), "{}\n{}\n{}".format(
            case.script.__name__, " ".join(case.arguments), said).encode("utf-8", "replace"))
    else:
        shutil.rmtree(folder)
    return verdict, said


def main(flag_values):
    """Goes round the kinds until the time is up; returns the exit code."""
    tf.logging.set_verbosity(tf.logging.ERROR)
    folder = flag_values.output_dir
    if os.path.exists(folder):
        raise cli.UserError("--output_dir {!r} is there already".format(folder))
    seeds, rng = make_seeds(os.path.join(folder, "sound")), random.Random(flag_values.seed)
    counts, end, number = collections.Counter(), time.time() + flag_values.seconds, 0
    while time.time() < end:
        for kind in flag_values.kinds:
            number += 1
            place = os.path.join(folder, "{}-{}".format(kind, number))
            verdict, said = try_once(kind, seeds, place, rng)
            counts[kind, verdict] += 1
            if verdict == "failed":
                print("{}: {}".format(place, said.strip().split("\n")[-1]), flush=True)
    for kind in flag_values.kinds:
        print("{:<12}".format(kind) + "".join("  {} {}".format(counts[kind, verdict], verdict)
                                              for verdict in ("succeeded", "refused", "failed")))
    return 1 if any(verdict == "failed" for _, verdict in counts) else 0


if __name__ == "__main__":
    cli.run(main, define_flags)

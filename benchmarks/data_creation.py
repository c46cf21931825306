"""How fast create_pretraining_data.py is, and how much memory it takes.

In: a text file, repeated up to the wanted size (repeated text is no faster to cut, and only its
runs of letters and digits are faster to tokenize).  Out: a table on stdout.

    python benchmarks/data_creation.py --text=corpus.txt --megabytes=1,8 --workers=1,2
"""

import contextlib
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from unittest import mock

from absl import flags

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import cli
from pretraining_data import manifest, masking, pairs, records, segmentation, shards
from pretraining_data.documents import Indexer, make_spans

MEGABYTE = 1e6
STAGES = {  # the function in which a stage passes its time; cut_words is called by segment
    "words": (segmentation, "cut_words"), "segment": (segmentation.Segmenter, "segment"),
    "pairs": (pairs, "document_pairs"), "gather": (masking, "gather"),
    "mask": (masking, "mask_rows"), "encode": (records, "encode_static")}
IMPORTS_ONLY = ("import sys; sys.path.insert(0, {!r}); import create_pretraining_data; "
                "create_pretraining_data.segmentation.load_cutter('jieba')")


def define_flags(flag_values):
    """Defines the benchmark's flags."""
    flags.DEFINE_string("text", os.path.join(ROOT, "data", "news_zh_1.txt"),
                        "Text to repeat. Default: the shipped sample.", flag_values=flag_values)
    flags.DEFINE_list("megabytes", ["1", "4"],
                      "Sizes of the corpus. Default: one for the start-up "
                      "and one for the rest.", flag_values=flag_values)
    flags.DEFINE_list("workers", ["1", "2"], "Numbers of workers. Default: one core and two.",
                      flag_values=flag_values)
    flags.DEFINE_integer("files", 1, "Files of the corpus. Default: one.", flag_values=flag_values)
    flags.DEFINE_list("options", [], "More flags of create_pretraining_data.py, without the two "
                      "dashes, by commas. Default: none.", flag_values=flag_values)


def write_corpus(folder, text, num_bytes, num_files):
    """Writes num_bytes of whole documents, repeated, into num_files files; returns the bytes."""
    documents = [part for part in text.split("\n\n") if part.strip()]
    written, number = 0, 0
    for index in range(num_files):
        with open(os.path.join(folder, "{:05d}.txt".format(index)), "wb") as stream:
            while stream.tell() < num_bytes / num_files:
                stream.write((documents[number % len(documents)] + "\n\n").encode("utf-8"))
                number += 1
            written += stream.tell()
    return written


def run_child(arguments):
    """(CPU seconds, seconds, peak memory in MB) of a command and its processes."""
    program = ("import json, resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
               "used = resource.getrusage(resource.RUSAGE_CHILDREN); sys.stdout.write(json.dumps("
               "[code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024.0]))")
    started = time.time()
    process = subprocess.run([sys.executable, "-c", program] + arguments, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, check=True)
    code, cpu, peak = json.loads(process.stdout.decode("utf-8"))
    if code:
        raise cli.UserError(process.stderr.decode("utf-8").strip().split("\n")[-1])
    return cpu, time.time() - started, peak


def measure_run(folder, options, workers, num_bytes, imports_peak):
    """Prints one line on a run of the script over a folder of text."""
    with tempfile.TemporaryDirectory() as output:
        target = os.path.join(output, "tf.tfrecord")
        cpu, seconds, peak = run_child(
            [sys.executable, os.path.join(ROOT, "create_pretraining_data.py"),
             "--vocab_file=" + os.path.join(ROOT, "albert_config", "vocab.txt"),
             "--input_file=" + folder, "--output_file=" + target,
             "--num_workers={}".format(workers)] + ["--" + option for option in options])
        instances = manifest.read_json(manifest.manifest_path(target))["totals"]["instances"]
        size = sum(os.path.getsize(os.path.join(output, name)) for name in os.listdir(output))
    megabytes = num_bytes / MEGABYTE
    print("{:8.1f} {:7d} {:9.1f} {:8.1f} {:8.2f} {:9.3f} {:10.0f} {:9.0f} {:8.0f} {:10.0f}".format(
        megabytes, workers, cpu, seconds, cpu / megabytes, megabytes / seconds,
        instances / seconds, instances, peak - imports_peak, size / MEGABYTE))


def timed_stage(seconds, stage, function):
    """The function, which adds the CPU seconds of its calls to seconds[stage]."""
    seconds[stage] = 0.0

    @functools.wraps(function)
    def wrapped(*arguments):
        started = time.process_time()
        result = function(*arguments)
        seconds[stage] += time.process_time() - started
        return result
    return wrapped


def measure_stages(text):
    """Prints CPU seconds of each stage for one pass over the text, and of plain jieba."""
    settings = shards.Settings(
        "static", 512, 76, 0.15, 1, True, False, True, False, "jieba", "utf-8", 12345, 10, 0.1,
        False, 1)
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        maker = shards.ShardMaker(settings, os.path.join(ROOT, "albert_config", "vocab.txt"))
        maker.load()
        print("loading vocabulary and dictionary {:.2f} CPU-s".format(
            time.process_time() - started))
        num_bytes = write_corpus(folder, text, len(text.encode("utf-8")), 1)
        paths = [os.path.join(folder, "00000.txt")]
        spans = make_spans(paths)
        started = time.process_time()
        indexer = Indexer(folder, paths, "utf-8", 1, 1)
        for job in enumerate(spans):
            indexer(job)
        maker.source = folder, paths, len(spans)
        seconds = {"index": time.process_time() - started}
        with contextlib.ExitStack() as stack:
            for stage, (place, function) in STAGES.items():
                stack.enter_context(mock.patch.object(
                    place, function, timed_stage(seconds, stage, getattr(place, function))))
            maker((0, os.path.join(folder, "tf.tfrecord"), 0))
    total = time.process_time() - started
    seconds["segment"] -= seconds["words"]
    seconds["the rest"] = total - sum(seconds.values())
    cut = segmentation.load_cutter("jieba")
    started = time.process_time()
    for line in text.split("\n"):
        cut(line)
    plain, megabytes = time.process_time() - started, num_bytes / MEGABYTE
    for stage, value in seconds.items():
        print("  {:10s} {:6.3f} CPU-s/MB".format(stage, value / megabytes))
    print("  {:10s} {:6.3f} CPU-s/MB = {:.2f} times plain jieba.lcut, {:.3f}".format(
        "all", total / megabytes, total / plain, plain / megabytes))


def main(flag_values):
    """Measures and prints."""
    run = cli.settings_of(flag_values)
    with open(run.text, encoding="utf-8") as stream:
        text = stream.read()
    print("Python {}, {} cores".format(sys.version.split()[0], os.cpu_count()))
    measure_stages(text)
    _, _, imports_peak = run_child([sys.executable, "-c", IMPORTS_ONLY.format(ROOT)])
    print("imports and dictionary: {:.0f} MB; this process: {:.0f} MB".format(
        imports_peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0))
    print("      MB workers     CPU-s  seconds CPU-s/MB      MB/s instances/s instances  MB over "
          " MB written")
    for megabytes in run.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            num_bytes = write_corpus(folder, text, float(megabytes) * MEGABYTE, run.files)
            for workers in run.workers:
                measure_run(folder, run.options, int(workers), num_bytes, imports_peak)


if __name__ == "__main__":
    cli.run(main, define_flags)

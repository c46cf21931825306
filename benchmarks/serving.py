"""How fast a classifier answers, beside Hugging Face's pipeline and over HTTP; whether it lasts.

In: a config and a vocabulary; the weights are random, the same for both. A text file: pairs with a
tab between (LCQMC's test.txt), or sentences, of which parts make pairs of 27 tokens on average.
Out: tables on standard output.

  pipeline   one row and 64 rows at once, this project and Hugging Face in turn in one process;
             with the threads that each takes by itself, and with one
  server     start-up, then one client and --clients at once in turn: requests/s, latency, memory
  endurance  --requests with broken, huge and slow ones in between: whether memory grows

    python benchmarks/serving.py
    python benchmarks/serving.py --parts=endurance --requests=100000

Needs ./setup.sh --with=serve --with=huggingface. On a busy machine go by the CPU seconds.
"""

import collections
import concurrent.futures
import contextlib
import http.client
import io
import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import cli
import convert_checkpoint
import modeling
from fine_tuning import predictor

LABELS = ("0", "1")
AT_ONCE = 64
BARS = {1: 0.8, AT_ONCE: 0.5}  # share of Hugging Face's time that is aimed at
BROKEN = (b"", b"{", b"\xff", b"[1]", b'{"rows": []}', b'{"rows": [1]}', b'{"rows": ["alone"]}')
SAMPLES = 20  # of memory in an endurance run
Served = collections.namedtuple("Served", "process port")


def define_flags(flag_values):
    """Defines this script's flags."""
    for name, default, text in (
            ("parts", "pipeline,server,endurance", "What to measure, by commas. Default: all."),
            ("threads", "0,1", "Threads of the pipeline's table, by commas; 0: what each takes by "
             "itself. Default: both."),
            ("bert_config_file", "albert_config/albert_config_base.json",
             "Model config; its embeddings are read as Google's, which Hugging Face's ALBERT "
             "takes. Default: the size that is served most."),
            ("vocab_file", "albert_config/vocab.txt", "Vocabulary. Default: the one of set-up."),
            ("text_file", "data/news_zh_1.txt", "Pairs or sentences. Default: some that are here."),
            ("output_dir", "output/benchmark_serving", "Folder of the model, which is replaced. "
             "Default: not under git.")):
        flags.DEFINE_string(name, default, text, flag_values=flag_values)
    for name, default, text in (
            ("repeat", 20, "Times that each is measured in turn. Default: a minute's work."),
            ("clients", 16, "Clients at once. Default: what the published figure is for."),
            ("requests", 3000, "Requests of the endurance run. Default: some minutes; 100000 is "
             "the long one.")):
        flags.DEFINE_integer(name, default, text, lower_bound=1, flag_values=flag_values)


# --- what is served ---------------------------------------------------------------------------


def pairs_of(text_file, count):
    """Pairs of texts: those of a file of pairs, else parts of 4 to 20 characters of its lines."""
    with open(text_file, encoding="utf-8") as stream:
        lines = [line.strip() for line in itertools.islice(stream, 10000)]
    found = [tuple(line.split("\t")[:2]) for line in lines if "\t" in line]
    if found:
        return [found[n % len(found)] for n in range(count)]
    lines = [line for line in lines if len(line) >= 8]
    return [(lines[n % len(lines)][:4 + n * 7 % 17],
             lines[(n * 5 + 1) % len(lines)][:4 + n * 3 % 17]) for n in range(count)]


def write_models(settings):
    """(folder of a classifier with random weights, the same as a Hugging Face folder)."""
    folder, theirs = [os.path.join(settings.output_dir, name) for name in ("run", "huggingface")]
    shutil.rmtree(settings.output_dir, ignore_errors=True)
    os.makedirs(folder)
    with open(settings.bert_config_file, encoding="utf-8") as stream:
        values = json.load(stream)
    google = os.path.join(settings.output_dir, "config.json")
    cli.write_whole(google, json.dumps({
        key: value for key, value in dict(values, embedding_style="google").items()
        if key != "ln_type"}))
    config = modeling.AlbertConfig.from_json_file(google)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        model = modeling.AlbertModel(config, tf.zeros([1, 1], tf.int32))
        modeling.classification_head(model.pooled_output, None, len(LABELS), config)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, os.path.join(folder, "model.ckpt-0"))
    predictor.write_description(folder, {
        "head": "classifier", "task_name": "lcqmc", "columns": None, "data_dir": None,
        "labels": list(LABELS), "pair": True, "max_seq_length": 128, "do_lower_case": True,
        "input_encoding": "utf-8"}, config, settings.vocab_file)
    values = flags.FlagValues()
    convert_checkpoint.define_flags(values)
    values(["convert_checkpoint.py", "--from=" + folder, "--to=" + theirs, "--format=huggingface"])
    with contextlib.redirect_stdout(io.StringIO()):
        convert_checkpoint.main(values)
    return folder, theirs


# --- beside the Hugging Face pipeline ---------------------------------------------------------


def pipeline_table(settings, folder, theirs):
    """A process for each number of threads, since TensorFlow takes it once for all."""
    print("\n| threads | rows at once | this, ms | Hugging Face, ms | share | this, CPU-ms | "
          "Hugging Face, CPU-ms | share | aimed at |\n|" + " --- |" * 9, flush=True)
    for threads in map(int, settings.threads.split(",")):
        with concurrent.futures.ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn")) as process:
            for line in process.submit(pipeline_lines, folder, theirs, threads, settings.repeat,
                                       settings.text_file).result():
                print(line, flush=True)


def pipeline_lines(folder, theirs, threads, repeat, text_file):
    """Lines of the table for so many threads."""
    import torch
    import transformers
    config = tf.ConfigProto(intra_op_parallelism_threads=threads,
                            inter_op_parallelism_threads=threads)
    ours = predictor.Predictor(folder, session_config=config)
    if threads:
        torch.set_num_threads(threads)
    pipeline = transformers.pipeline("text-classification", model=theirs, device=-1)
    pairs = pairs_of(text_file, AT_ONCE)

    def ask_theirs(rows):
        return pipeline([{"text": first, "text_pair": second} for first, second in rows],
                        batch_size=len(rows), top_k=None, truncation=True, max_length=128)

    found = np.array([[next(part["score"] for part in row if part["label"] == label)
                       for label in ours.labels] for row in ask_theirs(pairs)])
    difference = np.abs(found - ours.predict(pairs)).max()
    if not difference < 1e-4:
        raise cli.UserError("the probabilities differ by {:.2g}".format(difference))
    lines = []
    for rows, bar in BARS.items():
        times = np.array([[cost for ask in (ours.predict, ask_theirs) for cost in costs_of(
            ask, [pairs[(turn * rows + row) % AT_ONCE] for row in range(rows)])]
            for turn in range(-2, repeat)])[2:]  # [repeat, 4]; the first two warm up
        wall, cpu, their_wall, their_cpu = np.median(times, axis=0) * 1000
        lines.append("| {} | {} |{} {} |".format(threads or "default", rows, "".join(
            " {:.1f} | {:.1f} | {:.2f} |".format(one, other, one / other)
            for one, other in ((wall, their_wall), (cpu, their_cpu))), bar))
    return lines


def costs_of(ask, rows):
    """(seconds, CPU seconds) that a call takes."""
    wall, cpu = time.time(), time.process_time()
    ask(rows)
    return time.time() - wall, time.process_time() - cpu


# --- over HTTP --------------------------------------------------------------------------------


def start(folder):
    """Starts serve.py; returns Served once it says its address."""
    process = subprocess.Popen(
        [sys.executable, os.path.join(ROOT, "serve.py"), "--model_dir=" + folder, "--port=0",
         "--body_timeout=2"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    address = process.stdout.readline().decode("utf-8")
    return Served(process, int(address.rsplit(":", 1)[1]))


def stop(served):
    """Ends it as Docker does."""
    served.process.send_signal(signal.SIGTERM)
    if served.process.wait(timeout=60):
        raise cli.UserError("serve.py ended with {}".format(served.process.returncode))


def ask(connection, body):
    """(status, seconds) of a request on a connection that is kept."""
    started = time.time()
    connection.request("POST", "/predict", body)
    response = connection.getresponse()
    response.read()
    return response.status, time.time() - started


def resources(port):
    """(CPU seconds, MB) that the server has taken, as its /metrics says."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode("utf-8")
    connection.close()
    seconds, size = [float(re.search("^{} (.*)$".format(name), text, re.MULTILINE).group(1))
                     for name in ("process_cpu_seconds_total", "process_resident_memory_bytes")]
    return seconds, size / 1e6


def latencies(port, bodies, clients):
    """(seconds of each request, seconds of all together), asked by so many clients at once."""
    def client(own):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        found = [ask(connection, body) for body in own]
        connection.close()
        return found

    started = time.time()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        found = list(itertools.chain.from_iterable(pool.map(
            client, [bodies[number::clients] for number in range(clients)])))
    if {status for status, _ in found} != {200}:
        raise cli.UserError("not every request was answered")
    return [seconds for _, seconds in found], time.time() - started


def server_table(settings, folder):
    """Start-up, then one client and many in turn."""
    bodies = [json.dumps({"rows": [pair]}).encode("utf-8")
              for pair in pairs_of(settings.text_file, 16 * settings.clients)]
    started = time.time()
    served = start(folder)
    latencies(served.port, bodies[:1], 1)
    print("\nstart-up: {:.1f} s, {:.1f} CPU-s from the start of the process to the first answer"
          .format(time.time() - started, resources(served.port)[0]))
    rows = {1: [], settings.clients: []}
    for _ in range(max(2, settings.repeat // 4)):
        for clients in rows:
            before = resources(served.port)[0]
            found, wall = latencies(served.port, bodies, clients)
            cpu = resources(served.port)[0] - before
            rows[clients].append([len(found) / wall, len(found) / cpu] + [
                1000 * np.percentile(found, share) for share in (50, 99)])
    print("\n| clients | requests/s | requests/CPU-s of the server | median, ms | p99, ms |\n|"
          + " --- |" * 5)
    medians = {clients: np.median(found, axis=0) for clients, found in rows.items()}
    for clients, found in medians.items():
        print("| {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |".format(clients, *found))
    one, many = medians[1], medians[settings.clients]
    print("throughput: x {:.2f} in time, x {:.2f} by CPU seconds (aimed at: 3); memory {:.0f} MB"
          .format(many[0] / one[0], many[1] / one[1], resources(served.port)[1]), flush=True)
    stop(served)


# --- whether it lasts -------------------------------------------------------------------------


def mixed_request(number, pairs):
    """(body, the statuses that are right for it) of a request: one in ten is broken or huge."""
    if number % 20 == 7:
        return BROKEN[number // 20 % len(BROKEN)], (400,)
    if number % 200 == 13:
        return b'{"rows": ["' + b"x" * (2 << 20) + b'"]}', (413,)
    rows = [pairs[number % len(pairs)]]
    if number % 200 == 113:
        rows = [pairs[(number + more) % len(pairs)] for more in range(40)]
    if number % 50 == 31:
        rows = [[("长" * 5000), "短"]]
    return json.dumps({"rows": rows}).encode("utf-8"), (200, 503)


def linger(port, until):
    """A client that sends half a request and waits, again and again."""
    while not until.is_set():
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            until.wait(3)


def endurance(settings, folder):
    """Sends the requests; a UserError if memory grew or an answer is wrong."""
    served = start(folder)
    ended, pairs = threading.Event(), pairs_of(settings.text_file, 997)
    slow = [threading.Thread(target=linger, args=(served.port, ended)) for _ in range(3)]
    for thread in slow:
        thread.start()
    counts, sizes = collections.Counter(), []

    def send(numbers):
        connection = http.client.HTTPConnection("127.0.0.1", served.port)
        for number in numbers:
            body, right = mixed_request(number, pairs)
            status, _ = ask(connection, body)
            counts[status if status in right else "wrong"] += 1
        connection.close()

    print("\n| requests | MB |\n| --- | --- |")
    step = max(settings.clients, settings.requests // SAMPLES)
    with concurrent.futures.ThreadPoolExecutor(settings.clients) as pool:
        for first in range(0, settings.requests, step):
            numbers = range(first, min(first + step, settings.requests))
            list(pool.map(send, [numbers[own::settings.clients]
                                 for own in range(settings.clients)]))
            sizes.append(resources(served.port)[1])
            print("| {} | {:.0f} |".format(numbers[-1] + 1, sizes[-1]), flush=True)
    ended.set()
    for thread in slow:
        thread.join()
    stop(served)
    print("answers by status: {}".format(dict(counts)))
    settled = max(sizes[:max(1, len(sizes) // 4)])
    print("memory after a quarter {:.0f} MB, at the end {:.0f} MB".format(settled, sizes[-1]))
    if counts["wrong"] or sizes[-1] > 1.05 * settled:
        raise cli.UserError("wrong answers: {}; memory: x {:.2f}".format(
            counts["wrong"], sizes[-1] / settled))


def main(flag_values):
    """Prints the tables that are asked for."""
    settings = cli.settings_of(flag_values)
    print("TensorFlow {}, {} cores, load {:.1f}, {}".format(
        tf.__version__, os.cpu_count(), os.getloadavg()[0], settings.bert_config_file), flush=True)
    folder, theirs = write_models(settings)
    parts = settings.parts.split(",")
    if "pipeline" in parts:
        pipeline_table(settings, folder, theirs)
    if "server" in parts:
        server_table(settings, folder)
    if "endurance" in parts:
        endurance(settings, folder)


if __name__ == "__main__":
    cli.run(main, define_flags)

"""Data creation over processes: the same bytes, restarts after kill -9, workers that end."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from helpers.toys import ROOT, TOY_SENTENCES, write_text

import cli
from pretraining_data.workers import ProgressLines, run_jobs

SHORT = ["--max_seq_length=64", "--max_predictions_per_seq=10"]


def command(vocab, text, output, *options):
    return [sys.executable, os.path.join(ROOT, "create_pretraining_data.py"),
            "--vocab_file=" + vocab, "--input_file=" + str(text),
            "--output_file=" + str(output)] + SHORT + list(options)


def run(arguments, **environment):
    """Exit code and all output of a process, which runs in UTF-8 unless told otherwise."""
    process = subprocess.run(arguments, env=dict(os.environ, **environment), cwd=ROOT,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    return process.returncode, process.stdout.decode("utf-8", "replace")


def hashes(folder):
    """{name: SHA-256} of the files in a folder, hidden ones left out."""
    found = {}
    for name in os.listdir(str(folder)):
        if name.startswith("."):
            continue
        with open(os.path.join(str(folder), name), "rb") as stream:
            found[name] = hashlib.sha256(stream.read()).hexdigest()
    return found


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory):
    """1,000 documents of 4 to 8 sentences."""
    rng = random.Random(3)
    documents = ["\n".join(rng.sample(TOY_SENTENCES, rng.randint(4, 8))) for _ in range(1000)]
    return write_text(tmp_path_factory.mktemp("many") / "many.txt", "\n\n".join(documents))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, toy_vocab, corpus_file):
    """Hashes of a run of one worker with five shards."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, said = run(command(toy_vocab, corpus_file, folder / "tf_x.tfrecord", "--num_shards=5",
                             "--num_workers=1"), PYTHONHASHSEED="0")
    assert code == 0, said
    found = hashes(folder)
    assert sorted(found) == ["tf_x-0000{}-of-00005.tfrecord".format(shard) for shard in range(5)] \
        + ["tf_x.manifest.json"]
    return found


@pytest.mark.parametrize("workers, environment", [
    (2, {"PYTHONHASHSEED": "1"}),
    (3, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONHASHSEED": "0"})])
def test_bytes_do_not_depend_on_workers_hashes_and_locale(toy_vocab, corpus_file, undisturbed,
                                                          tmp_path, workers, environment):
    code, said = run(command(toy_vocab, corpus_file, tmp_path / "tf_x.tfrecord", "--num_shards=5",
                             "--num_workers={}".format(workers)), **environment)
    assert code == 0, said
    assert hashes(tmp_path) == undisturbed


def test_ranges_of_shards_make_the_same_files(toy_vocab, corpus_file, undisturbed, tmp_path):
    for shard_range in ("3:5", "0:3"):
        code, said = run(command(toy_vocab, corpus_file, tmp_path / "tf_x.tfrecord",
                                 "--num_shards=5", "--shard_range=" + shard_range,
                                 "--num_workers=1"))
        assert code == 0, said
    assert hashes(tmp_path) == undisturbed


def test_another_machine_s_shards_are_neither_refused_nor_replaced(toy_vocab, corpus_file,
                                                                  undisturbed, tmp_path):
    """As in a shared folder while that machine is still at work, so without its manifest."""
    name = "tf_x-00003-of-00005.tfrecord"
    (tmp_path / name).write_bytes(b"theirs")
    for more in ([], ["--overwrite"]):
        code, said = run(command(toy_vocab, corpus_file, tmp_path / "tf_x.tfrecord",
                                 "--num_shards=5", "--shard_range=0:3", "--num_workers=1", *more))
        assert code == 0, said
        assert (tmp_path / name).read_bytes() == b"theirs"
    assert hashes(tmp_path)["tf_x-00002-of-00005.tfrecord"] == undisturbed[
        "tf_x-00002-of-00005.tfrecord"]


def shards_in(names):
    return sum(name.endswith("tfrecord") and not name.startswith(".") for name in names)


MOMENTS = {
    "before the index": lambda names: any(name.endswith(".work") for name in names),
    "in the first shard": lambda names: any(".tmp-" in name for name in names),
    "after one": lambda names: shards_in(names) >= 1,
    "after three": lambda names: shards_in(names) >= 3,
    "after all": lambda names: shards_in(names) == 5}


@pytest.mark.parametrize("moment", sorted(MOMENTS))
def test_a_killed_run_goes_on(toy_vocab, corpus_file, undisturbed, tmp_path, moment):
    arguments = command(toy_vocab, corpus_file, tmp_path / "tf_x.tfrecord", "--num_shards=5",
                        "--num_workers=2")
    process = subprocess.Popen(arguments, cwd=ROOT, stderr=subprocess.DEVNULL)
    while process.poll() is None and not MOMENTS[moment](os.listdir(str(tmp_path))):
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert all(undisturbed[name] == value for name, value in hashes(tmp_path).items())
    code, said = run(arguments)
    assert code == 0, said
    assert hashes(tmp_path) == undisturbed
    assert set(os.listdir(str(tmp_path))) == set(undisturbed)


def test_only_missing_shards_are_made_again(toy_vocab, corpus_file, undisturbed, tmp_path):
    arguments = command(toy_vocab, corpus_file, tmp_path / "tf_x.tfrecord", "--num_shards=5",
                        "--num_workers=1")
    run(arguments)
    times = {name: os.stat(str(tmp_path / name)).st_mtime_ns for name in undisturbed}
    os.remove(str(tmp_path / "tf_x-00002-of-00005.tfrecord"))
    code, said = run(arguments)
    assert code == 0 and "4 of 5 shards are there already" in said
    assert hashes(tmp_path) == undisturbed
    changed = {name for name in undisturbed
               if os.stat(str(tmp_path / name)).st_mtime_ns != times[name]}
    assert changed == {"tf_x-00002-of-00005.tfrecord", "tf_x.manifest.json"}


def test_other_settings_are_refused_unless_told(toy_vocab, corpus_file, undisturbed, tmp_path):
    output = tmp_path / "tf_x.tfrecord"
    code, said = run(command(toy_vocab, corpus_file, output, "--num_shards=3", "--ngram=2"))
    assert code == 0, said
    before = hashes(tmp_path)
    wanted = command(toy_vocab, corpus_file, output, "--num_shards=5")
    code, said = run(wanted)
    assert code == 1 and hashes(tmp_path) == before
    assert "settings.ngram was 2, now 1; --overwrite" in said.strip().split("\n")[-1]
    code, said = run(wanted + ["--overwrite"])
    assert code == 0, said
    assert hashes(tmp_path) == undisturbed


def test_changed_text_is_noticed(toy_vocab, tmp_path):
    text = write_text(tmp_path / "a.txt", "渔港很热闹。\n新的桥。")
    arguments = command(toy_vocab, text, tmp_path / "out" / "tf.tfrecord")
    assert run(arguments)[0] == 0
    write_text(text, "渔港很热闹。\n新的路。")
    code, said = run(arguments)
    assert code == 1 and "input.checksum was" in said
    assert run(arguments + ["--overwrite"])[0] == 0


def test_foreign_output_is_not_touched(toy_vocab, corpus_file, tmp_path):
    output = write_text(tmp_path / "tf.tfrecord", "mine")
    code, said = run(command(toy_vocab, corpus_file, output, "--num_shards=1"))
    assert code == 1 and "no manifest says how it was made" in said
    assert hashes(tmp_path).keys() == {"tf.tfrecord"}


def double_or_fail(job):
    """A job for run_jobs: twice the number; 3 is bad input, 4 kills its worker."""
    if job == 3:
        raise cli.UserError("three")
    if job == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return 2 * job


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_with_their_jobs(workers):
    jobs = [5, 6, 7, 8, 9]
    assert sorted(run_jobs(double_or_fail, jobs, workers)) == [
        (job, 2 * job) for job in jobs]


@pytest.mark.parametrize("bad, words", [(3, "three"), (4, "signal 9.*--num_shards")])
def test_a_failing_or_killed_worker_ends_the_run(bad, words):
    started = time.time()
    with pytest.raises(cli.UserError, match=words):
        list(run_jobs(double_or_fail, [1, 2, bad] + [1] * 1000, 2))
    assert time.time() - started < 5


ORPHANS = """
import os, sys, time
sys.path.insert(0, {root!r})
from pretraining_data import workers

def job(number):
    with open(os.path.join({folder!r}, str(os.getpid())), "w", encoding="utf-8"):
        pass
    time.sleep(60)

list(workers.run_jobs(job, [1, 2], 2))
"""


def test_workers_end_with_their_parent(tmp_path):
    script = write_text(tmp_path / "script.py", ORPHANS.format(root=ROOT, folder=str(tmp_path)))
    parent = subprocess.Popen([sys.executable, script])
    deadline = time.time() + 20
    while len(os.listdir(str(tmp_path))) < 3 and time.time() < deadline:
        time.sleep(0.05)
    workers = [int(name) for name in os.listdir(str(tmp_path)) if name.isdigit()]
    assert len(workers) == 2
    parent.kill()
    parent.wait()
    time.sleep(1.0)
    assert not any(is_running(worker) for worker in workers)


def is_running(process):
    """False also for a process that has ended and that nobody has waited for."""
    try:
        with open("/proc/{}/stat".format(process), encoding="utf-8") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_line_a_minute_without_a_terminal(caplog):
    now = [0.0]
    caplog.set_level("INFO")
    watch = ProgressLines(10, "shards", clock=lambda: now[0])
    for _ in range(10):
        now[0] += 25.0
        watch()
    assert [record.getMessage() for record in caplog.records] == [
        "3 of 10 shards, about 175 s to go", "6 of 10 shards, about 100 s to go",
        "9 of 10 shards, about 25 s to go"]

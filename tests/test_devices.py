"""Several devices and several machines give what one gives; settings that cannot work fail."""

import functools
import glob
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_records import pretraining_arguments, run_script, write_toy_records
from helpers.toys import ROOT, TOY_CONFIG, toy_tokens, write_text

import devices
import optimization
import run_pretraining
from cli import UserError

CLIP_NORM = 0.1  # below every norm in these runs
NOISE = "self/key/bias"  # its true gradient is 0, LAMB amplifies the rounding
SECONDS = 120
arguments = functools.partial(pretraining_arguments, do_train=True, train_batch_size=16,
                              num_train_steps=5, save_checkpoints_steps=5)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    return [write_toy_records(folder / ("tf_%d.tfrecord" % seed), 23, seed) for seed in range(2)]


@pytest.fixture(scope="module")
def small_config(tmp_path_factory):
    """Path of a configuration with a single layer: each device has a graph of its own."""
    config = dict(TOY_CONFIG, vocab_size=len(toy_tokens()), num_hidden_layers=1)
    return write_text(tmp_path_factory.mktemp("config") / "config.json", json.dumps(config))


@pytest.fixture(scope="module", autouse=True)
def active_clipping():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimization, "CLIP_NORM", CLIP_NORM)
        yield


@pytest.fixture(scope="module")
def five_steps(small_config, records, tmp_path_factory):
    """The folder of five steps of batch 16 on one device."""
    folder = tmp_path_factory.mktemp("one")
    run_script(run_pretraining, *arguments(small_config, records[:1], folder))
    return str(folder)


def weights_of(folder):
    reader = tf.train.load_checkpoint(str(folder))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_same_weights(found, wanted):
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        if NOISE not in name:
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)


def scalars_of(folder, tag):
    return {event.step: value.simple_value for path in sorted(glob.glob(str(folder) + "/events*"))
            for event in tf.train.summary_iterator(path) for value in event.summary.value
            if value.tag == tag}


def test_two_devices_give_the_weights_of_one(small_config, records, five_steps, tmp_path):
    run_script(run_pretraining, *arguments(small_config, records[:1], tmp_path, num_devices=2,
                                           save_checkpoints_steps=2))
    found, wanted = weights_of(tmp_path), weights_of(five_steps)
    assert not [name for name in found if "replica" in name]
    assert_same_weights(found, wanted)
    for tag in ("loss", "mlm_loss", "sop_accuracy", "gradient_norm"):
        one, two = scalars_of(five_steps, tag), scalars_of(tmp_path, tag)
        assert sorted(one) == [1, 2, 3, 4, 5] == sorted(two)
        for step, value in one.items():
            assert abs(value - two[step]) < 1e-4, (tag, step)
    assert min(scalars_of(five_steps, "gradient_norm").values()) > CLIP_NORM
    # On from step 2 on one device, as if the run on two had been killed there.
    tf.train.update_checkpoint_state(str(tmp_path), "model.ckpt-2")
    run_script(run_pretraining, *arguments(small_config, records[:1], tmp_path))
    assert_same_weights(weights_of(tmp_path), wanted)


START = """
import sys
sys.path.insert(0, {root!r})
import cli, optimization, run_pretraining
from training import machines
optimization.CLIP_NORM, machines.COMING_SECONDS = {clip_norm}, {seconds}
cli.run(run_pretraining.main, run_pretraining.define_flags)
"""


def free_port():
    """A port that nobody listens at, and that no system gives to a connection of its own accord."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


def start_machines(count, *settings, missing=0, seconds=SECONDS):
    """Starts `count` processes that share a training on 127.0.0.1, as if with `missing` more.

    seconds: that they wait for one another.
    """
    cluster = {"worker": ["127.0.0.1:%d" % free_port() for _ in range(count + missing)]}
    program = START.format(root=ROOT, clip_norm=CLIP_NORM, seconds=seconds)
    return [subprocess.Popen(
        [sys.executable, "-c", program] + list(settings), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=dict(os.environ, TF_CONFIG=json.dumps(
            {"cluster": cluster, "task": {"type": "worker", "index": index}})))
        for index in range(count)]


def finish(processes):
    """The exit codes and outputs of processes, which are killed when they take too long."""
    try:
        outputs = [process.communicate(timeout=SECONDS)[0].decode("utf-8")
                   for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], outputs


def test_two_machines_give_the_weights_of_one(small_config, records, five_steps, tmp_path):
    codes, outputs = finish(start_machines(2, *arguments(
        small_config, records[:1], tmp_path, do_eval=True)))
    assert codes == [0, 0], outputs
    assert "2 machines with 1 x CPU" in outputs[0] and "this is machine 1 of 0-1" in outputs[1]
    assert "mlm_accuracy = " in outputs[0] and "mlm_accuracy = " not in outputs[1]
    assert_same_weights(weights_of(tmp_path), weights_of(five_steps))


def test_a_machine_that_is_told_to_go_ends_the_run_on_all(small_config, records, tmp_path):
    machines = start_machines(2, *arguments(small_config, records, tmp_path, num_train_steps=5000,
                                            num_warmup_steps=50, save_checkpoints_steps=2000))
    for line in machines[1].stdout:
        if b"step 3/5000" in line:
            machines[1].send_signal(signal.SIGTERM)
            break
    codes, outputs = finish(machines)
    assert codes == [128 + signal.SIGTERM] * 2, outputs
    assert 3 <= weights_of(tmp_path)["global_step"] < 2000


@pytest.mark.parametrize("lost", [int(tf.__version__ >= "2")])  # each takes a minute
def test_a_machine_that_is_lost_ends_the_others_and_all_can_go_on(small_config, records, tmp_path,
                                                                  lost):
    settings = functools.partial(arguments, small_config, records, tmp_path,
                                 save_checkpoints_steps=20)
    machines = start_machines(2, *settings(num_train_steps=50000, num_warmup_steps=50))
    for line in machines[0].stdout:
        if b"step 45/50000" in line:
            machines[lost].kill()
            break
    codes, outputs = finish(machines)
    assert codes[lost] == -signal.SIGKILL and codes[1 - lost] == 1, outputs
    last = outputs[1 - lost].splitlines()[-1]
    assert re.search(r"error: machine %d \(127.*\) is lost, .* checkpoint is .*model.ckpt-\d+0;" %
                     lost, last), outputs[1 - lost]
    assert "Traceback" not in outputs[1 - lost]
    step = int(weights_of(tmp_path)["global_step"])
    codes, outputs = finish(start_machines(2, *settings(num_train_steps=step + 2)))
    assert codes == [0, 0] and weights_of(tmp_path)["global_step"] == step + 2, outputs


def test_a_machine_that_never_comes_up_is_named(small_config, records, tmp_path):
    codes, (output,) = finish(start_machines(1, *arguments(small_config, records, tmp_path),
                                             missing=1, seconds=12))
    assert codes == [1] and "Traceback" not in output, output
    assert re.search(r"waiting for machine 1 \(127.0.0.1:\d+\): 1\d of 12 seconds", output)
    assert re.search(r"error: machine 1 \(.*\) did not come up within 12 seconds", output)


def test_place_in_cluster():
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}

    def place(**value):
        return devices.place_in_cluster(json.dumps(value))

    assert devices.place_in_cluster("") == devices.place_in_cluster("{}") == (0, [])
    assert place(cluster=cluster, task={"type": "chief", "index": 0}) == (0, ["a:1", "b:1", "c:1"])
    assert place(cluster=cluster, task={"type": "worker", "index": 1}) == (2, ["a:1", "b:1", "c:1"])
    for words, text in [("not of the form", "{"), ("not of the form", json.dumps(dict(
            cluster=cluster))), ("not of the form", "[]")] + [
                ("not of the form", json.dumps(dict(cluster={"worker": hosts}, task={
                    "type": "worker", "index": 0}))) for hosts in ("a:1", [1, 2], {"0": "a:1"})]:
        with pytest.raises(UserError, match=words):
            devices.place_in_cluster(text)
    with pytest.raises(UserError, match="no worker number 2"):
        place(cluster=cluster, task={"type": "worker", "index": 2})
    with pytest.raises(UserError, match="job 'ps'"):
        place(cluster={"ps": ["a:1"]}, task={"type": "ps", "index": 0})


def test_settings_that_cannot_work_fail_before_the_work(small_config, records, tmp_path,
                                                        monkeypatch):
    def attempt(words, **changes):
        with pytest.raises(UserError, match=words):
            run_script(run_pretraining, *arguments(small_config, records, tmp_path / "out",
                                                   **changes))
        assert not (tmp_path / "out").exists()

    attempt(r"--train_batch_size is 15: 2 devices \(2 x CPU", num_devices=2, train_batch_size=15)
    attempt("--num_devices is -1", num_devices=-1)
    monkeypatch.setenv("TF_CONFIG", json.dumps(
        {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}))
    attempt("--eval_every_checkpoints is for one machine", eval_every_checkpoints=1)
    attempt("--num_devices is 2: with TF_CONFIG", num_devices=2)


def test_the_first_lines_name_the_devices(caplog):
    caplog.set_level("INFO")
    devices.log_devices(devices.Devices(None, ["/gpu:0", "/gpu:1"], 3, 1, []))
    assert "on 3 machines with 2 x GPU, this is machine 1 of 0-2" in caplog.text
    devices.log_devices(devices.choose())
    assert re.search(r"TensorFlow [12]\.\d+\.\d+, Python 3\S+, on 1 x CPU \(\d+ cores\)",
                     caplog.text)

"""A training goes on exactly after a kill, stops at what is not finite, keeps the best."""

import collections
import functools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.damage import change_byte, frame_starts
from helpers.toy_records import pretraining_arguments, run_script, write_toy_records
from helpers.toys import ROOT, TOY_CONFIG, toy_tokens, write_text
from tensorflow.python.ops.summary_ops_v2 import summary_writer_initializer_op

import devices
import optimization
import run_pretraining
from cli import UserError
from training import curves, estimator, failures, hooks, run_settings
from weights import checkpoints

SECONDS = 120  # after which a process is given up
arguments = functools.partial(pretraining_arguments, do_train=True, save_checkpoints_steps=2)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    return ",".join(write_toy_records(folder / ("tf_%d.tfrecord" % seed), 23, seed)
                    for seed in range(2))


@pytest.fixture(scope="module")
def dropout_config(tmp_path_factory):
    """Path of a one-layer toy configuration with dropout."""
    config = dict(TOY_CONFIG, vocab_size=len(toy_tokens()), hidden_dropout_prob=0.1,
                  attention_probs_dropout_prob=0.1, num_hidden_layers=1)
    return write_text(tmp_path_factory.mktemp("config") / "config.json", json.dumps(config))


def step_of(folder):
    return int(tf.train.load_variable(str(folder), "global_step"))


def start(*settings, **options):
    """A process of run_pretraining.py whose log can be read."""
    return subprocess.Popen([sys.executable, os.path.join(ROOT, "run_pretraining.py")] +
                            list(settings), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            **options)


def send_at(process, number, words):
    """Sends a signal when the log holds the words; returns the log and the exit code."""
    log, given_up = b"", time.time() + SECONDS
    try:
        for line in process.stdout:
            log += line
            if words in line:
                process.send_signal(number)
            assert time.time() < given_up, log
        return log.decode("utf-8"), process.wait(SECONDS)
    finally:
        process.kill()


def test_killed_and_told_to_go_it_ends_as_if_undisturbed(dropout_config, records, tmp_path):
    def settings(folder):
        return arguments(dropout_config, records, tmp_path / folder, "--deterministic",
                         num_train_steps=40, save_checkpoints_steps=5, num_warmup_steps=5)

    log, code = send_at(start(*settings("cut")), signal.SIGINT, b"step 5/40")
    told = step_of(tmp_path / "cut")
    assert code == 128 + signal.SIGINT and "ended by SIGINT" in log and "Traceback" not in log
    assert 5 <= told < 30
    assert re.search("step %d/40 .*\n" % told, log) and "step %d/40" % (told + 1) not in log
    log, code = send_at(start(*settings("cut")), signal.SIGKILL, b"step %d/40" % (told + 6))
    assert code == -signal.SIGKILL and "training from step %d to 40" % told in log
    assert told < step_of(tmp_path / "cut") < 40
    for folder in ("cut", "whole"):
        run_script(run_pretraining, *settings(folder))
    cut, whole = [tf.train.load_checkpoint(str(tmp_path / name)) for name in ("cut", "whole")]
    for name in whole.get_variable_to_shape_map():
        np.testing.assert_array_equal(cut.get_tensor(name), whole.get_tensor(name), name)


def test_a_step_that_is_not_finite_changes_nothing():
    with tf.Graph().as_default(), tf.Session() as session:
        factor = tf.placeholder(tf.float32, [])
        good = tf.get_variable("good", initializer=[1.0, 2.0])
        bad = tf.get_variable("bad", initializer=[3.0])
        loss = tf.reduce_sum(good) + tf.reduce_sum(tf.sqrt(bad * factor))
        update = optimization.create_optimizer(loss, 0.1, 10, 0)
        session.run(tf.global_variables_initializer())
        variables = tf.global_variables()
        session.run(update.op, {factor: 1.0})
        before = session.run(variables)
        finite, _ = session.run([update.finite, update.op], {factor: 0.0})
        assert dict(zip(update.names, finite)) == {"loss": True, "good": True, "bad": False}
        for name, old, new in zip(variables, before, session.run(variables)):
            np.testing.assert_array_equal(old, new, name.op.name)
        session.run(update.op, {factor: 1.0})
        assert session.run(tf.train.get_global_step()) == 2


def test_not_finite_ends_the_run_and_keeps_the_last_good_checkpoint(toy_config, records,
                                                                    tmp_path):
    with pytest.raises(UserError, match=r"step (\d+): not finite at learning rate \S+e\+\d+: "
                       r".*(loss|gradient of \S+).*last good checkpoint is .*model.ckpt-\d"):
        run_script(run_pretraining, *arguments(toy_config, records, tmp_path, learning_rate=1e30,
                                               save_checkpoints_steps=1))
    reader = tf.train.load_checkpoint(str(tmp_path))
    for name in reader.get_variable_to_shape_map():
        assert np.isfinite(reader.get_tensor(name)).all(), name


def test_a_corrupt_record_is_named_or_left_out(toy_config, tmp_path, caplog):
    sound = write_toy_records(tmp_path / "tf_a.tfrecord", 9)
    corrupt = write_toy_records(tmp_path / "tf_b.tfrecord", 9, 1)
    change_byte(corrupt, frame_starts(corrupt)[5] + 40)
    settings = arguments(toy_config, sound + "," + corrupt, tmp_path / "out", num_train_steps=2,
                         num_warmup_steps=0)
    with pytest.raises(UserError, match=r"tf_b.tfrecord: record 5 .* is corrupt: its checksum"):
        run_script(run_pretraining, *settings)
    run_script(run_pretraining, *settings + ["--skip_corrupt_records"])
    assert "tf_b.tfrecord: left out 1 corrupt records: 5" in caplog.text
    assert caplog.text.count("1 corrupt records in 2 files") == 1
    assert step_of(tmp_path / "out") == 2
    change_byte(corrupt, 40)
    settings = arguments(toy_config, sound + "," + corrupt, tmp_path / "out", do_train=False,
                         do_eval=True)
    with pytest.raises(UserError, match="tf_b.tfrecord is not a TFRecord file, or is damaged"):
        run_script(run_pretraining, *settings)
    run_script(run_pretraining, *settings + ["--skip_corrupt_records"])
    assert "tf_b.tfrecord: left out 2 corrupt records: 0, 5" in caplog.text


def test_a_full_disk_ends_the_run_in_one_line(toy_config, records, tmp_path):
    process = start(*arguments(toy_config, records, tmp_path / "out"), preexec_fn=lambda:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000)))
    log = process.communicate(timeout=SECONDS)[0].decode("utf-8")
    assert process.returncode == 1
    assert re.search(r"run_pretraining.py: error: --output_dir '.*out' cannot be written any more: "
                     r".*; the last complete checkpoint is None\n$", log), log
    assert "Traceback" not in log


@pytest.mark.parametrize("error, words", [
    (tf.errors.ResourceExhaustedError(None, None, "/x/a; No space left on device"),
     "--output_dir '/none' cannot be written any more: /x/a; No space left"),
    (OSError(30, "Read-only file system"), "Read-only"),
    (tf.errors.DataLossError(None, None, "corrupted record at 7"), "tf: record 3 .* torn")])
def test_errors_are_explained(error, words):
    with pytest.raises(UserError, match=words):
        with failures.explained("/none", lambda: ("tf", 3, "torn")):
            raise error


def test_other_errors_stay_what_they_are():
    for error in (tf.errors.InvalidArgumentError(None, None, "shapes"), ValueError("x")):
        with pytest.raises(type(error)):
            with failures.explained("/none", lambda: None):
                raise error


@pytest.mark.parametrize("micro_batch_size, recompute, words", [
    (8, False, "take --micro_batch_size=4 or --recompute=true"),
    (1, True, "take a shorter --max_seq_length")])
def test_lack_of_memory_ends_in_advice(micro_batch_size, recompute, words):
    for error in (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
                  MemoryError()):
        with pytest.raises(UserError, match="out of memory with --micro_batch_size={} and "
                           "--recompute={}: {}".format(micro_batch_size, str(recompute).lower(),
                                                       words)):
            with failures.step_advice(micro_batch_size, recompute):
                raise error
    with pytest.raises(tf.errors.ResourceExhaustedError):
        with failures.step_advice(micro_batch_size, recompute):
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")


@pytest.mark.parametrize("name", ["eval_batch_size", "predict_batch_size"])
def test_lack_of_memory_in_an_evaluation_names_its_batch(name):
    with pytest.raises(UserError, match="out of memory with --{0}=512 and --max_seq_length=128"
                       ": take a smaller --{0} ".format(name)):
        with failures.forward_advice(name, 512, 128):
            raise MemoryError()


def test_an_output_folder_that_cannot_be_made(toy_config, records, tmp_path):
    inside = write_text(tmp_path / "file", "x") + "/out"
    with pytest.raises(UserError, match="--output_dir '.*file/out' cannot be written"):
        run_script(run_pretraining, *arguments(toy_config, records, inside))


def test_evaluates_on_the_way_and_keeps_the_best(toy_config, records, tmp_path, capsys):
    run_script(run_pretraining, *arguments(toy_config, records, tmp_path, num_train_steps=3,
                                           eval_every_checkpoints=1, log_every_steps=5))
    shown = capsys.readouterr().out
    assert re.findall(r"global_step = (\d+)", shown) == ["2", "3"]
    losses = dict(zip((2, 3), map(float, re.findall(r"\nloss = (\S+)", shown))))
    best = min(losses, key=losses.get)
    assert step_of(tmp_path / checkpoints.BEST) == best
    kept = {name for name in os.listdir(str(tmp_path / checkpoints.BEST)) if "ckpt" in name}
    assert {name.split(".")[1] for name in kept} == {"ckpt-%d" % best}
    worse = {"loss": losses[best] + 1.0, "global_step": 9}
    estimator.keep_lowest_loss(worse, str(tmp_path))
    assert step_of(tmp_path / checkpoints.BEST) == best
    estimator.keep_lowest_loss({"loss": 0.5, "global_step": 3}, str(tmp_path))
    assert step_of(tmp_path / checkpoints.BEST) == 3


def test_a_tpus_host_writes_the_scalars(tmp_path, monkeypatch):
    monkeypatch.setattr(estimator.devices, "mean_over_devices",
                        lambda tensors, use_tpu=False: list(tensors))  # there is one core
    tpu = run_settings.Tpu("x", None, None, None, 8, 1, {})
    engine = run_settings.Engine(str(tmp_path), 2, 5, 2, 1, None, devices.ALONE, None, "fp32", tpu)
    with tf.Graph().as_default(), tf.Session() as session:
        factor = tf.placeholder(tf.float32, [])
        loss = tf.get_variable("w", initializer=2.0) * factor
        spec = estimator.train_spec(
            engine, run_settings.Training(8, 0.5, 10, 0, "lamb"), lambda loss_factor: (
                collections.OrderedDict([("loss", loss), ("half", loss / 2.0)]),
                optimization.dense_gradients(loss, tf.trainable_variables(), loss_factor)))
        function, tensors = spec.host_call
        written = function(**tensors)
        session.run([tf.global_variables_initializer(), summary_writer_initializer_op()])
        for value in (1.0, 1.0, float("nan"), 1.0, 1.0):
            session.run([spec.train_op, written], {factor: value})
    found = curves.read_scalars(str(tmp_path))
    assert found["left_out"] == {2: 1.0, 4: 0.0}
    assert set(found["loss"]) == {2, 4}
    for step in (2, 4):
        assert found["half"][step] == found["loss"][step] / 2.0 != 0.0
    assert set(found) == {"loss", "half", "left_out", "learning_rate", "gradient_norm",
                          "trust_ratio"}


def test_a_step_in_fp16_scales_its_loss_and_counts_what_it_skips(tmp_path):
    engine = run_settings.Engine(str(tmp_path), 2, 5, 2, 1, None, devices.ALONE, None, "fp16", None)
    with tf.Graph().as_default(), tf.Session() as session:
        slope, factors = tf.placeholder(tf.float32, []), []

        def step(loss_factor):
            factors.append(loss_factor)
            loss = tf.get_variable("w", initializer=2.0) * slope
            return collections.OrderedDict(loss=loss), optimization.dense_gradients(
                loss, tf.trainable_variables(), loss_factor)

        spec = estimator.train_spec(engine, run_settings.Training(8, 0.5, 10, 0, "adamw"), step)
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        found = []
        for value in (1.0, 3e38 / 2 ** 10, 1.0):  # the second overflows with the scale alone
            found.append(session.run(factors[0]))
            session.run(spec.train_op, {slope: value})
        assert found == [2.0 ** 15, 2.0 ** 15, 2.0 ** 14]
        assert session.run(tf.train.get_global_step()) == 3
        progress, = [hook for hook in spec.training_hooks if isinstance(hook, hooks.ProgressHook)]
        assert session.run(progress.fetches["skipped_steps"]) == 1.0


def test_a_tpus_loop_ends_the_run_without_a_finite_step_or_when_told(tmp_path):
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        more = tf.placeholder(tf.int64, [])
        loop = tf.assign_add(step, more)
        told = hooks.Termination()
        hook = hooks.LoopHook(str(tmp_path), told)
        with tf.train.SingularMonitoredSession([hook]) as session:
            session.run(loop, {more: 3})
            with pytest.raises(UserError, match="after step 3 no step.*last good checkpoint"):
                session.run(loop, {more: 0})
        with tf.train.SingularMonitoredSession([hook]) as session:
            session.run(loop, {more: 3})
            assert not session.should_stop()
            told.requested = True
            session.run(loop, {more: 3})
            assert session.should_stop()

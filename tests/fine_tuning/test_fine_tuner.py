"""Fine-tuning on several devices and in parts gives what one device gives, and goes on alike."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_records import run_script
from helpers.toys import TOY_CONFIG, pair_rows, toy_tokens, write_text

import run_classifier
from cli import UserError
from fine_tuning import fine_tuner
from training import memory, precision

NOISE = "self/key/bias"  # its true gradient is 0, Adam amplifies the rounding
TF_1 = tf.__version__.startswith("1.")


@pytest.fixture(scope="module")
def call(toy_vocab, tmp_path_factory):
    """Trains on 21 rows, batches of 8, 8 and 5, with further flags."""
    folder = tmp_path_factory.mktemp("data")
    write_text(folder / "train.txt", pair_rows(21, 0))
    config = write_text(folder / "config.json", json.dumps(
        dict(TOY_CONFIG, vocab_size=len(toy_tokens()), num_hidden_layers=1)))

    def run(output, **changes):
        settings = dict(
            task_name="lcqmc_pair", data_dir=folder, vocab_file=toy_vocab, output_dir=output,
            bert_config_file=config, max_seq_length=40, train_batch_size=8, learning_rate=0.001,
            num_train_epochs=1, classifier_dropout=0, save_checkpoints_steps=2, do_train=True)
        run_script(run_classifier, *["--%s=%s" % item for item in dict(settings, **changes).items()
                                     if item[1] is not None])
    return run


def weights_of(folder):
    reader = tf.train.load_checkpoint(str(folder))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_devices_and_parts_give_the_weights_of_one_and_resume_alike(call, tmp_path):
    call(tmp_path / "one", ema_decay=0.9)
    call(tmp_path / "parts", ema_decay=0.9, num_devices=2, micro_batch_size=2, recompute="true")
    wanted, found = weights_of(tmp_path / "one"), weights_of(tmp_path / "parts")
    assert set(wanted) == set(found) and wanted["global_step"] == 3
    assert [name for name in wanted if name.endswith("ExponentialMovingAverage")]
    # On from step 2, in other parts, as if the run had been killed there.
    tf.train.update_checkpoint_state(str(tmp_path / "parts"), "model.ckpt-2")
    call(tmp_path / "parts", ema_decay=0.9, micro_batch_size=1)
    for weights in (found, weights_of(tmp_path / "parts")):
        for name, value in wanted.items():
            if NOISE not in name:
                np.testing.assert_allclose(weights[name], value, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("changes, words", [
    (dict(num_devices=3), r"--train_batch_size is 8: 3 devices \(3 x CPU"),
    (dict(num_devices=-1), "--num_devices is -1"),
    (dict(num_devices=2, micro_batch_size=8), "--micro_batch_size is 8, must divide the 4 seq"),
    (dict(precision="fp16"), "--precision is fp16, which does not run on a CPU"),
    (dict(precision="bf16"), "--precision is bf16, which does not run on a CPU"),
    (dict(xla=True, precision="fp32" if TF_1 else "bf16"), "--xla is set"),
    (dict(save_best=True, cluster=2), "--save_best is for one machine"),
    (dict(num_runs=2, cluster=2), "--num_runs is for one machine"),
    (dict(num_devices=2, cluster=2), "--num_devices is 2: with TF_CONFIG")])
def test_what_pre_training_refuses_is_refused(call, tmp_path, monkeypatch, changes, words):
    monkeypatch.setattr(precision, "cpu_has", lambda feature: "xla" in changes)
    machines = {"worker": ["a:1", "b:1"][:changes.pop("cluster", 0)]}
    monkeypatch.setenv("TF_CONFIG", json.dumps(
        {"cluster": machines, "task": {"type": "worker", "index": 0}} if machines["worker"]
        else {}))
    with pytest.raises(UserError, match=words):
        call(tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_a_small_device_gets_parts_and_advice_when_it_is_too_small(call, tmp_path, monkeypatch,
                                                                   caplog):
    monkeypatch.setattr(memory, "host_memory", lambda: 2 ** 20)

    def fit(*unused):
        raise MemoryError

    monkeypatch.setattr(fine_tuner.estimator, "fit", fit)
    with pytest.raises(UserError, match="out of memory with --micro_batch_size=1 and "
                                        "--recompute=true: take a shorter --max_seq_length"):
        call(tmp_path / "least")
    assert "memory: 1 of 8 sequences at once, with recomputation" in caplog.text
    with pytest.raises(UserError, match="out of memory with --micro_batch_size=4 and --recompute="
                                        "false: take --micro_batch_size=2 or --recompute=true"):
        call(tmp_path / "given", micro_batch_size=4, recompute="false")

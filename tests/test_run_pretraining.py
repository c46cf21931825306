"""run_pretraining.py end to end on toy records: training, resuming, evaluating, refusing."""

import functools
import glob
import json
import os
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_records import pretraining_arguments, run_script, write_toy_records
from helpers.toys import write_text

import modeling
import run_pretraining
from cli import UserError
from pretraining import step
from weights import checkpoints

arguments = functools.partial(pretraining_arguments, log_every_steps=2, learning_rate=0.000156)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_toy_records(tmp_path_factory.mktemp("records") / "tf_toy.tfrecord", 37)


def results_of(output):
    with open(os.path.join(str(output), "eval_results.txt"), encoding="utf-8") as stream:
        return {name: float(value) for name, value in
                (line.strip().split(" = ") for line in stream)}


def test_train_resume_and_evaluate(toy_config, records, tmp_path, caplog, capsys):
    def steps(total):
        caplog.clear()
        run_script(run_pretraining, *arguments(
            toy_config, records, tmp_path, "--do_train", "--do_eval", num_train_steps=total))
        return caplog.text

    first = steps(4)
    assert "training from step 0 to 4" in first
    assert re.search(r"step 2/4  loss [\d.]+  mlm_loss [\d.]+  mlm_accuracy [\d.]+  sop_loss "
                     r"[\d.]+  sop_accuracy [\d.]+  gradient_norm [\d.]+  trust_ratio [\d.]+  "
                     r"learning_rate [\d.e-]+  examples/s [\d.]+  tokens/s [\d.]+  left 0:00",
                     first)
    assert "no --eval_input_file" in first
    found = results_of(tmp_path)
    assert found["global_step"] == 4
    assert abs(found["loss"] - found["mlm_loss"] - found["sop_loss"]) < 1e-6
    assert "mlm_accuracy = " in capsys.readouterr().out
    assert "training from step 4 to 8" in steps(8)
    assert results_of(tmp_path)["global_step"] == 8
    weights = tf.train.load_checkpoint(str(tmp_path)).get_tensor("bert/pooler/dense/kernel")
    third = steps(8)
    assert "nothing to train" in third and "step 8 of 8" in third
    np.testing.assert_array_equal(
        weights, tf.train.load_checkpoint(str(tmp_path)).get_tensor("bert/pooler/dense/kernel"))
    tags = {value.tag for path in glob.glob(str(tmp_path / "events*"))
            for event in tf.train.summary_iterator(path) for value in event.summary.value}
    assert {"mlm_loss", "sop_accuracy", "learning_rate", "examples_per_second",
            "tokens_per_second", "gradient_norm", "trust_ratio", "flags", "albert_config"} <= tags
    with open(str(tmp_path / "flags.json"), encoding="utf-8") as stream:
        assert json.load(stream)["num_train_steps"] == 8


def test_evaluation_reads_each_record_once(toy_config, records, tmp_path):
    run_script(run_pretraining, *arguments(toy_config, records, tmp_path, "--do_train"))
    found = []
    for batch in (8, 8, 37, 64):
        run_script(run_pretraining, *arguments(toy_config, records, tmp_path, "--do_eval",
                                               eval_batch_size=batch))
        found.append(results_of(tmp_path))
    assert found[0] == found[1]
    for other in found[2:]:
        for name, value in found[0].items():
            assert abs(value - other[name]) < 1e-5, name
    assert abs(found[0]["sop_accuracy"] * 37 - round(found[0]["sop_accuracy"] * 37)) < 1e-3


def test_starts_from_a_checkpoint_and_names_the_rest(toy_config, records, tmp_path, caplog):
    first, second = tmp_path / "first", tmp_path / "second"
    run_script(run_pretraining, *arguments(toy_config, records, first, "--do_train"))
    checkpoint = str(first / "model.ckpt-4.index")
    run_script(run_pretraining, *arguments(toy_config, records, second, "--do_eval",
                                           init_checkpoint=checkpoint))
    assert "initialised 31 of 31 variables" in caplog.text
    run_script(run_pretraining, *arguments(toy_config, records, first, "--do_eval"))
    again, original = results_of(second), results_of(first)
    for name in ("mlm_loss", "sop_loss", "mlm_accuracy", "sop_accuracy"):
        assert abs(again[name] - original[name]) < 1e-6


BAD_RUNS = [
    (dict(input_file="/none/tf*.tfrecord"), "no file matches '/none/tf"),
    (dict(max_predictions_per_seq=20), "masked_lm_ids of length 3.*max_predictions_per_seq.*20"),
    (dict(max_seq_length=32), "input_ids of length 16, but --max_seq_length asks for 32"),
    (dict(max_seq_length=129), "--max_seq_length is 129.*128"),
    (dict(init_checkpoint="/none/model.ckpt"), "no checkpoint '/none/model.ckpt'"),
    (dict(bert_config_file="/none/config.json"), "no file '/none/config.json'"),
    (dict(num_warmup_steps=4), "--num_warmup_steps is 4.*--num_train_steps 4"),
    (dict(train_batch_size=0), "--train_batch_size is 0"),
    (dict(learning_rate="nan"), "--learning_rate is nan, must be above 0 and finite"),
    (dict(learning_rate="inf"), "--learning_rate is inf"),
    (dict(bert_config_file=os.path.dirname(__file__)), "no file '.*tests': .*Is a directory"),
    (dict(use_tpu=True), "--use_tpu needs --tpu_name"),
    (dict(use_tpu=True, tpu_name="x", num_tpu_cores=0), "--num_tpu_cores is 0, must be at least 1"),
    (dict(use_tpu=True, master="x", train_batch_size=12), "--train_batch_size is 12.*cores=8"),
    (dict(use_tpu=True, master="x", eval_batch_size=9), "--eval_batch_size is 9.*cores=8"),
]


@pytest.mark.parametrize("changes, words", BAD_RUNS)
def test_bad_settings_fail_before_the_work(toy_config, records, tmp_path, changes, words):
    output = tmp_path / "out"
    with pytest.raises(UserError, match=words):
        run_script(run_pretraining, *arguments(toy_config, records, output, "--do_train",
                                               **changes))
    assert not output.exists()


def test_bad_records_fail_before_the_work(toy_config, records, tmp_path):
    def attempt(words, *paths):
        with pytest.raises(UserError, match=words):
            run_script(run_pretraining, *arguments(toy_config, ",".join(paths), tmp_path / "out",
                                                   "--do_train"))

    attempt("not a TFRecord file", write_text(tmp_path / "text.tfrecord", "字" * 99))
    attempt("empty.tfrecord holds no record", write_text(tmp_path / "empty.tfrecord", ""))
    attempt("no file matches", records, str(tmp_path / "missing.tfrecord"))
    attempt("holds no record", records, write_text(tmp_path / "empty.tfrecord", ""))
    packed = write_toy_records(tmp_path / "packed.tfrecord", 3, compressed=True)
    attempt("compressed", records, packed)
    other = str(tmp_path / "other.tfrecord")
    with tf.python_io.TFRecordWriter(other) as writer:
        writer.write(tf.train.Example().SerializeToString())
    attempt("no feature 'input_ids'", other)


def test_nothing_to_do_and_nothing_to_evaluate(toy_config, records, tmp_path):
    with pytest.raises(UserError, match="nothing to do"):
        run_script(run_pretraining, *arguments(toy_config, records, tmp_path))
    with pytest.raises(UserError, match="holds no checkpoint"):
        run_script(run_pretraining, *arguments(toy_config, records, tmp_path, "--do_eval"))


def test_evaluates_a_folder_at_step_0_and_names_one_without_a_step(toy_config, records, tmp_path):
    config = modeling.AlbertConfig.from_json_file(toy_config)
    weights = {name: np.full(shape, 0.01, np.float32)
               for name, shape in step.model_variables(config).items()}
    evaluate = arguments(toy_config, records, tmp_path, "--do_eval", eval_batch_size=37)
    checkpoints.write_checkpoint(str(tmp_path), "model.ckpt", weights)
    with pytest.raises(UserError, match="without global_step: give it as --init_checkpoint"):
        run_script(run_pretraining, *evaluate)
    checkpoints.write_checkpoint(str(tmp_path), "model.ckpt-0", dict(
        weights, global_step=np.int64(0)))
    run_script(run_pretraining, *evaluate)
    assert results_of(tmp_path)["global_step"] == 0


def test_a_folder_of_another_model_is_refused(toy_config, records, tmp_path):
    run_script(run_pretraining, *arguments(toy_config, records, tmp_path / "out", "--do_train"))
    with open(toy_config, encoding="utf-8") as stream:
        wider = dict(json.load(stream), hidden_size=40)
    path = write_text(tmp_path / "wider.json", json.dumps(wider))
    with pytest.raises(UserError, match="output_dir.*variable bert/.*32.*40"):
        run_script(run_pretraining, *arguments(path, records, tmp_path / "out", "--do_train"))


@pytest.mark.parametrize("batch, rate, warned", [
    (4096, 0.00176, False), (32, 0.00176, True), (32, 0.000156, False), (4096, 0.000156, True)])
def test_rate_of_another_batch_is_warned_of(toy_config, records, tmp_path, caplog, batch, rate,
                                            warned):
    with pytest.raises(UserError, match="init_checkpoint"):  # stops after the checks
        run_script(run_pretraining, *arguments(
            toy_config, records, tmp_path, "--do_train", train_batch_size=batch, optimizer="lamb",
            learning_rate=rate, init_checkpoint="/none/x"))
    assert ("looks scaled for another batch" in caplog.text) == warned


def test_a_folder_of_another_optimizer_is_refused(toy_config, records, tmp_path):
    run_script(run_pretraining, *arguments(toy_config, records, tmp_path, "--do_train"))
    with pytest.raises(UserError, match="another optimizer.*lamb_m and no adam_m"):
        run_script(run_pretraining, *arguments(toy_config, records, tmp_path, "--do_train",
                                               optimizer="adamw", num_train_steps=8))


def test_what_is_left_out_fits_the_batch_and_the_folder(toy_config, records, tmp_path, caplog):
    def run(*left_out, **changes):
        caplog.clear()
        given = [argument for argument in arguments(toy_config, records, tmp_path, "--do_train",
                                                    **changes)
                 if argument.split("=")[0].lstrip("-") not in left_out]
        run_script(run_pretraining, *given)
        return caplog.text

    first = run("optimizer", "learning_rate", "num_warmup_steps", num_train_steps=2)
    assert "optimizer adamw, learning rate 0.000177, 0 warm-up steps" in first
    assert "128 (8 x 16)" in first.replace("tokens ", "")
    assert "knowing how frequent each token is" in first
    again = run("optimizer", num_train_steps=4, num_warmup_steps=1, learning_rate=0.001)
    assert "training from step 2 to 4" in again  # with AdamW, whose moments the folder holds

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
from training import estimator
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
    (dict(num_train_steps=10 ** 20), "--num_train_steps is 10{20}, must be at most"),
    (dict(random_seed=10 ** 20), "--random_seed is 10{20}, must be at most"),
    (dict(keep_checkpoint_max=10 ** 20), "--keep_checkpoint_max is 10{20}, must be at most"),
    (dict(train_batch_size=10 ** 9), "--train_batch_size is 10{9}, must be at most 1048576"),
    (dict(num_devices=10 ** 5), "--num_devices is 100000"),
    (dict(output_dir="/tmp/[1]*"), "--output_dir is '.*': TensorFlow takes .* for a pattern"),
    (dict(use_tpu=True), "--use_tpu needs --tpu_name"),
    (dict(use_tpu=True, tpu_name="x", num_tpu_cores=0), "--num_tpu_cores is 0, must be at least 1"),
    (dict(use_tpu=True, master="x", train_batch_size=12), "--train_batch_size is 12.*cores=8"),
    (dict(use_tpu=True, master="x", do_eval=True, eval_batch_size=9), "--eval_batch_size is 9.*=8"),
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


def test_a_checkpoint_of_the_folder_that_is_named_is_evaluated(toy_config, records, tmp_path,
                                                              caplog):
    run_script(run_pretraining, *arguments(toy_config, records, tmp_path, "--do_train",
                                           save_checkpoints_steps=2))
    for name, wanted in (("model.ckpt-2", 2), ("model.ckpt-2.index", 2), ("model.ckpt-4", 4)):
        run_script(run_pretraining, *arguments(toy_config, records, tmp_path, "--do_eval",
                                               init_checkpoint=str(tmp_path / name)))
        assert results_of(tmp_path)["global_step"] == wanted
    caplog.clear()
    run_script(run_pretraining, *arguments(toy_config, records, tmp_path, "--do_eval",
                                           init_checkpoint="/none/model.ckpt"))
    assert results_of(tmp_path)["global_step"] == 4
    assert "--init_checkpoint=/none/model.ckpt is not used: --output_dir holds " in caplog.text
    with pytest.raises(UserError, match="no checkpoint '.*model.ckpt-3'"):
        run_script(run_pretraining, *arguments(
            toy_config, records, tmp_path, "--do_eval",
            init_checkpoint=str(tmp_path / "model.ckpt-3")))
    caplog.clear()
    run_script(run_pretraining, *arguments(toy_config, records, tmp_path, "--do_train",
                                           init_checkpoint="/none/model.ckpt", num_train_steps=6))
    assert "/none/model.ckpt is not used" in caplog.text and "from step 4 to 6" in caplog.text


def test_an_evaluation_checks_only_what_it_uses_and_names_the_rest(toy_config, records, tmp_path,
                                                                  caplog):
    run_script(run_pretraining, *arguments(toy_config, records, tmp_path, "--do_train"))
    settings = [setting for setting in arguments(
        toy_config, "/none/x.tfrecord", tmp_path, "--do_eval", eval_input_file=records,
        num_devices=3, learning_rate="nan", micro_batch_size=5, tpu_zone="x")]
    caplog.clear()
    run_script(run_pretraining, *settings)
    assert results_of(tmp_path)["global_step"] == 4
    line, = re.findall("not used, as nothing is trained: (.*)", caplog.text)
    assert {"--num_devices", "--learning_rate", "--micro_batch_size"} <= set(line.split(", "))
    assert "not used, as --use_tpu is not set: --tpu_zone\n" in caplog.text
    assert "not used, as --eval_input_file is evaluated: --input_file\n" in caplog.text
    run_script(run_pretraining, *[setting for setting in settings if "--input_file" not in setting])


class Killed(BaseException):
    """Stands for kill -9: nothing in the code catches it."""


@pytest.mark.parametrize("stop, at_end", [(2, []), (4, ["--do_eval"])], ids=str)
def test_a_checkpoint_whose_evaluation_was_killed_is_evaluated(toy_config, records, tmp_path,
                                                               monkeypatch, capsys, stop, at_end):
    settings = arguments(toy_config, records, tmp_path, "--do_train", *at_end,
                         save_checkpoints_steps=2, eval_every_checkpoints=1)
    keep = estimator.keep_lowest_loss

    def killed(results, folder):
        if results["global_step"] == stop:
            raise Killed()
        keep(results, folder)

    monkeypatch.setattr(estimator, "keep_lowest_loss", killed)
    with pytest.raises(Killed):
        run_script(run_pretraining, *settings)
    monkeypatch.setattr(estimator, "keep_lowest_loss", keep)
    capsys.readouterr()
    run_script(run_pretraining, *settings)
    shown = capsys.readouterr().out
    assert [int(step) for step in re.findall(r"global_step = (\d+)", shown)] == list(
        range(stop, 5, 2))
    assert checkpoints.newest_checkpoint(str(tmp_path / checkpoints.BEST))
    run_script(run_pretraining, *settings)
    assert capsys.readouterr().out.count("global_step") == len(at_end)


def test_a_folder_of_a_model_of_the_same_shapes_is_refused(toy_config, records, tmp_path, caplog):
    with open(toy_config, encoding="utf-8") as stream:
        config = json.load(stream)

    def attempt(job, **changes):
        path = write_text(tmp_path / "changed.json", json.dumps(dict(config, **changes)))
        run_script(run_pretraining, *arguments(path, records, tmp_path / "out", job,
                                               num_train_steps=6, train_batch_size=4))

    run_script(run_pretraining, *arguments(toy_config, records, tmp_path / "out", "--do_train"))
    for job in ("--do_train", "--do_eval"):
        for key, value in (("num_hidden_layers", 3), ("num_attention_heads", 2),
                           ("hidden_act", "relu"), ("ln_type", "preln")):
            with pytest.raises(UserError, match="holds a model whose {} is .* it is {!r}".format(
                    key, value)):
                attempt(job, **{key: value})
    caplog.clear()
    attempt("--do_train", hidden_dropout_prob=0.1)
    assert "hidden_dropout_prob is 0.1 now, 0.0 before" in caplog.text
    assert "--train_batch_size is 4 now, 8 before" in caplog.text
    assert "--num_train_steps is 6 now, 4 before" in caplog.text


def test_all_checkpoints_are_kept(toy_config, records, tmp_path):
    run_script(run_pretraining, *arguments(toy_config, records, tmp_path, "--do_train",
                                           save_checkpoints_steps=1, num_train_steps=7,
                                           keep_checkpoint_max=0))
    assert len(glob.glob(str(tmp_path / "*.index"))) == 7 + 1  # and that of step 0

"""Checkpoints as a user names them: which are found, what does not fit, what is damaged."""

import glob
import os
import stat

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toys import write_text

from cli import UserError
from weights import checkpoints

WORDS, POOLER = "bert/embeddings/word_embeddings", "bert/pooler/dense/kernel"
QUERY = "bert/encoder/layer_shared/attention/self/query/kernel"
MODEL = {WORDS: [5, 2], WORDS + "_2": [2, 3], QUERY: [3, 3], POOLER: [3, 3]}


def save(folder, step=7, **changes):
    """Writes a checkpoint of MODEL with a step count, slots and other shapes where given."""
    shapes = dict(MODEL, **{WORDS + "/lamb_m": [5, 2]})
    shapes.update(changes)
    with tf.Graph().as_default(), tf.Session() as session:
        for name, shape in shapes.items():
            tf.get_variable(name, shape, initializer=tf.ones_initializer())
        tf.get_variable("global_step", initializer=np.int64(step))
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, os.path.join(str(folder), "model.ckpt"), step)


def refused(words, path, model=None):
    with pytest.raises(UserError, match=words):
        checkpoints.plan_initialization(str(path), model or MODEL)


def test_a_checkpoint_is_found_by_prefix_file_or_folder(tmp_path):
    prefix = save(tmp_path)
    for path in (prefix, prefix + ".index", prefix + ".meta", str(tmp_path),
                 glob.glob(prefix + ".data-*")[0]):
        assert checkpoints.find_checkpoint(path) == prefix
    plan = checkpoints.plan_initialization(prefix, MODEL)
    assert sorted(plan.loaded) == sorted(MODEL) and not plan.missing and not plan.unused


def test_missing_ones_are_named(tmp_path):
    refused("no checkpoint '/none/model.ckpt': there is no file '/none/model.ckpt.index'",
            "/none/model.ckpt")
    refused("holds no checkpoint", tmp_path)
    prefix = save(tmp_path)
    os.remove(glob.glob(prefix + ".data-*")[0])
    refused("has an index but no data file", prefix)


def test_the_file_named_checkpoint_stands_for_its_folder(tmp_path):
    prefix = save(tmp_path)
    assert checkpoints.find_checkpoint(str(tmp_path / "checkpoint")) == prefix


@pytest.mark.parametrize("names, words", [
    (["tf_model.h5", "config.json"], "tf_model.h5 is no TensorFlow checkpoint: save the model as"),
    (["model.pt"], "model.pt is no TensorFlow checkpoint: save the model as model.safetensors"),
    (["model.safetensors"], "model.safetensors .*: give convert_checkpoint.py .* its config.json"),
    (["model-00001-of-00002.bin", "config.json"], ".* or the files that their .index.json")])
def test_weights_of_other_libraries_are_named_with_the_way_to_go(tmp_path, names, words):
    for name in names:
        write_text(tmp_path / name, "{}")
    refused("holds no checkpoint; " + words, tmp_path)
    refused("no checkpoint .*{0}': .*; .*{0} is no TensorFlow checkpoint".format(names[0]),
            tmp_path / names[0])


def test_other_shapes_and_foreign_variables_are_named(tmp_path):
    prefix = save(tmp_path)
    refused(r"variable {} has shape \[3, 3\].*\[4, 4\]".format(POOLER), prefix,
            dict(MODEL, **{POOLER: [4, 4]}))
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("resnet/conv1", [2])
        session.run(tf.global_variables_initializer())
        foreign = tf.train.Saver().save(session, str(tmp_path / "foreign.ckpt"))
    refused("of another model.*resnet/conv1", foreign)


def test_what_a_checkpoint_lacks_and_has_beyond_is_kept_for_the_log(tmp_path, caplog):
    caplog.set_level("INFO")
    tf.logging.set_verbosity(tf.logging.INFO)
    prefix = save(tmp_path, extra=[2])
    plan = checkpoints.plan_initialization(prefix, dict(MODEL, output_bias=[2]))
    assert plan.missing == ["output_bias"] and plan.unused == ["extra"]
    with tf.Graph().as_default(), tf.Session() as session:
        words = tf.get_variable(WORDS, MODEL[WORDS], initializer=tf.zeros_initializer())
        for name in (WORDS + "_2", QUERY, POOLER):
            tf.get_variable(name, MODEL[name], initializer=tf.zeros_initializer())
        checkpoints.initialize_from(plan)
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(words), np.ones([5, 2]))
    assert "initialised 4 of 5 variables" in caplog.text


def test_other_number_formats_are_named(tmp_path):
    arrays = {name: np.ones(shape, np.float32) for name, shape in MODEL.items()}
    checkpoints.write_checkpoint(str(tmp_path), "half.ckpt", dict(arrays, **{
        QUERY: np.ones(MODEL[QUERY], np.float16)}))
    refused("variable {} is float16 there and float32 in this model".format(QUERY), tmp_path)


def test_a_data_file_cut_in_half_is_noticed(tmp_path):
    prefix = save(tmp_path)
    path, = glob.glob(prefix + ".data-*")
    with open(path, "r+b") as stream:
        stream.truncate(os.path.getsize(path) // 2)
    refused("model.ckpt-7' is damaged: ", prefix)


def test_step_and_folder(tmp_path):
    assert checkpoints.step_of(str(tmp_path)) == 0
    save(tmp_path, 12)
    assert checkpoints.step_of(str(tmp_path)) == 12
    converted = str(tmp_path / "converted")
    checkpoints.write_checkpoint(converted, "model.ckpt", {POOLER: np.ones([3, 3], np.float32)})
    with pytest.raises(UserError, match="converted' holds a converted checkpoint, without "
                       "global_step: give it as --init_checkpoint"):
        checkpoints.step_of(converted)
    checkpoints.require_folder(str(tmp_path / "new" / "one"))
    assert (tmp_path / "new" / "one").is_dir()
    with pytest.raises(UserError, match="--output_dir '.*/x' cannot be written"):
        checkpoints.require_folder(write_text(tmp_path / "file", "") + "/x")
    if os.geteuid():  # root may write anywhere
        (tmp_path / "new").chmod(stat.S_IRUSR | stat.S_IXUSR)
        with pytest.raises(UserError, match="cannot be written"):
            checkpoints.require_folder(str(tmp_path / "new"))


def test_copies_only_the_newest(tmp_path):
    first, best = tmp_path / "run", str(tmp_path / "best")
    first.mkdir()
    for step in (3, 5):
        save(first, step)
        target = checkpoints.copy_newest(str(first), best)
    assert target == os.path.join(best, "model.ckpt-5") == tf.train.latest_checkpoint(best)
    assert {name.split(".")[1] for name in os.listdir(best) if "." in name} == {"ckpt-5"}
    assert checkpoints.step_of(best) == 5

"""The curves of a run as a picture."""

import sys

import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_records import run_script

import plot_training
from cli import UserError
from training import curves


def write_scalars(folder, **values):
    with tf.Graph().as_default():
        writer = tf.summary.FileWriter(str(folder))
    for step in (1, 2, 3):
        writer.add_summary(tf.Summary(value=[
            tf.Summary.Value(tag=tag, simple_value=value / step) for tag, value in
            values.items()]), step)
    writer.close()


def test_draws_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    write_scalars(tmp_path, loss=6.0, mlm_loss=5.0, learning_rate=0.1, trust_ratio=1.0)
    write_scalars(tmp_path / "eval", loss=7.0)
    run_script(plot_training, "--output_dir=%s" % tmp_path)
    picture = (tmp_path / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 5000


def test_reads_what_a_killed_run_left(tmp_path):
    write_scalars(tmp_path, loss=6.0)
    path, = tmp_path.glob("events*")
    path.write_bytes(path.read_bytes()[:-3])
    assert curves.read_scalars(str(tmp_path)) == {"loss": {1: 6.0, 2: 3.0}}


def test_says_what_is_missing(tmp_path, monkeypatch):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UserError, match="holds no scalars"):
            run_script(plot_training, "--output_dir=%s" % folder)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="need matplotlib .*pip install matplotlib"):
        curves.require_matplotlib()

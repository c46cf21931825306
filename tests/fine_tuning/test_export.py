"""What a model is exported to: versions of a SavedModel, TFLite, ONNX; none differs from it."""

import os
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_classifier import PAIRS, write_classifier
from helpers.toy_labeller import write_labeller
from helpers.toys import TOY_SENTENCES, write_text

from cli import UserError
from fine_tuning import export, portable, predictor
from fine_tuning.examples import padded_arrays
from fine_tuning.labelling_predictor import LabellingPredictor

needs_2_15 = pytest.mark.skipif(tf.__version__ < "2", reason="needs TensorFlow 2.15")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, toy_vocab, toy_config):
    return write_classifier(tmp_path_factory.mktemp("pairs"), toy_vocab, toy_config)


@pytest.fixture(scope="module")
def model(folder):
    return predictor.Predictor(folder)


@pytest.fixture(scope="module")
def batches(model):
    """Batches of 8, of other lengths each, and one of a single row."""
    encoded = [model.encoder(*pair)[:2] for pair in PAIRS]
    return [padded_arrays(encoded[start:start + 8]) for start in (0, 8, 16, 22)]


def test_each_export_is_a_version_of_its_own_and_the_newest_is_taken(
        folder, model, batches, tmp_path, monkeypatch):
    versions = str(tmp_path / "export" / "pairs")
    for number in ("1", "2"):
        line = next(export.export_and_check(model, str(tmp_path), "pairs", batches))
        assert line.startswith(os.path.join(versions, number) + ": on 24 rows")
    assert sorted(os.listdir(versions)) == ["1", "2"]
    assert predictor.saved_model_in(versions) == os.path.join(versions, "2")
    assert predictor.saved_model_in(folder) is None
    assert predictor.saved_model_in(str(tmp_path / "no" / "such")) is None
    served = predictor.Predictor(versions)
    assert served.labels == model.labels
    assert np.abs(served.predict(PAIRS) - model.predict(PAIRS)).max() < 1e-6
    monkeypatch.setattr(export, "compare", lambda *_: (1.0, 1, 1))
    with pytest.raises(UserError, match="differ by 1 from"):
        next(export.export_and_check(model, str(tmp_path), "pairs", batches))
    assert sorted(os.listdir(versions)) == ["1", "2"]


def test_the_signature_is_what_tensorflow_serving_asks_for(model, tmp_path):
    target = str(tmp_path / "1")
    for _ in range(2):  # the second replaces the first
        export.export_saved_model(model, target)
    with tf.Graph().as_default(), tf.Session() as session:
        meta = tf.saved_model.load(session, ["serve"], target)
        signature = meta.signature_def["serving_default"]
        assert signature.method_name == "tensorflow/serving/predict"
        assert sorted(signature.inputs) == ["input_ids", "input_mask", "segment_ids"]
        assert list(signature.outputs) == ["probabilities"]
    write_text(tmp_path / "notes.txt", "mine")
    with pytest.raises(UserError, match="in the way"):
        export.export_saved_model(model, str(tmp_path))


def test_texts_become_what_an_exported_model_takes(folder, model, tmp_path):
    export.export_saved_model(model, str(tmp_path / "3"))
    inputs = portable.inputs_of(str(tmp_path), PAIRS[:5])
    assert list(inputs) == ["input_ids", "input_mask", "segment_ids"]
    found = model.output_arrays(*inputs.values())["probabilities"]
    assert np.abs(found - model.predict(PAIRS[:5])).max() < 1e-6
    one, = portable.inputs_of(str(tmp_path), ["天气"])["input_ids"]
    assert list(one) == model.encoder("天气")[0]
    with pytest.raises(UserError, match="no exported classifier"):
        portable.inputs_of(folder, PAIRS)


@needs_2_15
def test_tflite_files_have_a_signature_and_agree_with_the_model(model, batches, tmp_path):
    export.export_saved_model(model, str(tmp_path / "saved"))
    expected = [model.scores(*batch) for batch in batches]
    files = list(export.other_files(model, str(tmp_path / "saved"), with_onnx=False))
    assert [ending for ending, _, _, _ in files] == [".tflite", "_dynamic.tflite"]
    for ending, content, runner, tolerance in files:
        line = export.check_file(ending, content, runner, model, batches, expected, tolerance)
        assert "on 24 rows" in line
        with pytest.raises(UserError, match="allowed are"):
            export.check_file(ending, content, runner, model, batches,
                              [rows[:, ::-1] for rows in expected], tolerance)
        signature = tf.lite.Interpreter(model_content=content).get_signature_list()
        assert signature == {"serving_default": {
            "inputs": ["input_ids", "input_mask", "segment_ids"], "outputs": ["probabilities"]}}


@needs_2_15
@pytest.mark.parametrize("head", ["classifier", "labelling"])
def test_onnx_agrees_with_the_model(head, model, tmp_path, toy_vocab, toy_config):
    pytest.importorskip("tf2onnx", reason="needs it: ./setup.sh --with=onnx")
    pytest.importorskip("onnxruntime", reason="needs it: ./setup.sh --with=onnx")
    encoded = [model.encoder(text)[:2] for text in TOY_SENTENCES]
    if head == "labelling":
        model = LabellingPredictor(write_labeller(tmp_path, toy_vocab, toy_config))
    served = portable.OnnxModel(portable.onnx_bytes(model))
    for rows in (1, 5, 12):
        batch = padded_arrays(encoded[:rows])
        for name, array in served.output_arrays(*batch).items():
            assert np.abs(array - model.output_arrays(*batch)[name]).max() < 1e-5
    assert served.outputs == list(model.SERVED)


def test_onnx_without_its_packages_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(UserError, match="setup.sh --with=onnx"):
        portable.onnx_packages()


def test_compare_lets_near_ties_rank_otherwise_only_where_allowed():
    expected = np.array([[0.9, 0.1], [0.51, 0.49]])
    found = np.array([[0.89, 0.11], [0.495, 0.505]])
    difference, wrong, other = export.compare([expected], [found], export.Tolerance(0.02, 0.04))
    assert abs(difference - 0.015) < 1e-9 and (wrong, other) == (0, 1)
    assert export.compare([expected], [found], export.Tolerance(1e-4, 0.0))[1] == 1

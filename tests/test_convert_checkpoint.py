"""Conversions: bit-equal round trips, exact images, refusals in one line."""

import io
import json
import os
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.numpy_models import NumpyBert, google_shapes, random_weights
from helpers.toy_classifier import PAIRS, write_classifier
from helpers.toy_heads import write_model
from helpers.toy_records import run_script
from helpers.toy_styles import ALBERT_ZH, GOOGLE, STYLES, shapes_of
from helpers.toys import FIXTURES, toy_tokens, write_text
from safetensors.numpy import load_file, save_file

import convert_checkpoint
import modeling
import run_mrc
import run_ner
from cli import UserError
from fine_tuning import labelling_predictor, predictor
from weights import checkpoints, formats, huggingface, layouts, verification


@pytest.fixture
def model_folder(tmp_path, toy_vocab):
    """A function: style -> folder of a trained-looking model with slots, config, vocabulary."""
    def make(style):
        folder = tmp_path / ("from_" + style)
        folder.mkdir()
        write_text(folder / "albert_config.json", json.dumps(STYLES[style]))
        with io.open(toy_vocab, encoding="utf-8", newline="") as stream:
            write_text(folder / "vocab.txt", stream.read())
        weights = random_weights(shapes_of(style))
        slots = {name + slot: np.ones_like(array) for name, array in weights.items()
                 for slot in ("/lamb_m", "/lamb_v")}
        checkpoints.write_checkpoint(str(folder), "model.ckpt-9", dict(
            weights, global_step=np.int64(9), **slots))
        return str(folder)
    return make


def convert(source, target, form, *more):
    run_script(convert_checkpoint, "--from=" + str(source), "--to=" + str(target),
               "--format=" + form, *more)
    return str(target)


def arrays_of(folder):
    """Name -> array of a checkpoint or of a Hugging Face folder."""
    if os.path.exists(os.path.join(folder, "model.safetensors")):
        return load_file(os.path.join(folder, "model.safetensors"))
    reader = tf.train.load_checkpoint(checkpoints.find_checkpoint(folder))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def weights_of(folder):
    return {name: array for name, array in arrays_of(folder).items()
            if not checkpoints.NOT_WEIGHTS.search(name)}


def assert_bit_equal(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].tobytes() == array.tobytes(), name


def data_size(folder):
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)
               if ".data-" in name)


@pytest.mark.parametrize("style", ["albert_zh", "google"])
def test_tf_drops_the_slots_and_nothing_else(model_folder, tmp_path, capsys, style):
    source = model_folder(style)
    target = convert(source, tmp_path / "out", "tf", "--verify")
    assert_bit_equal(weights_of(target), weights_of(source))
    assert arrays_of(target)["global_step"] == 9
    assert data_size(target) < 0.34 * data_size(source)
    assert {"albert_config.json", "vocab.txt", "checkpoint"} <= set(os.listdir(target))
    out = capsys.readouterr().out
    count = len(weights_of(source))
    assert "mapped: %d\n" % count in out and "optimizer slots: %d\n" % (2 * count) in out
    assert "left over, no place for them: 0\n" in out and "largest difference 0 (" in out
    configs = [modeling.AlbertConfig.from_json_file(os.path.join(folder, "albert_config.json"))
               for folder in (source, target)]
    assert vars(configs[0]) == vars(configs[1])


@pytest.mark.parametrize("style", ["google", "groups"])
def test_googles_names_and_back(model_folder, tmp_path, style):
    source = model_folder(style)
    google = convert(source, tmp_path / "google", "google", "--verify")
    assert set(weights_of(google)) == set(google_shapes(STYLES[style]))
    with open(os.path.join(google, "albert_config.json"), encoding="utf-8") as stream:
        assert json.load(stream) == STYLES[style]
    for middle in (google, convert(google, tmp_path / "tf", "tf")):
        assert_bit_equal(weights_of(middle), weights_of(google))
    back = convert(tmp_path / "tf", tmp_path / "back", "albert_zh", "--verify")
    assert_bit_equal(weights_of(back), weights_of(source))


@pytest.mark.parametrize("style", ["google", "groups", "erf"])
def test_hugging_face_and_back(model_folder, tmp_path, style):
    source = model_folder(style)
    folder = convert(source, tmp_path / "hf", "huggingface")
    tensors = arrays_of(folder)
    groups = STYLES[style]["num_hidden_groups"]
    assert len(tensors) == 16 * (groups - 1) + 32 and not [n for n in tensors if "decoder" in n]
    for name, array in weights_of(source).items():
        written = tensors[layouts.huggingface_name(name, "albert")]
        np.testing.assert_array_equal(written.T if name.endswith("kernel") else written, array)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as stream:
        config = json.load(stream)
    assert config["architectures"] == ["AlbertForPreTraining"]
    assert config["hidden_act"] == {"google": "gelu_new", "groups": "relu", "erf": "gelu"}[style]
    with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as stream:
        assert json.load(stream)["tokenizer_class"] == "BertTokenizer"
    back = convert(folder, tmp_path / "back", "tf", "--verify")
    assert_bit_equal(weights_of(back), weights_of(source))
    configs = [modeling.AlbertConfig.from_json_file(os.path.join(path, "albert_config.json"))
               for path in (source, back)]
    assert vars(configs[0]) == vars(configs[1])
    with open(os.path.join(back, "vocab.txt"), encoding="utf-8") as stream:
        assert stream.read().split() == toy_tokens()


@pytest.mark.parametrize("style", ["two", "attention", "ffn", "none"])
def test_plain_bert_in_both_formats(model_folder, tmp_path, capsys, style):
    source = model_folder(style)
    bert = arrays_of(convert(source, tmp_path / "bert", "bert", "--verify"))
    config, weights = STYLES[style], arrays_of(source)
    assert len(bert) == 5 + 16 * config["num_hidden_layers"] + 2 + 5 + 2
    np.testing.assert_allclose(
        bert["bert/embeddings/word_embeddings"],
        weights["bert/embeddings/word_embeddings"] @ weights["bert/embeddings/word_embeddings_2"],
        atol=1e-6)
    tensors = arrays_of(convert(source, tmp_path / "hf", "huggingface"))
    assert set(tensors) == {layouts.huggingface_name(name, "bert") for name in bert}
    for name, array in bert.items():
        written = tensors[layouts.huggingface_name(name, "bert")]
        np.testing.assert_array_equal(written.T if name.endswith("kernel") else written, array)
    out = capsys.readouterr().out
    assert ("is the tanh form" in out) == (style != "none")
    assert "bert/embeddings/word_embeddings · word_embeddings_2 -> " in out


def test_plain_bert_computes_what_the_reference_computed(tmp_path, toy_vocab):
    reference = os.path.join(FIXTURES, "albert_zh_postln")
    variables, inputs, outputs = [np.load(os.path.join(reference, name + ".npz")) for name in (
        "variables", "inputs", "outputs")]
    source = tmp_path / "from"
    source.mkdir()
    checkpoints.write_checkpoint(str(source), "bert_model.ckpt",
                                 {name: variables[name] for name in variables.files})
    folder = convert(source, tmp_path / "bert", "bert",
                     "--bert_config_file=" + os.path.join(reference, "config.json"))
    with open(os.path.join(folder, "bert_config.json"), encoding="utf-8") as stream:
        model = NumpyBert(json.load(stream), arrays_of(folder))
    found = model.run({name.split("/")[1]: inputs[name] for name in inputs.files
                       if name.startswith("main/")})
    for name, expected in (("layers", "all_encoder_layers"), ("pooled", "pooled_output"),
                           ("masked", "mlm_logits"), ("order", "sop_logits")):
        np.testing.assert_allclose(found[name], outputs["main/" + expected], rtol=0, atol=1e-4,
                                   err_msg=name)


REFUSALS = [("albert_zh", "google", "adds position and type embeddings after the projection"),
            ("google", "bert", "norms the embeddings before the projection"),
            ("preln", "bert", "ln_type is preln"), ("preln", "huggingface", "ln_type is preln"),
            ("erf", "google", "hidden_act is gelu_erf")]


@pytest.mark.parametrize("style, form, words", REFUSALS)
def test_what_has_no_exact_image_is_refused_in_one_line(model_folder, tmp_path, style, form, words):
    with pytest.raises(UserError, match=words) as caught:
        convert(model_folder(style), tmp_path / "out", form)
    assert "\n" not in str(caught.value) and "--format=" + form in str(caught.value)
    assert sorted(os.listdir(str(tmp_path))) == ["from_" + style]


def test_groups_rounded_otherwise_are_refused():
    config = modeling.AlbertConfig(embedding_style="google", num_hidden_groups=22, **dict(
        {key: ALBERT_ZH[key] for key in modeling.AlbertConfig.REQUIRED}, num_hidden_layers=22))
    for form in ("google", "huggingface"):
        with pytest.raises(UserError, match="22 of 22 layers is rounded otherwise"):
            formats.refuse_inexact(config, form)


def test_groups_above_the_layers_go_where_they_can_be_run():
    config = modeling.AlbertConfig(embedding_style="google", num_hidden_groups=6, **dict(
        {key: ALBERT_ZH[key] for key in modeling.AlbertConfig.REQUIRED}, num_hidden_layers=2))
    formats.refuse_inexact(config, "google")
    with pytest.raises(UserError, match="6 is above num_hidden_layers 2, which transformers does"):
        formats.refuse_inexact(config, "huggingface")


def test_bad_input_leaves_nothing_behind(model_folder, tmp_path, toy_vocab, monkeypatch):
    source = model_folder("google")

    def attempt(words, origin, *more, form="huggingface"):
        with pytest.raises(UserError, match=words):
            convert(origin, tmp_path / "out", form, *more)
        assert not [name for name in os.listdir(str(tmp_path)) if name.startswith("out")]
    attempt("no checkpoint '.*none'", tmp_path / "none")
    attempt("holds no checkpoint", os.path.dirname(toy_vocab))
    attempt("--labels: the classifier has 3 labels, the names are a, b",
            classifier_folder(tmp_path, toy_vocab), "--labels=a,b")
    attempt("has .* tokens, the config's vocab_size is 50", write_small(tmp_path))
    os.remove(os.path.join(source, "vocab.txt"))
    attempt("--vocab_file is required", source)
    monkeypatch.setattr(checkpoints, "write_checkpoint", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        convert(source, tmp_path / "out", "tf")
    assert not [name for name in os.listdir(str(tmp_path)) if "out" in name]
    os.remove(os.path.join(source, "albert_config.json"))
    attempt("--bert_config_file is required", source, form="tf")
    write_text(tmp_path / "taken", "")
    with pytest.raises(UserError, match="is there already"):
        convert(source, tmp_path / "taken", "tf")


def write_small(folder):
    """A model whose config has room for 50 tokens, beside the toy vocabulary."""
    folder = folder / "small"
    folder.mkdir()
    values = dict(GOOGLE, vocab_size=50)
    write_text(folder / "albert_config.json", json.dumps(values))
    write_text(folder / "vocab.txt", "\n".join(toy_tokens()))
    checkpoints.write_checkpoint(str(folder), "model.ckpt", random_weights(google_shapes(values)))
    return folder


def classifier_folder(tmp_path, vocab, style="google"):
    """A fine-tuned model of three labels that describes itself."""
    config = write_text(tmp_path / (style + ".json"), json.dumps(STYLES[style]))
    return write_classifier(tmp_path / ("classifier_" + style), vocab, config,
                            labels=("no", "maybe", "是"))


def test_a_classifier_goes_to_hugging_face_and_comes_back(tmp_path, toy_vocab):
    source = classifier_folder(tmp_path, toy_vocab)
    folder = convert(source, tmp_path / "hf", "huggingface", "--verify")
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as stream:
        config = json.load(stream)
    assert config["architectures"] == ["AlbertForSequenceClassification"]
    assert config["id2label"] == {"0": "no", "1": "maybe", "2": "是"}
    assert config["label2id"]["是"] == 2
    back = convert(folder, tmp_path / "back", "tf", "--verify")
    assert_bit_equal(weights_of(back), weights_of(source))
    probabilities = [predictor.Predictor(path).predict(PAIRS) for path in (source, back)]
    np.testing.assert_array_equal(*probabilities)
    google = convert(source, tmp_path / "google", "google")
    np.testing.assert_array_equal(predictor.Predictor(google).predict(PAIRS), probabilities[0])
    renamed = convert(source, tmp_path / "other", "huggingface", "--labels=a,b,c")
    assert huggingface.read_settings(renamed)["labels"] == ["a", "b", "c"]


@pytest.mark.parametrize("outcome, labels, problem", [
    ("label_sets", ("体育", "财经", "科技"), "multi_label_classification"),
    ("score", ("score",), "regression")])
def test_sets_of_labels_and_scores_stay_what_they_are(tmp_path, toy_vocab, outcome, labels,
                                                      problem):
    source = write_classifier(
        tmp_path / "from", toy_vocab, write_text(tmp_path / "c.json", json.dumps(GOOGLE)),
        labels=labels, task="tsv", columns="text_a,text_b,label", outcome=outcome)
    folder = convert(source, tmp_path / "hf", "huggingface")
    assert huggingface.read_object(os.path.join(folder, "config.json"))["problem_type"] == problem
    os.remove(os.path.join(folder, "classifier.json"))  # as where it comes from somebody else
    back = predictor.Predictor(convert(folder, tmp_path / "back", "tf"))
    assert (back.outcome.NAME, tuple(back.labels)) == (outcome, labels)
    np.testing.assert_array_equal(back.predict(PAIRS), predictor.Predictor(source).predict(PAIRS))


def test_a_classifier_of_albert_zh_becomes_bert(tmp_path, toy_vocab):
    source = classifier_folder(tmp_path, toy_vocab, "albert_zh")
    folder = convert(source, tmp_path / "hf", "huggingface", "--verify")
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as stream:
        config = json.load(stream)
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"]["2"] == "是" and "embedding_size" not in config
    back = convert(folder, tmp_path / "back", "tf", "--verify")
    assert predictor.read_description(back) == dict(predictor.read_description(source),
                                                    save_best=False)
    probabilities = [predictor.Predictor(path).predict(PAIRS) for path in (source, back)]
    np.testing.assert_allclose(*probabilities, atol=1e-6)


def edited(folder, target, config=(), drop=(), **tensors):
    """A copy of a Hugging Face folder with other config keys and tensors."""
    target.mkdir()
    found = dict(load_file(os.path.join(folder, "model.safetensors")), **tensors)
    save_file({name: array for name, array in found.items() if name not in drop},
              str(target / "model.safetensors"))
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as stream:
        write_text(target / "config.json", json.dumps(dict(json.load(stream), **dict(config))))
    return str(target)


def test_variants_of_hugging_face_folders(model_folder, tmp_path, capsys):
    source = model_folder("google")
    folder = convert(source, tmp_path / "hf", "huggingface")
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    words, bias = tensors["albert.embeddings.word_embeddings.weight"], tensors["predictions.bias"]
    tied = edited(folder, tmp_path / "tied", **{
        "predictions.decoder.weight": words, "predictions.decoder.bias": bias,
        "albert.embeddings.position_ids": np.arange(128)[None], "qa_outputs.bias": np.zeros(2)})
    back = convert(tied, tmp_path / "back", "tf")
    assert_bit_equal(weights_of(back), weights_of(source))
    out = capsys.readouterr().out
    assert "dropped, repeat others: 3\n" in out and "left over, no place for them: 1\n  qa_" in out
    with pytest.raises(UserError, match="decoder.weight is not tied to albert.embeddings.word"):
        convert(edited(folder, tmp_path / "untied", **{"predictions.decoder.weight": words + 1}),
                tmp_path / "x", "tf")
    for key, value in (("hidden_act", "swish"), ("layer_norm_eps", 1e-5),
                       ("position_embedding_type", "relative_key")):
        with pytest.raises(UserError, match="config.json: {} is {!r}, which has no exact".format(
                key, value)):
            convert(edited(folder, tmp_path / key, {key: value}), tmp_path / "x", "tf")
    with pytest.raises(UserError, match="of another model: it has no bert/encoder/layer_shared"):
        convert(edited(folder, tmp_path / "torn", drop=[
            "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"]),
            tmp_path / "x", "tf")


def test_a_bare_model_with_old_names_in_half_precision(model_folder, tmp_path):
    source = model_folder("google")
    folder = convert(source, tmp_path / "hf", "huggingface")
    bare = tmp_path / "bare"
    bare.mkdir()
    tensors = {name.replace("albert.", "", 1).replace("LayerNorm.weight", "LayerNorm.gamma")
               .replace("LayerNorm.bias", "LayerNorm.beta"): array.astype(np.float16)
               for name, array in load_file(os.path.join(folder, "model.safetensors")).items()
               if name.startswith("albert.")}
    save_file(tensors, str(bare / "model.safetensors"))
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as stream:
        write_text(bare / "config.json", stream.read())
    found = weights_of(convert(bare, tmp_path / "back", "tf", "--verify"))
    expected = {name: array.astype(np.float16).astype(np.float32)
                for name, array in weights_of(source).items() if name.startswith("bert/")}
    assert_bit_equal(found, expected)


def test_bfloat16_and_damaged_files(tmp_path):
    half = np.array([1.0, -2.5, 3e-5], np.float32).view(np.uint32) >> 16
    header = json.dumps({"x": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}).encode()
    path = str(tmp_path / "model.safetensors")
    with open(path, "wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header
                     + half.astype(np.uint16).tobytes())
    np.testing.assert_allclose(huggingface.read_tensors(path)["x"], [1.0, -2.5, 3e-5],
                               rtol=1e-2)
    with open(path, "ab") as stream:
        stream.write(b"x")
    with pytest.raises(UserError, match="is damaged"):
        huggingface.read_tensors(path)


def test_verification_finds_a_wrong_weight(model_folder, tmp_path):
    source = model_folder("google")
    target = convert(source, tmp_path / "out", "albert_zh")
    model = formats.read_checkpoint(*convert_checkpoint.checkpoint_and_config(
        source, source, None, None))
    image = formats.exact_image(model, "albert_zh")
    assert "largest difference 0 (" in verification.verify(target, model, image)
    wrong = arrays_of(target)
    wrong["bert/encoder/layer_shared/attention/self/query/kernel"] *= 1.1
    checkpoints.write_checkpoint(target, "model.ckpt", wrong)
    with pytest.raises(UserError, match="the conversion is wrong"):
        verification.verify(target, model, image)


@pytest.mark.parametrize("form", ["tf", "albert_zh"])
def test_the_norm_of_a_pre_ln_classifier_is_read_run_and_kept(tmp_path, toy_vocab, capsys, form):
    source = classifier_folder(tmp_path, toy_vocab, "preln")
    rng, arrays = np.random.RandomState(3), arrays_of(source)
    for leaf in ("beta", "gamma"):
        arrays["loss/LayerNorm/" + leaf] = rng.normal(size=32).astype(np.float32)
    checkpoints.write_checkpoint(source, "model.ckpt-7", arrays)
    config = modeling.AlbertConfig.from_json_file(os.path.join(source, "albert_config.json"))
    found = verification.tensorflow_outputs(config, arrays, verification.random_inputs(config))
    pooled = found["pooled output"]
    normed = (pooled - pooled.mean(-1, keepdims=True)) / pooled.std(-1, keepdims=True)
    normed = normed * arrays["loss/LayerNorm/gamma"] + arrays["loss/LayerNorm/beta"]
    np.testing.assert_allclose(
        found["classes"], normed @ arrays["output_weights"].T + arrays["output_bias"], atol=1e-4)
    target = convert(source, tmp_path / "out", form, "--verify")
    assert_bit_equal(weights_of(target), weights_of(source))
    out = capsys.readouterr().out
    assert "no place for them: 0\n" in out and ", classes 0)" in out
    probabilities = [predictor.Predictor(path).predict(PAIRS) for path in (source, target)]
    np.testing.assert_array_equal(*probabilities)


def test_a_folder_with_another_head_stays_what_it_is(tmp_path, toy_vocab, monkeypatch):
    monkeypatch.setattr(predictor, "HEADS", ("classifier", "tagger"))
    source = classifier_folder(tmp_path, toy_vocab)
    arrays = {name.replace("output_", "tags/"): array for name, array in arrays_of(source).items()}
    checkpoints.write_checkpoint(source, "model.ckpt-7", arrays)
    path = os.path.join(source, "classifier.json")
    description = dict(predictor.read_description(source), head="tagger")
    os.remove(path)
    write_text(path.replace("classifier.json", "tagger.json"), json.dumps(description))
    target = convert(source, tmp_path / "out", "tf")
    assert_bit_equal(weights_of(target), weights_of(source))
    assert predictor.read_description(target) == dict(description, save_best=False)
    assert predictor.read_description(convert(source, tmp_path / "two", "albert_zh")) is None


# ---- the way back from plain BERT --------------------------------------------------------------


@pytest.mark.parametrize("form", ["bert", "huggingface"])
def test_a_plain_bert_of_equal_layers_comes_back(model_folder, tmp_path, capsys, form):
    source = model_folder("two")
    bert = convert(source, tmp_path / "bert", form)
    back = convert(bert, tmp_path / "back", "tf" if form == "huggingface" else "albert_zh",
                   "--verify")
    found, expected = arrays_of(back), weights_of(source)
    config = modeling.AlbertConfig.from_json_file(os.path.join(back, "albert_config.json"))
    assert (config.embedding_size, config.parameter_sharing) == (16, "all")
    words = "bert/embeddings/word_embeddings"
    np.testing.assert_allclose(found.pop(words) @ found.pop(words + "_2"),
                               expected.pop(words) @ expected.pop(words + "_2"), atol=1e-6)
    del found["global_step"]
    assert_bit_equal(found, expected)
    assert "dropped, repeat others: 16\n" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["bert", "huggingface"])
def test_a_plain_bert_whose_layers_differ_is_refused(model_folder, tmp_path, form):
    bert = convert(model_folder("none"), tmp_path / "bert", form)
    with pytest.raises(UserError, match="bert' is a plain BERT, whose layers differ"):
        convert(bert, tmp_path / "back", "albert_zh")
    assert not os.path.exists(str(tmp_path / "back"))


def test_a_table_of_full_rank_stays_as_it_is():
    table = np.random.RandomState(1).normal(size=[50, 8]).astype(np.float32)
    found, projection = formats.factorized(table)
    np.testing.assert_array_equal(found, table)
    np.testing.assert_array_equal(projection, np.eye(8))


# ---- Hugging Face folders as they are found ----------------------------------------------------


def rewritten(folder, target, tensors=None, **config):
    """A copy of a folder's config.json, with other keys, beside other tensors where given."""
    if tensors is None:
        return edited(folder, target, config)
    path = edited(folder, target, config)
    save_file(tensors, os.path.join(path, "model.safetensors"))
    return path


def test_exactly_the_weights_that_belong_to_a_folder_are_read(model_folder, tmp_path):
    source = model_folder("google")
    folder = convert(source, tmp_path / "hf", "huggingface")
    tensors = arrays_of(folder)
    stale = {name: array + 1 for name, array in tensors.items()}
    save_file(stale, os.path.join(folder, "model_old.safetensors"))
    assert_bit_equal(weights_of(convert(folder, tmp_path / "one", "tf")), weights_of(source))
    os.remove(os.path.join(folder, "model.safetensors"))
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:9], "other.safetensors": names[9:]}
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, os.path.join(folder, shard))
    index = {"weight_map": {name: shard for shard, members in shards.items() for name in members}}
    path = os.path.join(folder, "model.safetensors.index.json")
    write_text(path, json.dumps(index))
    assert_bit_equal(weights_of(convert(folder, tmp_path / "two", "tf")), weights_of(source))
    os.remove(os.path.join(folder, "other.safetensors"))
    with pytest.raises(UserError, match="index.json names the file 'other.safetensors', which is "
                       "not in '.*hf'"):
        convert(folder, tmp_path / "three", "tf")
    for bad in ("{}", '{"weight_map": {"x": "../hf/model_old.safetensors"}}', "[]", "{"):
        write_text(path, bad)
        with pytest.raises(UserError, match="index.json"):
            convert(folder, tmp_path / "three", "tf")
    write_text(os.path.join(folder, "model.safetensors"),
               "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n")
    with pytest.raises(UserError, match="is a pointer of git-lfs .*git lfs pull"):
        convert(folder, tmp_path / "three", "tf")


@pytest.mark.parametrize("wrapper", ["module.", "model.", "model.module."])
def test_wrapped_models_and_buffers_of_whole_numbers(model_folder, tmp_path, capsys, wrapper):
    source = model_folder("google")
    folder = convert(source, tmp_path / "hf", "huggingface")
    tensors = {wrapper + name: array for name, array in arrays_of(folder).items()}
    buffers = {"flags": np.zeros(2, np.bool_), "bytes": np.zeros(2, np.uint8),
               "shorts": np.zeros(2, np.int16)}
    wrapped = rewritten(folder, tmp_path / "wrapped", dict(tensors, **buffers))
    assert_bit_equal(weights_of(convert(wrapped, tmp_path / "out", "tf")), weights_of(source))
    assert "no place for them: 3\n  bytes\n  flags\n  shorts\n" in capsys.readouterr().out
    name = wrapper + "albert.pooler.weight"
    quantized = rewritten(folder, tmp_path / "quantized", dict(
        tensors, **{name: tensors[name].astype(np.int8)}))
    with pytest.raises(UserError, match="tensor albert.pooler.weight holds int8"):
        convert(quantized, tmp_path / "none", "tf")


def test_without_transformers_a_foreign_source_counts_as_not_checked(
        model_folder, tmp_path, capsys, monkeypatch):
    folder = convert(model_folder("google"), tmp_path / "hf", "huggingface")
    monkeypatch.setitem(sys.modules, "transformers", None)
    convert(folder, tmp_path / "out", "tf", "--verify")
    out = capsys.readouterr().out
    assert "run by modeling.py: largest difference 0 (" in out
    assert ("; not checked: that the source was read rightly, as PyTorch or transformers is not "
            "installed") in out


def test_a_missing_tensor_is_no_plain_bert(model_folder, tmp_path):
    folder = convert(model_folder("google"), tmp_path / "hf", "huggingface")
    torn = edited(folder, tmp_path / "torn", drop=[
        "albert.encoder.embedding_hidden_mapping_in.weight"])
    with pytest.raises(UserError, match="it has no bert/encoder/embedding_hidden_mapping_in/kern"):
        convert(torn, tmp_path / "x", "tf")
    empty = rewritten(folder, tmp_path / "empty", {"x": np.zeros(1, np.float32)})
    with pytest.raises(UserError, match="its own first variables are none at all"):
        convert(empty, tmp_path / "x", "tf")


def test_labels_of_hugging_face_arrive_in_their_order(tmp_path, toy_vocab):
    folder = convert(classifier_folder(tmp_path, toy_vocab), tmp_path / "hf", "huggingface")
    os.remove(os.path.join(folder, "classifier.json"))  # a folder that somebody else wrote
    with open(os.path.join(folder, "tokenizer_config.json"), "r+", encoding="utf-8") as stream:
        changed = stream.read().replace('"do_lower_case": true', '"do_lower_case": false')
        stream.seek(0)
        stream.write(changed + " ")
    model = predictor.Predictor(convert(folder, tmp_path / "back", "tf"))
    assert model.predict(["明天", ("明天", "图书馆")]).shape == (2, 3)
    back = model.description
    assert back["labels"] == ["no", "maybe", "是"] and back["do_lower_case"] is False
    named = predictor.read_description(convert(folder, tmp_path / "named", "tf", "--labels=a,b,c"))
    assert named["labels"] == ["a", "b", "c"]
    unnamed = edited(folder, tmp_path / "unnamed", {
        "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}})
    assert predictor.read_description(convert(unnamed, tmp_path / "none", "tf")) is None
    for bad in (["a", "b", "c"], {"0": 1, "1": 2, "2": 3}, {"0": "a", "2": "b", "3": "c"}, "abc",
                {"a": "0", "b": "1", "c": "2"}):
        with pytest.raises(UserError, match="config.json: id2label is .*, must map 0, 1, ... to"):
            convert(edited(folder, tmp_path / ("bad%d" % len(os.listdir(str(tmp_path)))),
                           {"id2label": bad}), tmp_path / "x", "tf")


@pytest.mark.parametrize("config", [
    {"architectures": ["AlbertForMultipleChoice"]},
    {"problem_type": "ranking"}])
def test_heads_of_another_kind_are_refused_and_can_be_dropped(tmp_path, toy_vocab, config, capsys):
    folder = convert(classifier_folder(tmp_path, toy_vocab), tmp_path / "hf", "huggingface")
    other = edited(folder, tmp_path / "other", config)
    word = config.get("architectures", ["ranking"])[0]
    with pytest.raises(UserError, match=word + ".*--drop_heads=classifier converts the rest"):
        convert(other, tmp_path / "x", "tf")
    weights = weights_of(convert(other, tmp_path / "out", "tf", "--drop_heads=classifier"))
    assert "output_weights" not in weights and "bert/pooler/dense/kernel" in weights
    assert "no place for them: 2\n  classifier.bias\n  classifier" in capsys.readouterr().out
    assert not os.path.exists(str(tmp_path / "out" / "classifier.json"))


# ---- labelling and reading models --------------------------------------------------------------


@pytest.mark.parametrize("style, head, script, line, kind", [
    ("google", "labelling", run_ner, "渔民在图书馆。\n", "AlbertForTokenClassification"),
    ("albert_zh", "reading", run_mrc, "谁？\t渔民在图书馆。\n", "BertForQuestionAnswering")])
def test_labelling_and_reading_models_come_back_and_answer(
        tmp_path, toy_vocab, capsys, monkeypatch, style, head, script, line, kind):
    source, _, weights = write_model(tmp_path / "from", toy_vocab, STYLES[style], head)
    folder = convert(source, tmp_path / "hf", "huggingface", "--verify")
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as stream:
        config = json.load(stream)
    assert config["architectures"] == [kind]
    if head == "labelling":
        assert config["id2label"] == dict(enumerate_as_text(
            ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]))
    back = convert(folder, tmp_path / "back", "tf", "--verify")
    if style == "google":
        assert_bit_equal(weights_of(back), weights)
    said = dict(predictor.read_description(source), save_best=False)
    assert predictor.read_description(back) == said
    title = {"labelling": ", tags ", "reading": ", starts and ends "}[head]
    assert capsys.readouterr().out.count(title) == 2
    answers = []
    for path in (source, back):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line.encode("utf-8"))))
        assert not run_script(script, "--output_dir=" + path, "--do_predict", "--predict_file=-")
        answers.append(json.loads(capsys.readouterr().out))
    found, expected = [list(numbers_and_text(answer)) for answer in answers]
    assert found[1] == expected[1] and found[1]
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)


def enumerate_as_text(names):
    return ((str(number), name) for number, name in enumerate(names))


def numbers_and_text(answer):
    """[real numbers, everything else] in an answer, in order."""
    rows = [answer] if "score" in answer else answer["entities"]
    cells = [cell for row in rows for cell in row.items()]
    yield [value for _, value in cells if isinstance(value, float)]
    yield [cell for cell in cells if not isinstance(cell[1], float)]


def test_a_crf_has_a_place_in_tensorflow_only(tmp_path, toy_vocab, capsys):
    transitions = np.arange(25, dtype=np.float32).reshape(5, 5)  # [T, T]
    source, _, _ = write_model(tmp_path / "from", toy_vocab, GOOGLE, "labelling",
                               {"crf/transitions": transitions}, crf=True)
    kept = convert(source, tmp_path / "tf", "tf")
    np.testing.assert_array_equal(arrays_of(kept)["crf/transitions"], transitions)
    assert predictor.read_description(kept)["crf"] is True
    for form in ("huggingface", "google"):
        with pytest.raises(UserError, match="--format={} has no place for a CRF's crf/transitions; "
                           "--drop_heads=crf".format(form)):
            convert(source, tmp_path / "x", form)
    capsys.readouterr()
    without = convert(source, tmp_path / "out", "huggingface", "--drop_heads=crf")
    assert "dropped, heads: 1\n  crf/transitions\n" in capsys.readouterr().out
    assert predictor.read_description(without)["crf"] is False
    none = convert(source, tmp_path / "none", "tf", "--drop_heads=labelling")
    assert not [name for name in arrays_of(none) if not name.startswith(("bert/", "global_step"))]
    assert predictor.read_description(none) is None


def test_tags_of_hugging_face_keep_their_own_order(tmp_path, toy_vocab, caplog):
    source, _, _ = write_model(tmp_path / "from", toy_vocab, GOOGLE, "labelling")
    folder = convert(source, tmp_path / "hf", "huggingface")
    os.remove(os.path.join(folder, "labelling.json"))  # a folder that somebody else wrote
    tags = ["B-LOC", "I-PER", "B-PER", "I-LOC", "O"]
    other = convert(edited(folder, tmp_path / "other", {"id2label": dict(enumerate_as_text(tags))}),
                    tmp_path / "back", "tf", "--vocab_file=" + toy_vocab)
    said = predictor.read_description(other)
    assert (said["scheme"], said["types"], said["labels"]) == ("BIO", ["LOC", "PER"], tags)
    model = labelling_predictor.LabellingPredictor(other)
    assert model.tags == tags and len(model.predict(["渔民在图书馆。"])) == 1
    renamed = convert(folder, tmp_path / "named", "tf", "--labels=O,B-A,I-A,B-B,I-B")
    assert predictor.labels_in(predictor.read_description(renamed))[1:3] == ["B-A", "I-A"]
    odd = edited(folder, tmp_path / "odd", {"id2label": dict(enumerate_as_text(
        ["[PAD]", "O", "B-A", "I-A", "S-A"]))})
    assert predictor.read_description(convert(odd, tmp_path / "none", "tf")) is None
    assert "are not tags of one of the schemes BIO, BIOES, BMES" in caplog.text


# ---- what is kept, dropped and left ------------------------------------------------------------


def test_heads_can_be_dropped(model_folder, tmp_path, capsys):
    source = model_folder("google")
    target = convert(source, tmp_path / "out", "huggingface", "--drop_heads=masked_lm",
                     "--drop_heads=sentence_order", "--verify")
    assert not [name for name in arrays_of(target) if not name.startswith("albert.")]
    with open(os.path.join(target, "config.json"), encoding="utf-8") as stream:
        assert json.load(stream)["architectures"] == ["AlbertModel"]
    out = capsys.readouterr().out
    assert "dropped, heads: 7\n" in out and "missing in the source: 0\n" in out


def test_tf_keeps_what_modeling_has_no_place_for(model_folder, tmp_path, capsys):
    source = model_folder("google")
    arrays = dict(arrays_of(source), **{"own/scale": np.arange(3, dtype=np.float32),
                                        "own/count": np.int64(4)})
    checkpoints.write_checkpoint(source, "model.ckpt-9", arrays)
    found = arrays_of(convert(source, tmp_path / "out", "tf"))
    np.testing.assert_array_equal(found["own/scale"], [0, 1, 2])
    assert found["own/count"] == 4
    assert "kept as they are, not used by modeling.py: 2\n  own/count\n" in capsys.readouterr().out
    convert(source, tmp_path / "hf", "huggingface")
    assert "left over, no place for them: 2\n  own/count\n" in capsys.readouterr().out


def test_a_failed_verification_leaves_nothing(model_folder, tmp_path, monkeypatch):
    source = model_folder("google")
    monkeypatch.setattr(verification, "TOLERANCE", -1.0)
    with pytest.raises(UserError, match="the conversion is wrong"):
        convert(source, tmp_path / "out", "tf", "--verify")
    assert sorted(os.listdir(str(tmp_path))) == ["from_google"]


def test_a_folder_of_the_users_own_is_not_deleted(model_folder, tmp_path):
    write_text(tmp_path / "out.unfinished", "mine")
    convert(model_folder("google"), tmp_path / "out", "tf")
    assert (tmp_path / "out.unfinished").read_text(encoding="utf-8") == "mine"


def test_a_line_that_stands_twice_in_a_vocabulary_keeps_the_ids(model_folder, tmp_path, caplog):
    source = model_folder("google")
    tokens = toy_tokens()
    tokens[40] = tokens[20]
    write_text(os.path.join(source, "vocab.txt"), "\n".join(tokens) + "\n")
    folder = convert(source, tmp_path / "hf", "huggingface")
    with open(os.path.join(folder, "vocab.txt"), encoding="utf-8") as stream:
        assert stream.read().split("\n")[:-1] == tokens
    assert "1 lines repeat others, the first of them '{}'".format(tokens[20]) in caplog.text

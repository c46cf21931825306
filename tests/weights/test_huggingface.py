"""Hugging Face's own code on converted folders: hidden states, heads, classes, token ids."""

import io
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.numpy_models import GOOGLE_CONFIG, random_weights
from helpers.toy_classifier import PAIRS, write_classifier
from helpers.toy_heads import write_model as write_fine_tuned
from helpers.toy_records import run_script
from helpers.toys import FIXTURES, ROOT, TOY_CONFIG, toy_tokens, write_text

import convert_checkpoint
import modeling
import tokenization
from cli import UserError
from fine_tuning import predictor
from weights import checkpoints, formats, huggingface, layouts, verification

REASON = "needs PyTorch and transformers: PYTHON=python3.11 ./setup.sh --with=huggingface"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)

VOCAB = len(toy_tokens())
GOOGLE = dict(GOOGLE_CONFIG, vocab_size=VOCAB)
ALBERT_ZH = dict(TOY_CONFIG, vocab_size=VOCAB)
MODELS = {"google": GOOGLE, "google_groups_relu": dict(GOOGLE, num_hidden_groups=2,
                                                       hidden_act="relu"),
          "google_unshared_erf": dict(GOOGLE, num_hidden_groups=4, hidden_act="gelu_erf"),
          "albert_zh": ALBERT_ZH, "albert_zh_relu": dict(ALBERT_ZH, hidden_act="relu"),
          "albert_zh_erf_ffn": dict(ALBERT_ZH, hidden_act="gelu_erf", parameter_sharing="ffn"),
          "albert_zh_tanh_none": dict(ALBERT_ZH, hidden_act="tanh", parameter_sharing="none")}
HEADS = layouts.Heads(True, True, True, 0)


def convert(source, target, form):
    run_script(convert_checkpoint, "--from=" + str(source), "--to=" + str(target),
               "--format=" + form)
    return str(target)


def model_of(folder):
    """(config, weights) of a checkpoint's folder."""
    config = modeling.AlbertConfig.from_json_file(os.path.join(folder, "albert_config.json"))
    reader = tf.train.load_checkpoint(checkpoints.find_checkpoint(folder))
    return config, {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def write_model(folder, values, vocab):
    """A folder with random weights; returns (path, config, weights)."""
    folder.mkdir()
    write_text(folder / "albert_config.json", json.dumps(values))
    shutil.copy(vocab, str(folder / "vocab.txt"))
    config = modeling.AlbertConfig.from_json_file(str(folder / "albert_config.json"))
    weights = random_weights(formats.variables_with(config, HEADS))
    checkpoints.write_checkpoint(str(folder), "model.ckpt", weights)
    return str(folder), config, weights


def load(name, folder):
    """A model of transformers that finds every weight it wants in the folder, and no other."""
    model, found = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    assert not found["mismatched_keys"]
    return model.eval()


def run(model, inputs):
    """Hidden states, masked words and sentence order of a ForPreTraining model, as arrays."""
    ids, mask, segments = [torch.from_numpy(array).long() for array in inputs]
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask, token_type_ids=segments,
                      output_hidden_states=True)
    order = found.sop_logits if "sop_logits" in found else found.seq_relationship_logits
    return {"hidden states": np.stack([state.numpy() for state in found.hidden_states]),
            "masked words": found.prediction_logits.numpy(), "sentence order": order.numpy()}


def assert_equal_outputs(theirs, ours):
    for name, array in theirs.items():
        np.testing.assert_allclose(array.reshape(-1), ours[name].reshape(-1),  # [M]
                                   rtol=0, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_to_hugging_face(tmp_path, toy_vocab, name):
    source, config, weights = write_model(tmp_path / "from", MODELS[name], toy_vocab)
    folder = convert(source, tmp_path / "hf", "huggingface")
    family = "Albert" if name.startswith("google") else "Bert"
    inputs = verification.random_inputs(config, batch=3, length=20)
    assert_equal_outputs(run(load(family + "ForPreTraining", folder), inputs),
                         verification.tensorflow_outputs(config, weights, inputs))
    bare = transformers.AutoModel.from_pretrained(folder)
    assert type(bare).__name__ == family + "Model"


@pytest.mark.parametrize("groups, act, safe", [(1, "gelu_new", True), (2, "gelu", False),
                                               (4, "relu", True)])
def test_from_hugging_face(tmp_path, groups, act, safe):
    torch.manual_seed(2)
    theirs = transformers.AlbertForPreTraining(transformers.AlbertConfig(
        **dict(GOOGLE, num_hidden_groups=groups, hidden_act=act))).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    folder = str(tmp_path / "hf")
    theirs.save_pretrained(folder, safe_serialization=safe)
    config, weights = model_of(convert(folder, tmp_path / "tf", "tf"))
    assert config.hidden_act == {"gelu_new": "gelu", "gelu": "gelu_erf", "relu": "relu"}[act]
    inputs = verification.random_inputs(config, batch=3, length=20)
    assert_equal_outputs(run(theirs, inputs),
                         verification.tensorflow_outputs(config, weights, inputs))


class Evil(object):
    """What a pickle can hold: a call that is made when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.fixture
def bin_folder(tmp_path):
    """(folder, state dict) of a model of theirs, without its weights' file."""
    theirs = transformers.AlbertForMaskedLM(transformers.AlbertConfig(**GOOGLE))
    theirs.config.save_pretrained(str(tmp_path / "hf"))
    return tmp_path / "hf", theirs.state_dict()


@pytest.mark.parametrize("key", ["state_dict", "model", None])
def test_a_bin_file_may_hold_its_weights_one_level_down_or_in_shards(bin_folder, tmp_path, key):
    folder, state = bin_folder
    if key:
        torch.save({key: state, "epoch": 3}, str(folder / "pytorch_model.bin"))
    else:
        shards = [dict(list(state.items())[:7]), dict(list(state.items())[7:])]
        for number, shard in enumerate(shards):
            torch.save(shard, str(folder / ("part-%d.bin" % number)))
        write_text(folder / "pytorch_model.bin.index.json", json.dumps({"weight_map": {
            name: "part-%d.bin" % number for number, shard in enumerate(shards)
            for name in shard}}))
    _, weights = model_of(convert(folder, tmp_path / "tf", "tf"))
    np.testing.assert_array_equal(weights["bert/embeddings/word_embeddings"],
                                  state["albert.embeddings.word_embeddings.weight"].numpy())


@pytest.mark.parametrize("kind", ["empty", "cut", "text", "module", "evil", "list", "lfs"])
def test_a_bin_file_that_is_no_dict_of_tensors_is_refused_in_one_line(bin_folder, tmp_path, kind):
    folder, state = bin_folder
    path = str(folder / "pytorch_model.bin")
    content = {"module": torch.nn.Linear(2, 2), "list": [1],
               "evil": {"x": Evil(str(tmp_path / "evil"))}}.get(kind, state)
    torch.save(content, path)
    with open(path, "rb") as stream:
        whole = stream.read()
    with open(path, "wb") as stream:
        stream.write({"empty": b"", "cut": whole[:len(whole) // 2], "text": b"hello\n",
                      "lfs": huggingface.GIT_LFS + b"v1\n"}.get(kind, whole))
    words = "git lfs pull" if kind == "lfs" else "is damaged, or holds more than a dict of tensors"
    with pytest.raises(UserError, match="pytorch_model.bin .*" + words) as caught:
        convert(folder, tmp_path / "tf", "tf")
    assert "\n" not in str(caught.value)
    assert not [name for name in os.listdir(str(tmp_path)) if name != "hf"]


def test_a_source_that_is_read_wrongly_is_found_by_transformers(tmp_path, capsys, monkeypatch):
    theirs = transformers.AlbertModel(transformers.AlbertConfig(hidden_act="gelu_new", **{
        key: value for key, value in GOOGLE.items() if key != "hidden_act"}))
    theirs.save_pretrained(str(tmp_path / "hf"))
    arguments = ["--from=" + str(tmp_path / "hf"), "--verify"]
    run_script(convert_checkpoint, "--to=" + str(tmp_path / "tf"), *arguments)
    out = capsys.readouterr().out
    assert "largest difference" in out and "not checked" not in out
    monkeypatch.setitem(huggingface.ACTIVATIONS_READ, "gelu_new", "tanh")
    with pytest.raises(UserError, match="the conversion is wrong"):
        run_script(convert_checkpoint, "--to=" + str(tmp_path / "wrong"), *arguments)
    assert not (tmp_path / "wrong").exists()


def test_other_heads_of_hugging_face_arrive(tmp_path):
    for name, count in (("AlbertModel", 25), ("AlbertForMaskedLM", 28)):
        model = getattr(transformers, name)(transformers.AlbertConfig(**GOOGLE))
        model.save_pretrained(str(tmp_path / name))
        _, weights = model_of(convert(tmp_path / name, tmp_path / (name + "_tf"), "tf"))
        assert len(weights) == count + 1  # and the step


@pytest.mark.parametrize("values, name", [(GOOGLE, "AlbertForSequenceClassification"),
                                          (ALBERT_ZH, "BertForSequenceClassification")])
def test_classifiers_answer_alike(tmp_path, toy_vocab, values, name):
    config = write_text(tmp_path / "config.json", json.dumps(values))
    source = write_classifier(tmp_path / "from", toy_vocab, config, labels=("no", "maybe", "是"))
    folder = convert(source, tmp_path / "hf", "huggingface")
    model = load(name, folder)
    assert model.config.id2label == {0: "no", 1: "maybe", 2: "是"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer([a for a, _ in PAIRS], [b for _, b in PAIRS], padding=True,
                        truncation="longest_first", max_length=40, return_tensors="pt")
    with torch.no_grad():
        theirs = torch.softmax(model(**encoded).logits, -1).numpy()
    np.testing.assert_allclose(theirs, predictor.Predictor(source).predict(PAIRS), atol=1e-5)


def task_outputs(model, inputs):
    """What a model for tags or answers computes: title -> array."""
    ids, mask, segments = [torch.from_numpy(array).long() for array in inputs]
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask, token_type_ids=segments)
    if "logits" in found:
        return {"tags": found.logits.numpy()}
    return {"starts and ends": np.stack([found.start_logits.numpy(), found.end_logits.numpy()])}


@pytest.mark.parametrize("head, kind", [("labelling", "ForTokenClassification"),
                                        ("reading", "ForQuestionAnswering")])
def test_tags_and_answers_are_computed_alike(tmp_path, toy_vocab, head, kind):
    for family, values in (("Albert", GOOGLE), ("Bert", ALBERT_ZH)):
        source, config, weights = write_fine_tuned(tmp_path / family, toy_vocab, values, head)
        folder = convert(source, tmp_path / (family + "_hf"), "huggingface")
        inputs = verification.random_inputs(config, batch=3, length=20)
        assert_equal_outputs(task_outputs(load(family + kind, folder), inputs),
                             verification.tensorflow_outputs(config, weights, inputs))


@pytest.mark.parametrize("kind, more", [("ForTokenClassification", {"num_labels": 5}),
                                        ("ForQuestionAnswering", {})])
def test_their_tags_and_answers_are_read(tmp_path, toy_vocab, kind, more):
    torch.manual_seed(4)
    theirs = getattr(transformers, "Albert" + kind)(transformers.AlbertConfig(**dict(
        GOOGLE, hidden_act="gelu_new", **more))).eval()
    folder = tmp_path / "hf"
    theirs.save_pretrained(str(folder))
    shutil.copy(toy_vocab, str(folder / "vocab.txt"))
    config, weights = model_of(convert(folder, tmp_path / "tf", "tf"))
    inputs = verification.random_inputs(config, batch=3, length=20)
    assert_equal_outputs(task_outputs(theirs, inputs),
                         verification.tensorflow_outputs(config, weights, inputs))
    said = predictor.read_description(str(tmp_path / "tf"))
    assert said is None if more else (said["head"], said["doc_stride"]) == ("reading", 128)


# Where Hugging Face's tokenizer differs by design: special tokens are found in the text, private
# characters are dropped, and no final sigma is written.
DIFFERENT = {"lower": {"[MASK]", "今天[MASK]气", "\ue000\uf8ff", "ΣΊΣΥΦΟΣ"},
             "cased": {"[MASK]", "今天[MASK]气", "\ue000\uf8ff"}}


@pytest.mark.parametrize("form", ["lower", "cased"])
def test_the_tokenizer_gives_the_same_ids(tmp_path, form):
    vocab = os.path.join(ROOT, "albert_config", "vocab.txt")
    if not os.path.isfile(vocab):
        pytest.skip("needs albert_config/vocab.txt, which setup.sh fetches")
    source, _, _ = write_model(tmp_path / "from", dict(GOOGLE, vocab_size=21128), vocab)
    run_script(convert_checkpoint, "--from=" + source, "--to=" + str(tmp_path / "hf"),
               "--format=huggingface", "--do_lower_case=%s" % (form == "lower"))
    ours = tokenization.FullTokenizer(vocab, do_lower_case=form == "lower")
    with io.open(os.path.join(FIXTURES, "tokenizer_cases.json"), encoding="utf-8") as stream:
        cases = json.load(stream)["cases"]
    for fast in (True, False):
        theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "hf"), use_fast=fast)
        assert theirs.get_vocab() == ours.vocab
        different = {case["input"] for case in cases if case[form]["ids"] != theirs.encode(
            case["input"], add_special_tokens=False)}
        assert different == DIFFERENT[form]

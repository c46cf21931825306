"""Hugging Face folders: reading and writing them without PyTorch.

In: arrays by Hugging Face's names and an AlbertConfig, or a folder.  Out: a folder of
model.safetensors, config.json, vocab.txt and tokenizer_config.json, or the arrays and the config.
PyTorch is needed only to read an old pytorch_model.bin.
"""

import collections
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf

from cli import UserError
from modeling import AlbertConfig
from weights import layouts

CONFIG, NEW_WEIGHTS = "config.json", "model.safetensors"
WEIGHTS, OLD_WEIGHTS = "model*.safetensors", "pytorch_model.bin"
TOKENIZER = "tokenizer_config.json"
# Here and in Google's code "gelu" is the tanh form; Hugging Face means the error function by it.
ACTIVATIONS = {"gelu": "gelu_new", "gelu_new": "gelu_new", "gelu_erf": "gelu", "relu": "relu",
               "tanh": "tanh"}
ACTIVATIONS_READ = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu": "gelu_erf",
                    "gelu_python": "gelu_erf", "relu": "relu", "tanh": "tanh"}
LAYER_NORM_EPSILON = 1e-12
CLASSIFIER_DROPOUT = 0.1

SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
         "intermediate_size", "hidden_dropout_prob", "attention_probs_dropout_prob",
         "max_position_embeddings", "type_vocab_size", "initializer_range")
ALBERT_SIZES = SIZES + ("embedding_size", "num_hidden_groups", "inner_group_num")
DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "I64": "i8", "I32": "i4"}

# tensors: name -> array; labels: list of str or None; lower_case: bool or None where not said.
Folder = collections.namedtuple("Folder", "config tensors labels lower_case")


def is_folder(path):
    """True for a folder that looks like Hugging Face's."""
    return tf.io.gfile.exists(os.path.join(path, CONFIG)) and bool(
        tf.io.gfile.glob(os.path.join(path, WEIGHTS))
        or tf.io.gfile.exists(os.path.join(path, OLD_WEIGHTS)))


def architecture(family, heads):
    """The class in transformers for layouts.Heads; family is "albert" or "bert"."""
    kind = ("ForSequenceClassification" if heads.labels else
            "ForPreTraining" if heads.masked and heads.order else
            "ForMaskedLM" if heads.masked else "Model")
    return family.capitalize() + kind


def turned(name, array):
    """A variable's array between TensorFlow's orientation and PyTorch's; name is this project's."""
    return array.T if layouts.is_transposed(name) else array


def config_json(config, family, heads, vocab, labels):
    """The text of config.json.

    Args:
      config: AlbertConfig.  family: "albert" or "bert".  heads: layouts.Heads.
      vocab: dict token -> id.  labels: list of str, or None.
    """
    values = {key: getattr(config, key) for key in (
        ALBERT_SIZES if family == "albert" else SIZES)}
    values.update(
        architectures=[architecture(family, heads)], model_type=family,
        hidden_act=ACTIVATIONS[config.hidden_act],
        layer_norm_eps=LAYER_NORM_EPSILON, position_embedding_type="absolute",
        pad_token_id=vocab["[PAD]"], torch_dtype="float32")
    if family == "albert":
        values.update(bos_token_id=vocab["[CLS]"], eos_token_id=vocab["[SEP]"],
                      classifier_dropout_prob=CLASSIFIER_DROPOUT)
    else:
        values.update(classifier_dropout=CLASSIFIER_DROPOUT)
    if labels:
        values.update(id2label={str(index): label for index, label in enumerate(labels)},
                      label2id={label: index for index, label in enumerate(labels)})
    return json_text(values)


def tokenizer_json(config, lower_case):
    """The text of tokenizer_config.json."""
    return json_text({
        "tokenizer_class": "BertTokenizer", "do_lower_case": lower_case, "strip_accents": None,
        "tokenize_chinese_chars": True, "model_max_length": config.max_position_embeddings,
        "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
        "mask_token": "[MASK]"})


def json_text(values):
    """values as JSON, indented, sorted, with a final line end."""
    return json.dumps(values, ensure_ascii=False, indent=2, sort_keys=True) + "\n"


def safetensors_bytes(tensors):
    """The bytes of a model.safetensors file for dict name -> array."""
    from safetensors.numpy import save
    return save({name: np.ascontiguousarray(array) for name, array in tensors.items()},
                metadata={"format": "pt"})


def read_folder(folder):
    """Reads a folder of Hugging Face's ALBERT.

    Raises:
      UserError: another architecture, or a variant that has no exact image here.
    """
    values = read_object(os.path.join(folder, CONFIG))
    tensors = {}
    for path in sorted(tf.io.gfile.glob(os.path.join(folder, WEIGHTS))):
        tensors.update(read_safetensors(path))
    if not tensors:
        tensors = read_bin(os.path.join(folder, OLD_WEIGHTS))
    labels = values.get("id2label")
    tokenizer = os.path.join(folder, TOKENIZER)
    lower_case = (read_object(tokenizer).get("do_lower_case") if tf.io.gfile.exists(tokenizer)
                  else None)
    return Folder(read_config(values, folder), renamed(tensors),
                  labels and [labels[key] for key in sorted(labels, key=int)], lower_case)


def read_object(path):
    """The JSON object in a file."""
    with tf.io.gfile.GFile(path, "rb") as stream:
        try:
            return dict(json.loads(stream.read().decode("utf-8")))
        except (ValueError, TypeError) as error:
            raise UserError("{} does not hold one JSON object: {}".format(path, error)) from None


def read_config(values, folder):
    """The AlbertConfig for what config.json says."""
    def demand(key, default, allowed):
        if values.get(key, default) not in allowed:
            raise UserError("{}: {} is {!r}, which has no exact image here; {}".format(
                os.path.join(folder, CONFIG), key, values.get(key, default),
                "known: " + ", ".join(map(str, allowed))))
    demand("model_type", "albert", ["albert"])
    demand("hidden_act", "gelu_new", sorted(ACTIVATIONS_READ))
    demand("position_embedding_type", "absolute", ["absolute"])
    demand("layer_norm_eps", LAYER_NORM_EPSILON, [LAYER_NORM_EPSILON])
    kept = {key: values[key] for key in ALBERT_SIZES if key in values}
    try:
        return AlbertConfig(embedding_style="google", hidden_act=ACTIVATIONS_READ[
            values.get("hidden_act", "gelu_new")], **kept)
    except UserError as error:
        raise UserError("{}: {}".format(os.path.join(folder, CONFIG), error)) from None


def read_safetensors(path):
    """dict name -> array of a .safetensors file; half precision becomes float32."""
    import safetensors
    with tf.io.gfile.GFile(path, "rb") as stream:
        content = stream.read()
    tensors = {}
    try:
        for name, entry in safetensors.deserialize(content):
            array = np.frombuffer(entry["data"], DTYPES[entry["dtype"]])
            if entry["dtype"] == "BF16":  # the upper half of a float32
                array = (array.astype(np.uint32) << 16).view(np.float32)
            tensors[name] = array.reshape(entry["shape"])  # [...] as stored
    except (safetensors.SafetensorError, KeyError) as error:
        raise UserError("{} is damaged or of an unknown type: {}".format(path, error)) from None
    return tensors


def read_bin(path):
    """dict name -> array of a pytorch_model.bin."""
    try:
        import torch
    except ImportError:
        raise UserError("{} needs PyTorch to be read (PYTHON=python3.11 ./setup.sh "
                        "--with=huggingface); a model.safetensors does not".format(path)) from None
    state = torch.load(path, map_location="cpu", weights_only=True)
    return {name: tensor.float().numpy() for name, tensor in state.items()
            if tensor.dtype.is_floating_point}


def renamed(tensors):
    """float32 tensors under today's names: old files say gamma and beta, bare models no albert."""
    bare = not any(name.startswith("albert.") for name in tensors)
    found = {}
    for name, array in tensors.items():
        if bare and name.split(".")[0] in ("embeddings", "encoder", "pooler"):
            name = "albert." + name
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
            "LayerNorm.beta", "LayerNorm.bias")
        found[name] = array.astype(np.float32) if array.dtype.kind == "f" else array
    if "predictions.decoder.bias" in found:
        found.setdefault("predictions.bias", found["predictions.decoder.bias"])
    return found


def tied(tensors, folder):
    """Names of the tensors that only repeat others; UserError where one does not repeat."""
    repeats = {"predictions.decoder.bias": "predictions.bias",
               "predictions.decoder.weight": layouts.huggingface_name(layouts.WORDS, "albert")}
    for name, original in repeats.items():
        if name in tensors and not np.array_equal(tensors[name], tensors.get(original)):
            raise UserError("{}: {} is not tied to {}, which has no exact image here".format(
                folder, name, original))
    return [name for name in tensors if name in repeats or name.endswith("position_ids")]

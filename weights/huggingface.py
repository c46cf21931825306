"""Hugging Face folders: reading and writing them without PyTorch.

In: arrays by Hugging Face's names and an AlbertConfig, or a folder.  Out: a folder of
model.safetensors, config.json, vocab.txt and tokenizer_config.json, or the arrays and the config.
PyTorch is needed only to read an old pytorch_model.bin.
"""

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


def is_folder(path):
    """True for a folder that looks like Hugging Face's."""
    return tf.io.gfile.exists(os.path.join(path, CONFIG)) and bool(
        tf.io.gfile.glob(os.path.join(path, WEIGHTS))
        or tf.io.gfile.exists(os.path.join(path, OLD_WEIGHTS)))


def turned(name, array):
    """A variable's array between TensorFlow's and PyTorch's orientation; name is this project's."""
    return array.T if name.endswith("/kernel") else array  # [in, out] <-> [out, in]


# ---- writing -----------------------------------------------------------------------------------


def folder_files(image, vocab, labels, lower_case):
    """What a folder holds beside its vocabulary: dict file name -> text or bytes.

    Args:
      image: formats.Image.  vocab: dict token -> id.  labels: list of str, or None.
      lower_case: bool, what the tokenizer does.
    """
    from safetensors.numpy import save
    tensors = {image.names[name]: np.ascontiguousarray(turned(name, array))
               for name, array in image.weights.items()}
    tokenizer = {
        "tokenizer_class": "BertTokenizer", "do_lower_case": lower_case, "strip_accents": None,
        "tokenize_chinese_chars": True, "model_max_length": image.config.max_position_embeddings,
        "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
        "mask_token": "[MASK]"}
    return {NEW_WEIGHTS: save(tensors, metadata={"format": "pt"}),
            CONFIG: json_text(config_values(image, vocab, labels)),
            TOKENIZER: json_text(tokenizer)}


def config_values(image, vocab, labels):
    """What config.json says of an image; arguments as in folder_files."""
    albert, heads = image.family == "albert", layouts.heads_of_weights(image.weights)
    kind = ("ForSequenceClassification" if heads.labels else
            "ForPreTraining" if heads.masked and heads.order else
            "ForMaskedLM" if heads.masked else "Model")
    values = {key: getattr(image.config, key) for key in (ALBERT_SIZES if albert else SIZES)}
    values.update(
        architectures=[image.family.capitalize() + kind], model_type=image.family,
        hidden_act=ACTIVATIONS[image.config.hidden_act], layer_norm_eps=LAYER_NORM_EPSILON,
        position_embedding_type="absolute", pad_token_id=vocab["[PAD]"], torch_dtype="float32")
    if albert:
        values.update(bos_token_id=vocab["[CLS]"], eos_token_id=vocab["[SEP]"])
    values["classifier_dropout_prob" if albert else "classifier_dropout"] = CLASSIFIER_DROPOUT
    if labels:
        values.update(id2label={str(index): label for index, label in enumerate(labels)},
                      label2id={label: index for index, label in enumerate(labels)})
    return values


def json_text(values):
    """values as JSON, indented, sorted, with a final line end."""
    return json.dumps(values, ensure_ascii=False, indent=2, sort_keys=True) + "\n"


# ---- reading -----------------------------------------------------------------------------------


def read_weights(folder):
    """(AlbertConfig, dict today's tensor name -> float32 array) of a folder.

    Raises:
      UserError: another architecture, or a variant that has no exact image here.
    """
    config = read_config(os.path.join(folder, CONFIG))
    tensors = {}
    for path in sorted(tf.io.gfile.glob(os.path.join(folder, WEIGHTS))):
        tensors.update(read_safetensors(path))
    return config, renamed(tensors or read_bin(os.path.join(folder, OLD_WEIGHTS)))


def read_settings(folder):
    """What a folder says of a model's use: dict with labels and do_lower_case, None if not said."""
    labels = read_object(os.path.join(folder, CONFIG)).get("id2label")
    tokenizer = os.path.join(folder, TOKENIZER)
    return {"labels": labels and [labels[key] for key in sorted(labels, key=int)],
            "do_lower_case": read_object(tokenizer).get("do_lower_case")
            if tf.io.gfile.exists(tokenizer) else None}


def read_object(path):
    """The JSON object in a file."""
    with tf.io.gfile.GFile(path, "rb") as stream:
        try:
            return dict(json.loads(stream.read().decode("utf-8")))
        except (ValueError, TypeError) as error:
            raise UserError("{} does not hold one JSON object: {}".format(path, error)) from None


def read_config(path):
    """The AlbertConfig for what a config.json says."""
    values = dict({"hidden_act": "gelu_new"}, **read_object(path))
    for key, allowed in (("model_type", ["albert"]), ("hidden_act", sorted(ACTIVATIONS_READ)),
                         ("position_embedding_type", ["absolute"]),
                         ("layer_norm_eps", [LAYER_NORM_EPSILON])):
        if values.get(key, allowed[0]) not in allowed:
            raise UserError("{}: {} is {!r}, which has no exact image here; known: {}".format(
                path, key, values[key], ", ".join(map(str, allowed))))
    try:
        return AlbertConfig(embedding_style="google",
                            hidden_act=ACTIVATIONS_READ[values["hidden_act"]],
                            **{key: values[key] for key in ALBERT_SIZES if key in values})
    except UserError as error:
        raise UserError("{}: {}".format(path, error)) from None


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

"""Hugging Face folders: reading and writing them without PyTorch.

In: arrays by Hugging Face's names and an AlbertConfig, or a folder.  Out: a folder of
model.safetensors, config.json, vocab.txt and tokenizer_config.json, or the arrays and the config.
PyTorch is needed only to read an old pytorch_model.bin.
"""

import collections
import io
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf

from cli import UserError
from modeling import AlbertConfig
from weights import layouts

CONFIG, NEW_WEIGHTS, OLD_WEIGHTS = "config.json", "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"  # beside the name of weights that are cut into several files
GIT_LFS = b"version https://git-lfs.github.com/spec/"
TOKENIZER = "tokenizer_config.json"
# Here and in Google's code "gelu" is the tanh form; Hugging Face means the error function by it.
ACTIVATIONS = {"gelu": "gelu_new", "gelu_new": "gelu_new", "gelu_erf": "gelu", "relu": "relu",
               "tanh": "tanh"}
ACTIVATIONS_READ = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu": "gelu_erf",
                    "gelu_python": "gelu_erf", "relu": "relu", "tanh": "tanh"}
LAYER_NORM_EPSILON = 1e-12
CLASSIFIER_DROPOUT = 0.1
# What a classifier's outcome is called there.
PROBLEMS = {"classes": "single_label_classification", "label_sets": "multi_label_classification",
            "score": "regression"}
HEADS = {"albert": "predictions", "bert": "cls.predictions"}  # scope of the masked words' head

SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
         "intermediate_size", "hidden_dropout_prob", "attention_probs_dropout_prob",
         "max_position_embeddings", "type_vocab_size", "initializer_range")
ALBERT_SIZES = SIZES + ("embedding_size", "num_hidden_groups", "inner_group_num")
DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "BOOL": "?", "U8": "u1", "I8": "i1",
          "U16": "u2", "I16": "i2", "U32": "u4", "I32": "i4", "U64": "u8", "I64": "i8"}
KINDS = ["Model"] + [head.kind for head in layouts.HEADS.values()]
# Where a saved file keeps the weights, if not at its top.
STATES = ("state_dict", "model_state_dict", "model")

# config: AlbertConfig, for family "bert" that of an ALBERT with E = H and unshared layers; tensors:
# name -> array; kind: one of KINDS, or None; other_head: the architecture whose head has no place
# here, or None.
Folder = collections.namedtuple("Folder", "family config tensors kind other_head")


def is_folder(path):
    """True for a folder that looks like Hugging Face's."""
    return tf.io.gfile.exists(os.path.join(path, CONFIG)) and any(
        tf.io.gfile.exists(os.path.join(path, name + end))
        for name in (NEW_WEIGHTS, OLD_WEIGHTS) for end in ("", INDEX))


def turned(name, array):
    """A variable's array between TensorFlow's and PyTorch's orientation; name is this project's."""
    return array.T if name.endswith("/kernel") else array  # [in, out] <-> [out, in]


# ---- writing -----------------------------------------------------------------------------------


def folder_files(image, vocab, labels, lower_case, outcome="classes"):
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
            CONFIG: json_text(config_values(image, vocab, labels, outcome)),
            TOKENIZER: json_text(tokenizer)}


def config_values(image, vocab, labels, outcome):
    """What config.json says of an image; arguments as in folder_files."""
    albert = image.family == "albert"
    kind = layouts.huggingface_kind(layouts.heads_of_weights(image.weights))
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
    if outcome != "classes":
        values["problem_type"] = PROBLEMS[outcome]
    return values


def json_text(values):
    """values as JSON, indented, sorted, with a final line end."""
    return json.dumps(values, ensure_ascii=False, indent=2, sort_keys=True) + "\n"


# ---- reading -----------------------------------------------------------------------------------


def read_folder(folder):
    """The Folder of a model of ALBERT's or BERT's architecture.

    Raises:
      UserError: another architecture, a variant that has no exact image here, or a file that is
        missing, damaged or not to be trusted.
    """
    path = os.path.join(folder, CONFIG)
    values = read_object(path)
    family, config = read_config(path, values)
    names = values.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError("{}: architectures is {!r}, must list names".format(path, names))
    known = {family.capitalize() + kind: kind for kind in KINDS}
    problem = values.get("problem_type")
    other = [name for name in names if name not in known] + (
        [problem] if problem and problem not in PROBLEMS.values() else [])
    tensors = {}
    for file_path in weight_files(folder):
        tensors.update(read_tensors(file_path))
    return Folder(family, config, renamed(tensors, family),
                  known.get(names[0]) if names else None, other[0] if other else None)


def weight_files(folder):
    """Paths of the files that hold a folder's weights: one, or all that its index names."""
    for name in (NEW_WEIGHTS, OLD_WEIGHTS):
        path = os.path.join(folder, name)
        if tf.io.gfile.exists(path):
            return [path]
        if not tf.io.gfile.exists(path + INDEX):
            continue
        places = read_object(path + INDEX).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise UserError("{} has no weight_map of names and files".format(path + INDEX))
        names = sorted(set(map(str, places.values())))
        for name in names:
            if os.path.basename(name) != name or not tf.io.gfile.exists(
                    os.path.join(folder, name)):
                raise UserError("{} names the file {!r}, which is not in {!r}".format(
                    path + INDEX, name, folder))
        return [os.path.join(folder, name) for name in names]
    raise UserError("{!r} holds no {} or {}".format(folder, NEW_WEIGHTS, OLD_WEIGHTS))


def read_settings(folder):
    """What a folder says of a model's use: labels, do_lower_case, None if not said, and outcome."""
    path, tokenizer = [os.path.join(folder, name) for name in (CONFIG, TOKENIZER)]
    values = read_object(path)
    names = values.get("id2label") or {}
    outcome = next((name for name, problem in PROBLEMS.items()
                    if problem == values.get("problem_type")), "classes")
    wanted = [str(index) for index in range(len(names))] if isinstance(names, dict) else None
    if wanted is None or set(names) != set(wanted) or not all(
            isinstance(name, str) for name in names.values()):
        raise UserError("{}: id2label is {}, must map 0, 1, ... to names".format(
            path, json.dumps(names, ensure_ascii=False)[:80]))
    labels = [names[index] for index in wanted]
    unnamed = labels == ["LABEL_" + index for index in wanted]  # what transformers makes up
    if unnamed and outcome == "score":
        labels, unnamed = ["score"], False
    lower_case = (read_object(tokenizer).get("do_lower_case") if tf.io.gfile.exists(tokenizer)
                  else None)
    return {"labels": None if unnamed else labels, "outcome": outcome,
            "do_lower_case": lower_case if isinstance(lower_case, bool) else None}


def read_object(path):
    """The JSON object in a file."""
    with tf.io.gfile.GFile(path, "rb") as stream:
        try:
            values = json.loads(stream.read().decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise UserError("{} does not hold one JSON object: {}".format(path, error)) from None
    if not isinstance(values, dict):
        raise UserError("{} does not hold one JSON object".format(path))
    return values


def family_of(values):
    """"albert" or "bert", by the contents of a config.json."""
    return values.get("model_type", "albert")


def read_config(path, values):
    """(family, AlbertConfig) for what a config.json says."""
    family = family_of(values)
    values = dict({"hidden_act": "gelu_new" if family == "albert" else "gelu"}, **values)
    for key, allowed in (("model_type", ["albert", "bert"]),
                         ("hidden_act", sorted(ACTIVATIONS_READ)),
                         ("position_embedding_type", ["absolute"]), ("is_decoder", [False]),
                         ("layer_norm_eps", [LAYER_NORM_EPSILON])):
        if values.get(key, allowed[0]) not in allowed:
            raise UserError("{}: {} is {!r}, which has no exact image here; known: {}".format(
                path, key, values[key], ", ".join(map(str, allowed))))
    keys = ALBERT_SIZES if family == "albert" else SIZES
    layout = ({"embedding_style": "google"} if family == "albert" else
              {"parameter_sharing": "none", "embedding_size": values.get("hidden_size")})
    try:
        return family, AlbertConfig(hidden_act=ACTIVATIONS_READ[values["hidden_act"]], **dict(
            layout, **{key: values[key] for key in keys if key in values}))
    except UserError as error:
        raise UserError("{}: {}".format(path, error)) from None


def read_tensors(path):
    """dict name -> array of a .safetensors or .bin file."""
    with tf.io.gfile.GFile(path, "rb") as stream:
        content = stream.read()
    if content.startswith(GIT_LFS):
        raise UserError("{} is a pointer of git-lfs and not the weights: fetch them with "
                        "`git lfs pull`".format(path))
    if path.endswith(".safetensors"):
        return safetensors_arrays(path, content)
    return torch_arrays(path, content)


def safetensors_arrays(path, content):
    """dict name -> array of the bytes of a .safetensors file."""
    import safetensors
    tensors = {}
    try:
        for name, entry in safetensors.deserialize(content):
            array = np.frombuffer(entry["data"], DTYPES[entry["dtype"]])
            if entry["dtype"] == "BF16":  # the upper half of a float32
                array = (array.astype(np.uint32) << 16).view(np.float32)
            tensors[name] = array.reshape(entry["shape"])  # [...] as stored
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise UserError("{} is damaged or of an unknown type: {}".format(path, error)) from None
    return tensors


def torch_arrays(path, content):
    """dict name -> array of the bytes of a pytorch_model.bin."""
    try:
        import torch
    except ImportError:
        raise UserError("{} needs PyTorch to be read (PYTHON=python3.11 ./setup.sh "
                        "--with=huggingface); a model.safetensors does not".format(path)) from None
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        while isinstance(state, dict) and not any(map(torch.is_tensor, state.values())):
            state = next(state[name] for name in STATES if name in state)
        return {str(name): (tensor.float() if tensor.dtype.is_floating_point else tensor).numpy()
                for name, tensor in state.items() if torch.is_tensor(tensor)}
    except Exception as error:  # a foreign file can make PyTorch raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise UserError(
            "{} is damaged, or holds more than a dict of tensors, which is not loaded as it could "
            "run foreign code; save model.state_dict() where it was made ({})".format(
                path, reason)) from None


def renamed(tensors, family):
    """The tensors under today's names, float32 where they are floating-point numbers.

    Old files say gamma and beta, bare models leave the family's name out, wrapped ones put
    "module." or "model." before all.
    """
    words = "embeddings.word_embeddings.weight"
    before = min((name[:-len(words)] for name in tensors if name.endswith(words)), key=len,
                 default="")
    bare = not before.endswith(family + ".")
    wrapper = before if bare else before[:-len(family + ".")]
    found = {}
    for name, array in tensors.items():
        name = name[len(wrapper):] if name.startswith(wrapper) else name
        if bare and name.split(".")[0] in ("embeddings", "encoder", "pooler"):
            name = family + "." + name
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
            "LayerNorm.beta", "LayerNorm.bias")
        found[name] = array.astype(np.float32) if array.dtype.kind == "f" else array
    head = HEADS[family]
    if head + ".decoder.bias" in found:
        found.setdefault(head + ".bias", found[head + ".decoder.bias"])
    return found


def tied(tensors, family, folder):
    """Names of the tensors that only repeat others; UserError where one does not repeat."""
    head = HEADS[family]
    repeats = {head + ".decoder.bias": head + ".bias",
               head + ".decoder.weight": family + ".embeddings.word_embeddings.weight"}
    for name, original in repeats.items():
        if name in tensors and not np.array_equal(tensors[name], tensors.get(original)):
            raise UserError("{}: {} is not tied to {}, which has no exact image here".format(
                folder, name, original))
    return [name for name in tensors if name in repeats or name.endswith("position_ids")]

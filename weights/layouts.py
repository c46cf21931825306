"""Variable names of the public layouts, and what names and shapes tell of a model.

In: variable names, with shapes.  Out: the same variable's name in another layout; config keys.
No TensorFlow.

  this project  bert/encoder/layer_shared/attention/self/query/kernel, as in albert_zh; layer_0 ...
                where each layer has its own, as in plain BERT; group_0 ... between the two
  Google        bert/encoder/transformer/group_0/inner_group_0/attention_1/self/query/kernel
  Hugging Face  albert.encoder.albert_layer_groups.0.albert_layers.0.attention.query.weight,
                bert.encoder.layer.0.attention.self.query.weight; kernels transposed

The style is another matter than the names: "albert_zh" adds position and type embeddings after the
projection, "google" before it. Google's style is stored here under this project's names, too.
"""

import collections
import json
import re

# The parts of one layer: this project's scope -> (Google's scope, Hugging Face's ALBERT scope).
LAYER_PARTS = {
    "attention/self/query": ("attention_1/self/query", "attention.query"),
    "attention/self/key": ("attention_1/self/key", "attention.key"),
    "attention/self/value": ("attention_1/self/value", "attention.value"),
    "attention/output/dense": ("attention_1/output/dense", "attention.dense"),
    "attention/output/LayerNorm": ("LayerNorm", "attention.LayerNorm"),
    "intermediate/dense": ("ffn_1/intermediate/dense", "ffn"),
    "output/dense": ("ffn_1/intermediate/output/dense", "ffn_output"),
    "output/LayerNorm": ("LayerNorm_1", "full_layer_layer_norm"),
}
LAYER = re.compile(r"bert/encoder/(?:layer_shared|(?:group|layer)_(\d+))/(.+)/(\w+)$")
OWN_LAYER = re.compile(r"bert/encoder/layer_\d+/")
GOOGLE_LAYER = re.compile(r"bert/encoder/transformer/group_(\d+)/")

# Scopes outside the layers that Hugging Face's ALBERT calls otherwise.
HUGGINGFACE_SCOPES = {
    "bert/pooler/dense": "albert.pooler",
    "cls/predictions": "predictions",
    "cls/predictions/transform/dense": "predictions.dense",
    "cls/predictions/transform/LayerNorm": "predictions.LayerNorm",
    "cls/seq_relationship": "sop_classifier.classifier",
}
# Heads of a task's own have the same names there in every family.
HUGGINGFACE_HEADS = {"": "classifier", "cls/squad": "qa_outputs"}
HUGGINGFACE_LEAVES = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias",
                      "output_weights": "weight", "output_bias": "bias"}

# A head. name: in flags and descriptions; title: what it computes; variable: the one whose first
# dimension says of how many; starts: what the names of all begin with; kind: how the class of
# Hugging Face ends that has it.
Head = collections.namedtuple("Head", "name title variable starts kind")
HEADS = collections.OrderedDict([
    ("masked", Head("masked_lm", "masked words", "cls/predictions/output_bias",
                    ("cls/predictions/",), "ForMaskedLM")),
    ("order", Head("sentence_order", "sentence order", "cls/seq_relationship/output_weights",
                   ("cls/seq_relationship/",), "ForPreTraining")),
    ("labels", Head("classifier", "classes", "output_weights",
                    ("output_weights", "output_bias", "loss/"), "ForSequenceClassification")),
    ("tags", Head("labelling", "tags", "output_weights",
                  ("output_weights", "output_bias", "crf/"), "ForTokenClassification")),
    ("spans", Head("reading", "starts and ends", "cls/squad/output_weights", ("cls/squad/",),
                   "ForQuestionAnswering"))])
CRF = "crf/transitions"  # of a labelling head that was trained with one

# What stands on the encoder: whether there is a pooler; of each of HEADS whether, or for how many
# labels or tags. A classifier stands on the pooler, a labelling head has the same names without.
Heads = collections.namedtuple("Heads", ["pooler"] + list(HEADS), defaults=(0,) * len(HEADS))

MEAN = "/ExponentialMovingAverage"  # what TensorFlow's class of that name appends
WORDS = "bert/embeddings/word_embeddings"
PROJECTION = "bert/embeddings/word_embeddings_2"
POSITIONS = "bert/embeddings/position_embeddings"
MAPPING = "bert/encoder/embedding_hidden_mapping_in/kernel"
SIZES = (("intermediate_size", re.compile(r"bert/encoder/.*intermediate(_\d+)?/dense/bias$")),
         ("max_position_embeddings", re.compile(POSITIONS + "$")),
         ("type_vocab_size", re.compile("bert/embeddings/token_type_embeddings$")))

# What in the encoder stands once for each layer or group, and what the layers then share.
NUMBERED = re.compile(r"bert/encoder/(?:transformer/|layer_shared/)?"
                      r"(group|layer|attention|intermediate)_(\d+)/")
SHARING = {"layer": "none", "attention": "ffn", "intermediate": "attention"}


def google_name(name):
    """Google's name for a variable of this project."""
    match = LAYER.match(name)
    if not match or match.group(2) not in LAYER_PARTS:
        return name
    return "bert/encoder/transformer/group_{}/inner_group_0/{}/{}".format(
        match.group(1) or 0, LAYER_PARTS[match.group(2)][0], match.group(3))


def huggingface_name(name, family):
    """Hugging Face's name for a variable of this project; family is "albert" or "bert"."""
    scope, _, leaf = name.rpartition("/")
    leaf = HUGGINGFACE_LEAVES.get(leaf, leaf + ".weight")  # an embedding has no leaf of its own
    if scope in HUGGINGFACE_HEADS:
        return "{}.{}".format(HUGGINGFACE_HEADS[scope], leaf)
    match = LAYER.match(name)
    if family == "albert" and match:
        return "albert.encoder.albert_layer_groups.{}.albert_layers.0.{}.{}".format(
            match.group(1) or 0, LAYER_PARTS[match.group(2)][1], leaf)
    if family == "albert":
        scope = HUGGINGFACE_SCOPES.get(scope, re.sub("^bert/", "albert/", scope))
    return re.sub(r"/layer_(\d+)/", r"/layer/\1/", scope).replace("/", ".") + "." + leaf


def same_groups_everywhere(layers, groups):
    """Whether this project, Google and Hugging Face give each layer the same group.

    The other two divide floating-point numbers, which for some pairs from 18 layers on rounds to
    the group before.
    """
    return all(index * groups // layers == int(index / layers * groups)
               == int(index / (layers / groups)) for index in range(layers))


def prefix_of(names):
    """What stands before bert/ in all names, such as "module/" in a TF-Hub export; mostly ""."""
    found = [name[:-len(WORDS)] for name in names if name.endswith(WORDS)]
    return min(found, key=len) if found else ""


def stored_names(variables, stored):
    """Where a model's variables stand in a checkpoint: dict variable -> name, found ones only.

    Where a training has kept the mean of a variable's last values, that is the model's.

    Args:
      variables: names of this project's variables.
      stored: names in the checkpoint: this project's or Google's, with or without a prefix.
    """
    prefix, found = prefix_of(stored), {}
    for name in variables:
        for candidate in (prefix + name, prefix + google_name(name), name):
            if candidate in stored:
                mean = candidate + MEAN
                found.setdefault(name, mean if mean in stored else candidate)
    return found


def heads_of(shapes):
    """The Heads of a model or checkpoint, by dict name -> shape."""
    prefix = prefix_of(shapes)
    pooler, masked, order, labels, tags, spans = [
        shapes.get(prefix + name, shapes.get(name, [0]))[0] for name in
        ["bert/pooler/dense/kernel"] + [head.variable for head in HEADS.values()]]
    return Heads(bool(pooler), bool(masked), bool(order), labels if pooler else 0,
                 0 if pooler else tags, bool(spans))


def heads_of_weights(weights):
    """The Heads of dict name -> array."""
    return heads_of({name: array.shape for name, array in weights.items()})


def fine_tuned_head(heads):
    """The one of HEADS that fine-tuning has put on a model with these Heads, None without one."""
    return next((HEADS[name] for name in ("spans", "tags", "labels") if getattr(heads, name)), None)


def huggingface_kind(heads):
    """How the class of Hugging Face ends that has these Heads; of several the one of use."""
    found = [head.kind for name, head in HEADS.items()
             if getattr(heads, name) and (heads.masked or name != "order")]
    return found[-1] if found else "Model"


def config_keys(shapes):
    """The config keys that names and shapes of a model's variables tell, in reading order.

    Args:
      shapes: dict name -> shape, of a checkpoint in any layout or of a model.
    Returns:
      dict key -> value; embedding_style is "bert" for a plain BERT, and not there where the names
      tell none; empty without word embeddings.
    """
    prefix = prefix_of(shapes)
    shapes = {name[len(prefix):]: shape for name, shape in shapes.items()
              if name.startswith(prefix)}
    if WORDS not in shapes:
        return {}
    style = style_of(shapes)
    vocab, width = shapes[WORDS]
    keys = dict({"embedding_style": style} if style else {}, **sharing_keys(shapes, style))
    keys.update({"vocab_size": vocab} if style == "bert" else
                {"vocab_size": vocab, "embedding_size": width})
    keys["hidden_size"] = shapes.get(PROJECTION, shapes.get(MAPPING, [width]))[-1]
    keys.update((key, shape[0]) for name, shape in sorted(shapes.items())
                for key, pattern in SIZES if pattern.match(name))
    return keys


def style_of(shapes):
    """"albert_zh", "google" or "bert" (no factorized embeddings); None where names tell none."""
    if PROJECTION in shapes:
        return "albert_zh"
    if MAPPING in shapes or any(map(GOOGLE_LAYER.match, shapes)):
        return "google"
    widths = [shapes.get(name, [0, 0])[-1] for name in (WORDS, POSITIONS)]
    return "bert" if widths[0] == widths[1] and any(map(OWN_LAYER.match, shapes)) else None


def sharing_keys(names, style):
    """num_hidden_groups or parameter_sharing, and num_hidden_layers where each has its number."""
    found = collections.defaultdict(set)
    for kind, number in (match.groups() for match in map(NUMBERED.match, names) if match):
        found[kind].add(int(number))
    kind, numbers = max(found.items()) if found else ("", {0})
    if style == "albert_zh":
        keys = {"parameter_sharing": SHARING.get(kind, "all")}
    elif style == "google" and max(numbers) + 1 == len(numbers):
        keys = {"num_hidden_groups": len(numbers)}
    else:  # with gaps between them there are more groups than layers, how many is not told
        keys = {}
    return dict(keys, num_hidden_layers=len(numbers)) if kind in SHARING else keys


def fitting_keys(shapes, variables):
    """What a config must say to fit a checkpoint, where the model's says otherwise.

    Args:
      shapes: dict name -> shape of the checkpoint.  variables: the same of the model.
    Returns:
      str, say '"embedding_style": "google", "num_hidden_groups": 1'; "" where nothing differs.
    """
    there, here = config_keys(shapes), config_keys(variables)
    return json.dumps({key: value for key, value in there.items()
                       if here.get(key) != value})[1:-1]

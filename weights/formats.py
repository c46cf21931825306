"""Models as they were read, and their exact images in another format.

In: a checkpoint with its config, or a Hugging Face folder.  Out: a Model; its Image in one of
FORMATS, whose weights are what is to be written, or the reason why there is none.

An image holds weights by this project's names (family "albert") or by plain BERT's (family
"bert"). A plain BERT is an ALBERT whose embeddings are as wide as the hidden states and whose
projection is the identity, and its layers are named as this project's unshared ones: so modeling.py
runs both.
"""

import collections
import os
import re

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from cli import UserError
from weights import checkpoints, huggingface, layouts

FORMATS = ("tf", "google", "albert_zh", "bert", "huggingface")
STEP = "global_step"
# Squared singular values below this share of the largest are float32's rounding.
RANK_TOLERANCE = 1e-10

PLAIN_BERT = "is a plain BERT, whose layers differ from one another: it fits no ALBERT config"
# Parts that a conversion can leave out: name for the flag -> what the variables' names begin with.
PARTS = dict({head.name: head.starts for head in layouts.HEADS.values()}, crf=(layouts.CRF,))
# What each of layouts.HEADS computes: function(AlbertModel, ids [B, S], of how many).
LOGITS = {
    "masked": lambda model, ids, _: modeling.masked_lm_head(
        model.sequence_output, model, ids, tf.ones(ids.shape)).logits,
    "order": lambda model, *_: modeling.sentence_order_head(
        model.pooled_output, None, model.config).logits,
    "labels": lambda model, _, count: modeling.classification_head(
        model.pooled_output, None, count, model.config).logits,
    "tags": lambda model, _, count: modeling.tag_head(model.sequence_output, count, model.config),
    "spans": lambda model, *_: tf.stack(modeling.span_head(model)[1:])}  # [2, B, S]

# What was read. config: AlbertConfig; weights: this project's variable name -> array; sources: the
# same name -> its name in the source; dropped: why -> names in the source; left_over: name in the
# source -> array; missing: variables.
Model = collections.namedtuple("Model", "config weights sources dropped left_over missing step")
# What is to be written. names: name of a weight -> its name in the file; sources as in Model.
Image = collections.namedtuple("Image", "family config weights sources names")


def graph_outputs(config, heads, ids=None, mask=None, segments=None):
    """The graph of a model with these layouts.Heads over int32 [B, S] arrays.

    Returns:
      OrderedDict of what the model computes: name -> tensor.
    """
    ids, mask, segments = [tf.zeros([1, 1], tf.int32) if array is None else tf.constant(array)
                           for array in (ids, mask, segments)]
    model = modeling.AlbertModel(config, ids, mask, segments)
    outputs = collections.OrderedDict([("hidden states", tf.stack(
        [model.embedding_output] + model.all_encoder_layers))])
    if heads.pooler:
        outputs["pooled output"] = model.pooled_output
    for name, head in layouts.HEADS.items():
        if getattr(heads, name):
            outputs[head.title] = LOGITS[name](model, ids, getattr(heads, name))
    return outputs


def variables_with(config, heads):
    """Name -> shape of the variables of a model with these layouts.Heads."""
    variables = checkpoints.variables_of(lambda: graph_outputs(config, heads))
    return {name: shape for name, shape in variables.items()
            if heads.pooler or not name.startswith("bert/pooler/")}


# ---- reading -----------------------------------------------------------------------------------


def read_checkpoint(prefix, config):
    """The Model in a TensorFlow checkpoint; UserError where that is of another config.

    A plain BERT is read as one: see as_bert.
    """
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    plain = layouts.config_keys(shapes).get("embedding_style") == "bert"
    config = as_bert(config) if plain and config.embedding_style == "albert_zh" else config
    variables = variables_with(config, layouts.heads_of(shapes))
    if plain:
        del variables[layouts.PROJECTION]
    plan = checkpoints.plan_initialization(prefix, variables, "from")
    weights = {name: reader.get_tensor(stored) for name, stored in plan.loaded.items()}
    if plain:
        weights[layouts.PROJECTION] = np.eye(config.hidden_size, dtype=np.float32)
    return Model(config, weights, plan.loaded,
                 {"optimizer slots": list(filter(checkpoints.SLOT.search, shapes)),
                  "repeat others": []}, {name: reader.get_tensor(name) for name in plan.unused},
                 plan.missing, np.int64(reader.get_tensor(STEP) if STEP in shapes else 0))


def read_huggingface(folder, dropped_heads=()):
    """The Model in a Hugging Face folder; UserError where it has no exact image here.

    A plain BERT is read as one: see as_bert.
    """
    family, config, tensors, kind, other_head = huggingface.read_folder(folder)
    if other_head and "classifier" not in dropped_heads:
        raise UserError("{}: architectures or problem_type is {}, whose head has no exact image "
                        "here; --drop_heads=classifier converts the rest".format(
                            os.path.join(folder, huggingface.CONFIG), other_head))
    repeats = huggingface.tied(tensors, family, folder)
    classes = 0 if other_head else len(tensors.get("classifier.weight", ()))
    tags = classes if kind == layouts.HEADS["tags"].kind else 0
    heads = layouts.Heads(not tags, True, True, 0 if tags else classes, tags,
                          kind == layouts.HEADS["spans"].kind)
    sources = {name: tensor for name, tensor in (
        (name, layouts.huggingface_name(name, family)) for name in variables_with(config, heads))
        if tensor in tensors}
    for tensor in sources.values():
        if tensors[tensor].dtype != np.float32:
            raise UserError("{}: tensor {} holds {} and no floating-point numbers".format(
                folder, tensor, tensors[tensor].dtype))
    weights = {name: huggingface.turned(name, tensors[tensor]) for name, tensor in sources.items()}
    variables = variables_with(config, layouts.heads_of_weights(weights))
    if family == "bert":
        del variables[layouts.PROJECTION]
    checkpoints.match_variables("--from {!r}".format(folder), {
        name: list(array.shape) for name, array in weights.items()}, variables)
    missing = sorted(set(variables) - set(weights))
    if family == "bert":
        weights[layouts.PROJECTION] = np.eye(config.hidden_size, dtype=np.float32)
    known = set(repeats) | set(sources.values())
    return Model(config, weights, sources, {"optimizer slots": [], "repeat others": repeats},
                 {name: array for name, array in tensors.items() if name not in known}, missing,
                 np.int64(0))


def as_bert(config):
    """The config of an ALBERT that computes what a plain BERT of these sizes does.

    Its layers share nothing, its embeddings are as wide as the hidden states, and its projection is
    the identity.
    """
    return modeling.AlbertConfig(**dict(vars(config), embedding_size=config.hidden_size,
                                        parameter_sharing="none"))


def without_heads(model, names):
    """The Model without the PARTS named."""
    starts = tuple(start for name in names for start in PARTS[name])
    gone = [name for name in model.weights if name.startswith(starts)]
    unused = [name for name in model.left_over if name.startswith(starts)]
    return model._replace(
        weights={name: array for name, array in model.weights.items() if name not in gone},
        dropped=dict(model.dropped, heads=[model.sources[name] for name in gone] + unused),
        left_over={name: array for name, array in model.left_over.items() if name not in unused},
        missing=[name for name in model.missing if not name.startswith(starts)])


def shared_again(model, source):
    """A plain BERT whose layers are all equal, in albert_zh's style; any other Model as it is.

    That is the way back from format "bert". The table [V, H] becomes table [V, E] · projection
    [E, H], where its rank E is below H.

    Args:
      model: Model.  source: str, named in the message.
    Raises:
      UserError: it is a plain BERT whose layers differ.
    """
    if layouts.PROJECTION in model.sources or model.config.embedding_style == "google":
        return model
    weights, sources, repeats = {}, {}, []
    for name, stored in model.sources.items():
        first = re.sub(r"/layer_\d+/", "/layer_0/", name)
        if not np.array_equal(model.weights[name], model.weights[first]):
            raise UserError("{} {} ({} and {})".format(source, PLAIN_BERT, first, name))
        if name == first:
            shared = name.replace("/layer_0/", "/layer_shared/")
            weights[shared], sources[shared] = model.weights[name], stored
        else:
            repeats.append(stored)
    table, projection = factorized(weights[layouts.WORDS])
    weights.update({layouts.WORDS: table, layouts.PROJECTION: projection})
    sources[layouts.PROJECTION] = sources[layouts.WORDS]
    config = modeling.AlbertConfig(**dict(
        vars(model.config), embedding_size=len(projection), parameter_sharing="all"))
    dropped = dict(model.dropped)
    dropped["repeat others"] = dropped["repeat others"] + repeats
    return model._replace(config=config, weights=weights, sources=sources, dropped=dropped)


def factorized(table):
    """float32 ([V, E], [E, H]) whose product is table [V, H], with the smallest E that does it."""
    double = table.astype(np.float64)
    values, vectors = np.linalg.eigh(double.T @ double)  # [H], [H, H]
    kept = vectors[:, values > values[-1] * RANK_TOLERANCE].T  # [E, H]
    if len(kept) == table.shape[1]:
        return table, np.eye(table.shape[1], dtype=np.float32)
    return (double @ kept.T).astype(np.float32), kept.astype(np.float32)


# ---- exact images ------------------------------------------------------------------------------


def exact_image(model, form):
    """The Image of a model in one of FORMATS.

    Raises:
      UserError: it has no exact image there; says why.
    """
    refuse_inexact(model.config, form)
    if form != "tf" and any(name.endswith(layouts.CRF) for name in model.left_over):
        raise UserError("--format={} has no place for a CRF's {}; --drop_heads=crf converts the "
                        "rest, and tags are decoded without it then".format(form, layouts.CRF))
    family, config, weights, sources = "albert", model.config, model.weights, model.sources
    if form in ("bert", "huggingface") and config.embedding_style == "albert_zh":
        family = "bert"
        config, weights, sources = expanded_to_bert(model)
    rename = {"tf": sources.get, "google": layouts.google_name,
              "huggingface": lambda name: layouts.huggingface_name(name, family)}.get(form, str)
    return Image(family, config, weights, sources, {name: rename(name) for name in weights})


def refuse_inexact(config, form):
    """Raises UserError for a model that has no exact image in the format."""
    google = config.embedding_style == "google"
    reason = None
    if form == "google" and not google:
        reason = ("this model is of albert_zh's style, which adds position and type embeddings "
                  "after the projection; Google's adds them before")
    elif form == "bert" and google:
        reason = ("this model is of Google's style, which norms the embeddings before the "
                  "projection; BERT has no place for that (--format=huggingface has)")
    elif form in ("bert", "huggingface") and config.ln_type == "preln":
        reason = "ln_type is preln; BERT norms after each sum"
    elif form in ("bert", "google") and config.hidden_act == "gelu_erf":
        reason = 'hidden_act is gelu_erf; "gelu" is the tanh form in Google\'s code'
    elif form in ("google", "huggingface") and google and not layouts.same_groups_everywhere(
            config.num_hidden_layers, config.num_hidden_groups):
        reason = "num_hidden_groups {} of {} layers is rounded otherwise there".format(
            config.num_hidden_groups, config.num_hidden_layers)
    elif form == "huggingface" and config.num_hidden_groups > config.num_hidden_layers:
        reason = ("num_hidden_groups {} is above num_hidden_layers {}, which transformers does not "
                  "run".format(config.num_hidden_groups, config.num_hidden_layers))
    if reason:
        raise UserError("--format={} has no exact image of this model: {}".format(form, reason))


def expanded_to_bert(model):
    """An albert_zh-style model as plain BERT: (config, weights, name -> where from).

    The word embeddings become table · projection, in double precision; each layer gets a copy of
    what it reads. The projection is the identity then, which the config says by E = H.
    """
    config, weights, sources = model.config, {}, {}
    for name, array in model.weights.items():
        if not name.startswith("bert/encoder/") and name != layouts.PROJECTION:
            weights[name], sources[name] = array, model.sources[name]
    product = (model.weights[layouts.WORDS].astype(np.float64)
               @ model.weights[layouts.PROJECTION].astype(np.float64))  # [V, E] · [E, H]
    weights[layouts.WORDS] = product.astype(np.float32)
    sources[layouts.WORDS] += " · word_embeddings_2"
    for index in range(config.num_hidden_layers):
        for part, scope in modeling.layer_scopes(index, config)._asdict().items():
            scope = "bert/encoder/{}/".format(scope)
            for name in sorted(model.weights):
                if name.startswith(scope):
                    target = "bert/encoder/layer_{}/{}/{}".format(index, part, name[len(scope):])
                    weights[target], sources[target] = model.weights[name], model.sources[name]
    return as_bert(config), weights, sources

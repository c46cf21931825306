"""Models as they were read, and their exact images in another format.

In: a checkpoint with its config, or a Hugging Face folder.  Out: a Model; its Image in one of
FORMATS, whose weights are what is to be written, or the reason why there is none.

An image holds weights by this project's names (family "albert") or by plain BERT's (family
"bert"). A plain BERT is an ALBERT whose embeddings are as wide as the hidden states and whose
projection is the identity, and its layers are named as this project's unshared ones: so modeling.py
runs both.
"""

import collections

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from cli import UserError
from weights import checkpoints, huggingface, layouts

FORMATS = ("tf", "google", "albert_zh", "bert", "huggingface")
STEP = "global_step"

# What was read. config: AlbertConfig; weights: this project's variable name -> array; sources: the
# same name -> its name in the source; dropped, left_over: names in the source; missing: variables.
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
    if heads.masked:
        everywhere = tf.zeros_like(ids) + tf.range(ids.shape.as_list()[1])  # [B, S]
        outputs["masked words"] = modeling.masked_lm_head(
            model, everywhere, ids, tf.ones(ids.shape)).logits
    if heads.order:
        outputs["sentence order"] = modeling.sentence_order_head(model, None).logits
    if heads.labels:
        outputs["classes"] = modeling.classification_head(
            model.pooled_output, None, heads.labels, config).logits
    return outputs


def variables_with(config, heads):
    """Name -> shape of the variables of a model with these layouts.Heads."""
    variables = checkpoints.variables_of(lambda: graph_outputs(config, heads))
    return {name: shape for name, shape in variables.items()
            if heads.pooler or not name.startswith("bert/pooler/")}


# ---- reading -----------------------------------------------------------------------------------


def read_checkpoint(prefix, config):
    """The Model in a TensorFlow checkpoint; UserError where that is of another config."""
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    plan = checkpoints.plan_initialization(
        prefix, variables_with(config, layouts.heads_of(shapes)), "from")
    weights = {name: reader.get_tensor(stored) for name, stored in plan.loaded.items()}
    return Model(config, weights, plan.loaded, list(filter(checkpoints.SLOT.search, shapes)),
                 plan.unused, plan.missing,
                 np.int64(reader.get_tensor(STEP) if STEP in shapes else 0))


def read_huggingface(folder):
    """The Model in a Hugging Face folder; UserError where it has no exact image here."""
    config, tensors = huggingface.read_weights(folder)
    repeats = huggingface.tied(tensors, folder)
    every_head = layouts.Heads(True, True, True, len(tensors.get("classifier.weight", ())))
    sources = {name: tensor for name, tensor in (
        (name, layouts.huggingface_name(name, "albert"))
        for name in variables_with(config, every_head)) if tensor in tensors}
    weights = {name: huggingface.turned(name, tensors[tensor]) for name, tensor in sources.items()}
    variables = variables_with(config, layouts.heads_of_weights(weights))
    checkpoints.match_variables("--from {!r}".format(folder), {
        name: list(array.shape) for name, array in weights.items()}, variables)
    return Model(config, weights, sources, repeats,
                 sorted(set(tensors) - set(repeats) - set(sources.values())),
                 sorted(set(variables) - set(weights)), np.int64(0))


# ---- exact images ------------------------------------------------------------------------------


def exact_image(model, form):
    """The Image of a model in one of FORMATS.

    Raises:
      UserError: it has no exact image there; says why.
    """
    refuse_inexact(model.config, form)
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
    values = dict(vars(config), embedding_size=config.hidden_size, parameter_sharing="none")
    return modeling.AlbertConfig(**values), weights, sources

"""A model's exact image in another format, or the reason why there is none.

In: a Model, read from a checkpoint or a Hugging Face folder.  Out: an Image, whose arrays are what
is to be written; what was written, back as the weights of a model that can be run.

An image holds weights by this project's names (family "albert") or by plain BERT's (family
"bert"). A plain BERT is an ALBERT whose embeddings are as wide as the hidden states and whose
projection is the identity, and its layers are named as this project's unshared ones: so modeling.py
runs both.
"""

import collections

import numpy as np

import modeling
from cli import UserError
from weights import huggingface, layouts

FORMATS = ("tf", "google", "albert_zh", "bert", "huggingface")

# What was read. config: AlbertConfig; weights: this project's variable name -> array; stored: the
# same name -> its name in the source; dropped, left_over: names in the source; missing: variables.
Model = collections.namedtuple("Model", "config weights stored dropped left_over missing step")
# What is to be written. sources: name of a weight -> where it is from; rename: name of a weight ->
# its name in the file; turn: (name, array) -> array as the file holds it, and back.
Image = collections.namedtuple("Image", "family config weights sources rename turn")


def exact_image(model, form):
    """The Image of a model in one of FORMATS.

    Raises:
      UserError: it has no exact image there; says why.
    """
    refuse_inexact(model.config, form)
    family, config, weights, sources = "albert", model.config, model.weights, model.stored
    if form in ("bert", "huggingface") and config.embedding_style == "albert_zh":
        family = "bert"
        config, weights, sources = expanded_to_bert(model)
    rename = {"tf": sources.get, "google": layouts.google_name,
              "huggingface": lambda name: layouts.huggingface_name(name, family)}
    return Image(family, config, weights, sources, rename.get(form, lambda name: name),
                 huggingface.turned if form == "huggingface" else lambda name, array: array)


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
            weights[name], sources[name] = array, model.stored[name]
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
                    weights[target], sources[target] = model.weights[name], model.stored[name]
    values = dict(vars(config), embedding_size=config.hidden_size, parameter_sharing="none")
    return modeling.AlbertConfig(**values), weights, sources


def written_arrays(image):
    """Name in the file -> array of an Image."""
    return {image.rename(name): image.turn(name, array) for name, array in image.weights.items()}


def read_back(image, arrays):
    """Weights by this project's names, for image.config, of what was written.

    Args:
      image: Image.  arrays: dict name in the file -> array.
    """
    weights = {name: image.turn(name, arrays[image.rename(name)]) for name in image.weights}
    if image.family == "bert":
        weights[layouts.PROJECTION] = np.eye(image.config.hidden_size, dtype=np.float32)
    return weights


def heads_of_weights(weights):
    """layouts.Heads of dict name -> array."""
    return layouts.heads_of({name: list(array.shape) for name, array in weights.items()})

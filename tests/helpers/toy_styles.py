"""Toy configs of every layout, and the variables of their models."""

import functools

from helpers.numpy_models import GOOGLE_CONFIG
from helpers.toys import TOY_CONFIG, toy_tokens

import modeling
from weights import formats, layouts

VOCAB = len(toy_tokens())
ALBERT_ZH = dict(TOY_CONFIG, vocab_size=VOCAB, num_hidden_layers=1)  # graphs are built by dozens
GOOGLE = dict(GOOGLE_CONFIG, vocab_size=VOCAB, num_hidden_layers=1)
TWO = dict(ALBERT_ZH, num_hidden_layers=2)
STYLES = {"albert_zh": ALBERT_ZH, "preln": dict(ALBERT_ZH, ln_type="preln"),
          "two": TWO, "attention": dict(TWO, parameter_sharing="attention"),
          "ffn": dict(TWO, parameter_sharing="ffn"),
          "none": dict(TWO, parameter_sharing="none", hidden_act="relu"), "google": GOOGLE,
          "groups": dict(GOOGLE, num_hidden_layers=2, num_hidden_groups=2, hidden_act="relu"),
          "erf": dict(GOOGLE, hidden_act="gelu_erf")}


@functools.lru_cache(maxsize=None)
def shapes_of(style):
    """Name -> shape of a style's variables with both pre-training heads."""
    values = dict(STYLES[style])
    if "num_hidden_groups" in values:
        values = {key: value for key, value in values.items()
                  if key not in modeling.AlbertConfig.IGNORED}
        values["embedding_style"] = "google"
    return formats.variables_with(modeling.AlbertConfig(**values),
                                  layouts.Heads(True, True, True, 0))

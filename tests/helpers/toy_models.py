"""Toy models and batches, and the reference's small model with its numbers."""

import os

import numpy as np
import tensorflow.compat.v1 as tf
from helpers.toy_records import toy_record
from helpers.toys import FIXTURES, TOY_CONFIG, toy_tokens

import layers
import modeling

ROWS = 8
REFERENCE = os.path.join(FIXTURES, "albert_zh_postln")


def toy_batch(rows=ROWS):
    """Features of some rows, padded and with unused places for masked words: name -> array."""
    rng = np.random.RandomState(7)
    records = [toy_record(rng, length=9 + row % 7) for row in range(rows)]
    batch = {name: np.stack([record[name] for record in records]) for name in records[0]}
    batch["masked_lm_weights"][0, 1:] = 0.0
    batch["next_sentence_labels"] = batch["next_sentence_labels"][:, 0]
    return {name: value.astype(np.float32 if value.dtype == np.float32 else np.int32)
            for name, value in batch.items()}


def toy_model(**changes):
    values = dict(TOY_CONFIG, vocab_size=len(toy_tokens()), initializer_range=0.2)
    return modeling.AlbertConfig(**dict(values, **changes))


def toy_config(**changes):
    return modeling.AlbertConfig(**dict(TOY_CONFIG, vocab_size=100, **changes))


def load(name):
    return np.load(os.path.join(REFERENCE, name + ".npz"))


def case_inputs(case):
    """The case's input arrays by feature name."""
    inputs = load("inputs")
    return {name.split("/")[1]: inputs[name] for name in inputs.files
            if name.startswith(case + "/")}


def build(config, features, **options):
    """Model and both pre-training heads over constant features."""
    model = modeling.AlbertModel(config, tf.constant(features["input_ids"]),
                                 tf.constant(features["input_mask"]),
                                 tf.constant(features["segment_ids"]), **options)
    rows = layers.gather_positions(
        model.sequence_output, tf.constant(features["masked_lm_positions"]))
    masked = modeling.masked_lm_head(
        rows, model, tf.constant(features["masked_lm_ids"]),
        tf.constant(features["masked_lm_weights"].astype(np.float32)))
    order = modeling.sentence_order_head(
        model.pooled_output, tf.reshape(tf.constant(features["next_sentence_labels"]), [-1]),  # [B]
        config)
    return model, masked, order


def set_variables(session, values):
    for variable in tf.global_variables():
        variable.load(values[variable.op.name], session)


def reference_config():
    return modeling.AlbertConfig.from_json_file(os.path.join(REFERENCE, "config.json"))

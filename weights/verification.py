"""Whether a converted model computes what the one it was made from computes.

In: the folder that was written, the Model it was made from and its Image.  Out: a line with the
largest differences on random input. A Hugging Face folder is run by transformers where that and
PyTorch are installed; everything else, read back from the files, by modeling.py.
"""

import collections
import importlib.util
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from cli import UserError
from weights import checkpoints, formats, huggingface

TOLERANCE = 1e-3  # real models' logits are some tens; a wrong image differs by whole units


def build(config, heads, ids=None, mask=None, segments=None):
    """The graph of a model with these layouts.Heads over int32 [B, S] arrays.

    Returns:
      OrderedDict of what is compared: name -> tensor.
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


def random_inputs(config, batch=2, length=16, seed=1):
    """(ids, mask, segments), int32 [B, S]: random words, two segments, padding in the last row."""
    length = min(length, config.max_position_embeddings)
    rng = np.random.RandomState(seed)
    mask = np.ones([batch, length], np.int32)
    mask[-1, length * 3 // 4:] = 0
    segments = mask * (np.arange(length) >= length // 2) * (config.type_vocab_size > 1)
    return (rng.randint(0, config.vocab_size, mask.shape).astype(np.int32), mask,
            segments.astype(np.int32))


def tensorflow_outputs(config, weights, inputs):
    """What modeling.py computes: OrderedDict name -> array.

    Args:
      config: AlbertConfig.  weights: dict variable -> array.  inputs: see random_inputs.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        outputs = build(config, formats.heads_of_weights(weights), *inputs)
        variables = tf.global_variables()
        values = {variable.initializer.inputs[1]: weights[variable.op.name]
                  for variable in variables if variable.op.name in weights}
        session.run([variable.initializer for variable in variables], values)
        return session.run(outputs)


def transformers_outputs(folder, inputs):
    """What Hugging Face's model of a folder computes: OrderedDict name -> array."""
    import torch
    import transformers
    with open(os.path.join(folder, huggingface.CONFIG), encoding="utf-8") as stream:
        name = json.load(stream)["architectures"][0]
    model = getattr(transformers, name).from_pretrained(folder).eval()
    ids, mask, segments = [torch.from_numpy(array.astype(np.int64)) for array in inputs]
    arguments = dict(input_ids=ids, attention_mask=mask, token_type_ids=segments)
    with torch.no_grad():
        result = model(output_hidden_states=True, **arguments)
        pooled = getattr(model.base_model(**arguments), "pooler_output", None)
    outputs = collections.OrderedDict([("hidden states", torch.stack(result.hidden_states))])
    for title, tensor in (
            ("pooled output", pooled),
            ("masked words", result.get("prediction_logits")),
            ("masked words", result.get("logits") if "MaskedLM" in name else None),
            ("sentence order", result.get("sop_logits", result.get("seq_relationship_logits"))),
            ("classes", result.get("logits") if "Classification" in name else None)):
        if tensor is not None:
            outputs[title] = tensor
    return collections.OrderedDict((title, tensor.numpy()) for title, tensor in outputs.items())


def can_run_transformers():
    """Whether PyTorch and transformers are installed."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def written_tensors(folder):
    """Name -> array of what stands in a converted folder."""
    if huggingface.is_folder(folder):
        return huggingface.read_safetensors(os.path.join(folder, huggingface.NEW_WEIGHTS))
    reader = tf.train.load_checkpoint(checkpoints.find_checkpoint(folder, "to"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def verify(folder, model, image):
    """One line: by whom the converted model was run, and the largest differences.

    Raises:
      UserError: a difference is above TOLERANCE.
    """
    inputs = random_inputs(model.config)
    expected = tensorflow_outputs(model.config, model.weights, inputs)
    runner = "modeling.py"
    if huggingface.is_folder(folder) and can_run_transformers():
        runner, found = "transformers", transformers_outputs(folder, inputs)
    else:
        found = tensorflow_outputs(
            image.config, formats.read_back(image, written_tensors(folder)), inputs)
        if huggingface.is_folder(folder):
            runner += ", as PyTorch or transformers is not installed"
    differences = {
        title: float(np.abs(array.reshape(-1) - expected[title].reshape(-1)).max())  # [M]
        for title, array in found.items() if title in expected}
    largest = float(np.max(list(differences.values())))  # not a number if one of them is
    line = "verified on random input, run by {}: largest difference {:.2g} ({})".format(
        runner, largest, ", ".join(
            "{} {:.2g}".format(title, difference)
            for title, difference in differences.items()))
    if not largest <= TOLERANCE:
        raise UserError("{}; above {:g}: the conversion is wrong".format(line, TOLERANCE))
    return line

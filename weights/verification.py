"""Whether a converted model computes what the one it was made from computes.

In: the folder that was written, the Model it was made from and its Image.  Out: a line with the
largest differences on random input. A Hugging Face folder is run by transformers where that and
PyTorch are installed; everything else, read back from the files, by modeling.py.
"""

import collections
import importlib.util
import os

import numpy as np
import tensorflow.compat.v1 as tf

from cli import UserError
from weights import checkpoints, formats, huggingface, layouts

TOLERANCE = 1e-3  # real models' logits are some tens; a wrong image differs by whole units


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
        outputs = formats.graph_outputs(config, layouts.heads_of_weights(weights), *inputs)
        variables = tf.global_variables()
        values = {variable.initializer.inputs[1]: weights[variable.op.name]
                  for variable in variables if variable.op.name in weights}
        session.run([variable.initializer for variable in variables], values)
        return session.run(outputs)


def transformers_outputs(folder, inputs):
    """What Hugging Face's model of a folder computes: OrderedDict name -> array."""
    import torch
    import transformers
    name = huggingface.read_object(os.path.join(folder, huggingface.CONFIG))["architectures"][0]
    model = getattr(transformers, name).from_pretrained(folder).eval()
    ids, mask, segments = [torch.from_numpy(array.astype(np.int64)) for array in inputs]
    arguments = dict(input_ids=ids, attention_mask=mask, token_type_ids=segments)
    with torch.no_grad():
        result = model(output_hidden_states=True, **arguments)
        pooled = getattr(model.base_model(**arguments), "pooler_output", None)
    outputs = [("hidden states", torch.stack(result.hidden_states)),
               ("pooled output", pooled),
               ("masked words", result.get("prediction_logits")),
               ("masked words", result.get("logits") if "MaskedLM" in name else None),
               ("sentence order", result.get("sop_logits", result.get("seq_relationship_logits"))),
               ("classes", result.get("logits") if "Classification" in name else None)]
    return collections.OrderedDict((title, tensor.numpy()) for title, tensor in outputs
                                   if tensor is not None)


def read_back(folder, image):
    """The weights of an Image, for its config, from the folder that it was written to."""
    if huggingface.is_folder(folder):
        tensors = huggingface.read_safetensors(os.path.join(folder, huggingface.NEW_WEIGHTS))
        weights = {name: huggingface.turned(name, tensors[tensor])
                   for name, tensor in image.names.items()}
    else:
        reader = tf.train.load_checkpoint(checkpoints.find_checkpoint(folder, "to"))
        weights = {name: reader.get_tensor(stored) for name, stored in image.names.items()}
    if image.family == "bert":
        weights[layouts.PROJECTION] = np.eye(image.config.hidden_size, dtype=np.float32)
    return weights


def verify(folder, model, image):
    """One line: by whom the converted model was run, and the largest differences.

    Raises:
      UserError: a difference is above TOLERANCE.
    """
    inputs = random_inputs(model.config)
    expected = tensorflow_outputs(model.config, model.weights, inputs)
    runner = "modeling.py"
    if huggingface.is_folder(folder) and all(map(importlib.util.find_spec,
                                                 ("torch", "transformers"))):
        runner, found = "transformers", transformers_outputs(folder, inputs)
    else:
        found = tensorflow_outputs(image.config, read_back(folder, image), inputs)
        if huggingface.is_folder(folder):
            runner += ", as PyTorch or transformers is not installed"
    differences = {title: float(np.abs(array.ravel() - expected[title].ravel()).max())
                   for title, array in found.items() if title in expected}
    line = "verified on random input, run by {}: largest difference {:.2g} ({})".format(
        runner, np.max(list(differences.values())), ", ".join(
            "{} {:.2g}".format(title, difference) for title, difference in differences.items()))
    if not all(difference <= TOLERANCE for difference in differences.values()):  # nor a NaN
        raise UserError("{}; above {:g}: the conversion is wrong".format(line, TOLERANCE))
    return line

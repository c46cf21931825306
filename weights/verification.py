"""Whether a converted model computes what the one it was made from computes.

In: the folder that was written, the Model it was made from and its Image.  Out: a line with the
largest differences on random input. A Hugging Face folder is run by transformers where that and
PyTorch are installed; everything else, read back from the files, by modeling.py.
"""

import collections
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
    """What Hugging Face's model of a folder computes: OrderedDict name -> array.

    Raises:
      UserError: PyTorch or transformers is not installed, or does not find the weights it wants.
    """
    try:
        import torch
        import transformers
    except ImportError:
        raise UserError("PyTorch or transformers is not installed") from None
    transformers.logging.set_verbosity_error()
    values = huggingface.read_object(os.path.join(folder, huggingface.CONFIG))
    name = (values.get("architectures") or [
        huggingface.family_of(values).capitalize() + "Model"])[0]
    try:
        model, loading = getattr(transformers, name).from_pretrained(
            folder, output_loading_info=True)
    except Exception as error:  # what transformers raises is its own affair
        raise UserError("transformers does not load it ({})".format(
            str(error).splitlines()[0][:200])) from None
    if loading["missing_keys"]:
        raise UserError("transformers finds no {} there".format(min(loading["missing_keys"])))
    model = model.eval()
    ids, mask, segments = [torch.from_numpy(array.astype(np.int64)) for array in inputs]
    arguments = dict(input_ids=ids, attention_mask=mask, token_type_ids=segments)
    with torch.no_grad():
        result = model(output_hidden_states=True, **arguments)
        pooled = getattr(model.base_model(**arguments), "pooler_output", None)
    outputs = [("hidden states", torch.stack(result.hidden_states)),
               ("pooled output", pooled),
               (layouts.HEADS["masked"].title, result.get("prediction_logits")),
               (layouts.HEADS["order"].title,
                result.get("sop_logits", result.get("seq_relationship_logits")))]
    outputs += [(head.title, result.get("logits")) for head in layouts.HEADS.values()
                if name.endswith(head.kind)]
    if "start_logits" in result:
        outputs.append((layouts.HEADS["spans"].title,
                        torch.stack([result.start_logits, result.end_logits])))
    return collections.OrderedDict((title, tensor.numpy()) for title, tensor in outputs
                                   if tensor is not None)


def read_back(folder, image):
    """The weights of an Image, for its config, from the folder that it was written to."""
    if huggingface.is_folder(folder):
        tensors = huggingface.read_tensors(os.path.join(folder, huggingface.NEW_WEIGHTS))
        weights = {name: huggingface.turned(name, tensors[tensor])
                   for name, tensor in image.names.items()}
    else:
        reader = tf.train.load_checkpoint(checkpoints.find_checkpoint(folder, "to"))
        weights = {name: reader.get_tensor(stored) for name, stored in image.names.items()}
    if image.family == "bert":
        weights[layouts.PROJECTION] = np.eye(image.config.hidden_size, dtype=np.float32)
    return weights


def verify(folder, model, image, source=None):
    """One line: by whom the models were run, and the largest differences.

    Args:
      folder: what was written.  model: formats.Model as it was read.  image: formats.Image.
      source: the Hugging Face folder that the model was read from, or None.
    Raises:
      UserError: a difference is above TOLERANCE.
    """
    inputs = random_inputs(model.config)
    expected, _, unchecked = outputs_by(source, inputs, model.config, model.weights)
    found, runner, reason = outputs_by(
        folder if huggingface.is_folder(folder) else None, inputs, image.config,
        read_back(folder, image))
    differences = {title: float(np.abs(array.ravel() - expected[title].ravel()).max())
                   for title, array in found.items() if title in expected}
    line = "verified on random input, run by {}{}: largest difference {:.2g} ({})".format(
        runner, reason and ", as " + reason, np.max(list(differences.values())), ", ".join(
            "{} {:.2g}".format(title, difference) for title, difference in differences.items()))
    if unchecked:
        line += "; not checked: that the source was read rightly, as " + unchecked
    if not all(difference <= TOLERANCE for difference in differences.values()):  # nor a NaN
        raise UserError("{}; above {:g}: the conversion is wrong".format(line, TOLERANCE))
    return line


def outputs_by(folder, inputs, config, weights):
    """What a model computes: (outputs, name of what ran it, why transformers did not or "").

    Args:
      folder: the Hugging Face folder that transformers is to run, or None.
      inputs: see random_inputs.  config, weights: the same model for modeling.py.
    """
    reason = ""
    if folder:
        try:
            return transformers_outputs(folder, inputs), "transformers", ""
        except UserError as error:
            reason = str(error)
    return tensorflow_outputs(config, weights, inputs), "modeling.py", reason

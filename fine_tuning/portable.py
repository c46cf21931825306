"""A fine-tuned model -> files that run without this project: TFLite and ONNX.

In: a fine-tuned model.  Out: the bytes of a .tflite file with the signature serving_default
(TensorFlow 2.15's converter) or of an .onnx file (tf2onnx), and what runs them. Both take token ids
[B, S] by the names of the SavedModel's inputs, of any batch size and length; inputs_of makes them
of texts, for whatever runs the files and for TensorFlow Serving.
"""

import importlib
import os

import tensorflow.compat.v1 as tf

from cli import UserError
from fine_tuning.examples import TextEncoder, padded_arrays
from fine_tuning.predictor import EXTRA, FEATURES, VOCABULARY, read_description, saved_model_in
from tokenization import FullTokenizer

SIGNATURE = "serving_default"
OPSET = 15  # of ONNX; runtimes since 2021 know it


def inputs_of(folder, rows):
    """What an exported classifier takes: int32 [B, S] by name, of texts or pairs of texts.

    Args:
      folder: the SavedModel or that of its versions.  rows: list of str or (str, str).
    Raises:
      UserError: no exported classifier.
    """
    saved_model = saved_model_in(folder)
    home = os.path.join(saved_model or folder, EXTRA)
    description = read_description(home) if saved_model else None
    if not description or description["head"] != "classifier":
        raise UserError("{} holds no exported classifier".format(folder))
    encoder = TextEncoder(
        FullTokenizer(os.path.join(home, VOCABULARY), do_lower_case=description["do_lower_case"]),
        description["max_seq_length"])
    return dict(zip(FEATURES, padded_arrays([
        encoder(*([row] if isinstance(row, str) else row))[:2] for row in rows])))


# --- TFLite -----------------------------------------------------------------------------------


def tflite_bytes(saved_model, outputs, optimizations):
    """A SavedModel as a TFLite file.

    Args:
      saved_model: folder.  outputs: names of its outputs.
      optimizations: of tf.lite.Optimize.
    """
    converter = tf.lite.TFLiteConverter.from_saved_model(saved_model)
    converter.optimizations = optimizations
    return with_signature(converter.convert(), outputs)


def with_signature(content, outputs):
    """The TFLite file with a signature, which the converter does not write for a graph of 1.x."""
    tools = importlib.import_module("tensorflow.lite.tools.flatbuffer_utils")
    schema = importlib.import_module("tensorflow.lite.python.schema_py_generated")
    model = tools.convert_bytearray_to_object(bytearray(content))
    graph = model.subgraphs[0]

    def named(places, names):
        found = []
        for place in places:
            full = graph.tensors[place].name.decode("utf-8")
            entry = schema.TensorMapT()
            entry.name = next(name for name in names if name in full)
            entry.tensorIndex = place
            found.append(entry)
        return found

    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = SIGNATURE, 0
    signature.inputs, signature.outputs = named(graph.inputs, FEATURES), named(
        graph.outputs, outputs)
    model.signatureDefs = [signature]
    return bytes(tools.convert_object_to_bytearray(model))


class LiteModel(object):
    """A TFLite file, run by TensorFlow's interpreter."""

    def __init__(self, content):
        """Takes the bytes of a file with a signature."""
        self.interpreter = tf.lite.Interpreter(model_content=content)
        self.run = self.interpreter.get_signature_runner(SIGNATURE)

    def output_arrays(self, *arrays):
        """The outputs as arrays by name, for token ids, mask and segments int32 [B, S]."""
        return self.run(**dict(zip(FEATURES, arrays)))


# --- ONNX -------------------------------------------------------------------------------------


def onnx_packages():
    """The modules tf2onnx and onnxruntime, or a UserError that says how to get them."""
    try:
        return [importlib.import_module(name) for name in ("tf2onnx", "onnxruntime")]
    except ImportError as error:
        raise UserError("--export_onnx needs tf2onnx and onnxruntime, TensorFlow 2.15 and Python "
                        "3.10 or 3.11: PYTHON=python3.11 ./setup.sh --with=onnx ({})".format(
                            error)) from error


def onnx_bytes(model):
    """A predictor.FineTunedModel as an ONNX file.

    Of tf2onnx's own optimizers only the one that writes shared weights once is let run: two of the
    others together reshape wrongly where a shape is taken from a reshaped tensor (1.17), and ONNX
    Runtime optimizes what it loads.
    """
    converter, _ = onnx_packages()
    merging = importlib.import_module("tf2onnx.optimizer.merge_duplicated_nodes_optimizer")
    inputs = [model.inputs[name].name for name in FEATURES]
    outputs = [model.outputs[name].name for name in model.SERVED]
    with model.session.graph.as_default():
        frozen = tf.graph_util.convert_variables_to_constants(
            model.session, model.session.graph_def,
            [model.outputs[name].op.name for name in model.SERVED])
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(frozen, name="")
        converted = converter.tfonnx.process_tf_graph(
            graph, opset=OPSET, input_names=inputs, output_names=outputs,
            tensors_to_rename=dict(zip(inputs + outputs, FEATURES + model.SERVED)))
    converted = converter.optimizer.optimize_graph(converted, catch_errors=False, optimizers={
        "merge_duplication": merging.MergeDuplicatedNodesOptimizer})
    return converted.make_model("ALBERT").SerializeToString()


class OnnxModel(object):
    """An ONNX file, run by ONNX Runtime."""

    def __init__(self, content):
        """Takes the bytes of a file."""
        _, runtime = onnx_packages()
        self.session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        self.outputs = [output.name for output in self.session.get_outputs()]

    def output_arrays(self, *arrays):
        """The outputs as arrays by name, for token ids, mask and segments int32 [B, S]."""
        return dict(zip(self.outputs, self.session.run(None, dict(zip(FEATURES, arrays)))))

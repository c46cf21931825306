"""Converts a model: without optimizer slots, to other names, to plain BERT, to Hugging Face, back.

In: --from, a checkpoint, a training folder or a Hugging Face ALBERT folder; config, vocabulary and
labels are found beside it or named by flags.  Out: --to, a new folder that is whole or not there,
and on stdout what was mapped, dropped and left over.

    python convert_checkpoint.py --from=output/lcqmc --to=lcqmc_hf --format=huggingface --verify

  tf           the same names, without optimizer slots: a third of the size
  google       Google's names; needs Google's style
  albert_zh    this project's names, which for albert_zh's style are albert_zh's
  bert         plain BERT: word table times projection, a copy of the weights for each layer
  huggingface  AlbertFor... for Google's style, BertFor... for albert_zh's
"""

import collections
import functools
import os

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import cli
import modeling
import tokenization
from cli import UserError
from fine_tuning import predictor
from weights import checkpoints, formats, huggingface, layouts, verification

STEP = "global_step"
CHECKPOINT_NAMES = {"google": "model.ckpt-best", "bert": "bert_model.ckpt"}  # else model.ckpt
# Keys of Google's config files that say nothing here.
CONSTANT_KEYS = {"net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0,
                 "down_scale_factor": 1}

# What goes along with a model. vocab: dict token -> id or None; labels: list of str or None;
# lower_case: bool; description: what a folder of a fine-tuned model says of itself, or None.
Companions = collections.namedtuple("Companions", "vocab labels lower_case description")


def define_flags(flag_values):
    """Defines this script's flags."""
    string = functools.partial(flags.DEFINE_string, flag_values=flag_values)
    string("from", None, "Checkpoint, folder of a run, or Hugging Face ALBERT folder. Required.")
    string("to", None, "Folder to write; it must not be there yet. Required.")
    flags.DEFINE_enum("format", "tf", formats.FORMATS, "What to write. Default: the same "
                      "checkpoint without optimizer slots, which loses nothing.",
                      flag_values=flag_values)
    string("bert_config_file", None, "Model config. Default: the one beside the checkpoint.")
    string("vocab_file", None, "Vocabulary. Default: the one beside the checkpoint.")
    string("labels", None, "Label names of a classifier, by commas. Default: what the folder "
           "says, else LABEL_0, LABEL_1 ...")
    flags.DEFINE_bool("do_lower_case", None, "Whether the tokenizer lower-cases, for the Hugging "
                      "Face folder. Default: what the folder says, else True.",
                      flag_values=flag_values)
    flags.DEFINE_bool("verify", False, "Run both models on random input and print the largest "
                      "difference. Off: it takes the time to run them.", flag_values=flag_values)


# ---- reading -----------------------------------------------------------------------------------


def read_checkpoint(run, path):
    """(Model, Companions) of a TensorFlow checkpoint."""
    folder = path if tf.io.gfile.isdir(path) else os.path.dirname(path)
    description = predictor.read_description(folder)
    if description and path == folder:
        path = predictor.chosen_checkpoint(folder) or folder
    prefix = checkpoints.find_checkpoint(path, "from")
    config_file = run.bert_config_file or only_file(folder, "*config*.json", "bert_config_file")
    if config_file is None:
        raise UserError("--bert_config_file is required: there is no config beside {!r}".format(
            prefix))
    config = modeling.AlbertConfig.from_json_file(config_file)
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    heads = layouts.heads_of(shapes)
    plan = checkpoints.plan_initialization(prefix, variables_with(config, heads), "from")
    model = formats.Model(
        config, {name: reader.get_tensor(stored) for name, stored in plan.loaded.items()},
        plan.loaded, [name for name in shapes if checkpoints.SLOT.search(name)], plan.unused,
        plan.missing, np.int64(reader.get_tensor(STEP) if STEP in shapes else 0))
    said = description or {}
    return model, companions(run, folder, config, heads.labels, said.get("labels"),
                             said.get("do_lower_case"), description)


def read_huggingface(run, folder):
    """(Model, Companions) of a Hugging Face ALBERT folder."""
    if run.bert_config_file:
        raise UserError("--bert_config_file: a Hugging Face folder has its own config.json")
    config, tensors, labels, lower_case = huggingface.read_folder(folder)
    dropped = huggingface.tied(tensors, folder)
    classes = len(tensors.get("classifier.weight", ()))
    stored = {name: layouts.huggingface_name(name, "albert")
              for name in variables_with(config, layouts.Heads(True, True, True, classes))}
    weights = {name: huggingface.turned(name, tensors[tensor])
               for name, tensor in stored.items() if tensor in tensors}
    variables = variables_with(config, formats.heads_of_weights(weights))
    checkpoints.match_variables("--from {!r}".format(folder), {
        name: list(array.shape) for name, array in weights.items()}, variables)
    known = set(dropped) | {stored[name] for name in weights}
    model = formats.Model(config, weights, stored, dropped, sorted(set(tensors) - known),
                             sorted(set(variables) - set(weights)), np.int64(0))
    return model, companions(run, folder, config, classes, labels, lower_case,
                             predictor.read_description(folder))


def variables_with(config, heads):
    """Name -> shape of the variables of a model with these layouts.Heads."""
    return {name: shape for name, shape in checkpoints.variables_of(
        lambda: verification.build(config, heads)).items()
        if heads.pooler or not name.startswith("bert/pooler/")}


def companions(run, folder, config, classes, labels, lower_case, description):
    """The Companions of a model: what the flags say, else what the folder says.

    Raises:
      UserError: vocabulary or labels do not fit the model, or are needed and missing.
    """
    vocab_file = run.vocab_file or only_file(folder, "vocab*.txt", "vocab_file")
    if vocab_file is None and run.format == "huggingface":
        raise UserError("--vocab_file is required: a Hugging Face folder holds the vocabulary, and "
                        "there is none beside the checkpoint")
    vocab = tokenization.load_vocab(vocab_file) if vocab_file else None
    if vocab and len(vocab) > config.vocab_size:
        raise UserError("vocabulary {} has {} tokens, the config's vocab_size is {}".format(
            vocab_file, len(vocab), config.vocab_size))
    if classes:
        labels = run.labels.split(",") if run.labels else labels or [
            "LABEL_%d" % index for index in range(classes)]
        if len(labels) != classes or len(set(labels)) != classes:
            raise UserError("--labels: the classifier has {} labels, the names are {}".format(
                classes, ", ".join(labels)))
    lower_cases = [value for value in (run.do_lower_case, lower_case, True) if value is not None]
    return Companions(vocab, labels if classes else None, lower_cases[0], description)


def only_file(folder, pattern, flag_name):
    """The one file of a folder that matches; None if there is none; UserError if several."""
    found = sorted(tf.io.gfile.glob(os.path.join(folder, pattern)))
    if len(found) > 1:
        raise UserError("--{}: name one of {}".format(flag_name, ", ".join(found)))
    return found[0] if found else None


# ---- writing -----------------------------------------------------------------------------------


def write_folder(folder, form, model, image, along):
    """Writes a folder in the format; it appears under its name only when it is whole."""
    unfinished = folder + ".unfinished"
    if tf.io.gfile.exists(unfinished):
        tf.io.gfile.rmtree(unfinished)
    tf.io.gfile.makedirs(unfinished)
    try:
        write_files(unfinished, form, model, image, along)
    except BaseException:
        tf.io.gfile.rmtree(unfinished)
        raise
    if tf.io.gfile.exists(folder):
        tf.io.gfile.rmtree(folder)  # empty, as check_target has seen
    tf.io.gfile.rename(unfinished, folder)


def write_files(folder, form, model, image, along):
    """Writes the weights, the config and what goes along with them."""
    if form == "huggingface":
        files = huggingface_files(image, along)
    else:
        files = tensorflow_files(form, model.config)
        step = {} if form == "bert" else {STEP: model.step}
        checkpoints.write_checkpoint(folder, CHECKPOINT_NAMES.get(form, "model.ckpt"),
                                     dict(formats.written_arrays(image), **step))
    if along.vocab:
        files[predictor.VOCABULARY] = "".join(token + "\n" for token in along.vocab)
    if along.description and along.labels:
        files[predictor.DESCRIPTION] = huggingface.json_text(
            dict(along.description, labels=along.labels, save_best=False))
    for name, content in files.items():
        with tf.io.gfile.GFile(os.path.join(folder, name), "wb") as stream:
            stream.write(content if isinstance(content, bytes) else content.encode("utf-8"))


def huggingface_files(image, along):
    """File name -> content of a Hugging Face folder."""
    heads = formats.heads_of_weights(image.weights)
    return {
        huggingface.NEW_WEIGHTS: huggingface.safetensors_bytes(formats.written_arrays(image)),
        huggingface.CONFIG: huggingface.config_json(image.config, image.family, heads, along.vocab,
                                                    along.labels),
        huggingface.TOKENIZER: huggingface.tokenizer_json(image.config, along.lower_case)}


def tensorflow_files(form, config):
    """File name -> content of the config beside a checkpoint, with the keys its readers know."""
    if form in ("tf", "albert_zh"):
        return {predictor.CONFIG: config.to_json()}
    keys = huggingface.SIZES if form == "bert" else huggingface.ALBERT_SIZES
    values = {key: getattr(config, key) for key in keys}
    values["hidden_act"] = config.hidden_act.replace("gelu_new", "gelu")
    if form == "bert":
        return {"bert_config.json": huggingface.json_text(values)}
    return {predictor.CONFIG: huggingface.json_text(dict(values, **CONSTANT_KEYS))}


# ---- the script --------------------------------------------------------------------------------


def check_target(folder):
    """Raises UserError where --to is in the way."""
    if tf.io.gfile.exists(folder) and (not tf.io.gfile.isdir(folder)
                                       or tf.io.gfile.listdir(folder)):
        raise UserError("--to {!r} is there already; name a new folder".format(folder))


def conversion_report(model, image):
    """The lines that say what became of every variable."""
    lines = ["mapped: {}".format(len(image.weights))]
    lines += ["  {} -> {} {}".format(image.sources[name], image.rename(name),
                                     list(image.weights[name].shape))
              for name in sorted(image.weights)]
    slots = [name for name in model.dropped if checkpoints.SLOT.search(name)]
    for title, names in (("dropped, optimizer slots", slots),
                         ("dropped, repeat others", sorted(set(model.dropped) - set(slots))),
                         ("left over, no place for them", model.left_over),
                         ("missing in the source", model.missing)):
        lines.append("{}: {}{}".format(title, len(names), "".join(
            "\n  " + name for name in sorted(names) if names is not slots)))
    return "\n".join(lines)


def main(flag_values):
    """Reads, converts, writes, reports and verifies."""
    tf.logging.set_verbosity(tf.logging.WARN)
    cli.require_flags(flag_values, ["from", "to"])
    run = cli.settings_of(flag_values)
    source, target = getattr(run, "from").rstrip("/"), run.to.rstrip("/")
    check_target(target)
    if huggingface.is_folder(source):
        model, along = read_huggingface(run, source)
        form = "albert_zh" if run.format == "tf" else run.format  # it has no names of TensorFlow's
    else:
        model, along = read_checkpoint(run, source)
        form = run.format
    image = formats.exact_image(model, form)
    write_folder(target, form, model, image, along)
    print(conversion_report(model, image))
    if form == "bert" and model.config.hidden_act in ("gelu", "gelu_new"):
        print('hidden_act "gelu" in bert_config.json is the tanh form, as in Google\'s BERT code; '
              "for PyTorch, where it is another function, take --format=huggingface")
    print("wrote {}: {:,} bytes".format(target, sum(
        tf.io.gfile.stat(os.path.join(target, name)).length
        for name in tf.io.gfile.listdir(target))))
    if run.verify:
        print(verification.verify(target, model, image))


if __name__ == "__main__":
    cli.run(main, define_flags)

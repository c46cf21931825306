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

import functools
import os

import tensorflow.compat.v1 as tf
from absl import flags

import cli
import modeling
import tokenization
from cli import UserError
from fine_tuning import predictor
from weights import checkpoints, formats, huggingface, layouts, verification
from weights.folders import only_file

CHECKPOINT_NAMES = {"google": "model.ckpt-best", "bert": "bert_model.ckpt"}  # else model.ckpt
# Keys of Google's config files that say nothing here.
CONSTANT_KEYS = {"net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0,
                 "down_scale_factor": 1}


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


# ---- what goes along with a model --------------------------------------------------------------


def read_vocabulary(folder, vocab_file, vocab_size):
    """dict token -> id of the file named or of the one in the folder; None where there is none."""
    vocab_file = vocab_file or only_file(folder, "vocab*.txt", "vocab_file")
    vocab = tokenization.load_vocab(vocab_file) if vocab_file else None
    if vocab and len(vocab) > vocab_size:
        raise UserError("vocabulary {} has {} tokens, the config's vocab_size is {}".format(
            vocab_file, len(vocab), vocab_size))
    return vocab


def label_names(asked, said, count):
    """The names of a classifier's labels, None for a model without one.

    Args:
      asked: value of --labels.  said: list that the folder names, or None.  count: int.
    """
    if not count:
        return None
    names = asked.split(",") if asked else said or ["LABEL_%d" % index for index in range(count)]
    if len(names) != count or len(set(names)) != count:
        raise UserError("--labels: the classifier has {} labels, the names are {}".format(
            count, ", ".join(names)))
    return names


# ---- reading and writing -----------------------------------------------------------------------


def checkpoint_and_config(path, folder, description, config_file):
    """(prefix of the checkpoint, AlbertConfig) for what the flags name.

    Args:
      path: value of --from, a checkpoint or its folder.  folder: where it lies.
      description: what a fine-tuned model's folder says of itself, or None.
      config_file: value of --bert_config_file.
    """
    if description and path == folder:
        path = predictor.chosen_checkpoint(folder) or folder
    prefix = checkpoints.find_checkpoint(path, "from")
    config_file = config_file or only_file(folder, "*config*.json", "bert_config_file")
    if config_file is None:
        raise UserError("--bert_config_file is required: there is no config beside {!r}".format(
            prefix))
    return prefix, modeling.AlbertConfig.from_json_file(config_file)


def write_folder(folder, form, model, image, companions):
    """Writes a folder in the format; it appears under its name only when it is whole."""
    unfinished = folder + ".unfinished"
    if tf.io.gfile.exists(unfinished):
        tf.io.gfile.rmtree(unfinished)
    tf.io.gfile.makedirs(unfinished)
    try:
        write_files(unfinished, form, model, image, companions)
    except BaseException:
        tf.io.gfile.rmtree(unfinished)
        raise
    if tf.io.gfile.exists(folder):
        tf.io.gfile.rmtree(folder)  # empty, as check_target has seen
    tf.io.gfile.rename(unfinished, folder)


def write_files(folder, form, model, image, companions):
    """Writes the weights, the config and what goes along with them."""
    vocab, labels, lower_case, description = companions
    if form == "huggingface":
        files = huggingface.folder_files(image, vocab, labels, lower_case)
    else:
        files = config_file_of(form, model.config)
        arrays = {image.names[name]: array for name, array in image.weights.items()}
        if form != "bert":
            arrays[formats.STEP] = model.step
        checkpoints.write_checkpoint(folder, CHECKPOINT_NAMES.get(form, "model.ckpt"), arrays)
    if vocab:
        files[predictor.VOCABULARY] = "".join(token + "\n" for token in vocab)
    if description and labels:
        files[predictor.DESCRIPTION.format("classifier")] = huggingface.json_text(
            dict(description, labels=labels, save_best=False))
    for name, content in files.items():
        with tf.io.gfile.GFile(os.path.join(folder, name), "wb") as stream:
            stream.write(content if isinstance(content, bytes) else content.encode("utf-8"))


def config_file_of(form, config):
    """File name -> text of the config beside a checkpoint, with the keys that its readers know."""
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
    lines += ["  {} -> {} {}".format(image.sources[name], image.names[name],
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
    source, target = [getattr(flag_values, name).rstrip("/") for name in ("from", "to")]
    form, config_file = flag_values.format, flag_values.bert_config_file
    check_target(target)
    folder = source if tf.io.gfile.isdir(source) else os.path.dirname(source)
    description = predictor.read_description(folder)
    if huggingface.is_folder(source):
        if config_file:
            raise UserError("--bert_config_file: a Hugging Face folder has its own config.json")
        form = "albert_zh" if form == "tf" else form  # it has no names of TensorFlow's
        model, said = formats.read_huggingface(source), huggingface.read_settings(source)
    else:
        model = formats.read_checkpoint(*checkpoint_and_config(
            source, folder, description, config_file))
        said = description or {}
    vocab = read_vocabulary(folder, flag_values.vocab_file, model.config.vocab_size)
    if vocab is None and form == "huggingface":
        raise UserError("--vocab_file is required: a Hugging Face folder holds the vocabulary, and "
                        "there is none beside the checkpoint")
    labels = label_names(flag_values.labels, said.get("labels"),
                         layouts.heads_of_weights(model.weights).labels)
    lower_case = next(value for value in (flag_values.do_lower_case, said.get("do_lower_case"),
                                          True) if value is not None)
    image = formats.exact_image(model, form)
    write_folder(target, form, model, image, (vocab, labels, lower_case, description))
    print(conversion_report(model, image))
    if form == "bert" and model.config.hidden_act in ("gelu", "gelu_new"):
        print('hidden_act "gelu" in bert_config.json is the tanh form, as in Google\'s BERT code; '
              "for PyTorch, where it is another function, take --format=huggingface")
    print("wrote {}: {:,} bytes".format(target, sum(
        tf.io.gfile.stat(os.path.join(target, name)).length
        for name in tf.io.gfile.listdir(target))))
    if flag_values.verify:
        print(verification.verify(target, model, image))


if __name__ == "__main__":
    cli.run(main, define_flags)

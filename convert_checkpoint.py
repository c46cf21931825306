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
from fine_tuning import predictor, reading_predictor, tag_schemes
from weights import checkpoints, formats, huggingface, layouts, verification
from weights.folders import only_file

CHECKPOINT_NAMES = {"google": "model.ckpt-best", "bert": "bert_model.ckpt"}  # else model.ckpt
# What the folder of a fine-tuned model says where its source does not: head -> key -> value.
UNSAID = {
    "classifier": {"task_name": None, "columns": None, "pair": None, "max_seq_length": 128},
    "labelling": {"task_name": "bio", "crf": False, "max_seq_length": 128},
    "reading": dict(reading_predictor.OF_WINDOWS, task_name="own", dev_file=None,
                    **reading_predictor.OF_ANSWERS)}
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
    string("labels", None, "Label names of a classifier or tags of a labelling model, by commas. "
           "Default: what the folder says, else LABEL_0, LABEL_1 ...")
    flags.DEFINE_bool("do_lower_case", None, "Whether the tokenizer lower-cases, for the Hugging "
                      "Face folder. Default: what the folder says, else True.",
                      flag_values=flag_values)
    flags.DEFINE_multi_enum("drop_heads", [], sorted(formats.PARTS), "A head, or the CRF of one, "
                            "to leave out; may be given several times. Default: none, all are "
                            "kept.",
                            flag_values=flag_values)
    flags.DEFINE_bool("verify", False, "Run both models on random input and print the largest "
                      "difference. Off: it takes the time to run them.", flag_values=flag_values)


# ---- what goes along with a model --------------------------------------------------------------


def read_vocabulary(folder, vocab_file, vocab_size):
    """(tokens in the order of their ids, dict token -> id) of the file named or found in folder.

    Returns:
      (None, None) where there is no file. A token that stands twice keeps both ids, with a warning:
      real models have such vocabularies.
    """
    vocab_file = vocab_file or only_file(folder, "vocab*.txt", "vocab_file")
    if not vocab_file:
        return None, None
    tokens = tokenization.read_tokens(vocab_file)
    ids = tokenization.load_vocab(vocab_file, repeats_allowed=True)
    if len(tokens) > vocab_size:
        raise UserError("vocabulary {} has {} tokens, the config's vocab_size is {}".format(
            vocab_file, len(tokens), vocab_size))
    repeated = next((token for number, token in enumerate(tokens) if ids[token] != number), None)
    if repeated is not None:
        tf.logging.warning("vocabulary %s: %d lines repeat others, the first of them %r: each id "
                           "is kept", vocab_file, len(tokens) - len(ids), repeated)
    return tokens, ids


def label_names(asked, said, heads):
    """The names of the labels or tags of a model with these layouts.Heads, None without any.

    Args:
      asked: value of --labels.  said: list that the folder names, or None.
    """
    count = heads.labels or heads.tags
    if not count:
        return None
    names = asked.split(",") if asked else said or ["LABEL_%d" % index for index in range(count)]
    if len(names) != count or len(set(names)) != count:
        raise UserError("--labels: the {} has {} labels, the names are {}".format(
            layouts.fine_tuned_head(heads).name, count, ", ".join(names)))
    return names


def described(said, form, model, labels, lower_case):
    """What the folder of a fine-tuned model is to say of itself, None where nothing is known.

    Args:
      said: what the source says.  form: what is written.  model: formats.Model.
      labels: names of its labels or tags, None where nobody has given them.  lower_case: bool.
    """
    if said.get("head", "classifier") not in UNSAID:  # format "tf" keeps any head's variables
        return dict(said, save_best=False) if form == "tf" else None
    head = layouts.fine_tuned_head(layouts.heads_of_weights(model.weights))
    naming = head and label_description(said, head.name, labels)
    if naming is None:
        return None
    found = dict({"data_dir": None, "input_encoding": "utf-8"}, **UNSAID[head.name])
    found.update(said, head=head.name, do_lower_case=lower_case, save_best=False)
    found["max_seq_length"] = min(found["max_seq_length"], model.config.max_position_embeddings)
    if "crf" in found:
        found["crf"] = layouts.CRF in model.left_over
    return dict({key: value for key, value in found.items() if key not in predictor.OF_LABELS},
                **naming)


def label_description(said, head_name, labels):
    """What a description says of labels or tags; None where they are not known.

    Args:
      said: what the source says.  head_name: "classifier", ...  labels: names in order, or None.
    """
    if head_name == "reading":
        return {}
    if head_name == "classifier" or not labels:
        return {"labels": labels} if labels else None
    if "scheme" in said and labels == predictor.labels_in(said):
        return {key: said[key] for key in predictor.OF_LABELS if key in said}
    found = tag_schemes.scheme_and_types(labels)
    if found is None:
        tf.logging.warning("the labels %s are not tags of one of the schemes %s: the folder does "
                           "not describe itself", ", ".join(labels), ", ".join(tag_schemes.SCHEMES))
        return None
    naming = {"scheme": found[0].name, "types": found[1]}
    return naming if predictor.labels_in(naming) == labels else dict(naming, labels=labels)


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


def write_folder(folder, fill):
    """Lets fill(path) fill a folder that appears under its name only when it is whole."""
    with cli.whole(folder) as unfinished:
        tf.io.gfile.makedirs(unfinished)
        fill(unfinished)
        if tf.io.gfile.exists(folder):
            tf.io.gfile.rmtree(folder)  # empty, as check_target has seen


def write_files(folder, form, model, image, companions):
    """Writes the weights, the config and what goes along with them."""
    (tokens, ids), labels, lower_case, description = companions
    if form == "huggingface":
        files = huggingface.folder_files(image, ids, labels, lower_case,
                                         (description or {}).get("outcome", "classes"))
    else:
        files = config_file_of(form, model.config)
        arrays = {image.names[name]: array for name, array in image.weights.items()}
        if form != "bert":
            arrays[formats.STEP] = model.step
        arrays.update(kept_variables(model, form))
        checkpoints.write_checkpoint(folder, CHECKPOINT_NAMES.get(form, "model.ckpt"), arrays)
    if tokens:
        files[predictor.VOCABULARY] = "".join(token + "\n" for token in tokens)
    if description:
        files[predictor.DESCRIPTION.format(description["head"])] = huggingface.json_text(
            description)
    for name, content in files.items():
        with tf.io.gfile.GFile(os.path.join(folder, name), "wb") as stream:
            stream.write(content if isinstance(content, bytes) else content.encode("utf-8"))


def kept_variables(model, form):
    """What modeling.py has no place for and format "tf" keeps under its name: name -> array."""
    return {name: array for name, array in model.left_over.items()
            if form == "tf" and array.dtype.kind in "fiub"}


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


def conversion_report(model, image, form):
    """The lines that say what became of every variable."""
    lines = ["mapped: {}".format(len(image.weights))]
    lines += ["  {} -> {} {}".format(image.sources[name], image.names[name],
                                     list(image.weights[name].shape))
              for name in sorted(image.weights)]
    kept = sorted(kept_variables(model, form))
    lists = [("dropped, " + reason, names) for reason, names in model.dropped.items()]
    lists += [("kept as they are, not used by modeling.py", kept)] if kept else []
    lists += [("left over, no place for them", set(model.left_over) - set(kept)),
              ("missing in the source", model.missing)]
    return "\n".join(lines + ["{}: {}{}".format(title, len(names), "".join(
        "\n  " + name for name in sorted(names) if "slots" not in title))
        for title, names in lists])


def read_source(source, form, dropped_heads, config_file):
    """(formats.Model, what the folder says of its use as a dict, format to write).

    Args:
      source, form, dropped_heads, config_file: values of --from, --format, --drop_heads and
        --bert_config_file.
    """
    folder = source if tf.io.gfile.isdir(source) else os.path.dirname(source)
    description = predictor.read_description(folder)
    if huggingface.is_folder(source):
        if config_file:
            raise UserError("--bert_config_file: a Hugging Face folder has its own config.json")
        return (formats.read_huggingface(source, dropped_heads),
                description or huggingface.read_settings(source),
                "albert_zh" if form == "tf" else form)  # it has no names of TensorFlow's
    prefix, config = checkpoint_and_config(source, folder, description, config_file)
    return formats.read_checkpoint(prefix, config), description or {}, form


def main(flag_values):
    """Reads, converts, verifies, writes and reports."""
    tf.logging.set_verbosity(tf.logging.WARN)
    cli.require_flags(flag_values, ["from", "to"])
    source, target = [getattr(flag_values, name).rstrip("/") for name in ("from", "to")]
    check_target(target)
    read, said, form = read_source(source, flag_values.format, flag_values.drop_heads,
                                   flag_values.bert_config_file)
    folder = source if tf.io.gfile.isdir(source) else os.path.dirname(source)
    vocab = read_vocabulary(folder, flag_values.vocab_file, read.config.vocab_size)
    if vocab == (None, None) and form == "huggingface":
        raise UserError("--vocab_file is required: a Hugging Face folder holds the vocabulary, and "
                        "there is none beside the checkpoint")
    read = formats.without_heads(read, flag_values.drop_heads)
    model = formats.shared_again(read, "--from {!r}".format(source))
    known = predictor.labels_in(said)
    labels = label_names(flag_values.labels, known, layouts.heads_of_weights(model.weights))
    lower_case = next(value for value in (flag_values.do_lower_case, said.get("do_lower_case"),
                                          True) if value is not None)
    description = described(said, form, model, labels if flag_values.labels or known else None,
                            lower_case)
    image = formats.exact_image(model, form)
    verified = []

    def fill(path):
        write_files(path, form, model, image, (vocab, labels, lower_case, description))
        if flag_values.verify:
            verified.append(verification.verify(
                path, read, image, source if huggingface.is_folder(source) else None))

    write_folder(target, fill)
    print(conversion_report(model, image, form))
    if form == "bert" and model.config.hidden_act in ("gelu", "gelu_new"):
        print('hidden_act "gelu" in bert_config.json is the tanh form, as in Google\'s BERT code; '
              "for PyTorch, where it is another function, take --format=huggingface")
    print("wrote {}: {:,} bytes".format(target, sum(
        tf.io.gfile.stat(os.path.join(target, name)).length
        for name in tf.io.gfile.listdir(target))))
    print("\n".join(verified), end="\n" if verified else "")


if __name__ == "__main__":
    cli.run(main, define_flags)

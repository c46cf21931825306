"""Shows what a model folder is and what it can be used for.

In: a checkpoint, the folder of a run, a SavedModel or a Hugging Face folder.  Out: on stdout its
layout, sizes, parameters, heads, labels and steps, the config keys that fit it, and its uses.

    python inspect_model.py output/lcqmc
"""

import collections
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import cli
import modeling
from cli import UserError
from fine_tuning import predictor
from weights import checkpoints, formats, huggingface, layouts

# What a scope's variables are, in the order of the report; a name belongs to the first that fits.
PARTS = (("embeddings", ("bert/embeddings/", "bert/encoder/embedding_hidden_mapping_in/")),
         ("encoder", ("bert/encoder/",)), ("pooler", ("bert/pooler/",)),
         ("masked words' head", layouts.HEADS["masked"].starts),
         ("sentence order's head", layouts.HEADS["order"].starts),
         ("head of its task", sum((head.starts for head in layouts.HEADS.values()), ())),
         ("other variables", ("",)))
# Head of a fine-tuned model -> the script that made it, and the class that answers by it.
USERS = {"classifier": ("run_classifier.py", "fine_tuning.predictor.Predictor"),
         "labelling": ("run_ner.py", "fine_tuning.labelling_predictor.LabellingPredictor"),
         "reading": ("run_mrc.py", "fine_tuning.reading_predictor.ReadingPredictor")}
STYLES = {"albert_zh": "albert_zh: word embeddings are projected, then type and position are added",
          "google": "google: type and position are added to the word embeddings, then projected",
          "bert": "plain BERT, without factorized embeddings"}
UNTOLD = ("num_hidden_layers", "num_attention_heads", "hidden_act", "ln_type")

# A model as it lies in files. kind: str; shapes: variable name without a prefix -> shape; slots:
# names of an optimizer's variables; config: AlbertConfig or None; source: where config is from.
Found = collections.namedtuple("Found", "kind shapes slots step config source description labels")


def define_flags(flag_values):
    """Defines this script's flags."""
    flags.DEFINE_string("folder", None, "Folder or checkpoint to show; may be given without the "
                        "flag's name. Required.", flag_values=flag_values)


# ---- looking -----------------------------------------------------------------------------------


def look(path):
    """The Found of a path as a user names it."""
    if huggingface.is_folder(path):
        return look_at_huggingface(path)
    home = path if tf.io.gfile.isdir(path) else os.path.dirname(path)
    saved = predictor.saved_model_in(path)
    if saved:
        kind, home = "SavedModel", os.path.join(saved, predictor.EXTRA)
        prefix = checkpoints.find_checkpoint(os.path.join(saved, "variables", "variables"),
                                             "folder")
    else:
        chosen = predictor.chosen_checkpoint(path) if path == home else None
        prefix = checkpoints.find_checkpoint(chosen or path, "folder")
        kind = "TensorFlow checkpoint {}".format(prefix)
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    start = layouts.prefix_of(shapes)
    kind += ", all names begin with {!r}".format(start) if start else ""
    step = int(reader.get_tensor(formats.STEP)) if formats.STEP in shapes else None
    description = predictor.read_description(home)
    configs = sorted(tf.io.gfile.glob(os.path.join(home, "*config*.json")))
    config = modeling.AlbertConfig.from_json_file(configs[0]) if len(configs) == 1 else None
    own = {name[len(start):] if name.startswith(start) else name: shape
           for name, shape in shapes.items() if not checkpoints.NOT_WEIGHTS.search(name)}
    if config and config.embedding_style == "albert_zh" and layouts.style_of(own) == "bert":
        config = formats.as_bert(config)
    return Found(kind, own, list(filter(checkpoints.SLOT.search, shapes)), step, config,
                 os.path.basename(configs[0]) if config else "", description,
                 predictor.labels_in(description or {}))


def look_at_huggingface(folder):
    """The Found of a Hugging Face folder, by this project's names."""
    values = huggingface.read_object(os.path.join(folder, huggingface.CONFIG))
    model = formats.read_huggingface(folder, ["classifier"])
    settings = huggingface.read_settings(folder)
    kind = "Hugging Face folder, {}".format(", ".join(values.get("architectures") or [
        "architectures not said"]))
    weights = {name: array for name, array in model.weights.items() if name in model.sources}
    return Found(kind, {name: list(array.shape) for name, array in weights.items()}, [], None,
                 model.config, huggingface.CONFIG, predictor.read_description(folder),
                 settings["labels"])


# ---- telling -----------------------------------------------------------------------------------


def names_of(shapes):
    """Whose variable names these are."""
    if any(map(layouts.GOOGLE_LAYER.match, shapes)):
        return "Google's"
    return "this project's, which are albert_zh's" if layouts.WORDS in shapes else "unknown"


def parameter_rows(shapes):
    """(title, text) for each part of a model that is there, and for the whole."""
    counts = collections.OrderedDict((title, 0) for title, _ in PARTS)
    for name, shape in shapes.items():
        title = next(title for title, starts in PARTS if name.startswith(starts))
        counts[title] += int(np.prod(shape, dtype=np.int64))
    yield "parameters", "{:,}".format(sum(counts.values()))
    for title, count in counts.items():
        if count:
            yield "  " + title, "{:,}".format(count)


def head_text(heads, labels, outcome="classes"):
    """The heads of a model in words; outcome: of a classifier, see fine_tuning.outcomes."""
    found = [name for name, there in (("pooled output", heads.pooler),
                                      ("masked words", heads.masked),
                                      ("sentence order", heads.order)) if there]
    kind = {"classes": "classifier of {} classes", "label_sets": "classifier of sets of {} labels",
            "score": "regression to {} number"}[outcome]
    for word, count in ((kind, heads.labels), ("{} tags", heads.tags)):
        if count:
            found.append((word + ": {}").format(
                count, ", ".join(map(str, labels)) if labels else "their names are not said"))
    if heads.spans:
        found.append("starts and ends of answers")
    return "; ".join(found) or "none"


def config_rows(found):
    """(title, text): the config keys that the weights tell; whether the config beside them fits."""
    keys = layouts.config_keys(found.shapes)
    yield "config keys", json.dumps(keys)[1:-1] or "none can be told"
    untold = [key for key in UNTOLD if key not in keys]
    if keys.get("embedding_style") == "google" and "num_hidden_groups" not in keys:
        untold.append("num_hidden_groups")
    if found.config is None:
        yield "config", "none beside it; the weights cannot tell {}".format(", ".join(untold))
        return
    try:
        wanted = formats.variables_with(found.config, layouts.heads_of(found.shapes))
        if keys.get("embedding_style") == "bert":
            wanted.pop(layouts.PROJECTION, None)
        checkpoints.match_variables(found.source, found.shapes, wanted)
        yield "config", "{} fits; it adds {}".format(found.source, json.dumps(
            {key: getattr(found.config, key) for key in untold})[1:-1])
    except UserError as error:
        yield "config", "does not fit: {}".format(error)


def uses(path, found):
    """What a model can be used for, a command or a line each."""
    heads, style = layouts.heads_of(found.shapes), layouts.config_keys(found.shapes).get(
        "embedding_style")
    if found.kind == "SavedModel":
        return ["predictions: {}({!r}), TensorFlow Serving".format(
            USERS[(found.description or {}).get("head", "classifier")][1], path)]
    if found.kind.startswith("Hugging Face") or style == "bert":
        return ["python convert_checkpoint.py --from={} --to=NEW makes a checkpoint of it{}".format(
            path, ", if all layers are equal" if style == "bert" else "")]
    if style is None:
        return ["nothing here: it is no ALBERT"]
    lines = ["start of a training: --init_checkpoint={} of run_pretraining.py, {}".format(
        path, ", ".join(script for script, _ in USERS.values()))]
    if found.slots and heads.masked:
        lines.append("going on with its pre-training: run_pretraining.py --output_dir=" + path)
    if found.description and found.description.get("task_name"):
        lines.append("predictions: {} --output_dir={} --do_predict --predict_file=FILE".format(
            USERS[found.description["head"]][0], path))
    if found.config:
        lines.append("conversion: convert_checkpoint.py --from={} --format={}".format(
            path, "|".join(form for form in formats.FORMATS if has_image(found.config, form))))
    return lines


def has_image(config, form):
    """Whether a model of this config has an exact image in one of formats.FORMATS."""
    try:
        formats.refuse_inexact(config, form)
    except UserError:
        return False
    return True


def model_rows(path):
    """(title, text) rows on the model at a path."""
    found = look(path)
    keys, description = layouts.config_keys(found.shapes), found.description or {}
    yield "model", found.kind
    yield "names", names_of(found.shapes)
    yield "style", STYLES.get(keys.get("embedding_style"), "unknown")
    for row in parameter_rows(found.shapes):
        yield row
    yield "heads", head_text(layouts.heads_of(found.shapes), found.labels,
                             (found.description or {}).get("outcome", "classes"))
    for key in ("task_name", "pair", "max_seq_length", "do_lower_case"):
        if description.get(key) is not None:
            yield key, str(description[key])
    yield "step", "not said" if found.step is None else str(found.step)
    yield "optimizer", ", ".join(sorted({name.split("/")[-1] for name in found.slots})) or "none"
    for row in config_rows(found):
        yield row
    for number, line in enumerate(uses(path, found)):
        yield "" if number else "it serves as", line


def main(flag_values, texts=()):
    """Prints the report of --folder, or of the one argument that is no flag."""
    tf.logging.set_verbosity(tf.logging.WARN)
    if len(texts) > 1:
        raise cli.UserError("one folder at a time: {}".format(" ".join(texts)))
    folder = texts[0] if texts else flag_values.folder
    if not folder:
        raise cli.UserError("--folder is required")
    for title, text in model_rows(folder.rstrip("/")):
        print("{:<24}{}".format(title, text))


if __name__ == "__main__":
    cli.run(main, define_flags, takes_texts=True)

"""Checkpoints: where they are, whether they fit a model, and starting a model from one.

In: a path as the user gives it and the model's variables.  Out: a Plan (what is loaded from where,
what is missing, what is not used), or one clear line before any graph is run.
"""

import collections
import os
import re

import tensorflow.compat.v1 as tf

from cli import UserError, write_whole
from weights import layouts

SLOT = re.compile(r"(/(lamb_[mv]|adam_[mv]|Adam(_1)?)|(^|/)beta[12]_power)$")
NOT_WEIGHTS = re.compile(SLOT.pattern + "|^global_step$|" + layouts.MEAN + "$")
FOREIGN = re.compile(r"\.(bin|safetensors|h5|pth?|msgpack|onnx|npz)$")
FILE_SUFFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")

BEST = "best"  # folder of a run's best checkpoint, within that of the run

Plan = collections.namedtuple("Plan", "prefix loaded missing unused")


def find_checkpoint(path, flag_name="init_checkpoint"):
    """The checkpoint prefix for a prefix, one of its files, or a folder (its newest checkpoint)."""
    if os.path.basename(path) == "checkpoint" and not tf.io.gfile.isdir(path):
        path = os.path.dirname(path) or "."
    prefix = FILE_SUFFIX.sub("", path)
    if tf.io.gfile.isdir(path):
        prefix = newest_checkpoint(path) or only_checkpoint(path, flag_name)
    if not tf.io.gfile.exists(prefix + ".index"):
        raise UserError("--{}: no checkpoint {!r}: there is no file {!r}{}".format(
            flag_name, path, prefix + ".index", advice_on([path] if FOREIGN.search(path) else [])))
    if not tf.io.gfile.glob(prefix + ".data-*"):
        raise UserError("--{}: checkpoint {!r} has an index but no data file {!r}".format(
            flag_name, path, prefix + ".data-*"))
    return prefix


def advice_on(names):
    """What to do with weights of another library's files, as the end of a message; "" for none."""
    weights = sorted(filter(FOREIGN.search, names))
    if not weights:
        return ""
    if not weights[0].endswith((".bin", ".safetensors")):
        advice = "save the model as model.safetensors where it was made, with its config.json"
    elif "config.json" in names:
        advice = ("convert_checkpoint.py reads model.safetensors, pytorch_model.bin, or the files "
                  "that their .index.json names")
    else:
        advice = "give convert_checkpoint.py the folder with it and its config.json"
    return "; {} is no TensorFlow checkpoint: {}".format(weights[0], advice)


def newest_checkpoint(folder):
    """The checkpoint that the folder's file `checkpoint` names, None if it is not there."""
    try:
        return tf.train.latest_checkpoint(folder)
    except tf.errors.NotFoundError:  # TensorFlow 1.15, where the path's folder is missing
        return None


def only_checkpoint(folder, flag_name):
    """The checkpoint of a folder whose file `checkpoint` is missing or names none that is there.

    Public archives come without that file, or with the paths of another machine in it.
    """
    found = [FILE_SUFFIX.sub("", path)
             for path in tf.io.gfile.glob(os.path.join(folder, "*.index"))]
    if len(found) != 1:
        raise UserError("--{}: folder {!r} holds {}".format(
            flag_name, folder, "several checkpoints, name one: " + ", ".join(sorted(found))
            if found else "no checkpoint" + advice_on(tf.io.gfile.listdir(folder))))
    return found[0]


def shapes_in(prefix):
    """Name -> shape of a checkpoint's variables; none where it is damaged, see check_resume."""
    try:
        return {name: list(shape) for name, shape in tf.train.list_variables(prefix)}
    except (tf.errors.OpError, ValueError, RuntimeError):
        return {}


def optimizer_of(output_dir, slot_prefixes):
    """Which optimizer has made the folder's newest checkpoint, or None.

    slot_prefixes: {optimizer: how the names of its moments begin}.
    """
    prefix = newest_checkpoint(output_dir)
    names = shapes_in(prefix) if prefix else ()
    return next((optimizer for optimizer, slot in sorted(slot_prefixes.items())
                 if any(name.endswith("/{}_m".format(slot)) for name in names)), None)


def step_of(output_dir):
    """The global step of the folder's newest checkpoint, 0 if there is none."""
    prefix = newest_checkpoint(output_dir)
    try:
        return int(tf.train.load_variable(prefix, "global_step")) if prefix else 0
    except tf.errors.NotFoundError:
        raise UserError("--output_dir {!r} holds a converted checkpoint, without global_step: give "
                        "it as --init_checkpoint and take another folder".format(
                            output_dir)) from None


def variables_of(build):
    """Name -> shape of the trainable variables that build() makes in a graph of its own."""
    with tf.Graph().as_default():
        build()
        return {v.op.name: v.shape.as_list() for v in tf.trainable_variables()}


def plan_initialization(path, variables, flag_name="init_checkpoint"):
    """Compares a checkpoint with a model before anything is run.

    The checkpoint may have this project's names or Google's, with or without a prefix.

    Args:
      path: see find_checkpoint.
      variables: dict name -> shape, see variables_of.
      flag_name: str, named in messages.
    Returns:
      Plan(prefix, loaded, missing, unused): loaded is a dict variable -> name in the checkpoint.
    Raises:
      UserError: no such checkpoint, damaged, another model's, other shapes or number formats.
    """
    prefix = find_checkpoint(path, flag_name)
    where = "--{} {!r}".format(flag_name, path)
    try:
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
        loaded = match_variables(where, shapes, variables)
        kinds = reader.get_variable_to_dtype_map()
        for stored in sorted(loaded.values()):
            if kinds[stored] != tf.float32:
                raise UserError("{}: variable {} is {} there and float32 in this model".format(
                    where, stored, kinds[stored].name))
            reader.get_tensor(stored)  # a data file cut short is found here
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        raise UserError("{} is damaged: {}".format(where, str(error).splitlines()[0])) from None
    return Plan(prefix, loaded, sorted(set(variables) - set(loaded)),
                sorted(name for name in set(shapes) - set(loaded.values())
                       if not NOT_WEIGHTS.search(name)
                       and name + layouts.MEAN not in loaded.values()))


def match_variables(where, shapes, variables):
    """Where each of a model's variables stands in a checkpoint.

    Args:
      where: str that messages start with.
      shapes: dict name -> shape of the checkpoint.
      variables: dict name -> shape of the model.
    Returns:
      dict variable -> name in the checkpoint, without those it lacks.
    Raises:
      UserError: another model's; the message says which config keys would fit.
    """
    style, wanted = [layouts.config_keys(shapes_of).get("embedding_style")
                     for shapes_of in (shapes, variables)]
    keys = layouts.fitting_keys(shapes, variables)
    hint = "; a config that fits has {}".format(keys) if keys else ""
    if style == "bert" and wanted != "bert":
        raise UserError("{} is a plain BERT, without factorized embeddings: it fits no ALBERT "
                        "config".format(where))
    if style and wanted and style != wanted:
        raise UserError("{} is of another model: its embedding_style is {}, the config's is {}"
                        "{}".format(where, style, wanted, hint))
    loaded = layouts.stored_names(variables, shapes)
    for name, stored in sorted(loaded.items()):
        if list(shapes[stored]) != list(variables[name]):
            raise UserError("{}: variable {} has shape {} there and {} in this model{}".format(
                where, stored, list(shapes[stored]), list(variables[name]), hint))
    essential = sorted(name for name in set(variables) - set(loaded)
                       if re.match("bert/(embeddings|encoder)/", name))
    if essential:
        raise UserError("{} is of another model: it has no {} ({} of {} variables of this model "
                        "are missing); its own first variables are {}{}".format(
                            where, essential[0], len(variables) - len(loaded), len(variables),
                            ", ".join(sorted(shapes)[:3]) or "none at all", hint))
    return loaded


def check_resume(output_dir, variables, optimizer=None):
    """Raises UserError where a run cannot go on from output_dir's newest checkpoint.

    Args:
      output_dir: str.
      variables: dict name -> shape, see variables_of.
      optimizer: slot_prefix of the optimizer of a run that trains, None for one that does not.
    """
    if not newest_checkpoint(output_dir):
        return
    plan = plan_initialization(output_dir, variables, "output_dir")
    if plan.missing:
        raise UserError("--output_dir {!r} holds a checkpoint of another model: it has no {}; take "
                        "another folder".format(output_dir, plan.missing[0]))
    slots = [name for name, _ in tf.train.list_variables(plan.prefix) if SLOT.search(name)]
    if any(there not in (name, name + layouts.MEAN) for name, there in plan.loaded.items()) or (
            optimizer and not slots):
        raise UserError("--output_dir {!r} holds a converted checkpoint, without an optimizer's "
                        "state or under other names: give it as --init_checkpoint and take another "
                        "folder".format(output_dir))
    if optimizer and not any(name.endswith("/{}_m".format(optimizer)) for name in slots):
        raise UserError("--output_dir {!r} was trained by another optimizer: its checkpoint has {} "
                        "and no {}_m; go on with that one, or give the checkpoint as "
                        "--init_checkpoint and take another folder".format(
                            output_dir, slots[0].split("/")[-1], optimizer))


def initialize_from(plan):
    """Lets the variables of the current graph start from the plan's checkpoint, and says so."""
    tf.train.init_from_checkpoint(plan.prefix, {stored: name
                                                for name, stored in plan.loaded.items()})
    tf.logging.info("initialised %d of %d variables from %s", len(plan.loaded),
                    len(plan.loaded) + len(plan.missing), plan.prefix)
    for title, names in (("new, not in the checkpoint", plan.missing),
                         ("in the checkpoint, not used", plan.unused)):
        if names:
            tf.logging.info("%s: %s", title, ", ".join(names))


def restore(session, prefix):
    """Fills the current graph's variables from a checkpoint in this project's names or Google's.

    Raises:
      UserError: one of them is not there.
    """
    variables = {variable.op.name: variable for variable in tf.global_variables()}
    loaded = match_variables(prefix, dict(tf.train.list_variables(prefix)), {
        name: variable.shape.as_list() for name, variable in variables.items()})
    missing = sorted(set(variables) - set(loaded))
    if missing:
        raise UserError("{} has no {}".format(prefix, missing[0]))
    tf.train.Saver({stored: variables[name] for name, stored in loaded.items()}).restore(
        session, prefix)


def write_checkpoint(folder, name, arrays):
    """Writes a checkpoint, which latest_checkpoint(folder) then finds.

    Args:
      folder: str.  name: str, say "model.ckpt".
      arrays: dict variable name -> NumPy array.
    """
    names = sorted(arrays)
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = [tf.placeholder(arrays[key].dtype, arrays[key].shape) for key in names]
        save = tf.raw_ops.SaveV2(prefix=os.path.join(folder, name), tensor_names=names,
                                 shape_and_slices=[""] * len(names), tensors=tensors)
        session.run(save, {tensor: arrays[key] for tensor, key in zip(tensors, names)})
    write_whole(os.path.join(folder, "checkpoint"),
                'model_checkpoint_path: "{0}"\nall_model_checkpoint_paths: "{0}"\n'.format(name))


def require_folder(output_dir):
    """Makes the folder where it is missing; raises UserError where nothing can be written."""
    probe = os.path.join(output_dir, ".write_test")
    try:
        tf.io.gfile.makedirs(output_dir)
        with tf.io.gfile.GFile(probe, "w") as stream:
            stream.write("x")
        tf.io.gfile.remove(probe)
    except tf.errors.OpError as error:
        raise UserError("--output_dir {!r} cannot be written: {}".format(
            output_dir, error.message)) from None


def copy_newest(output_dir, folder):
    """Makes output_dir's newest checkpoint the only one of folder; returns its prefix there."""
    newest, former = newest_checkpoint(output_dir), newest_checkpoint(folder)
    target = os.path.join(folder, os.path.basename(newest))
    tf.io.gfile.makedirs(folder)
    for path in tf.io.gfile.glob(newest + ".*"):
        tf.io.gfile.copy(path, os.path.join(folder, os.path.basename(path)), overwrite=True)
    tf.train.update_checkpoint_state(folder, os.path.basename(target), [os.path.basename(target)])
    if former and former != target:
        for path in tf.io.gfile.glob(former + ".*"):
            tf.io.gfile.remove(path)
    return target

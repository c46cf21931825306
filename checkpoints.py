"""Checkpoints: where they are, whether they fit a model, and starting a model from one.

In: a path as the user gives it and the model's variables.  Out: a Plan (what is loaded from where,
what is missing, what is not used), or one clear line before any graph is run.
"""

import collections
import os
import re

import tensorflow.compat.v1 as tf

from cli import UserError

NOT_WEIGHTS = re.compile(r"(/(lamb|adam)_[mv]|^global_step)$")
FILE_SUFFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")

Plan = collections.namedtuple("Plan", "prefix loaded missing unused")


def find_checkpoint(path, flag_name="init_checkpoint"):
    """The checkpoint prefix for a prefix, one of its files, or a folder (its newest checkpoint)."""
    prefix = FILE_SUFFIX.sub("", path)
    if tf.io.gfile.isdir(path):
        prefix = tf.train.latest_checkpoint(path)
        if prefix is None:
            raise UserError("--{}: folder {!r} holds no checkpoint".format(flag_name, path))
    if not tf.io.gfile.exists(prefix + ".index"):
        raise UserError("--{}: no checkpoint {!r}: there is no file {!r}".format(
            flag_name, path, prefix + ".index"))
    if not tf.io.gfile.glob(prefix + ".data-*"):
        raise UserError("--{}: checkpoint {!r} has an index but no data file {!r}".format(
            flag_name, path, prefix + ".data-*"))
    return prefix


def step_of(output_dir):
    """The global step of the folder's newest checkpoint, 0 if there is none."""
    prefix = tf.train.latest_checkpoint(output_dir)
    return int(tf.train.load_variable(prefix, "global_step")) if prefix else 0


def variables_of(build):
    """Name -> shape of the trainable variables that build() makes in a graph of its own."""
    with tf.Graph().as_default():
        build()
        return {v.op.name: v.shape.as_list() for v in tf.trainable_variables()}


def plan_initialization(path, variables, flag_name="init_checkpoint"):
    """Compares a checkpoint with a model before anything is run.

    Args:
      path: see find_checkpoint.
      variables: dict name -> shape, see variables_of.
      flag_name: str, named in messages.
    Returns:
      Plan(prefix, loaded, missing, unused): loaded is a dict variable -> name in the checkpoint.
    Raises:
      UserError: no such checkpoint, damaged, another model's, other shapes.
    """
    prefix = find_checkpoint(path, flag_name)
    try:
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
        loaded = {name: name for name in variables if name in shapes}
        for name, stored in sorted(loaded.items()):
            if list(shapes[stored]) != list(variables[name]):
                raise UserError("--{} {!r}: variable {} has shape {} there and {} in this "
                                "model".format(flag_name, path, name, list(shapes[stored]),
                                               list(variables[name])))
            reader.get_tensor(stored)  # a data file cut short is found here
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise UserError("--{} {!r} is damaged: {}".format(
            flag_name, path, str(error).splitlines()[0])) from None
    missing = sorted(set(variables) - set(loaded))
    unused = sorted(name for name in set(shapes) - set(loaded.values())
                    if not NOT_WEIGHTS.search(name))
    essential = [name for name in missing if re.match("bert/(embeddings|encoder)/", name)]
    if essential:
        raise UserError("--{} {!r} is of another model: it has no {} ({} of {} variables of this "
                        "model are missing); its own first variables are {}".format(
                            flag_name, path, essential[0], len(missing), len(variables),
                            ", ".join(sorted(shapes)[:3])))
    return Plan(prefix, loaded, missing, unused)


def check_resume(output_dir, variables):
    """Raises UserError where output_dir's newest checkpoint is of another model."""
    if not tf.train.latest_checkpoint(output_dir):
        return
    plan = plan_initialization(output_dir, variables, "output_dir")
    if plan.missing:
        raise UserError("--output_dir {!r} holds a checkpoint of another model: it has no {}; take "
                        "another folder".format(output_dir, plan.missing[0]))


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

"""What a run finds in its folder of the runs before it, and leaves there for the next one.

In: the folder, the config and the flags.  Out: albert_config.json and flags.json; one line where
the folder's checkpoint is of another model, log lines for what else has changed.
"""

import json
import os

import tensorflow.compat.v1 as tf

from cli import UserError, write_whole
from weights import checkpoints

CONFIG, FLAGS_GIVEN = "albert_config.json", "flags.json"
FREE_KEYS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range",
             "initialization")  # of a config: those that change the training, not the model
TOLD_FLAGS = ("train_batch_size", "learning_rate", "random_seed", "input_file", "data_dir",
              "max_seq_length", "num_train_steps", "num_warmup_steps", "num_train_epochs",
              "warmup_proportion", "classifier_dropout")


def write_settings(output_dir, config, settings):
    """Keeps a run's config and flags beside its checkpoints, and as text for TensorBoard."""
    writer = tf.summary.FileWriterCache.get(output_dir)
    about = tf.SummaryMetadata(plugin_data=tf.SummaryMetadata.PluginData(plugin_name="text"))
    for name, text in ((CONFIG, config.to_json()), (FLAGS_GIVEN, json.dumps(
            vars(settings), indent=2, sort_keys=True) + "\n")):
        write_whole(os.path.join(output_dir, name), text)
        indented = "\n".join("    " + line for line in text.splitlines())  # code in Markdown
        writer.add_summary(tf.Summary(value=[tf.Summary.Value(
            tag=name.split(".")[0], metadata=about,
            tensor=tf.make_tensor_proto([indented], tf.string))]))
    writer.flush()


def kept_mapping(output_dir, name):
    """The mapping in a file that an earlier run wrote, {} where there is none."""
    path = os.path.join(output_dir, name)
    if not tf.io.gfile.exists(path):
        return {}
    with tf.io.gfile.GFile(path, "rb") as stream:
        try:
            return dict(json.loads(stream.read().decode("utf-8")))
        except (ValueError, TypeError) as error:
            raise UserError("{} is damaged: {}; remove it, or restore it".format(
                path, error)) from None


def require_same_model(output_dir, config):
    """Raises UserError where the folder's checkpoint was made with a config of another model.

    Keys that change the training alone are logged. Shapes are for checkpoints.check_resume.
    """
    stored = kept_mapping(output_dir, CONFIG)
    if not stored or not checkpoints.newest_checkpoint(output_dir):
        return
    for key, value in sorted(json.loads(config.to_json()).items()):
        former = stored.get(key, config.DEFAULTS.get(key))
        if former == value or {former, value} == {"gelu", "gelu_new"}:  # the same function
            continue
        if key not in FREE_KEYS:
            raise UserError(
                "--output_dir {!r} holds a model whose {} is {!r}, in --bert_config_file it is "
                "{!r}; take {}, or another folder".format(
                    output_dir, key, former, value, os.path.join(output_dir, CONFIG)))
        tf.logging.warning("%s is %s now, %s before: the training goes on with it", key, value,
                           former)


def say_changed_flags(output_dir, settings):
    """Logs which flags of a training that goes on are not those it was begun with."""
    former = kept_mapping(output_dir, FLAGS_GIVEN)
    if not checkpoints.newest_checkpoint(output_dir):
        return
    for name in TOLD_FLAGS:
        value = getattr(settings, name, None)
        if None not in (former.get(name), value) and former[name] != value:
            tf.logging.warning("--%s is %s now, %s before: the training goes on with it", name,
                               value, former[name])


def named_checkpoint(settings, newest):
    """What --init_checkpoint names within output_dir, say in its best/, where nothing is trained.

    Where the folder holds a checkpoint, newest, any other use of the flag is left aside and logged.
    """
    prefix = checkpoints.FILE_SUFFIX.sub("", settings.init_checkpoint)
    folder = os.path.realpath(settings.output_dir)
    if os.path.realpath(prefix).startswith(os.path.join(folder, "")) and not settings.do_train:
        return prefix
    if folder != os.path.realpath(prefix) and os.path.realpath(newest) != os.path.realpath(prefix):
        tf.logging.info("--init_checkpoint=%s is not used: --output_dir holds %s", prefix, newest)
    return None

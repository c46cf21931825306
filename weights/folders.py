"""A trained model's folder as the user names it -> its config, checkpoint and vocabulary.

In: the folder of a pre-training or fine-tuning run (also while it is training), the folder of a
public archive, or a checkpoint in either.  Out: what is needed to build that model again.
"""

import collections
import json
import os

import tensorflow.compat.v1 as tf

import modeling
from cli import UserError
from weights import checkpoints

CONFIG, FLAGS_OF_RUN, VOCABULARY = "albert_config.json", "flags.json", "vocab.txt"
DEFAULT_VOCABULARY = os.path.join("albert_config", VOCABULARY)

EncoderFiles = collections.namedtuple("EncoderFiles", "config checkpoint vocab_file do_lower_case")


def encoder_files(path, config_file=None, vocab_file=None, do_lower_case=None):
    """What the user's words for a model stand for.

    Of a fine-tuned model whose run kept the best checkpoint that one is taken, else the newest.

    Args:
      path: --model_dir: a folder, or a checkpoint with or without its suffix.
      config_file: --bert_config_file; None takes the one beside the checkpoint.
      vocab_file: --vocab_file; None takes vocab.txt beside it, else the project's.
      do_lower_case: None takes what the run used, else True.
    Returns:
      EncoderFiles with an AlbertConfig.
    Raises:
      UserError: there is no checkpoint, config or vocabulary.
    """
    folder = path if tf.io.gfile.isdir(path) else os.path.dirname(path)
    run = flags_of_run(folder)
    best = os.path.join(folder, checkpoints.BEST)
    if path == folder and run.get("save_best") and checkpoints.newest_checkpoint(best):
        path = best
    checkpoint = checkpoints.find_checkpoint(path, "model_dir")
    config_file = config_file or file_beside(folder, CONFIG) or only_file(
        folder, "*config*.json", "bert_config_file")
    if config_file is None:
        raise UserError("--bert_config_file is required: there is no config beside {!r}".format(
            checkpoint))
    if vocab_file is None:
        vocab_file = file_beside(folder, VOCABULARY) or DEFAULT_VOCABULARY
        tf.logging.info("vocabulary: %s", vocab_file)
    if do_lower_case is None:
        do_lower_case = run.get("do_lower_case", True)
    return EncoderFiles(modeling.AlbertConfig.from_json_file(config_file), checkpoint, vocab_file,
                      do_lower_case)


def flags_of_run(folder):
    """The flags of the run that made a folder: dict name -> value, empty where it does not say."""
    path = file_beside(folder, FLAGS_OF_RUN)
    if path is None:
        return {}
    with tf.io.gfile.GFile(path, "rb") as stream:
        return json.loads(stream.read().decode("utf-8"))


def file_beside(folder, name):
    """Path of a file in the folder of a run; for its folder best/ also that of the run itself."""
    places = [folder]
    if os.path.basename(os.path.normpath(folder)) == checkpoints.BEST:
        places.append(os.path.dirname(os.path.normpath(folder)))
    paths = [os.path.join(place, name) for place in places]
    return next((path for path in paths if tf.io.gfile.exists(path)), None)


def only_file(folder, pattern, flag_name):
    """The one file of a folder that matches; None if there is none; UserError if several."""
    found = sorted(tf.io.gfile.glob(os.path.join(folder, pattern)))
    if len(found) > 1:
        raise UserError("--{}: name one of {}".format(flag_name, ", ".join(found)))
    return found[0] if found else None

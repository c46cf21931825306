"""The flags that every run script has, and the small tuples that they are handed on as.

In: the values of the flags.  Out: an Engine, which says how a run is carried out, whatever its
model is; one line for a value that no run can be made with.
"""

import collections
import functools
import re

import tensorflow.compat.v1 as tf
from absl import flags

import devices
from cli import MOST, UserError, require_within
from training.precision import configure

Training = collections.namedtuple(
    "Training", "batch_size learning_rate num_train_steps num_warmup_steps optimizer "
    "micro_batch_size recompute correct_bias", defaults=(0, False, True))
# batch_size: sequences in a step, over all devices; learning_rate: the highest.
# micro_batch_size: sequences that a device computes at once, 0 for all; recompute: bool.
# correct_bias: see optimization.create_optimizer.

Engine = collections.namedtuple(
    "Engine", "output_dir save_checkpoints_steps keep_checkpoint_max log_every_steps random_seed "
    "plan chosen session_config precision tpu fixed_shapes", defaults=(False,))
# plan: checkpoints.Plan that a run starts from where output_dir holds no checkpoint, or None.
# chosen: devices.Devices to train on; session_config: ConfigProto of its sessions.
# precision: one of precision.PRECISIONS; tpu: Tpu, or None.
# fixed_shapes: bool, whether a compiler wants shapes that do not depend on the rows.

Tpu = collections.namedtuple("Tpu", "name zone project master cores iterations batch_sizes")
# batch_sizes: {flag: value} for those of BATCH_SIZES that the script has.

BATCH_SIZES = ("train_batch_size", "eval_batch_size", "predict_batch_size")
MOST_SEQUENCES = 2 ** 20  # in a batch; the largest ever reported have some 65,000
PATTERN_CHARACTERS = re.compile(r"[*?\[\]]")
TRAINING_FLAGS = ("train_batch_size", "learning_rate", "save_checkpoints_steps",
                  "keep_checkpoint_max", "log_every_steps", "random_seed")
TPU_FLAGS = ("tpu_name", "tpu_zone", "gcp_project", "master", "num_tpu_cores",
             "iterations_per_loop")


def define_shared_flags(flag_values, max_seq_length, train_batch_size, learning_rate,
                        save_checkpoints_steps):
    """Defines the flags of every run script; the arguments are (default, its reason)."""
    string, boolean, integer, real = [
        functools.partial(define, flag_values=flag_values) for define in (
            flags.DEFINE_string, flags.DEFINE_bool, flags.DEFINE_integer, flags.DEFINE_float)]
    string("bert_config_file", None,
           "Model config, say albert_config/albert_config_base.json. Required.")
    string("output_dir", None,
           "Folder of the checkpoints; a run goes on from the newest one in it. Required.")
    string("init_checkpoint", None,
           "Checkpoint to start from; output_dir's own goes before it, unless it is one of those "
           "and is to be evaluated. Default: none, that is random weights.")
    boolean("do_train", False, "Train. Off, so that nothing is trained by mistake.")
    boolean("do_eval", False, "Evaluate the newest checkpoint. Off for the same reason.")
    integer("max_seq_length", max_seq_length[0],
            "Length of a sequence in tokens. Default: {}.".format(max_seq_length[1]))
    integer("train_batch_size", train_batch_size[0],
            "Sequences in a step, over all devices. Default: {}.".format(train_batch_size[1]))
    integer("eval_batch_size", 32,
            "Sequences in an evaluation step; the result does not depend on it. Default: fits all "
            "but the largest models anywhere.")
    real("learning_rate", learning_rate[0],
         "Highest learning rate. Default: {}.".format(learning_rate[1]))
    integer("save_checkpoints_steps", save_checkpoints_steps[0],
            "Steps between checkpoints. Default: {}.".format(save_checkpoints_steps[1]))
    integer("keep_checkpoint_max", 5,
            "Newest checkpoints that are kept, 0 for all. Default: TensorFlow's.")
    integer("log_every_steps", 20,
            "Steps between log lines. Default: some seconds' work for a small model.")
    integer("iterations_per_loop", 1000,
            "Steps of a TPU between two returns to the host. Default: keeps the host's share "
            "small.")
    integer("random_seed", 12345,
            "Seed of weights, order and dropout. Default: the one of data creation.")
    boolean("deterministic", False,
            "Run operations one after the other, so that equal runs end bit-equal on a CPU. Off: "
            "nothing is lost but the last bits.")
    boolean("use_tpu", False, "Run on a TPU. Off: GPU if there is one, else CPU.")
    for name, text in (("tpu_name", "Name or grpc:// address of the TPU."),
                       ("tpu_zone", "Zone of the TPU, if it cannot be detected."),
                       ("gcp_project", "Project of the TPU, if it cannot be detected."),
                       ("master", "Address of a TensorFlow master in place of --tpu_name.")):
        string(name, None, text + " Default: none, only a TPU needs it.")
    integer("num_tpu_cores", 8, "Cores of the TPU. Default: those of one board.")


def check_shared_settings(settings, used_batch_sizes=BATCH_SIZES):
    """Raises UserError for the first shared flag that the job uses and cannot be done with.

    used_batch_sizes: those of BATCH_SIZES that the job uses.
    """
    if PATTERN_CHARACTERS.search(settings.output_dir):
        raise UserError("--output_dir is {!r}: TensorFlow takes *, ?, [ and ] for a pattern and "
                        "would not find its checkpoints again".format(settings.output_dir))
    require_within(settings, 1, MOST, "max_seq_length")
    require_within(settings, -MOST, MOST, "random_seed")
    sizes = [name for name in used_batch_sizes if hasattr(settings, name)]
    require_within(settings, 1, MOST_SEQUENCES, *sizes)
    if settings.do_train:
        require_within(settings, 1, MOST, "save_checkpoints_steps", "log_every_steps")
        require_within(settings, 0, MOST, "keep_checkpoint_max")
        if not 0 < settings.learning_rate < float("inf"):
            raise UserError("--learning_rate is {}, must be above 0 and finite".format(
                settings.learning_rate))
    if not settings.use_tpu:
        return
    if not (settings.tpu_name or settings.master):
        raise UserError("--use_tpu needs --tpu_name or --master")
    require_within(settings, 1, MOST, "num_tpu_cores", "iterations_per_loop")
    for name in sizes:
        size = getattr(settings, name)
        if size % settings.num_tpu_cores:
            raise UserError("--{} is {}: --num_tpu_cores={} cannot share that evenly".format(
                name, size, settings.num_tpu_cores))


def say_unused(given, unused):
    """Logs which of the given flags the job does not use; unused: {why: names}."""
    for why, names in unused.items():
        found = ["--" + name for name in names if name in given]
        if found:
            tf.logging.info("not used, as %s: %s", why, ", ".join(found))


def engine_of(settings, plan=None, chosen=devices.ALONE, precision="fp32", xla=False):
    """The Engine that the shared flags ask for; for its fields see there."""
    batch_sizes = {name: value + -value % settings.num_tpu_cores  # uneven are unused ones only
                   for name, value in vars(settings).items() if name in BATCH_SIZES}
    tpu = Tpu(settings.tpu_name, settings.tpu_zone, settings.gcp_project, settings.master,
              settings.num_tpu_cores, settings.iterations_per_loop,
              batch_sizes) if settings.use_tpu else None
    session_config = configure(devices.session_config(chosen, settings.deterministic), precision,
                               xla, settings.use_tpu)
    return Engine(
        settings.output_dir, settings.save_checkpoints_steps, settings.keep_checkpoint_max,
        settings.log_every_steps, settings.random_seed, plan, chosen, session_config, precision,
        tpu, fixed_shapes=xla or settings.use_tpu)

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
from training import machines, memory, micro_batches, precision

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

Place = collections.namedtuple("Place", "chosen rows")
# chosen: as an Engine's; rows: sequences of a training step that each device gets.

Tpu = collections.namedtuple("Tpu", "name zone project master cores iterations batch_sizes")
# batch_sizes: {flag: value} for those of BATCH_SIZES that the script has.

BATCH_SIZES = ("train_batch_size", "eval_batch_size", "predict_batch_size")
MOST_SEQUENCES = 2 ** 20  # in a batch; the largest ever reported have some 65,000
PATTERN_CHARACTERS = re.compile(r"[*?\[\]]")
TRAINING_FLAGS = ("train_batch_size", "learning_rate", "save_checkpoints_steps",
                  "keep_checkpoint_max", "log_every_steps", "random_seed", "num_devices",
                  "micro_batch_size", "recompute")
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
    define_device_flags(flag_values)


def define_device_flags(flag_values):
    """Defines those of the shared flags that say what a run is carried out on, and how."""
    string, boolean, integer, enum = [
        functools.partial(define, flag_values=flag_values) for define in (
            flags.DEFINE_string, flags.DEFINE_bool, flags.DEFINE_integer, flags.DEFINE_enum)]
    integer("num_devices", 0,
            "Devices of this machine that share the batch. Default: 0, every GPU, else the CPU.")
    integer("micro_batch_size", 0,
            "Sequences that a device computes at once; the gradient is the whole batch's whatever "
            "it is. Default: 0, the most that the device's memory is estimated to hold; in "
            "pre-training on a CPU a few of like length.")
    enum("recompute", "auto", ["auto", "true", "false"],
         "Keep only each layer's input and compute the rest again for the gradient, which takes a "
         "third more work. Default: auto, where not even one sequence fits without.")
    enum("precision", "fp32", precision.PRECISIONS,
         "Format of the matrix products: fp16 on a GPU, with a loss scale that adapts itself; bf16 "
         "on a TPU, and on a CPU with TensorFlow 2.15. Default: fp32, which runs everywhere.")
    boolean("xla", False,
            "Compile the graph with XLA. Default: off, on a CPU it gains nothing and a TPU does it "
            "anyway.")
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
        require_within(settings, 0, MOST, "keep_checkpoint_max", "num_devices")
        if not 0 < settings.learning_rate < float("inf"):
            raise UserError("--learning_rate is {}, must be above 0 and finite".format(
                settings.learning_rate))
    precision.check_precision(settings.precision, settings.xla, settings.use_tpu,
                              len(tf.config.experimental.list_physical_devices("GPU")))
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


def unused_of_place(settings):
    """{why: names} of the flags that a run on a TPU, or one that is not, leaves aside."""
    if settings.use_tpu:
        return {"a TPU is used": ("num_devices", "deterministic")}
    return {"--use_tpu is not set": TPU_FLAGS}


def place_of(settings):
    """The Place of a run, which is logged; waits for a TPU.

    Raises:
      UserError: the devices cannot share a training's batch evenly, or in such micro-batches.
    """
    if settings.use_tpu:
        machines.await_tpu(settings.tpu_name or settings.master)
    chosen = devices.choose(settings.num_devices, alone=not settings.do_train)
    devices.log_devices(chosen, settings.use_tpu, settings.num_tpu_cores)
    rows = settings.train_batch_size // settings.num_tpu_cores
    if settings.do_train:
        if not settings.use_tpu:
            rows = devices.rows_of_each(chosen, settings.train_batch_size)
        micro_batches.check_micro_batch_size(settings.micro_batch_size, rows)
    return Place(chosen, rows)


def fitting_parts(settings, config, engine, rows, shape, most_rows=None):
    """(sequences computed at once, whether to recompute) of a training step, so that it fits.

    Args:
      config: modeling.AlbertConfig.  engine: Engine.
      rows: see Place.  shape: memory.Shape.  most_rows: see memory.choose_micro_batch.
    """
    return memory.choose_micro_batch(
        config, shape, rows,
        memory.device_memory(engine.chosen, engine.session_config, settings.use_tpu),
        settings.micro_batch_size, settings.recompute,
        on_host=not settings.use_tpu and "cpu" in engine.chosen.names[0], most_rows=most_rows)


def engine_of(settings, plan=None, chosen=devices.ALONE):
    """The Engine that the shared flags ask for; for its fields see there."""
    batch_sizes = {name: value + -value % settings.num_tpu_cores  # uneven are unused ones only
                   for name, value in vars(settings).items() if name in BATCH_SIZES}
    tpu = Tpu(settings.tpu_name, settings.tpu_zone, settings.gcp_project, settings.master,
              settings.num_tpu_cores, settings.iterations_per_loop,
              batch_sizes) if settings.use_tpu else None
    session_config = precision.configure(
        devices.session_config(chosen, settings.deterministic), settings.precision, settings.xla,
        settings.use_tpu)
    return Engine(
        settings.output_dir, settings.save_checkpoints_steps, settings.keep_checkpoint_max,
        settings.log_every_steps, settings.random_seed, plan, chosen, session_config,
        settings.precision, tpu, fixed_shapes=settings.xla or settings.use_tpu)

"""Number formats and compilation of a step: what runs where, and float16's loss scale.

In: --precision, --xla and the device.  Out: a session config that TensorFlow rewrites the graph by,
a scope for a TPU's bfloat16, and a LossScale.

Weights, moments, norms and losses stay in float32; matrix products take the shorter format.
"""

import contextlib
import os

import tensorflow.compat.v1 as tf

from cli import UserError

PRECISIONS = ("fp32", "fp16", "bf16")
FIRST_SCALE = 2.0 ** 15
GROWTH_STEPS = 1000  # finite steps after which the scale is doubled
CPU_DESCRIPTION = "/proc/cpuinfo"
COMPILE_FOR_CPU = "--tf_xla_cpu_global_jit"


def check_precision(precision, xla, use_tpu=False, gpus=0):
    """Raises UserError for a combination that TensorFlow cannot run, or ignores in silence."""
    options = tf.ConfigProto().graph_options.rewrite_options
    if use_tpu:
        place = "a TPU"
        refused = {"fp16": "take bf16", "bf16": ""}.get(precision, "")
    elif gpus:
        place = "a GPU"
        refused = {"bf16": "take fp16"}.get(precision, "")
    else:
        place = "a CPU"
        refused = {"fp16": "it needs a GPU; take bf16 with TensorFlow 2.15 or fp32"}.get(
            precision, "")
        if precision == "bf16" and not hasattr(options, "auto_mixed_precision_onednn_bfloat16"):
            refused = "TensorFlow {} has none; take TensorFlow 2.15 or fp32".format(tf.__version__)
        elif precision == "bf16" and not cpu_has("avx512f"):
            refused = "this one has no AVX-512; take fp32"
    if refused:
        raise UserError("--precision is {}, which does not run on {}: {}".format(
            precision, place, refused))
    if xla and use_tpu:
        raise UserError("--xla is set with --use_tpu: a TPU compiles every step anyway")
    if xla and not gpus and tf.__version__.startswith("1."):
        raise UserError("--xla is set on a CPU with TensorFlow {}, which loses updates of "
                        "variables there; take TensorFlow 2.15, or leave it out".format(
                            tf.__version__))
    if xla and precision == "bf16":
        raise UserError("--xla is set with --precision=bf16: on a CPU only one of them works at a "
                        "time")


def cpu_has(feature):
    """Whether the CPU names a feature; taken for granted where it describes itself elsewhere."""
    if not tf.io.gfile.exists(CPU_DESCRIPTION):
        return True
    with tf.io.gfile.GFile(CPU_DESCRIPTION) as stream:  # such a file has no size: line by line
        features = [line.split(":")[1] for line in stream if line.startswith("flags")]
    return any(feature in text.split() for text in features)


def configure(session_config, precision, xla, use_tpu=False):
    """Sets a ConfigProto's rewrites for the precision and compilation; returns it.

    A CPU is compiled for only by a switch in the environment, which is set here.
    """
    options = session_config.graph_options
    if precision == "fp16":
        options.rewrite_options.auto_mixed_precision = options.rewrite_options.ON
    elif precision == "bf16" and not use_tpu:
        options.rewrite_options.auto_mixed_precision_onednn_bfloat16 = options.rewrite_options.ON
    if xla:
        options.optimizer_options.global_jit_level = options.optimizer_options.ON_1
        switches = os.environ.get("TF_XLA_FLAGS", "")
        if COMPILE_FOR_CPU not in switches:
            os.environ["TF_XLA_FLAGS"] = (switches + " " + COMPILE_FOR_CPU).strip()
    return session_config


@contextlib.contextmanager
def tpu_bfloat16(wanted):
    """Variables read inside come as bfloat16 and stay stored as float32; without effect if not
    `wanted`."""
    if not wanted:
        yield
        return
    with tf.tpu.bfloat16_scope() as scope:
        scope.set_dtype(tf.bfloat16)
        yield


class LossScale(object):
    """The factor that keeps float16 gradients above the smallest number: as large as they allow.

    Halved by a step whose gradients are not finite, which is skipped; doubled after GROWTH_STEPS
    finite ones. Not saved: a run that goes on finds its scale within a few steps.
    """

    def __init__(self, growth_steps=GROWTH_STEPS):
        """Makes the state, and reads it once for the step.

        value, skipped: float32 scalars, the factor and how many steps were skipped so far.
        can_fall: bool scalar, whether a step that is not finite may be the factor's fault.
        """
        self.growth_steps = growth_steps
        self.state = [local_scalar("loss_scale/" + name, start) for name, start in (
            ("value", FIRST_SCALE), ("finite_steps", 0.0), ("skipped", 0.0))]
        self.value, self.finite_steps, self.skipped = [v.read_value() for v in self.state]
        self.can_fall = self.value > 1.0

    def next_values(self, finite):
        """The values of `state` after a step; finite: bool scalar, whether the step was taken."""
        finite_steps = tf.where(finite, self.finite_steps + 1.0, 0.0)
        grown = finite_steps >= self.growth_steps
        value = tf.where(finite, tf.where(grown, self.value * 2.0, self.value),
                         tf.maximum(self.value / 2.0, 1.0))
        skipped = self.skipped + 1.0 - tf.cast(finite, tf.float32)
        return [value, tf.where(grown, 0.0, finite_steps), skipped]


def local_scalar(name, value):
    """A variable that no checkpoint holds."""
    return tf.get_variable(
        name, [], initializer=tf.constant_initializer(value), trainable=False,
        collections=[tf.GraphKeys.LOCAL_VARIABLES],
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

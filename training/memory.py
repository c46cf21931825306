"""How many sequences a device holds in training: an estimate, and the choice made by it.

In: the model's config, the lengths and the device.  Out: bytes; a micro-batch size; settings of the
C library's malloc.

The estimate counts what a step keeps for its gradient. tests/training/test_memory.py and
benchmarks/pretraining_step.py hold it against measured peaks.
"""

import collections
import ctypes
import os

import tensorflow.compat.v1 as tf
from tensorflow.python.client import device_lib

from training.micro_batches import even_sizes

FLOAT = 4  # bytes
USABLE = 0.8  # of a device's memory; the rest is for what the estimate does not know
# Interpreter, TensorFlow and input pipeline on the host; TensorFlow 2 comes with more.
PROCESS = (350 if tf.__version__.startswith("1.") else 520) * 2 ** 20
PARAMETER_COPIES = 6  # weights, two moments, gradients, clipped gradients, work of the update
TPU_CORE = 8 * 2 ** 30  # of a v2, the smallest there is
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

# Settings of glibc's malloc, which TensorFlow takes a CPU's tensors from, by malloc.h's numbers.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -3, -4, -8
FOR_SPEED = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, ARENA_MAX: 1}  # -1: never
FOR_LOW_PEAK = {MMAP_MAX: 65536, MMAP_THRESHOLD: 2 ** 22, TRIM_THRESHOLD: 2 ** 22, ARENA_MAX: 1}

Shape = collections.namedtuple("Shape", "seq_length max_predictions passes copies",
                               defaults=(None, 1, 0))
# max_predictions: masked words, None for a head over the whole sequence that predicts none;
# passes: how often each sequence is computed at once;
# copies: of the parameters, beside those of a plain step.


def parameters(config):
    """Number of the model's parameters, both pre-training heads included."""
    hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    attention = 4 * (hidden * hidden + hidden)
    feed_forward = 2 * hidden * inner + inner + hidden
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    copies = {"all": (groups, groups), "attention": (1, layers), "ffn": (layers, 1),
              "none": (layers, layers)}[config.parameter_sharing]
    width = config.embedding_size if config.embedding_style == "google" else hidden
    embeddings = (vocab * config.embedding_size + config.embedding_size * hidden
                  + (config.max_position_embeddings + config.type_vocab_size) * width)
    heads = hidden * hidden + hidden * width + vocab
    return embeddings + copies[0] * attention + copies[1] * feed_forward + heads


def layer_floats(config, length, wanted):
    """Numbers that one layer keeps for its gradient, of one sequence whose output is `wanted` long.

    From the input, key and value on: query, context twice, input and output of the first norm and
    input of the second; the feed-forward network's inside; the attention's weights.
    """
    hidden = config.hidden_size
    kept = 3 * length * hidden + wanted * (6 * hidden + 2 * config.intermediate_size)
    if config.hidden_dropout_prob:
        kept += 4 * wanted * hidden
    return kept + config.num_attention_heads * wanted * length


def sequence_bytes(config, shape, recompute):
    """Bytes that a training step needs for each sequence it computes at once."""
    length, predictions = shape.seq_length, shape.max_predictions
    layer = layer_floats(config, length, length)
    last = layer if predictions is None else layer_floats(config, length, 1 + predictions)
    embeddings = (2 * config.hidden_size + config.embedding_size) * length
    if recompute:
        kept = config.num_hidden_layers * length * config.hidden_size
    else:
        kept = (config.num_hidden_layers - 1) * layer + last
    in_layer = max(3 * config.num_attention_heads * length * length,
                   4 * config.intermediate_size * length) + (layer if recompute else 0)
    in_head = 4 * (predictions or 0) * config.vocab_size
    return shape.passes * FLOAT * (kept + embeddings + max(in_layer, in_head))


def step_bytes(config, shape, rows, batch_size, recompute, on_host=True):
    """Estimated peak memory of a training step in bytes.

    Args:
      shape: Shape.
      rows: sequences computed at once.
      batch_size: sequences of the device; above `rows` the gradients are kept in a sum.
      recompute: bool, whether the layers are computed again for the gradient.
      on_host: bool, whether the process itself counts.
    """
    copies = PARAMETER_COPIES + shape.copies + (1 if rows < batch_size else 0)
    return ((PROCESS if on_host else 0) + copies * FLOAT * parameters(config)
            + rows * sequence_bytes(config, shape, recompute))


def capacity(config, shape, memory, recompute):
    """How many sequences a device of `memory` bytes beside the host computes at once; 0 if none."""
    free = USABLE * memory - step_bytes(config, shape, 0, 1, recompute, on_host=False)
    return max(0, int(free // sequence_bytes(config, shape, recompute)))


def host_memory(limit_files=CGROUP_LIMITS):
    """Bytes that this machine, or the container around this process, has."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in limit_files:
        if tf.io.gfile.exists(path):
            with tf.io.gfile.GFile(path) as stream:
                text = stream.readline().strip()
            if text.isdigit():  # "max" stands for no limit
                found.append(int(text))
    return min(found)


def device_memory(chosen, session_config, use_tpu=False):
    """Bytes that one of the chosen devices can hold.

    Args:
      chosen: devices.Devices.
      session_config: the run's ConfigProto; GPUs are opened with it.
    """
    if use_tpu:
        return TPU_CORE
    if "gpu" in chosen.names[0]:
        return min(device.memory_limit
                   for device in device_lib.list_local_devices(session_config)
                   if device.device_type == "GPU")
    return host_memory() // len(chosen.names)


def choose_micro_batch(config, shape, batch_size, memory, micro_batch_size=0,
                       recompute="auto", on_host=True, most_rows=None):
    """The micro-batch size and whether to recompute, so that a step fits the device; logs both.

    Micro-batches cost next to nothing, so they come before recomputation.

    Args:
      batch_size: the device's sequences in a step.
      memory: the device's bytes.
      micro_batch_size: 0 for the whole batch if it fits, else the largest power of two that divides
        it and fits; any other number is taken as it is.
      recompute: "auto", "true" or "false".
      on_host: see step_bytes.
      most_rows: where less is chosen than fits, for speed, how many sequences at most.
    Returns:
      (sequences computed at once, bool).
    """
    sizes = [micro_batch_size] if micro_batch_size else [
        rows for rows in even_sizes(batch_size) if rows <= (most_rows or batch_size)]
    modes = {"auto": [False, True], "true": [True], "false": [False]}[recompute]
    candidates = [(rows, again) for again in modes for rows in sizes]

    def estimate(rows, again):
        return step_bytes(config, shape, rows, batch_size, again, on_host)

    fitting = [pair for pair in candidates if estimate(*pair) <= USABLE * memory]
    rows, again = fitting[0] if fitting else candidates[-1]
    tf.logging.info(
        "memory: %d of %d sequences at once, %s recomputation: about %.1f GB, the device has %.1f",
        rows, batch_size, "with" if again else "without", estimate(rows, again) / 2.0 ** 30,
        memory / 2.0 ** 30)
    if not fitting:
        tf.logging.warning("this is above %.0f %% of the device's memory and may fail; a smaller "
                           "--micro_batch_size, --recompute=true or a shorter --max_seq_length "
                           "takes less", 100 * USABLE)
    return rows, again


def keep_freed_memory(keep):
    """Sets malloc to keep a freed tensor's memory for the next, or to give back 4 MB and more.

    By default every large tensor comes from the system page by page and goes back there, a tenth
    of a small model's step; and those below 32 MB leave gaps, as much as the memory in use.

    Returns:
      bool, whether the C library could be told so; only glibc can.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # no glibc
        return False
    return all([mallopt(number, value) for number, value in
                (FOR_SPEED if keep else FOR_LOW_PEAK).items()])

"""Which devices a run uses, and what has to be averaged over them.

In: the run's flags and TF_CONFIG.  Out: Devices, with the strategy that the Estimator trains under;
means over all devices for the loss and the optimizer.

One device needs no strategy. Several devices of one machine hold mirrored variables, and so do the
devices of several machines, which TF_CONFIG names. Each device computes on rows of its own; what
all of them must agree on goes through mean_over_devices.
"""

import collections
import contextlib
import json
import multiprocessing
import os
import platform

import tensorflow.compat.v1 as tf

from cli import UserError

MOST_OF_A_CPU = 256  # virtual devices, each with a graph of its own
CLUSTER = "TF_CONFIG"
JOBS = ("chief", "worker")

Devices = collections.namedtuple("Devices", "strategy names workers worker hosts")
# names: this machine's devices; workers: number of machines; worker: this one's, 0 is the chief;
# hosts: "host:port" of every machine, in the order of their numbers.

ALONE = Devices(None, [], 1, 0, [])  # the one device that TensorFlow takes by itself


def choose(num_devices=0, alone=False):
    """The devices of a run.

    Args:
      alone: bool, whether only the first of this machine is taken, as an evaluation needs it.
      num_devices: of this machine; 0 takes every GPU, or the CPU where there is none. On a CPU a
        number above 1 makes virtual devices.
    Returns:
      Devices, whose strategy is None for a single device.
    Raises:
      UserError: more GPUs are asked for than there are; TF_CONFIG cannot be used.
    """
    worker, hosts = place_in_cluster(os.environ.get(CLUSTER, ""))
    gpus = len(tf.config.experimental.list_physical_devices("GPU"))
    if alone:
        return Devices(None, ["/gpu:0" if gpus else "/cpu:0"], 1, worker, hosts)
    if gpus and num_devices > gpus:
        raise UserError("--num_devices is {}, but TensorFlow sees {} GPUs".format(
            num_devices, gpus))
    if num_devices > MOST_OF_A_CPU:
        raise UserError("--num_devices is {}, a CPU takes at most {}".format(
            num_devices, MOST_OF_A_CPU))
    kind = "gpu" if gpus else "cpu"
    names = ["/{}:{}".format(kind, index) for index in range(num_devices or gpus or 1)]
    if len(hosts) > 1:
        if len(names) != (gpus or 1):
            raise UserError("--num_devices is {}: with TF_CONFIG each machine takes all of its {} "
                            "devices; hide some with CUDA_VISIBLE_DEVICES".format(
                                num_devices, gpus or 1))
        return Devices(tf.distribute.experimental.MultiWorkerMirroredStrategy(), names, len(hosts),
                       worker, hosts)
    strategy = tf.distribute.MirroredStrategy(names) if len(names) > 1 else None
    return Devices(strategy, names, 1, 0, hosts)


def place_in_cluster(text):
    """(this machine's number, "host:port" of every one) by the value of TF_CONFIG, else (0, [])."""
    if not text.strip():
        return 0, []
    try:
        value = json.loads(text)
        cluster, task = value.get("cluster", {}), value.get("task", {})
        for hosts in cluster.values():
            if not (isinstance(hosts, list) and all(isinstance(host, str) for host in hosts)):
                raise TypeError
        members = [(job, index) for job in sorted(cluster) for index in range(len(cluster[job]))]
        mine = (task["type"], int(task["index"])) if members else None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError("TF_CONFIG is not of the form {{\"cluster\": {{\"worker\": [\"host:port\", "
                        "…]}}, \"task\": {{\"type\": \"worker\", \"index\": 0}}}}: {}".format(
                            text)) from None
    unknown = sorted(set(cluster) - set(JOBS))
    if unknown:
        raise UserError("TF_CONFIG names the job {!r}; known are {}".format(
            unknown[0], ", ".join(JOBS)))
    if members and mine not in members:
        raise UserError("TF_CONFIG: the cluster has no {} number {}".format(*mine))
    return (members.index(mine) if members else 0,
            [cluster[job][index] for job, index in members])


def is_cluster():
    """Whether TF_CONFIG names several machines."""
    return len(place_in_cluster(os.environ.get(CLUSTER, ""))[1]) > 1


def rows_of_each(chosen, batch_size):
    """How many sequences of a batch each device gets; raises UserError if they cannot be equal."""
    count = len(chosen.names) * chosen.workers
    if batch_size % count:
        raise UserError("--train_batch_size is {}: {} devices ({}) cannot share that evenly".format(
            batch_size, count, describe(chosen)))
    return batch_size // count


def describe(chosen):
    """A few words for the log, say "2 machines with 4 x GPU"."""
    kind = chosen.names[0].strip("/").split(":")[0].upper()
    here = "{} x {}".format(len(chosen.names), kind)
    if kind == "CPU":
        here += " ({} cores)".format(multiprocessing.cpu_count())
    return here if chosen.workers == 1 else "{} machines with {}".format(chosen.workers, here)


def log_devices(chosen, use_tpu=False, num_tpu_cores=0):
    """Says what runs on which device."""
    place = "TPU with {} cores".format(num_tpu_cores) if use_tpu else describe(chosen)
    if chosen.workers > 1:
        place += ", this is machine {} of 0-{}".format(chosen.worker, chosen.workers - 1)
    tf.logging.info("TensorFlow %s, Python %s, on %s", tf.__version__, platform.python_version(),
                    place)


def session_config(chosen=ALONE, deterministic=False):
    """The ConfigProto of every session.

    Operations that may run side by side add up in varying order: `deterministic` runs them one
    after the other.
    """
    config = tf.ConfigProto(allow_soft_placement=True)
    config.gpu_options.allow_growth = True
    if chosen.names and chosen.names[-1].startswith("/cpu"):
        config.device_count["CPU"] = len(chosen.names)
    if deterministic:
        config.inter_op_parallelism_threads = 1
    return config


@contextlib.contextmanager
def outside_cluster():
    """Hides TF_CONFIG, for what this machine does alone."""
    hidden = os.environ.pop(CLUSTER, None)
    try:
        yield
    finally:
        if hidden is not None:
            os.environ[CLUSTER] = hidden


def mean_over_devices(tensors, use_tpu=False):
    """The means of scalars or gradients over all devices that share a batch: a list of tensors.

    To be called once for many tensors from within a model_fn, on every device alike.
    """
    tensors = list(tensors)
    if use_tpu:
        cores = tf.tpu.cross_replica_sum(tf.ones([]))
        return [tf.tpu.cross_replica_sum(tensor) / cores for tensor in tensors]
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return tensors

    def reduce(strategy, values):
        return list(strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.MEAN, [(value, value) for value in values]))
    return context.merge_call(reduce, args=(tensors,))


def on_device_of(copy, variable, value):
    """The value of the device on which a copy of a variable lies, of one that each device has.

    In a function that strategy.extended.update calls for each copy of a variable.
    """
    strategy = tf.distribute.get_strategy()
    place = [own is copy for own in strategy.experimental_local_results(variable)].index(True)
    return strategy.experimental_local_results(value)[place]

"""What both run scripts share around a model: flags, Estimator, train step, progress, evaluation.

In: a loss, scalars to watch and metrics, made by a model_fn.  Out: an EstimatorSpec; log lines and
TensorBoard scalars while training; eval_results.txt after an evaluation.
"""

import collections
import functools
import json
import os
import sys

import tensorflow.compat.v1 as tf
from absl import flags
from tensorflow.compat.v2 import summary

import devices
import optimization
from cli import UserError
from training import hooks
from weights import checkpoints

EVAL_RESULTS = "eval_results.txt"
TERMINATION = hooks.Termination()


def define_flags(flag_values, max_seq_length, train_batch_size, learning_rate,
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
           "Checkpoint to start from. Default: none, that is random weights.")
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
           "Newest checkpoints that are kept. Default: TensorFlow's.")
    integer("log_every_steps", 20,
           "Steps between log lines. Default: some seconds' work for a small model.")
    integer("iterations_per_loop", 1000,
           "Steps of a TPU between two returns to the host. Default: keeps the host's share small.")
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


def check_settings(run):
    """Raises UserError for the first shared flag that no run can be made with."""
    for name in ("max_seq_length", "train_batch_size", "eval_batch_size", "keep_checkpoint_max",
                 "save_checkpoints_steps", "log_every_steps", "iterations_per_loop"):
        if getattr(run, name) < 1:
            raise UserError("--{} is {}, must be at least 1".format(name, getattr(run, name)))
    if not 0 < run.learning_rate < float("inf"):
        raise UserError("--learning_rate is {}, must be above 0 and finite".format(
            run.learning_rate))
    if run.use_tpu:
        check_tpu(run)


def check_tpu(run):
    """Raises UserError for flags that no run on a TPU can be made with."""
    if not (run.tpu_name or run.master):
        raise UserError("--use_tpu needs --tpu_name or --master")
    if run.num_tpu_cores < 1:
        raise UserError("--num_tpu_cores is {}, must be at least 1".format(run.num_tpu_cores))
    for name in ("train_batch_size", "eval_batch_size", "predict_batch_size"):
        size = getattr(run, name, 0)  # pre-training predicts nothing
        if size % run.num_tpu_cores:
            raise UserError("--{} is {}: --num_tpu_cores={} cannot share that evenly".format(
                name, size, run.num_tpu_cores))


def make_estimator(model_fn, run, chosen=None, session_config=None):
    """The Estimator of a run: TPUEstimator with --use_tpu, else Estimator.

    Its input functions take `params`; a TPU puts the batch of one host there as "batch_size".

    Args:
      model_fn: see tf.estimator.Estimator.
      run: the run's settings.
      chosen: devices.Devices to train on; None takes one device of this machine.
      session_config: ConfigProto of its sessions; default: the devices'.
    """
    shared = dict(model_dir=run.output_dir, save_checkpoints_steps=run.save_checkpoints_steps,
                  keep_checkpoint_max=run.keep_checkpoint_max, tf_random_seed=run.random_seed,
                  log_step_count_steps=None, save_summary_steps=0)
    if not run.use_tpu:
        shared["session_config"] = session_config or devices.session_config(
            chosen, run.deterministic)
        if chosen and chosen.strategy:
            config = tf.estimator.RunConfig(train_distribute=chosen.strategy, **shared)
        else:
            with devices.outside_cluster():
                config = tf.estimator.RunConfig(**shared)
        return tf.estimator.Estimator(model_fn, config=config, params={})
    cluster = None
    if run.tpu_name:
        cluster = tf.distribute.cluster_resolver.TPUClusterResolver(
            run.tpu_name, zone=run.tpu_zone, project=run.gcp_project)
    config = tf.estimator.tpu.RunConfig(
        cluster=cluster, master=run.master,
        tpu_config=tf.estimator.tpu.TPUConfig(iterations_per_loop=run.iterations_per_loop,
                                              num_shards=run.num_tpu_cores), **shared)
    return tf.estimator.tpu.TPUEstimator(
        model_fn, config=config, params={}, use_tpu=True, train_batch_size=run.train_batch_size,
        eval_batch_size=run.eval_batch_size,
        predict_batch_size=getattr(run, "predict_batch_size", run.eval_batch_size))


def fit(estimator, input_fn, max_steps, chosen=None):
    """Trains up to step max_steps; SIGTERM ends the process after a step and its checkpoint.

    input_fn takes `params` and, under a strategy, `input_context`.
    """
    with TERMINATION.awaited():
        if chosen and chosen.workers > 1:
            tf.estimator.train_and_evaluate(
                estimator, tf.estimator.TrainSpec(input_fn, max_steps=max_steps),
                tf.estimator.EvalSpec(input_fn, steps=1))  # evaluates nothing without an evaluator
        else:
            estimator.train(input_fn, max_steps=max_steps)


def train_spec(run, loss, scalars, plan, tokens=None, **optimizer):
    """The spec of a training step.

    Args:
      run: the run's settings.
      loss: scalar, of this device's rows.
      scalars: OrderedDict name -> scalar tensor, averaged over the devices and between two log
        lines.
      plan: checkpoints.Plan to start from, or None.
      tokens: scalar, how many tokens this device's rows hold, or None.
      **optimizer: num_train_steps, num_warmup_steps and what else create_optimizer takes.
    """
    update = optimization.create_optimizer(loss, run.learning_rate, use_tpu=run.use_tpu,
                                           **optimizer)
    # A loss that is not finite is for the hooks here to report, not for the Estimator's own.
    shown = tf.where(tf.is_finite(loss), loss, tf.zeros_like(loss))
    scalars = collections.OrderedDict([("loss", loss)], **scalars)
    if run.use_tpu:
        return tpu_train_spec(run, shown, scalars, plan, update)
    initialize(plan)
    watching = training_hooks(run, update, scalars, tokens, optimizer["num_train_steps"])
    # Given here: with several machines the Estimator makes none unless it writes summaries too.
    saving = tf.train.CheckpointSaverHook(run.output_dir, save_steps=run.save_checkpoints_steps)
    return tf.estimator.EstimatorSpec(
        tf.estimator.ModeKeys.TRAIN, loss=shown, train_op=update.op, training_hooks=watching,
        training_chief_hooks=[saving])


def tpu_train_spec(run, shown, scalars, plan, update):
    """The spec of a training step on a TPU: the host writes the scalars, and watches the count."""
    watched = collections.OrderedDict(zip(scalars, devices.mean_over_devices(
        scalars.values(), use_tpu=True)))
    watched.update(
        learning_rate=update.learning_rate, gradient_norm=update.gradient_norm,
        trust_ratio=update.trust_ratio,
        left_out=1.0 - tf.reduce_min(tf.cast(update.finite, tf.float32)))
    with tf.control_dependencies([update.op]):
        watched["step"] = tf.identity(tf.train.get_global_step().read_value())
    to_host = {name: tf.reshape(value, [1]) for name, value in watched.items()}  # [1] of each core
    return tf.estimator.tpu.TPUEstimatorSpec(
        tf.estimator.ModeKeys.TRAIN, loss=shown, train_op=update.op,
        scaffold_fn=functools.partial(initialized_scaffold, plan),
        host_call=(functools.partial(write_scalars, run.output_dir, run.log_every_steps), to_host),
        training_hooks=[hooks.LoopHook(run.output_dir, TERMINATION)])


def initialized_scaffold(plan):
    """initialize(plan) on a TPU's host; returns the Scaffold that its Estimator asks for."""
    initialize(plan)
    return tf.train.Scaffold()


def write_scalars(output_dir, every_steps, step, **scalars):
    """Ops that write the scalars, each given as [cores], of every few steps to an event file.

    Of a step that was left out nothing is written but left_out = 1.
    """
    step, left_out = step[0], scalars["left_out"][0] > 0.0
    wanted = tf.equal(step % every_steps, 0)
    with summary.create_file_writer(output_dir).as_default():  # the Estimator initialises it
        with summary.record_if(tf.logical_or(wanted, left_out)):
            summary.scalar("left_out", tf.reduce_mean(scalars.pop("left_out")), step=step)
        with summary.record_if(tf.logical_and(wanted, tf.logical_not(left_out))):
            for name, values in sorted(scalars.items()):
                summary.scalar(name, tf.reduce_mean(values), step=step)
    return tf.summary.all_v2_summary_ops()


def training_hooks(run, update, scalars, tokens, num_train_steps):
    """The hooks of a training, over the figures of all its devices."""
    if tokens is not None:
        scalars["tokens"] = tf.cast(tokens, tf.float32)
    scalars = collections.OrderedDict(zip(scalars, devices.mean_over_devices(scalars.values())))
    if tokens is not None:
        tokens = scalars.pop("tokens") * tf.distribute.get_replica_context().num_replicas_in_sync
    scalars.update(gradient_norm=update.gradient_norm, trust_ratio=update.trust_ratio)
    return [hooks.FiniteHook(update, run.output_dir),
            hooks.ProgressHook(scalars, update.learning_rate, tokens, num_train_steps,
                               run.train_batch_size, run.log_every_steps,
                               run.output_dir if devices.is_chief() else None),
            hooks.TerminationHook(TERMINATION, lambda vote: devices.mean_over_devices([vote])[0])]


def eval_spec(run, loss, metric_function, tensors, plan=None):
    """The spec of an evaluation; metric_function(*tensors) gives tf.metrics by name."""
    if run.use_tpu:
        return tf.estimator.tpu.TPUEstimatorSpec(
            tf.estimator.ModeKeys.EVAL, loss=loss, eval_metrics=(metric_function, tensors),
            scaffold_fn=functools.partial(initialized_scaffold, plan))
    initialize(plan)
    return tf.estimator.EstimatorSpec(tf.estimator.ModeKeys.EVAL, loss=loss,
                                      eval_metric_ops=metric_function(*tensors))


def predict_spec(run, predictions, plan=None):
    """The spec of a prediction: a dict of tensors whose first axis is the batch.

    Weights alone are restored, so that a converted checkpoint without a step will do.
    """
    mode = tf.estimator.ModeKeys.PREDICT
    if run.use_tpu:
        return tf.estimator.tpu.TPUEstimatorSpec(
            mode, predictions=predictions,
            scaffold_fn=functools.partial(initialized_scaffold, plan))
    initialize(plan)
    weights = tf.trainable_variables()
    scaffold = tf.train.Scaffold(
        saver=tf.train.Saver(weights),
        ready_for_local_init_op=tf.report_uninitialized_variables(weights),
        local_init_op=tf.group(tf.train.Scaffold.default_local_init_op(),
                               tf.train.get_global_step().initializer))
    return tf.estimator.EstimatorSpec(mode, predictions=predictions, scaffold=scaffold)


def initialize(plan):
    """Starts the current graph's variables from the plan's checkpoint, if there is one."""
    if plan is not None:
        checkpoints.initialize_from(plan)


def write_results(results, output_dir, file_name=EVAL_RESULTS, show=True):
    """Writes name = value lines to output_dir and, with `show`, prints them; returns the text."""
    text = "".join("{} = {}\n".format(name, value) for name, value in sorted(results.items()))
    checkpoints.write_whole(os.path.join(output_dir, file_name), text)
    if show:
        sys.stdout.write(text)
        sys.stdout.flush()
    return text


def keep_lowest_loss(results, output_dir):
    """Copies the checkpoint that gave `results` to best/ if no earlier one had a lower loss."""
    folder = os.path.join(output_dir, checkpoints.BEST)
    former = os.path.join(folder, EVAL_RESULTS)
    if tf.io.gfile.exists(former):
        with tf.io.gfile.GFile(former, "r") as stream:
            losses = [line.split(" = ")[1] for line in stream if line.startswith("loss = ")]
        if losses and float(losses[0]) <= results["loss"]:
            return
    checkpoints.copy_newest(output_dir, folder)
    write_results(results, folder, show=False)
    tf.logging.info("step %d has the lowest loss so far, %.4g: kept in %s",
                    results["global_step"], results["loss"], folder)


def write_run(run, config):
    """Keeps the run's config and flags beside its checkpoints, and as text for TensorBoard."""
    writer = tf.summary.FileWriterCache.get(run.output_dir)
    for name, text in (("albert_config.json", config.to_json()),
                       ("flags.json", json.dumps(vars(run), indent=2, sort_keys=True) + "\n")):
        checkpoints.write_whole(os.path.join(run.output_dir, name), text)
        indented = "\n".join("    " + line for line in text.splitlines())  # code in Markdown
        writer.add_summary(text_summary(name.split(".")[0], indented))
    writer.flush()


def text_summary(tag, text):
    """A tf.Summary that TensorBoard shows under Text."""
    about = tf.SummaryMetadata(plugin_data=tf.SummaryMetadata.PluginData(plugin_name="text"))
    return tf.Summary(value=[tf.Summary.Value(
        tag=tag, metadata=about, tensor=tf.make_tensor_proto([text], tf.string))])

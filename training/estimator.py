"""What all run scripts share around a model: Estimator, train step, progress, evaluation.

In: an Engine, and of a model_fn its loss, scalars to watch and metrics.  Out: an EstimatorSpec; log
lines and TensorBoard scalars while training; eval_results.txt after an evaluation.
"""

import collections
import functools
import os

import tensorflow.compat.v1 as tf
from tensorflow.compat.v2 import summary

import devices
import optimization
from cli import UserError, write_whole
from training import failures, hooks, machines, precision
from weights import checkpoints

EVAL_RESULTS = "eval_results.txt"
TERMINATION = hooks.Termination()


def make_estimator(model_fn, engine):
    """The Estimator of a run: TPUEstimator on a TPU, else Estimator.

    Its input functions take `params`; a TPU puts the batch of one host there as "batch_size".

    Args:
      model_fn: see tf.estimator.Estimator.
      engine: run_settings.Engine.
    """
    shared = dict(model_dir=engine.output_dir,
                  save_checkpoints_steps=engine.save_checkpoints_steps,
                  keep_checkpoint_max=engine.keep_checkpoint_max,
                  tf_random_seed=engine.random_seed, log_step_count_steps=None,
                  save_summary_steps=0)
    if engine.tpu:
        return tpu_estimator(model_fn, engine.tpu, shared)
    shared["session_config"] = engine.session_config
    if engine.chosen.strategy:
        config = tf.estimator.RunConfig(train_distribute=engine.chosen.strategy, **shared)
    else:
        with devices.outside_cluster():
            config = tf.estimator.RunConfig(**shared)
    return tf.estimator.Estimator(model_fn, config=config, params={})


def tpu_estimator(model_fn, tpu, shared):
    """The TPUEstimator on a run_settings.Tpu; shared: what both kinds of RunConfig take."""
    try:
        cluster = tpu.name and tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu.name, zone=tpu.zone, project=tpu.project)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise UserError("--tpu_name {!r} cannot be looked up: {}; its grpc:// address needs no "
                        "looking up".format(tpu.name, failures.first_line(error))) from None
    config = tf.estimator.tpu.RunConfig(
        cluster=cluster, master=tpu.master, tpu_config=tf.estimator.tpu.TPUConfig(
            iterations_per_loop=tpu.iterations, num_shards=tpu.cores), **shared)
    sizes = dict({"predict_batch_size": tpu.batch_sizes["eval_batch_size"]}, **tpu.batch_sizes)
    return tf.estimator.tpu.TPUEstimator(model_fn, config=config, params={}, use_tpu=True, **sizes)


def fit(estimator, input_fn, max_steps, chosen=devices.ALONE):
    """Trains up to step max_steps; SIGTERM ends the process after a step and its checkpoint.

    input_fn takes `params` and, under a strategy, `input_context`.
    """
    with TERMINATION.awaited():
        if chosen.workers > 1:
            watch = machines.Watch(chosen.hosts, chosen.worker, estimator.model_dir, max_steps,
                                   TERMINATION)
            with watch.kept():
                tf.estimator.train_and_evaluate(
                    estimator, tf.estimator.TrainSpec(input_fn, max_steps, hooks=[watch]),
                    tf.estimator.EvalSpec(input_fn, steps=1))  # evaluates nothing
        else:
            estimator.train(input_fn, max_steps=max_steps)


def train_spec(engine, training, step, tokens=None, watch=None, **options):
    """The spec of a training step.

    Args:
      engine: run_settings.Engine.
      training: run_settings.Training.
      step: function(factor of the loss, see optimization.dense_gradients) -> (OrderedDict name ->
        scalar of this device's rows, "loss" the first; its gradients in the order of
        tf.trainable_variables()). The scalars are averaged over the devices and between two log
        lines.
      tokens: scalar, how many tokens this device's rows hold, or None.
      watch: function(scalars averaged over the devices) -> further hooks, which a TPU has not.
      **options: further arguments of optimization.create_optimizer.
    """
    loss_scale = precision.LossScale() if engine.precision == "fp16" else None
    scalars, gradients = step(loss_scale and loss_scale.value)
    loss = scalars["loss"]
    if loss_scale:
        scalars["skipped_steps"] = loss_scale.skipped
    update = optimization.create_optimizer(
        loss, training.learning_rate, training.num_train_steps, training.num_warmup_steps,
        training.optimizer, use_tpu=bool(engine.tpu), gradients=gradients, loss_scale=loss_scale,
        correct_bias=training.correct_bias, **options)
    # A loss that is not finite is for the hooks here to report, not for the Estimator's own.
    shown = tf.where(tf.is_finite(loss), loss, tf.zeros_like(loss))
    if engine.tpu:
        return tpu_train_spec(engine, shown, scalars, update)
    initialize(engine)
    watching = training_hooks(engine, training, update, scalars, tokens, watch)
    # Given here: with several machines the Estimator makes none unless it writes summaries too.
    saving = tf.train.CheckpointSaverHook(engine.output_dir,
                                          save_steps=engine.save_checkpoints_steps)
    return tf.estimator.EstimatorSpec(
        tf.estimator.ModeKeys.TRAIN, loss=shown, train_op=update.op, training_hooks=watching,
        training_chief_hooks=[saving])


def training_hooks(engine, training, update, scalars, tokens, watch=None):
    """The hooks of a training, over the figures of all its devices."""
    if tokens is not None:
        scalars["tokens"] = tf.cast(tokens, tf.float32)
    scalars = collections.OrderedDict(zip(scalars, devices.mean_over_devices(scalars.values())))
    if tokens is not None:
        tokens = scalars.pop("tokens") * tf.distribute.get_replica_context().num_replicas_in_sync
    further = watch(scalars) if watch else []
    scalars.update(gradient_norm=update.gradient_norm, trust_ratio=update.trust_ratio)
    return further + [
        hooks.FiniteHook(update, engine.output_dir),
        hooks.ProgressHook(scalars, update.learning_rate, tokens, training,
                           engine.log_every_steps,
                           None if engine.chosen.worker else engine.output_dir),
        hooks.TerminationHook(TERMINATION, lambda vote: devices.mean_over_devices([vote])[0])]


def tpu_train_spec(engine, shown, scalars, update):
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
    write = functools.partial(write_scalars, engine.output_dir, engine.log_every_steps)
    return tf.estimator.tpu.TPUEstimatorSpec(
        tf.estimator.ModeKeys.TRAIN, loss=shown, train_op=update.op, host_call=(write, to_host),
        scaffold_fn=functools.partial(initialize, engine),
        training_hooks=[hooks.LoopHook(engine.output_dir, TERMINATION)])


def initialize(engine):
    """Starts the graph's variables from the engine's plan, unless output_dir holds a checkpoint.

    Returns:
      the Scaffold that the Estimator of a TPU asks for.
    """
    if engine.plan and not checkpoints.newest_checkpoint(engine.output_dir):
        checkpoints.initialize_from(engine.plan)
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


def eval_spec(engine, loss, metric_function, tensors):
    """The spec of an evaluation; metric_function(*tensors) gives tf.metrics by name."""
    spec = tf.estimator.tpu.TPUEstimatorSpec(
        tf.estimator.ModeKeys.EVAL, loss=loss, eval_metrics=(metric_function, tensors),
        scaffold_fn=functools.partial(initialize, engine))
    return spec if engine.tpu else spec.as_estimator_spec()


def write_results(results, folder):
    """Writes name = value lines to the folder's eval_results.txt; returns the text."""
    text = "".join("{} = {}\n".format(name, value) for name, value in sorted(results.items()))
    write_whole(os.path.join(folder, EVAL_RESULTS), text)
    return text


def read_results(folder):
    """{name: value} of the last evaluation that was written there, {} where there was none."""
    path = os.path.join(folder, EVAL_RESULTS)
    if not tf.io.gfile.exists(path):
        return {}
    with tf.io.gfile.GFile(path, "r") as stream:
        return {name: float(value) for name, _, value in
                (line.strip().partition(" = ") for line in stream)}


def keep_lowest_loss(results, output_dir):
    """Copies the checkpoint that gave `results` to best/ if no earlier one had a lower loss."""
    folder = os.path.join(output_dir, checkpoints.BEST)
    if read_results(folder).get("loss", float("inf")) <= results["loss"]:
        return
    checkpoints.copy_newest(output_dir, folder)
    write_results(results, folder)
    tf.logging.info("step %d has the lowest loss so far, %.4g: kept in %s",
                    results["global_step"], results["loss"], folder)

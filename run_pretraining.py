"""Pre-trains ALBERT with masked words and sentence order (paper, sections 3.1 and 4.1).

In: TFRecords of create_pretraining_data.py and a model config.  Out: checkpoints, TensorBoard
scalars and eval_results.txt in --output_dir.
"""

import functools
import math
import os
import types

import tensorflow.compat.v1 as tf
from absl import flags

import cli
import devices
import modeling
import optimization
import plot_training
from pretraining import reader, step
from training import estimator, failures, host_allocator, memory, micro_batches, precision
from weights import checkpoints

PUBLISHED_RATE = 0.00176  # for PUBLISHED_BATCH sequences; smaller batches by the square root
PUBLISHED_BATCH = 4096
RATE_MARGIN = 4.0


def define_flags(flag_values):
    """Defines this script's flags."""
    estimator.define_flags(
        flag_values, max_seq_length=(512, "what create_pretraining_data.py writes"),
        train_batch_size=(32, "fits a small model on any machine"),
        learning_rate=(0.000156, "0.00176, published for batch 4096, times sqrt(32 / 4096)"),
        save_checkpoints_steps=(1000, "loses little when a run is killed"))
    string = functools.partial(flags.DEFINE_string, flag_values=flag_values)
    integer = functools.partial(flags.DEFINE_integer, flag_values=flag_values)
    string("input_file", None,
           "TFRecords to train on: files, patterns in quotes and folders, of which *.tfrecord* "
           "is taken, by commas. Required.")
    string("eval_input_file", None,
           "TFRecords to evaluate on. Default: the training files, which shows the fit and not the "
           "generalisation.")
    integer("max_predictions_per_seq", 76,
            "Masked tokens of a sequence. Default: what create_pretraining_data.py writes, 15 % of "
            "512.")
    integer("num_train_steps", 125000,
            "Steps in all, those of earlier runs in the folder included. Default: the paper's.")
    integer("num_warmup_steps", 12500,
            "Steps over which the learning rate rises. Default: a tenth of num_train_steps.")
    integer("num_devices", 0,
            "Devices of this machine that share the batch. Default: 0, every GPU, else the CPU.")
    integer("eval_every_checkpoints", 0,
            "Evaluate after so many checkpoints and keep the best one in best/. Default: 0, only "
            "at the end with --do_eval.")
    flags.DEFINE_bool("skip_corrupt_records", False,
                      "Leave out corrupt records, counted, after a look at every file. Off: a "
                      "corrupt record ends the run.", flag_values=flag_values)
    flags.DEFINE_bool("plot", False, "Draw the curves to curves.png in output_dir at the end. Off: "
                      "needs matplotlib.", flag_values=flag_values)
    integer("max_eval_steps", 0, "Steps of an evaluation. Default: 0, every record once.")
    integer("micro_batch_size", 0,
            "Sequences that a device computes at once; the gradient is the whole batch's whatever "
            "it is. Default: 0, the most that the device's memory is estimated to hold.")
    flags.DEFINE_enum("recompute", "auto", ["auto", "true", "false"],
                      "Keep only each layer's input and compute the rest again for the gradient, "
                      "which takes a third more work. Default: auto, where not even one sequence "
                      "fits without.", flag_values=flag_values)
    flags.DEFINE_enum("precision", "fp32", precision.PRECISIONS,
                      "Format of the matrix products: fp16 on a GPU, with a loss scale that adapts "
                      "itself; bf16 on a TPU, and on a CPU with TensorFlow 2.15. Default: fp32, "
                      "which runs everywhere.", flag_values=flag_values)
    flags.DEFINE_bool("xla", False, "Compile the graph with XLA. Default: off, on a CPU it gains "
                      "nothing and a TPU does it anyway.", flag_values=flag_values)
    flags.DEFINE_enum("optimizer", "lamb", ["lamb", "adamw"], "Update rule. Default: the paper's.",
                      flag_values=flag_values)
    flags.adopt_module_key_flags(estimator, flag_values)


def model_function(config, run, plan):
    """The model_fn that the Estimator calls."""
    def start():
        return None if checkpoints.newest_checkpoint(run.output_dir) else plan

    on_tpu = dict(use_tpu=run.use_tpu, bfloat16=run.use_tpu and run.precision == "bf16")

    def train(features):
        loss_scale = precision.LossScale() if run.precision == "fp16" else None
        scalars, gradients = step.training_step(
            features, config, run.micro_batch_size, run.recompute == "true",
            loss_scale and loss_scale.value, **on_tpu)
        loss = scalars.pop("loss")
        if loss_scale:
            scalars["skipped_steps"] = loss_scale.skipped
        return estimator.train_spec(
            run, loss, scalars, start(), gradients=gradients, loss_scale=loss_scale,
            tokens=tf.reduce_sum(features["input_mask"]), optimizer=run.optimizer,
            num_train_steps=run.num_train_steps, num_warmup_steps=run.num_warmup_steps)

    def evaluate_batch(features):
        loss, tensors = step.evaluation_step(features, config, **on_tpu)
        return estimator.eval_spec(run, loss, step.evaluation_metrics, tensors, start())

    def model_fn(features, labels, mode, params):
        del labels, params
        return (train if mode == tf.estimator.ModeKeys.TRAIN else evaluate_batch)(features)
    return model_fn


def check_run(run, config):
    """Raises UserError for settings that no run can be made with; warns of an odd rate."""
    estimator.check_settings(run)
    precision.check_precision(run.precision, run.xla, run.use_tpu,
                              len(tf.config.experimental.list_physical_devices("GPU")))
    if not (run.do_train or run.do_eval):
        raise cli.UserError("neither --do_train nor --do_eval is set: nothing to do")
    if run.max_seq_length > config.max_position_embeddings:
        raise cli.UserError("--max_seq_length is {}, above the config's max_position_embeddings "
                            "{}".format(run.max_seq_length, config.max_position_embeddings))
    for name, least in (("max_predictions_per_seq", 1), ("num_train_steps", 1),
                        ("num_warmup_steps", 0), ("max_eval_steps", 0), ("num_devices", 0),
                        ("eval_every_checkpoints", 0)):
        if getattr(run, name) < least:
            raise cli.UserError("--{} is {}, must be at least {}".format(
                name, getattr(run, name), least))
    if run.do_train and run.num_warmup_steps >= run.num_train_steps:
        raise cli.UserError("--num_warmup_steps is {}, must be below --num_train_steps {}".format(
            run.num_warmup_steps, run.num_train_steps))
    if run.plot:
        plot_training.require_matplotlib()
    if run.eval_every_checkpoints and devices.is_cluster():
        raise cli.UserError("--eval_every_checkpoints is for one machine; with TF_CONFIG let a "
                            "process of its own evaluate: --do_eval without --do_train")
    usual = PUBLISHED_RATE * math.sqrt(run.train_batch_size / float(PUBLISHED_BATCH))
    if (run.do_train and run.optimizer == "lamb"
            and not usual / RATE_MARGIN <= run.learning_rate <= usual * RATE_MARGIN):
        tf.logging.warning(
            "--learning_rate=%g looks scaled for another batch: with LAMB and "
            "--train_batch_size=%d about %.3g is usual (%g · √(batch/%d))", run.learning_rate,
            run.train_batch_size, usual, PUBLISHED_RATE, PUBLISHED_BATCH)


def device_batch_size(run, chosen):
    """How many sequences of a step one device gets."""
    return run.train_batch_size // (run.num_tpu_cores if run.use_tpu else devices.total(chosen))


def fitted(run, config, chosen, session_config):
    """The run with --micro_batch_size and --recompute settled, so that a step fits its devices."""
    batch_size = device_batch_size(run, chosen)
    rows, again = memory.choose_micro_batch(
        config, memory.Shape(run.max_seq_length, run.max_predictions_per_seq), batch_size,
        memory.device_memory(chosen, session_config, run.use_tpu), run.micro_batch_size,
        run.recompute, on_host=not run.use_tpu and "cpu" in chosen.names[0])
    return types.SimpleNamespace(**dict(vars(run), micro_batch_size=rows,
                                        recompute="true" if again else "false"))


def sources(run, config):
    """The checked records to train on and to evaluate on."""
    def checked(patterns, flag_name):
        found = reader.peek(
            reader.find_files(patterns, flag_name), run.max_seq_length,
            run.max_predictions_per_seq, flag_name, run.skip_corrupt_records,
            config.vocab_size)
        reader.check_vocab_size(found, config.vocab_size)
        return found

    source = checked(run.input_file, "input_file")
    tf.logging.info("%d input files, the first %s", len(source.files), source.files[0])
    if not (run.do_eval or run.eval_every_checkpoints):
        return source, None
    if run.eval_input_file:
        return source, checked(run.eval_input_file, "eval_input_file")
    tf.logging.info("no --eval_input_file: the evaluation reads the training files, once")
    return source, source


def sound_sources(run, train_source, eval_source):
    """Both sources without corrupt records; files that held some are copied to output_dir."""
    def sound(source, folder):
        return reader.without_corrupt(source, os.path.join(run.output_dir, folder))

    train_sound = sound(train_source, "sound_records")
    if eval_source in (None, train_source):
        return train_sound, eval_source and train_sound
    return train_sound, sound(eval_source, "sound_eval_records")


def training_input(run, source):
    """The input_fn of a training that goes on from output_dir's newest checkpoint."""
    done = checkpoints.step_of(run.output_dir)

    def input_fn(params, input_context=None):
        batch_size, worker, workers = run.train_batch_size, 0, 1
        if run.use_tpu:
            _, worker, workers, _ = params["context"].current_input_fn_deployment()
            batch_size = params["batch_size"]
        elif input_context:
            batch_size = input_context.get_per_replica_batch_size(run.train_batch_size)
            worker, workers = input_context.input_pipeline_id, input_context.num_input_pipelines
        return reader.training_dataset(
            source, batch_size, run.random_seed, done * run.train_batch_size, worker, workers)
    return input_fn


def train(trainer, run, chosen, source, evaluate_now):
    """Trains up to --num_train_steps from where the folder's newest checkpoint stands.

    evaluate_now() is called after every --eval_every_checkpoints checkpoints.
    """
    done, last = checkpoints.step_of(run.output_dir), run.num_train_steps
    if done >= last:
        tf.logging.info("nothing to train: %s is at step %d of %d", run.output_dir, done, last)
        return
    tf.logging.info("training from step %d to %d, batch %d", done, last, run.train_batch_size)
    every = run.eval_every_checkpoints * run.save_checkpoints_steps or last
    while done < last:
        done = min(last, (done // every + 1) * every)
        with memory.pretraining_advice(run):
            estimator.fit(trainer, training_input(run, source), done, chosen)
        if run.eval_every_checkpoints and (done < last or not run.do_eval):
            evaluate_now()


def evaluate(trainer, run, source):
    """Evaluates the newest checkpoint, or --init_checkpoint where the folder has none."""
    def input_fn(params):
        return reader.evaluation_dataset(
            source, params.get("batch_size", run.eval_batch_size))
    steps = run.max_eval_steps or None
    if run.use_tpu and not steps:
        steps = -(-reader.count_source(source) // run.eval_batch_size)
    with memory.evaluation_advice(run, "eval_batch_size"):
        results = dict(trainer.evaluate(input_fn, steps=steps))
    results["loss"] = results["mlm_loss"] + results["sop_loss"]
    estimator.write_results(results, run.output_dir)
    if run.do_train and run.eval_every_checkpoints:
        estimator.keep_lowest_loss(results, run.output_dir)


def session_config_of(run, chosen=None):
    """The ConfigProto of a run's sessions; chosen: devices.Devices, None for one of this machine.
    """
    return precision.configure(devices.session_config(chosen, run.deterministic), run.precision,
                               run.xla, run.use_tpu)


def run_model(run, config, plan, chosen, train_source, eval_source):
    """Trains and evaluates as the flags say."""
    session_config = session_config_of(run, chosen)
    if run.do_train:
        run = fitted(run, config, chosen, session_config)
        host_allocator.keep_freed_memory(run.recompute == "false")
    model_fn = model_function(config, run, plan)
    trainer = estimator.make_estimator(model_fn, run, chosen, session_config)
    alone = trainer if chosen.workers == 1 else estimator.make_estimator(
        model_fn, run, session_config=session_config_of(run))
    if run.do_train:
        train(trainer, run, chosen, train_source, lambda: evaluate(alone, run, eval_source))
    if run.do_eval and devices.is_chief():
        evaluate(alone, run, eval_source)
    if run.plot and devices.is_chief():
        plot_training.plot_run(run.output_dir)


def main(flag_values):
    """Checks everything, then trains and evaluates as the flags say."""
    tf.logging.set_verbosity(tf.logging.INFO)
    cli.require_flags(flag_values, ["bert_config_file", "input_file", "output_dir"])
    run = cli.settings_of(flag_values)
    config = modeling.AlbertConfig.from_json_file(run.bert_config_file)
    check_run(run, config)
    chosen = devices.choose(run.num_devices)
    devices.log_devices(chosen, run.use_tpu, run.num_tpu_cores)
    devices.check_batch(chosen, run.train_batch_size)
    micro_batches.check_micro_batch_size(run.micro_batch_size, device_batch_size(run, chosen))
    train_source, eval_source = sources(run, config)
    variables = step.model_variables(config)
    plan = (checkpoints.plan_initialization(run.init_checkpoint, variables)
            if run.init_checkpoint else None)
    checkpoints.require_folder(run.output_dir)
    checkpoints.check_resume(run.output_dir, variables, run.do_train and
                             optimization.OPTIMIZERS[run.optimizer].slot_prefix)
    if checkpoints.newest_checkpoint(run.output_dir):
        plan = None  # a run goes on from its own weights
        checkpoints.step_of(run.output_dir)  # raises where there is none
    elif not (run.do_train or plan):
        raise cli.UserError("--do_eval: --output_dir {!r} holds no checkpoint and there is no "
                            "--init_checkpoint".format(run.output_dir))
    with failures.explained(run.output_dir, lambda: reader.find_damage(
            [train_source] + [eval_source] * bool(eval_source))):
        if devices.is_chief():
            estimator.write_run(run, config)
        if run.skip_corrupt_records:
            train_source, eval_source = sound_sources(run, train_source, eval_source)
        run_model(run, config, plan, chosen, train_source, eval_source)


if __name__ == "__main__":
    cli.run(main, define_flags)

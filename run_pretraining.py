"""Pre-trains ALBERT with masked words and sentence order (paper, sections 3.1 and 4.1).

In: TFRecords of create_pretraining_data.py and a model config.  Out: checkpoints, TensorBoard
scalars and eval_results.txt in --output_dir.
"""

import collections
import contextlib
import functools
import os
import types

import tensorflow.compat.v1 as tf
from absl import flags

import cli
import devices
import modeling
import optimization
from pretraining import plateau, reader, step
from training import (
    curves,
    estimator,
    failures,
    former_run,
    memory,
    micro_batches,
    run_settings,
)
from weights import checkpoints

RATE_MARGIN = 4.0

Evaluation = collections.namedtuple(
    "Evaluation", "source batch_size max_steps at_end every_checkpoints checkpoint")
# max_steps: None for every record; every_checkpoints: 0 for none on the way;
# checkpoint: path, None for the newest.
Job = collections.namedtuple("Job", "config engine first_step training train_source evaluation")
# engine: run_settings.Engine; first_step: of output_dir's newest checkpoint, or 0;
# training, train_source: None for evaluation alone; evaluation: None for none.


def define_flags(flag_values):
    """Defines this script's flags."""
    run_settings.define_shared_flags(
        flag_values, max_seq_length=(512, "what create_pretraining_data.py writes"),
        train_batch_size=(32, "fits a small model on any machine"),
        learning_rate=(None, "by optimizer, batch, length and width, and said in the log"),
        save_checkpoints_steps=(1000, "loses little when a run is killed"))
    string, boolean, integer, enum = [
        functools.partial(define, flag_values=flag_values) for define in (
            flags.DEFINE_string, flags.DEFINE_bool, flags.DEFINE_integer, flags.DEFINE_enum)]
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
    integer("num_warmup_steps", None,
            "Steps over which the learning rate rises. Default: a tenth of num_train_steps.")
    integer("eval_every_checkpoints", 0,
            "Evaluate after so many checkpoints and keep the best one in best/. Default: 0, only "
            "at the end with --do_eval.")
    boolean("skip_corrupt_records", False,
            "Leave out corrupt records, counted, after a look at every file. Off: a corrupt record "
            "ends the run.")
    boolean("plot", False,
            "Draw the curves to curves.png in output_dir at the end. Off: needs matplotlib.")
    integer("max_eval_steps", 0, "Steps of an evaluation. Default: 0, every record once.")
    enum("optimizer", None, ["lamb", "adamw"],
         "Update rule. Default: that of the checkpoint in output_dir; else lamb, the paper's, for "
         "steps of {} tokens and more, and adamw, which learns faster, below.".format(
             optimization.LAMB_TOKENS))
    boolean("bias_correction", True,
            "Correct AdamW's moments for their start from 0. Default: on; without, as in BERT and "
            "albert_zh, the first steps are up to 6.5 times too long and pre-training starts late.")
    flags.adopt_module_key_flags(run_settings, flag_values)


def model_function(config, engine, training, unigram_loss=None):
    """The model_fn that the Estimator calls.

    Args:
      config: modeling.AlbertConfig.
      engine: run_settings.Engine.
      training: run_settings.Training, or None for evaluation alone.
      unigram_loss: see plateau.PlateauHook; None leaves that hook out.
    """
    place = dict(use_tpu=bool(engine.tpu), fixed_shapes=engine.fixed_shapes,
                 bfloat16=bool(engine.tpu) and engine.precision == "bf16")

    def watch(scalars):
        if unigram_loss is None:
            return []
        return [plateau.PlateauHook(scalars["mlm_loss"], unigram_loss,
                                    training.num_warmup_steps)]

    def train_batch(features):
        return estimator.train_spec(
            engine, training, lambda loss_factor: step.training_step(
                features, config, training.micro_batch_size, training.recompute, loss_factor,
                **place),
            tf.reduce_sum(features["input_mask"]), watch)

    def evaluate_batch(features):
        rows = micro_batches.rows_cut_together(engine, *features["input_ids"].shape.as_list())
        loss, tensors = step.evaluation_step(features, config, rows, **place)
        return estimator.eval_spec(engine, loss, step.evaluation_metrics, tensors)

    def model_fn(features, labels, mode, params):
        del labels, params
        return (train_batch if mode == tf.estimator.ModeKeys.TRAIN else evaluate_batch)(features)
    return model_fn


def with_fitting_values(settings, config):
    """The settings with values for --optimizer, --learning_rate and --num_warmup_steps left out."""
    cli.require_within(settings, 1, run_settings.MOST_SEQUENCES, "train_batch_size")
    cli.require_within(settings, 1, cli.MOST, "max_seq_length", "num_train_steps")
    chosen = types.SimpleNamespace(**vars(settings))
    batch, length = settings.train_batch_size, settings.max_seq_length
    if chosen.num_warmup_steps is None:
        chosen.num_warmup_steps = settings.num_train_steps // 10
    if chosen.optimizer is None:
        chosen.optimizer = checkpoints.optimizer_of(settings.output_dir, {
            name: rule.slot_prefix for name, rule in optimization.OPTIMIZERS.items()})
    if chosen.optimizer is None:
        chosen.optimizer = optimization.fitting_optimizer(batch, length)
    if chosen.learning_rate is None:
        chosen.learning_rate = optimization.fitting_rate(
            chosen.optimizer, batch, length, config.hidden_size)
    if None in (settings.optimizer, settings.learning_rate):
        tf.logging.info(
            "optimizer %s, learning rate %.3g, %d warm-up steps: what was left out is chosen for "
            "steps of %d tokens (%d x %d) and hidden size %d", chosen.optimizer,
            chosen.learning_rate, chosen.num_warmup_steps, batch * length, batch, length,
            config.hidden_size)
    return chosen


def check_settings(settings, config):
    """Raises UserError for settings that the job cannot be done with; warns of an odd rate."""
    if not (settings.do_train or settings.do_eval):
        raise cli.UserError("neither --do_train nor --do_eval is set: nothing to do")
    run_settings.check_shared_settings(settings, ["train_batch_size"] * settings.do_train
                                       + ["eval_batch_size"] * evaluates(settings))
    if settings.max_seq_length > config.max_position_embeddings:
        raise cli.UserError("--max_seq_length is {}, above the config's max_position_embeddings "
                            "{}".format(settings.max_seq_length, config.max_position_embeddings))
    cli.require_within(settings, 1, cli.MOST, "max_predictions_per_seq")
    cli.require_within(settings, 0, cli.MOST, "max_eval_steps")
    if settings.do_train:
        check_training(settings)
    if settings.plot:
        curves.require_matplotlib()


def check_training(settings):
    """check_settings for what a training alone reads."""
    cli.require_within(settings, 1, cli.MOST, "num_train_steps")
    cli.require_within(settings, 0, cli.MOST, "num_warmup_steps", "eval_every_checkpoints")
    if settings.num_warmup_steps >= settings.num_train_steps:
        raise cli.UserError("--num_warmup_steps is {}, must be below --num_train_steps {}".format(
            settings.num_warmup_steps, settings.num_train_steps))
    if settings.eval_every_checkpoints and devices.is_cluster():
        raise cli.UserError("--eval_every_checkpoints is for one machine; with TF_CONFIG let a "
                            "process of its own evaluate: --do_eval without --do_train")
    if settings.optimizer == "lamb":
        warn_of_rate(settings.learning_rate, settings.train_batch_size)


def evaluates(settings):
    """Whether the job has an evaluation, at its end or on the way."""
    return settings.do_eval or settings.do_train and settings.eval_every_checkpoints > 0


def unused_flags(settings):
    """{why: names} of the flags that the job leaves aside, see run_settings.say_unused."""
    unused = {}
    if not settings.do_train:
        unused["nothing is trained"] = run_settings.TRAINING_FLAGS + (
            "num_train_steps", "num_warmup_steps", "eval_every_checkpoints", "optimizer",
            "bias_correction")
        if settings.eval_input_file:
            unused["--eval_input_file is evaluated"] = ("input_file",)
    if not evaluates(settings):
        unused["nothing is evaluated"] = ("eval_batch_size", "eval_input_file", "max_eval_steps")
    return dict(unused, **run_settings.unused_of_place(settings))


def warn_of_rate(learning_rate, batch_size):
    """Warns where LAMB's learning rate looks meant for another batch size."""
    usual = optimization.fitting_rate("lamb", batch_size, 0, 1)
    if not usual / RATE_MARGIN <= learning_rate <= usual * RATE_MARGIN:
        tf.logging.warning(
            "--learning_rate=%g looks scaled for another batch: with LAMB and "
            "--train_batch_size=%d about %.3g is usual (%g · √(batch/%d))", learning_rate,
            batch_size, usual, optimization.PUBLISHED_RATE, optimization.PUBLISHED_BATCH)


def sources(settings, vocab_size):
    """The checked records to train on and to evaluate on; None for what the job does not do."""
    def checked(patterns, flag_name):
        return reader.peek(
            reader.find_files(patterns, flag_name), settings.max_seq_length,
            settings.max_predictions_per_seq, flag_name, settings.skip_corrupt_records, vocab_size)

    train_source = eval_source = None
    separate = evaluates(settings) and settings.eval_input_file
    if settings.do_train or not separate:
        train_source = checked(settings.input_file, "input_file")
        tf.logging.info("%d input files, the first %s", len(train_source.files),
                        train_source.files[0])
    if separate:
        eval_source = checked(settings.eval_input_file, "eval_input_file")
    elif evaluates(settings):
        tf.logging.info("no --eval_input_file: the evaluation reads the training files, once")
        eval_source = train_source
    return train_source, eval_source


def starting_point(settings, config):
    """(checkpoints.Plan of a new run or None, checkpoint to evaluate or None for the newest).

    Makes output_dir where it is missing.

    Raises:
      UserError: the checkpoint that is used does not fit, or there is none for an evaluation.
    """
    output_dir, variables = settings.output_dir, step.model_variables(config)
    plan = chosen = None
    newest = checkpoints.newest_checkpoint(output_dir)
    if settings.init_checkpoint and not newest:
        plan = checkpoints.plan_initialization(settings.init_checkpoint, variables)
    elif settings.init_checkpoint:
        chosen = former_run.named_checkpoint(settings, newest)
    checkpoints.require_folder(output_dir)
    if chosen:
        chosen = checkpoints.plan_initialization(chosen, variables).prefix
    else:
        checkpoints.check_resume(output_dir, variables, settings.do_train and
                                 optimization.OPTIMIZERS[settings.optimizer].slot_prefix)
    former_run.require_same_model(output_dir, config)
    if not (settings.do_train or plan or newest):
        raise cli.UserError("--do_eval: --output_dir {!r} holds no checkpoint and there is no "
                            "--init_checkpoint".format(output_dir))
    return plan, chosen


def training_of(settings, config, engine, rows):
    """The Training that fits the devices; rows: sequences of a step that each of them gets."""
    micro_batch_size, recompute = run_settings.fitting_parts(
        settings, config, engine, rows,
        memory.Shape(settings.max_seq_length, settings.max_predictions_per_seq),
        micro_batches.rows_cut_together(engine, rows, settings.max_seq_length))
    return run_settings.Training(
        settings.train_batch_size, settings.learning_rate, settings.num_train_steps,
        settings.num_warmup_steps, settings.optimizer, micro_batch_size, recompute,
        settings.bias_correction)


def prepare_job(settings):
    """The Job that the flags ask for; raises UserError for what does not fit together."""
    config = modeling.AlbertConfig.from_json_file(settings.bert_config_file)
    if settings.do_train:
        settings = with_fitting_values(settings, config)
    check_settings(settings, config)
    chosen, rows = run_settings.place_of(settings)
    train_source, eval_source = sources(settings, config.vocab_size)
    plan, checkpoint = starting_point(settings, config)
    engine = run_settings.engine_of(settings, plan, chosen)
    training = training_of(settings, config, engine, rows) if settings.do_train else None
    evaluation = eval_source and Evaluation(
        eval_source, settings.eval_batch_size, settings.max_eval_steps or None, settings.do_eval,
        training and settings.eval_every_checkpoints or 0, checkpoint)
    return Job(config, engine, checkpoints.step_of(settings.output_dir), training, train_source,
               evaluation)


def without_corrupt_records(job):
    """The job without corrupt records; files that held some are copied to output_dir."""
    def intact(source, folder):
        return reader.without_corrupt(source, os.path.join(job.engine.output_dir, folder))

    train_source, evaluation = job.train_source, job.evaluation
    if train_source:
        train_source = intact(train_source, "intact_records")
    if evaluation and evaluation.source is job.train_source:
        evaluation = evaluation._replace(source=train_source)
    elif evaluation:
        evaluation = evaluation._replace(source=intact(evaluation.source, "intact_eval_records"))
    return job._replace(train_source=train_source, evaluation=evaluation)


def training_input(engine, source, batch_size):
    """The input_fn of a training that goes on from output_dir's newest checkpoint."""
    seen = checkpoints.step_of(engine.output_dir) * batch_size

    def input_fn(params, input_context=None):
        rows, worker, workers = batch_size, 0, 1
        if engine.tpu:
            _, worker, workers, _ = params["context"].current_input_fn_deployment()
            rows = params["batch_size"]
        elif input_context:
            rows = input_context.get_per_replica_batch_size(batch_size)
            worker, workers = input_context.input_pipeline_id, input_context.num_input_pipelines
        return reader.training_dataset(source, rows, engine.random_seed, seen, worker, workers)
    return input_fn


def train(trainer, job, evaluate_now):
    """Trains up to --num_train_steps from where the folder's newest checkpoint stands.

    evaluate_now() is called after every --eval_every_checkpoints checkpoints, and first of all
    where an earlier run was killed before it had evaluated such a checkpoint.
    """
    output_dir, training = job.engine.output_dir, job.training
    done, last = job.first_step, training.num_train_steps
    every = job.evaluation.every_checkpoints * job.engine.save_checkpoints_steps if (
        job.evaluation) else 0

    def is_due(step):
        at_end = step >= last
        return every and (at_end and not job.evaluation.at_end or not at_end and not step % every)

    if done and is_due(done) and estimator.read_results(output_dir).get("global_step") != done:
        evaluate_now()
    if done >= last:
        tf.logging.info("nothing to train: %s is at step %d of %d", output_dir, done, last)
        return
    tf.logging.info("training from step %d to %d, batch %d", done, last, training.batch_size)
    while done < last:
        done = min(last, (done // every + 1) * every) if every else last
        with failures.step_advice(training.micro_batch_size, training.recompute):
            estimator.fit(trainer, training_input(job.engine, job.train_source,
                                                  training.batch_size), done, job.engine.chosen)
        if is_due(done):
            evaluate_now()


def evaluate(trainer, engine, evaluation):
    """Evaluates the checkpoint, or --init_checkpoint where the folder has none."""
    source = evaluation.source

    def input_fn(params):
        return reader.evaluation_dataset(source, params.get("batch_size", evaluation.batch_size))

    steps = evaluation.max_steps
    if engine.tpu and not steps:
        steps = -(-reader.count_source(source) // evaluation.batch_size)
    with failures.forward_advice("eval_batch_size", evaluation.batch_size, source.seq_length):
        results = dict(trainer.evaluate(input_fn, steps=steps,
                                        checkpoint_path=evaluation.checkpoint))
    results["loss"] = results["mlm_loss"] + results["sop_loss"]
    if evaluation.every_checkpoints:
        estimator.keep_lowest_loss(results, engine.output_dir)
    print(estimator.write_results(results, engine.output_dir), end="", flush=True)


def pretrain(job):
    """Trains and evaluates."""
    engine, unigram_loss = job.engine, None
    if job.training and not engine.tpu and not engine.chosen.worker:
        unigram_loss = plateau.entropy(plateau.token_counts(
            job.train_source, job.config.vocab_size))
        plateau.log_expectation(unigram_loss, job.config.vocab_size)
    model_fn = model_function(job.config, engine, job.training, unigram_loss)
    trainer = estimator.make_estimator(model_fn, engine)
    alone = trainer if engine.chosen.workers == 1 else estimator.make_estimator(
        model_fn, engine._replace(chosen=devices.ALONE))
    evaluate_now = functools.partial(evaluate, alone, engine, job.evaluation)
    if job.training:
        memory.keep_freed_memory(not job.training.recompute)
        train(trainer, job, evaluate_now)
    if job.evaluation and job.evaluation.at_end and not engine.chosen.worker:
        evaluate_now()


def main(flag_values):
    """Checks everything, then trains and evaluates as the flags say."""
    tf.logging.set_verbosity(tf.logging.INFO)
    settings = cli.settings_of(flag_values)
    needs_input = settings.do_train or not settings.eval_input_file
    cli.require_flags(flag_values, ["bert_config_file", "output_dir"] + [
        "input_file"] * needs_input)
    run_settings.say_unused(cli.given_flags(flag_values), unused_flags(settings))
    job = prepare_job(settings)
    is_chief = not job.engine.chosen.worker
    read = [job.train_source, job.evaluation and job.evaluation.source]
    with failures.explained(settings.output_dir, lambda: reader.find_damage(filter(None, read))):
        with contextlib.ExitStack() as lock:
            if is_chief and job.training:
                lock.enter_context(cli.sole_writer(settings.output_dir, "output_dir"))
                former_run.say_changed_flags(settings.output_dir, settings)
                former_run.write_settings(settings.output_dir, job.config, settings)
            pretrain(without_corrupt_records(job) if settings.skip_corrupt_records else job)
            if settings.plot and is_chief:
                curves.plot_run(settings.output_dir)


if __name__ == "__main__":
    cli.run(main, define_flags)

"""What every fine-tuning script does around its own head: flags, checks, training, resuming.

In: the flags of a run, a head's loss and encoded examples.  Out: checkpoints in output_dir, which
describes itself, and in best/ the one that was best on dev; reports, predictions, exports, answers.
"""

import argparse
import codecs
import contextlib
import functools
import os
import sys

import tensorflow.compat.v1 as tf
from absl import flags

import devices
import modeling
from cli import UserError, print_answers, sole_writer
from fine_tuning import early_stopping, export, portable, predictor, step
from fine_tuning.examples import Shares, batches_per_epoch, example_batches
from fine_tuning.report import write_report
from tokenization import FullTokenizer
from training import estimator, failures, former_run, memory, run_settings
from weights import checkpoints


def define_fine_tuning_flags(flag_values, measure, num_train_epochs, **shared):
    """Defines the flags of every fine-tuning script.

    Args:
      measure: what --save_best and --patience go by, say "accuracy".
      num_train_epochs: (default, its reason).
      shared: more such pairs, see run_settings.define_shared_flags.
    """
    run_settings.define_shared_flags(
        flag_values, save_checkpoints_steps=(1000, "loses little when a run is killed"), **shared)
    string, boolean, integer, real = [
        functools.partial(define, flag_values=flag_values) for define in (
            flags.DEFINE_string, flags.DEFINE_bool, flags.DEFINE_integer, flags.DEFINE_float)]
    string("data_dir", None, "Folder of the task's files. Required, unless output_dir knows it.")
    string("vocab_file", None, "Vocabulary. Required, unless output_dir holds it.")
    boolean("do_lower_case", True, "Lower-case Latin letters. Default: fits the vocabulary.")
    string("input_encoding", "utf-8", "Encoding of the data files. Default: what public ones use.")
    boolean("do_predict", False, "Write predictions. Off, as do_train is.")
    integer("predict_batch_size", 32, "Rows in a prediction step; the result does not depend on "
            "it. Default: fits any device.")
    boolean("do_export", False, "Write a SavedModel and, with TensorFlow 2.15, TFLite files. Off, "
            "as do_train is.")
    boolean("export_onnx", False, "With --do_export, also an ONNX file. Off: needs ./setup.sh "
            "--with=onnx.")
    flags.DEFINE_enum("eval_split", "dev", ["dev", "test"], "File that --do_eval reads. Default: "
                      "leaves the test file for the last word.", flag_values=flag_values)
    real("num_train_epochs", num_train_epochs[0],
         "Passes over the training file. Default: {}.".format(num_train_epochs[1]))
    real("warmup_proportion", 0.1, "Share of the steps over which the rate rises. Default: BERT's.")
    boolean("save_best", False, "Evaluate on dev at each epoch or checkpoint, keep the one of best "
            "{} in best/ and use it afterwards. Off: costs time; the newest is used.".format(
                measure))
    integer("patience", 0, "Stop after so many evaluations on dev without a better {}. Default: "
            "0, never.".format(measure))
    integer("num_runs", 1, "Fine-tune so many times, with random_seed, random_seed + 1, ..., each "
            "in run_<seed>/; say mean and spread on dev and keep the best model. Default: once.")
    boolean("pad_to_max_length", False, "Pad every batch to max_seq_length, as on a TPU. Off: to "
            "its longest row, several times faster.")
    flags.adopt_module_key_flags(run_settings, flag_values)


# --- before the work --------------------------------------------------------------------------


def completed_settings(settings, given, head, remembered, complete=lambda settings: settings):
    """What recall gives, with what a script derives from other flags; all checked.

    complete: function from settings to those that the script means by them.
    """
    settings, description = recall(settings, given, head, remembered)
    settings = complete(settings)
    check_fine_tuning_settings(settings, given)
    return settings, description


def recall(settings, given, head, remembered):
    """Completes settings by what output_dir says of itself; nothing is taken over for training.

    Where it holds nothing, --init_checkpoint's folder is asked.

    Args:
      settings: of the flags.  given: names of the flags that were given.
      head: of the script, one of predictor.HEADS.
      remembered: names of the flags that a folder knows.
    Returns:
      (settings, changed in a copy; the folder's description, or None).
    Raises:
      UserError: output_dir holds a model with another head.
    """
    folder, description = settings.output_dir, predictor.read_description(settings.output_dir)
    if description and description["head"] != head:
        raise UserError("--output_dir {!r} holds a model with the head {!r}, this script has "
                        "{!r}; take another folder".format(folder, description["head"], head))
    if settings.do_train:
        return settings, None
    if not description and settings.init_checkpoint and not checkpoints.newest_checkpoint(folder):
        folder = settings.init_checkpoint
        if not tf.io.gfile.isdir(folder):
            folder = os.path.dirname(folder) or "."
        description = predictor.read_description(folder)
    if description is None or description["head"] != head:
        return settings, None
    known = {name: description[name] for name in remembered
             if name in description and name not in given}
    for name, file in (("vocab_file", predictor.VOCABULARY),
                       ("bert_config_file", predictor.CONFIG)):
        if not getattr(settings, name):
            known[name] = os.path.join(folder, file)
    return changed(settings, **known), description


def changed(settings, **changes):
    """A copy of the settings with some changed."""
    return argparse.Namespace(**dict(vars(settings), **changes))


def used_batch_sizes(settings):
    """Those of run_settings.BATCH_SIZES that the job uses."""
    uses = ((settings.do_train, "train_batch_size"),
            (settings.do_eval or watches(settings), "eval_batch_size"),
            (settings.do_predict or settings.do_export, "predict_batch_size"))
    return [name for used, name in uses if used]


def watches(settings):
    """Whether a training is evaluated on the way."""
    return settings.do_train and bool(settings.save_best or settings.patience)


def flags_left_aside(settings):
    """{why: names} of the flags that the job leaves aside, see run_settings.say_unused."""
    used = used_batch_sizes(settings)
    unused = {}
    if not settings.do_train:
        unused["nothing is trained"] = run_settings.TRAINING_FLAGS + (
            "num_train_epochs", "warmup_proportion", "save_best", "patience", "num_runs",
            "num_folds", "classifier_dropout", "crf_learning_rate", "layer_decay", "fgm_epsilon",
            "rdrop_weight", "label_smoothing", "focal_gamma", "class_weights", "ema_decay")
        if settings.do_export:  # the seed draws the words on which it is compared
            unused["nothing is trained"] = tuple(
                name for name in unused["nothing is trained"] if name != "random_seed")
    if not settings.do_eval:
        unused["nothing is evaluated"] = ("eval_split",) + (
            () if "eval_batch_size" in used else ("eval_batch_size",))
    if not settings.do_predict:
        unused["nothing is predicted"] = (
            "predict_file", "clue_submission", "cluener_submission") + (
            () if "predict_batch_size" in used else ("predict_batch_size",))
    return dict(unused, **run_settings.unused_of_place(settings))


def check_fine_tuning_settings(settings, given):
    """Raises UserError for the first flag of every fine-tuning script that the job cannot have.

    Of those given the log names the ones that it does not use.
    """
    run_settings.say_unused(given, flags_left_aside(settings))
    run_settings.check_shared_settings(settings, used_batch_sizes(settings))
    if not (settings.do_train or settings.do_eval or settings.do_predict or settings.do_export):
        raise UserError("none of --do_train, --do_eval, --do_predict and --do_export is set: "
                        "nothing to do")
    if settings.export_onnx:
        if not settings.do_export:
            raise UserError("--export_onnx says what --do_export writes, which is not set")
        portable.onnx_packages()
    for name in ("task_name", "vocab_file", "bert_config_file"):
        if not getattr(settings, name):
            raise UserError("--{} is required: --output_dir {!r} holds no fine-tuned model "
                            "that knows it".format(name, settings.output_dir))
    if not settings.data_dir and (settings.do_train or settings.do_eval or settings.do_predict
                                  and not settings.predict_file):
        raise UserError("--data_dir is required")
    check_machines(settings)
    try:
        codecs.lookup(settings.input_encoding)
    except LookupError as error:
        raise UserError("--input_encoding: {}".format(error)) from None
    for name, fits, rule in (
            ("num_train_epochs", 0 < settings.num_train_epochs < float("inf"),
             "above 0 and finite"),
            ("patience", settings.patience >= 0, "at least 0"),
            ("warmup_proportion", 0 <= settings.warmup_proportion < 1, "from 0 to below 1")):
        if settings.do_train and not fits:
            raise UserError("--{} is {}, must be {}".format(name, getattr(settings, name), rule))


def check_machines(settings):
    """Raises UserError where several machines are to train what only one can."""
    for name, is_set in (("save_best", settings.save_best), ("patience", settings.patience),
                         ("num_runs", settings.num_runs > 1),
                         ("num_folds", getattr(settings, "num_folds", 0))):
        if settings.do_train and is_set and devices.is_cluster():
            raise UserError("--{} is for one machine, TF_CONFIG names several".format(name))


def config_and_tokenizer(config_file, vocab_file, do_lower_case, max_seq_length):
    """(AlbertConfig, FullTokenizer); raises UserError where they and the length do not fit."""
    config = modeling.AlbertConfig.from_json_file(config_file)
    if max_seq_length > config.max_position_embeddings:
        raise UserError("--max_seq_length is {}, above the config's max_position_embeddings "
                        "{}".format(max_seq_length, config.max_position_embeddings))
    tokenizer = FullTokenizer(vocab_file, do_lower_case=do_lower_case)
    if len(tokenizer.vocab) > config.vocab_size:
        raise UserError("--vocab_file {} has {} tokens, the config's vocab_size is {}".format(
            vocab_file, len(tokenizer.vocab), config.vocab_size))
    return config, tokenizer


def cache_folder(output_dir, place):
    """Folder of encoded files, of each machine its own; place: run_settings.Place."""
    number = place.chosen.worker
    return os.path.join(output_dir, "encoded-{}".format(number) if number else "encoded")


def training_of_epochs(settings, rows, micro_batch_size=0, recompute=False):
    """The run_settings.Training of --num_train_epochs over so many rows."""
    per_epoch = batches_per_epoch(rows, settings.train_batch_size, settings.use_tpu)
    steps = max(1, int(round(per_epoch * settings.num_train_epochs)))
    warm_up = int(steps * settings.warmup_proportion)
    tf.logging.info(
        "%d rows in %d steps an epoch (batch %d), %g epochs: %d steps, %d of them warm-up", rows,
        per_epoch, min(settings.train_batch_size, rows), settings.num_train_epochs, steps, warm_up)
    return run_settings.Training(
        settings.train_batch_size, settings.learning_rate, steps, warm_up, "adamw",
        micro_batch_size, recompute)


# --- the work ---------------------------------------------------------------------------------


def starting_plan(settings, variables, starts_afresh=False):
    """The checkpoints.Plan of --init_checkpoint where the run uses it, else None.

    It is used where output_dir holds no checkpoint, and, without training, where it names one of
    output_dir's own. Training starts a head of other shapes, say for more labels, anew.

    Args:
      settings: of the flags.  variables: name -> shape of the model.
      starts_afresh: whether what output_dir holds is about to be set aside.
    """
    newest = None if starts_afresh else checkpoints.newest_checkpoint(settings.output_dir)
    path = settings.init_checkpoint
    if not path or newest and not former_run.named_checkpoint(settings, newest):
        return None
    prefix = checkpoints.find_checkpoint(path)
    shapes = checkpoints.shapes_in(prefix)
    head = {name: shape for name, shape in variables.items() if not name.startswith("bert/")}
    other = [name for name in sorted(head) if shapes.get(name, head[name]) != head[name]]
    if not (settings.do_train and other):
        return checkpoints.plan_initialization(path, variables)
    tf.logging.info("a new head is started: %s of %s has the shape %s, this task's has %s",
                    other[0], prefix, shapes[other[0]], head[other[0]])
    plan = checkpoints.plan_initialization(path, {
        name: shape for name, shape in variables.items() if name not in head})
    return plan._replace(missing=sorted(plan.missing + list(head)))


def checkpoint_in_use(engine, do_train):
    """The checkpoint to evaluate, predict and export: see starting_plan, else the best or newest.

    engine: run_settings.Engine, whose plan is starting_plan's.
    """
    if engine.plan and not do_train:
        return engine.plan.prefix
    return predictor.chosen_checkpoint(engine.output_dir)


def start_afresh_if_changed(engine, description, config, settings, variables):
    """Moves a model of other data or another config out of the way, so that none of it is used.

    Afterwards output_dir describes itself.

    Args:
      engine: run_settings.Engine.
      description: see predictor.write_description; its made_from says what the model comes from.
      config: AlbertConfig.  settings: of the flags.
      variables: name -> shape of what is trained.
    Returns:
      the engine, with the plan to start from.
    """
    output_dir = engine.output_dir
    former = predictor.read_description(output_dir)
    if former and former.get("made_from") != description["made_from"]:
        plan = starting_plan(settings, variables, starts_afresh=True)
        if plan and os.path.realpath(plan.prefix).startswith(
                os.path.join(os.path.realpath(output_dir), "")):
            raise UserError("--output_dir {!r} was made from other data or settings and holds "
                            "--init_checkpoint; take another folder".format(output_dir))
        if engine.chosen.workers > 1:
            raise UserError("--output_dir {!r} was made from other data or settings; with several "
                            "machines take another folder".format(output_dir))
        tf.logging.warning(
            "%s was made from other data, lengths or another config: its model is moved to %s, "
            "training starts again", output_dir, predictor.set_aside(output_dir))
        engine = engine._replace(plan=plan)
    checkpoints.check_resume(output_dir, variables, "adam")
    if not engine.chosen.worker:
        former_run.say_changed_flags(output_dir, settings)
        predictor.write_description(output_dir, description, config, settings.vocab_file)
        former_run.write_settings(output_dir, config, settings)
    return engine


def check_trained(engine, config, variables, head, init_checkpoint):
    """Raises UserError unless output_dir or --init_checkpoint is fine-tuned for this head.

    Args:
      engine: run_settings.Engine.  config: AlbertConfig.
      variables: name -> shape of the model.
      head: what the weights are of, for messages.  init_checkpoint: the flag.
    """
    former_run.require_same_model(engine.output_dir, config)
    if engine.plan is None and checkpoints.newest_checkpoint(engine.output_dir):
        checkpoints.check_resume(engine.output_dir, variables)
    elif engine.plan is None:
        raise UserError("--output_dir {!r} holds no checkpoint and there is no "
                        "--init_checkpoint; train first, with --do_train=True".format(
                            engine.output_dir))
    elif engine.plan.missing:
        raise UserError("--init_checkpoint {!r} has no {} weights (variables {}): it is not "
                        "fine-tuned; train with --do_train=True first".format(
                            init_checkpoint, head, ", ".join(engine.plan.missing)))


def variables_of_head(build):
    """Name -> shape of every variable that build(features of a batch) makes."""
    return checkpoints.variables_of(lambda: build(
        {name: tf.zeros([1, 3], tf.int32) for name in predictor.FEATURES}))


def training_function(engine, training, objective, fixed_shapes, fgm_epsilon=0.0, **options):
    """The model_fn of training that the Estimator calls.

    Args:
      engine: run_settings.Engine.  training: run_settings.Training.
      objective, fixed_shapes: see step.head_step.  fgm_epsilon: see techniques.with_adversary.
      **options: further ones of optimization.create_optimizer.
    """
    on_tpu = bool(engine.tpu)

    def model_fn(features, labels, mode, params):
        del labels, mode, params
        return estimator.train_spec(engine, training, lambda loss_factor: step.head_step(
            features, objective, training, fgm_epsilon, loss_factor, on_tpu,
            on_tpu and engine.precision == "bf16", fixed_shapes), **options)
    return model_fn


def examples_input(engine, training, examples, pad_to):
    """The input_fn of a training that goes on from output_dir's newest checkpoint.

    Args:
      engine: run_settings.Engine.  training: run_settings.Training.
      examples: examples.Examples.  pad_to: see example_batches.
    """
    first = checkpoints.step_of(engine.output_dir)

    def input_fn(params, input_context=None):
        shares = Shares(multiple=max(1, training.micro_batch_size))
        if input_context:
            own = input_context.num_replicas_in_sync // input_context.num_input_pipelines
            shares = shares._replace(count=input_context.num_replicas_in_sync, own=own,
                                     first=input_context.input_pipeline_id * own)
        return example_batches(examples, params.get("batch_size", training.batch_size),
                               engine.random_seed, pad_to, bool(engine.tpu), first, shares)
    return input_fn


def fine_tune(engine, training, examples, model_fn, pad_to, watch=None):
    """Trains from where the folder's newest checkpoint stands.

    Args:
      engine: run_settings.Engine.  training: run_settings.Training.
      examples: examples.Examples.  model_fn: see tf.estimator.Estimator.
      pad_to: length of every batch, None for its longest row's.
      watch: function(train_to, start): trains in parts, calling train_to(step); default: in one go.
    """
    start, stop = checkpoints.step_of(engine.output_dir), training.num_train_steps
    if start >= stop:
        tf.logging.info("nothing to train: %s is at step %d of %d", engine.output_dir, start, stop)
    else:
        tf.logging.info("training from step %d to %d", start, stop)
    trainer = estimator.make_estimator(model_fn, engine)

    def train_to(last):
        with failures.step_advice(training.micro_batch_size or training.batch_size,
                                  training.recompute):
            estimator.fit(trainer, examples_input(engine, training, examples, pad_to), last,
                          engine.chosen)

    if watch:
        watch(train_to, start)
    elif start < stop:
        train_to(stop)


def watched_training(settings, training, rows, evaluate, names, report_text):
    """What fine_tune takes as `watch`, by --save_best and --patience; None without them.

    Args:
      settings: of the flags.  training: run_settings.Training.  rows: of the training file.
      evaluate: function() -> report of output_dir's newest checkpoint on the dev file.
      names: of the report's figures to keep, the one to go by first.
      report_text: function(report) -> str.
    """
    if not watches(settings):
        return None
    output_dir = settings.output_dir
    every = min(settings.save_checkpoints_steps,
                batches_per_epoch(rows, training.batch_size, settings.use_tpu))

    def keep(report):
        if settings.save_best:
            write_report(predictor.keep_best(output_dir), "eval_results", report,
                         report_text(report))

    def watch(train_to, start):
        early_stopping.train_in_parts(
            train_to, evaluate, early_stopping.Evaluations(output_dir, names, start), start,
            training.num_train_steps, every, settings.patience, keep)
    return watch


def print_text(text):
    """Writes a result to standard output at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def publish(folder, name, report, text):
    """Writes a report as <name>.json and <name>.txt, and its text to standard output."""
    tf.logging.info("report: %s", write_report(folder, name, report, text))
    print_text(text)


class Run(object):
    """A run of a fine-tuning script: what its flags lead to, and its jobs one after the other.

    Attributes:
      settings: of the flags.
      kind: the head's subclass of predictor.FineTunedModel.
      description: dict, what output_dir says of itself: the head, `remembered` and what else the
        head needs.
      config: AlbertConfig.  variables: name -> shape of the whole model.
      engine: run_settings.Engine.  rows: sequences of a training step that each device gets.
    """

    def __init__(self, settings, place, kind, description, config, build):
        """Raises UserError where --init_checkpoint does not fit the model.

        place: run_settings.Place.  build: function(features of a batch), makes the model.
        """
        self.settings, self.kind, self.config = settings, kind, config
        self.variables = variables_of_head(build)
        self.description = dict(description, head=kind.HEAD)
        self.rows = place.rows
        self.engine = run_settings.engine_of(settings, starting_plan(settings, self.variables),
                                             place.chosen)

    def load(self, batch_flag, checkpoint=None):
        """The run's model.

        Args:
          batch_flag: name of the flag that says the rows of a step.
          checkpoint: default: see checkpoint_in_use.
        """
        settings, engine = self.settings, self.engine
        checkpoint = checkpoint or checkpoint_in_use(engine, settings.do_train)
        return self.kind(
            predictor.ModelFiles(self.description, self.config, settings.vocab_file, checkpoint),
            getattr(settings, batch_flag),
            settings.max_seq_length if settings.pad_to_max_length else None,
            engine.session_config)

    def train(self, examples, objective, report_on, figures, report_text, made_from=None,
              passes=1, **options):
        """Trains from where output_dir stands.

        Args:
          examples: examples.Examples of the training file.
          objective, **options: see training_function.
          report_on: function(model) -> report on the dev file; for --save_best and --patience.
          figures: names of the report's figures to keep, the one to go by first.
          report_text: function(report) -> str.
          made_from: dict, what makes it another model beside the examples and the config.
          passes: how often each sequence is computed at once.
        """
        settings = self.settings
        description = dict(self.description, save_best=settings.save_best, made_from=dict(
            made_from or {}, examples=os.path.basename(examples.path),
            config=self.config.to_json()))
        engine = start_afresh_if_changed(self.engine, description, self.config, settings,
                                         self.variables)
        pad_to = settings.max_seq_length if (
            engine.fixed_shapes or settings.pad_to_max_length) else None
        rows, recompute = run_settings.fitting_parts(
            settings, self.config, engine, self.rows, memory.Shape(
                pad_to or examples.longest, None, passes,
                sum(bool(options.get(name)) for name in ("fgm_epsilon", "ema_decay"))))
        memory.keep_freed_memory(not recompute)
        training = training_of_epochs(settings, examples.rows, rows if rows < self.rows else 0,
                                      recompute)

        def evaluate():
            return report_on(self.load("eval_batch_size",
                                       checkpoints.newest_checkpoint(engine.output_dir)))

        fine_tune(engine, training, examples,
                  training_function(engine, training, objective, pad_to is not None, **options),
                  pad_to,
                  watched_training(settings, training, examples.rows, evaluate, figures,
                                   report_text))

    def amend_description(self, **more):
        """Adds to what the run's folder, and best/ in it, say of themselves."""
        self.description = dict(self.description, **more)
        folder = self.settings.output_dir
        for place in (folder, os.path.join(folder, checkpoints.BEST)):
            known = predictor.read_description(place)
            if known:
                predictor.write_json(place, dict(known, **more))

    def carry_out(self, train, report_on, report_text, predict, to_check):
        """Trains, evaluates, predicts and exports, as the flags say.

        Args:
          train: function().
          report_on: function(model) -> report on the file of --eval_split.
          report_text: function(report) -> str.
          predict: function(model): writes the predictions of a file.
          to_check: function() -> batches to compare an export on, see export.export_and_check.
        Returns:
          the exit code: 1 if a line of standard input did not read.
        """
        settings, is_chief = self.settings, not self.engine.chosen.worker
        checkpoints.require_folder(settings.output_dir)
        with failures.explained(settings.output_dir):
            if settings.do_train:
                with contextlib.ExitStack() as lock:
                    if is_chief:
                        lock.enter_context(sole_writer(settings.output_dir, "output_dir"))
                    train()
                if not is_chief:
                    return 0
            else:
                check_trained(self.engine, self.config, self.variables, self.kind.HEAD,
                              settings.init_checkpoint)
            if settings.do_eval:
                self._evaluate(report_on, report_text)
            if settings.do_predict and settings.predict_file != "-":
                predict(self.load("predict_batch_size"))
            if settings.do_export:
                for line in export.export_and_check(
                        self.load("predict_batch_size"), settings.output_dir, self.kind.HEAD,
                        to_check(), settings.export_onnx):
                    print_text(line + "\n")
            if settings.do_predict and settings.predict_file == "-":
                return print_answers(self.load("predict_batch_size").answer_lines(
                    sys.stdin.buffer, settings.input_encoding))
        return 0

    def _evaluate(self, report_on, report_text):
        report = report_on(self.load("eval_batch_size"))
        name = "eval_results" if self.settings.eval_split == "dev" else "eval_results_test"
        publish(self.settings.output_dir, name, report, report_text(report))

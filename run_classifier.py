"""Fine-tunes ALBERT on a classification task, evaluates it, predicts with it, exports it.

In: a task's files (see tasks.py), a vocabulary, a config and a checkpoint to start from.
Out in --output_dir: checkpoints, eval_results.txt and .json, test_results.tsv, saved_model/, and
all that the folder needs to answer alone: classifier.json, albert_config.json, vocab.txt.
"""

import codecs
import collections
import functools
import os
import sys

import tensorflow.compat.v1 as tf
from absl import flags

import cli
import modeling
from fine_tuning import early_stopping, export, predictor, tasks
from fine_tuning.examples import (
    TextEncoder,
    batches_per_epoch,
    cached_examples,
    example_batches,
    label_order,
    random_batches,
    text_batches,
)
from fine_tuning.report import report_text, write_predictions, write_report
from tokenization import FullTokenizer
from training import estimator, failures, former_run, run_settings
from weights import checkpoints

CHECKED_ROWS = 200  # an export is compared with the model on so many
REMEMBERED = ("task_name", "columns", "data_dir", "input_encoding", "max_seq_length",
              "do_lower_case")

Setup = collections.namedtuple("Setup", "task labels config encoder plan")


def define_flags(flag_values):
    """Defines this script's flags."""
    run_settings.define_shared_flags(
        flag_values, max_seq_length=(128, "longer than nearly all pairs of sentences"),
        train_batch_size=(32, "BERT's for fine-tuning"),
        learning_rate=(2e-5, "published for LCQMC; small models want more, tiny 1e-4"),
        save_checkpoints_steps=(1000, "loses little when a run is killed"))
    string, boolean, integer, real = [
        functools.partial(define, flag_values=flag_values) for define in (
            flags.DEFINE_string, flags.DEFINE_bool, flags.DEFINE_integer, flags.DEFINE_float)]
    string("task_name", None, "Task: {}. Required, unless output_dir knows it.".format(
        ", ".join(tasks.TASKS)))
    string("data_dir", None, "Folder of the task's files. Required, unless output_dir knows it.")
    string("columns", None, "Columns of your own data, with --task_name=tsv or jsonl: in order, "
           "say label,text_a,text_b (- leaves one out), or by header or key, say "
           "text_a=question,label=class. Default: the task's.")
    string("vocab_file", None, "Vocabulary. Required, unless output_dir holds it.")
    boolean("do_lower_case", True, "Lower-case Latin letters. Default: fits the vocabulary.")
    string("input_encoding", "utf-8", "Encoding of the data files. Default: what public ones use.")
    boolean("do_predict", False, "Write test_results.tsv. Off, as do_train is.")
    string("predict_file", None, "File to predict, with or without labels; - answers standard "
           "input line by line. Default: the task's test file.")
    integer("predict_batch_size", 32, "Rows in a prediction step; the result does not depend on "
            "it. Default: fits any device.")
    boolean("do_export", False, "Write a SavedModel and, with TensorFlow 2.15, TFLite files. Off, "
            "as do_train is.")
    flags.DEFINE_enum("eval_split", "dev", ["dev", "test"], "File that --do_eval reads. Default: "
                      "leaves the test file for the last word.", flag_values=flag_values)
    real("num_train_epochs", 3.0, "Passes over the training file. Default: BERT's.")
    real("warmup_proportion", 0.1, "Share of the steps over which the rate rises. Default: BERT's.")
    real("classifier_dropout", 0.1, "Dropout before the classifier in training. Default: BERT's.")
    boolean("save_best", False, "Evaluate on dev at each epoch or checkpoint, keep the one of best "
            "accuracy in best/ and use it afterwards. Off: costs time; the newest is used.")
    integer("patience", 0, "Stop after so many evaluations on dev without a better accuracy. "
            "Default: 0, never.")
    boolean("pad_to_max_length", False, "Pad every batch to max_seq_length, as on a TPU. Off: to "
            "its longest row, several times faster.")
    flags.adopt_module_key_flags(run_settings, flag_values)


# --- what the run is made of ------------------------------------------------------------------


def recall(run, given):
    """Fills flags that are not given from what output_dir says of itself; not for training.

    Returns:
      that description, or None.
    """
    description = predictor.read_description(run.output_dir)
    if description is None or run.do_train:
        return None
    for name in REMEMBERED:
        if name not in given:
            setattr(run, name, description[name])
    run.vocab_file = run.vocab_file or os.path.join(run.output_dir, predictor.VOCABULARY)
    run.bert_config_file = run.bert_config_file or os.path.join(run.output_dir, predictor.CONFIG)
    return description


def check_job(run):
    """Raises UserError for settings that no run can be made with."""
    run_settings.check_shared_settings(run)
    if not (run.do_train or run.do_eval or run.do_predict or run.do_export):
        raise cli.UserError("none of --do_train, --do_eval, --do_predict and --do_export is set: "
                            "nothing to do")
    for name in ("task_name", "vocab_file", "bert_config_file"):
        if not getattr(run, name):
            raise cli.UserError("--{} is required: --output_dir {!r} holds no fine-tuned model "
                                "that knows it".format(name, run.output_dir))
    if not run.data_dir and (run.do_train or run.do_eval or run.do_predict
                             and not run.predict_file):
        raise cli.UserError("--data_dir is required")
    try:
        codecs.lookup(run.input_encoding)
    except LookupError as error:
        raise cli.UserError("--input_encoding: {}".format(error)) from None
    for name, fits, rule in (
            ("num_train_epochs", 0 < run.num_train_epochs < float("inf"), "above 0 and finite"),
            ("predict_batch_size", run.predict_batch_size >= 1, "at least 1"),
            ("patience", run.patience >= 0, "at least 0"),
            ("warmup_proportion", 0 <= run.warmup_proportion < 1, "from 0 to below 1"),
            ("classifier_dropout", 0 <= run.classifier_dropout < 1, "from 0 to below 1")):
        if not fits:
            raise cli.UserError("--{} is {}, must be {}".format(name, getattr(run, name), rule))


def prepare(run, description):
    """The Setup of a run; raises UserError for files that do not fit one another."""
    task = tasks.task_named(run.task_name, run.columns)
    config = modeling.AlbertConfig.from_json_file(run.bert_config_file)
    if run.max_seq_length > config.max_position_embeddings:
        raise cli.UserError("--max_seq_length is {}, above the config's max_position_embeddings "
                            "{}".format(run.max_seq_length, config.max_position_embeddings))
    tokenizer = FullTokenizer(run.vocab_file, do_lower_case=run.do_lower_case)
    if len(tokenizer.vocab) > config.vocab_size:
        raise cli.UserError("--vocab_file {} has {} tokens, the config's vocab_size is {}".format(
            run.vocab_file, len(tokenizer.vocab), config.vocab_size))
    labels = task.labels or (tuple(description["labels"]) if description else label_order(
        task, find_split(task, run, "train"), run.input_encoding))
    setup = Setup(task, labels, config, TextEncoder(tokenizer, run.max_seq_length), None)
    plan = None
    if run.init_checkpoint:
        plan = checkpoints.plan_initialization(run.init_checkpoint,
                                               classifier_variables(setup, run))
    return setup._replace(plan=plan)


def find_split(task, run, split):
    """Path of the data file of a split; raises UserError if there is none."""
    return tasks.split_file(task, run.data_dir, split, tf.io.gfile.exists)


def encode(run, setup, source, need_labels=True, task=None):
    """classifier_input.Examples of a file; its cache is kept in output_dir/encoded."""
    return cached_examples(task or setup.task, setup.labels, source, setup.encoder,
                           os.path.join(run.output_dir, "encoded"), run.input_encoding,
                           need_labels)


# --- the model --------------------------------------------------------------------------------


def classifier(features, setup, run, training_mode=False, seed=0):
    """The classification head over a batch; its loss is there in training only."""
    model = modeling.AlbertModel(
        setup.config, *[features[name] for name in predictor.FEATURES], training=training_mode,
        dropout_seed=seed, one_hot_embeddings=run.use_tpu)
    return modeling.classification_head(
        model.pooled_output, features["label_ids"] if training_mode else None, len(setup.labels),
        setup.config, run.classifier_dropout if training_mode else 0.0, seed)


def classifier_variables(setup, run):
    """Name -> shape of every variable that training makes."""
    def build():
        classifier({name: tf.zeros([1, 1], tf.int32) for name in predictor.FEATURES}, setup, run)
    return checkpoints.variables_of(build)


def classifier_function(setup, run):
    """The model_fn that the Estimator calls."""
    engine = run_settings.engine_of(run, setup.plan)

    def model_fn(features, labels, mode, params):
        del labels, params
        train = mode == tf.estimator.ModeKeys.TRAIN
        step = tf.cast(tf.train.get_or_create_global_step(), tf.int32)
        head = classifier(features, setup, run, train, step)
        if train:
            best = tf.argmax(head.logits, axis=-1, output_type=tf.int32)
            right = tf.cast(tf.equal(best, features["label_ids"]), tf.float32)
            scalars = collections.OrderedDict(accuracy=tf.reduce_mean(right))
            training = run_settings.Training(
                run.train_batch_size, run.learning_rate, run.num_train_steps,
                run.num_warmup_steps, "adamw")
            return estimator.train_spec(engine, training, head.loss, scalars)
        return estimator.predict_spec(engine, {
            "probabilities": tf.nn.softmax(head.logits), "log_probs": head.log_probs,
            "row": features["row"], "weight": features["weight"]})
    return model_fn


def input_function(run, examples, batch_size, **order):
    """The input_fn over encoded examples; order: seed and start_batch for training."""
    def input_fn(params):
        return example_batches(
            examples, params.get("batch_size", batch_size),
            run.max_seq_length if run.use_tpu or run.pad_to_max_length else None,
            run.use_tpu, **order)
    return input_fn


# --- the four jobs ----------------------------------------------------------------------------


def start_afresh_if_changed(run, setup, examples):
    """Moves a model of other data or another config out of the way, so that none of it is used."""
    made_from = {"examples": os.path.basename(examples.path), "config": setup.config.to_json()}
    former = predictor.read_description(run.output_dir)
    if former and former.get("made_from") != made_from:
        if setup.plan and setup.plan.prefix.startswith(os.path.join(run.output_dir, "")):
            raise cli.UserError("--output_dir {!r} was made from other data or settings and holds "
                                "--init_checkpoint; take another folder".format(run.output_dir))
        tf.logging.warning(
            "%s was made from other data, lengths or another config: its model is moved to %s, "
            "training starts again", run.output_dir, predictor.set_aside(run.output_dir))
    checkpoints.check_resume(run.output_dir, classifier_variables(setup, run), "adam")
    predictor.write_description(run.output_dir, dict(
        {name: getattr(run, name) for name in REMEMBERED}, made_from=made_from,
        labels=setup.labels, pair=setup.task.pair, save_best=run.save_best), setup.config,
        run.vocab_file)
    former_run.write_settings(run.output_dir, setup.config, run)


def fine_tune(run, setup, examples):
    """Trains for --num_train_epochs from where the folder's newest checkpoint stands."""
    per_epoch = batches_per_epoch(examples, run.train_batch_size, run.use_tpu)
    run.num_train_steps = max(1, int(round(per_epoch * run.num_train_epochs)))
    run.num_warmup_steps = int(run.num_train_steps * run.warmup_proportion)
    start = checkpoints.step_of(run.output_dir)
    tf.logging.info(
        "%d rows in %d steps an epoch (batch %d), %g epochs: %d steps, %d of them warm-up; "
        "%d inputs are cut to %d tokens", examples.rows, per_epoch,
        min(run.train_batch_size, examples.rows), run.num_train_epochs, run.num_train_steps,
        run.num_warmup_steps, examples.cut, run.max_seq_length)
    if start >= run.num_train_steps:
        tf.logging.info("nothing to train: %s is at step %d of %d", run.output_dir, start,
                        run.num_train_steps)
        return
    tf.logging.info("training from step %d to %d", start, run.num_train_steps)
    trainer = estimator.make_estimator(classifier_function(setup, run), run_settings.engine_of(run))

    def train_to(step):
        with failures.memory_advice(
                "--train_batch_size={} and --max_seq_length={}".format(
                    run.train_batch_size, run.max_seq_length),
                "less of one of them, or a smaller model"):
            estimator.fit(trainer, input_function(
                run, examples, run.train_batch_size, seed=run.random_seed,
                start_batch=checkpoints.step_of(run.output_dir)), step)

    if not (run.save_best or run.patience):
        train_to(run.num_train_steps)
        return
    dev = encode(run, setup, find_split(setup.task, run, "dev"))
    early_stopping.train_in_parts(
        train_to, lambda: score(run, setup, dev, "eval_batch_size", newest=True)[0],
        early_stopping.Evaluations(run.output_dir, start), start, run.num_train_steps,
        min(per_epoch, run.save_checkpoints_steps), run.patience,
        lambda report: run.save_best and predictor.keep_best(run.output_dir, report))


def score(run, setup, examples, batch_flag, newest=False):
    """(report, or None where labels are missing; probabilities [rows, C]) of encoded examples.

    batch_flag: name of the flag that says the rows of a step.
    newest: take output_dir's newest checkpoint even if there is a best one.
    """
    checkpoint = (checkpoints.newest_checkpoint(run.output_dir) if newest
                  else predictor.chosen_checkpoint(run.output_dir))
    tf.logging.info("%s with %s", examples.source, checkpoint or run.init_checkpoint)
    with failures.forward_advice(batch_flag, getattr(run, batch_flag), run.max_seq_length):
        probabilities, log_probs = early_stopping.scores(
            estimator.make_estimator(classifier_function(setup, run), run_settings.engine_of(run)),
            input_function(run, examples, getattr(run, batch_flag)), examples, checkpoint)
    if examples.unlabelled:
        return None, probabilities
    return early_stopping.report_of(log_probs, examples, setup.labels), probabilities


def evaluate_split(run, setup):
    """Writes and prints the class report of --eval_split."""
    examples = encode(run, setup, find_split(setup.task, run, run.eval_split))
    report, _ = score(run, setup, examples, "eval_batch_size")
    name = "eval_results" if run.eval_split == "dev" else "eval_results_test"
    tf.logging.info("report: %s", write_report(run.output_dir, name, report))
    sys.stdout.write(report_text(report))
    sys.stdout.flush()


def predict(run, setup):
    """Writes test_results.tsv for --predict_file or the test file, one row for each input row."""
    task, source = setup.task, run.predict_file
    if not source:
        source = find_split(task, run, "test")
    elif not tf.io.gfile.exists(source):
        raise cli.UserError("--predict_file: no file {!r}".format(source))
    else:
        task = tasks.reader_for(task, source)
    examples = encode(run, setup, source, need_labels=False, task=task)
    report, probabilities = score(run, setup, examples, "predict_batch_size")
    path = os.path.join(run.output_dir, "test_results.tsv")
    write_predictions(path, probabilities, setup.labels)
    tf.logging.info("%d rows of %s predicted: %s", examples.rows, source, path)
    if report:
        sys.stdout.write("{} of {}: accuracy = {}\n".format(path, source, report["accuracy"]))
        sys.stdout.flush()


def answer(run):
    """Answers standard input: for each line a line as in test_results.tsv, at once."""
    model = predictor.Predictor(run.output_dir)
    for line in predictor.answer_lines(model, sys.stdin.buffer, run.input_encoding):
        print(line, flush=True)


def export_files(run, setup):
    """Writes saved_model/ and the TFLite files to output_dir, and compares them with the model."""
    sources = tasks.files_there(setup.task, run.data_dir, tf.io.gfile.exists)
    if sources:
        batches = text_batches(setup.task, sources, run.input_encoding, setup.encoder,
                               CHECKED_ROWS)
    else:
        batches = random_batches(setup.encoder, CHECKED_ROWS, run.random_seed)
    for line in export.export_and_check(run.output_dir, batches):
        print(line, flush=True)


def main(flag_values):
    """Checks everything, then trains, evaluates, predicts and exports as the flags say."""
    tf.logging.set_verbosity(tf.logging.INFO)
    cli.require_flags(flag_values, ["output_dir"])
    run = cli.settings_of(flag_values)
    description = recall(run, {name for name in flag_values if flag_values[name].present})
    check_job(run)
    setup = prepare(run, description)
    checkpoints.require_folder(run.output_dir)
    with failures.explained(run.output_dir):
        carry_out(run, setup)


def carry_out(run, setup):
    """Trains, evaluates, predicts and exports as the flags say."""
    if run.do_train:
        examples = encode(run, setup, find_split(setup.task, run, "train"))
        start_afresh_if_changed(run, setup, examples)
        fine_tune(run, setup, examples)
    else:
        check_trained(run, setup)
    if run.do_eval:
        evaluate_split(run, setup)
    if run.do_predict and run.predict_file != "-":
        predict(run, setup)
    if run.do_export:
        export_files(run, setup)
    if run.do_predict and run.predict_file == "-":
        answer(run)


def check_trained(run, setup):
    """Raises UserError unless output_dir or --init_checkpoint is fine-tuned for these labels."""
    if checkpoints.newest_checkpoint(run.output_dir):
        checkpoints.check_resume(run.output_dir, classifier_variables(setup, run))
    elif setup.plan is None:
        raise cli.UserError("--output_dir {!r} holds no checkpoint and there is no "
                            "--init_checkpoint; train first, with --do_train=True".format(
                                run.output_dir))
    elif setup.plan.missing:
        raise cli.UserError("--init_checkpoint {!r} has no classifier weights (variables {}): it "
                            "is not fine-tuned; train with --do_train=True first".format(
                                run.init_checkpoint, ", ".join(setup.plan.missing)))


if __name__ == "__main__":
    cli.run(main, define_flags)

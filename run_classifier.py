"""Fine-tunes ALBERT on a classification task, evaluates it, predicts with it, exports it.

In: a task's files (see tasks.py), a vocabulary, a config and a checkpoint to start from.
Out in --output_dir: checkpoints, eval_results.txt and .json, test_results.tsv, saved_model/, and
all that the folder needs to answer alone: classifier.json, albert_config.json, vocab.txt.
"""

import collections
import functools
import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import cli
import modeling
from fine_tuning import export, fine_tuner, predictor, tasks, techniques
from fine_tuning.examples import (
    EncodedRows,
    TextEncoder,
    cached_examples,
    label_order,
    random_batches,
    text_batches,
)
from fine_tuning.report import report_of, report_text, write_predictions, write_report
from training import estimator, failures, former_run, run_settings
from weights import checkpoints

HEAD = "classifier"
CHECKED_ROWS = 200  # an export is compared with the model on so many
REMEMBERED = ("task_name", "columns", "header", "data_dir", "input_encoding", "max_seq_length",
              "do_lower_case")

Data = collections.namedtuple("Data", "task data_dir labels encoder input_encoding cache")
# labels: of the classes, in order; encoder: TextEncoder; cache: folder of encoded files.


def define_flags(flag_values):
    """Defines this script's flags."""
    fine_tuner.define_fine_tuning_flags(
        flag_values, "accuracy", (3.0, "BERT's"),
        max_seq_length=(128, "longer than nearly all pairs of sentences"),
        train_batch_size=(32, "BERT's for fine-tuning"),
        learning_rate=(2e-5, "published for LCQMC; small models want more, tiny 1e-4"))
    string = functools.partial(flags.DEFINE_string, flag_values=flag_values)
    string("task_name", None, "Task: {}. Required, unless output_dir knows it.".format(
        ", ".join(tasks.TASKS)))
    string("columns", None, "Columns of your own data, with --task_name=tsv, csv or jsonl: in "
           "order, say label,text_a,text_b (- leaves one out), or by header or key, say "
           "text_a=question,label=class. Default: the task's.")
    flags.DEFINE_enum("header", "auto", tasks.HEADERS, "Whether the first line of a table is a "
                      "header. Default: auto, it is if it holds names that are known.",
                      flag_values=flag_values)
    string("predict_file", None, "File to predict, with or without labels; - answers standard "
           "input line by line. Default: the task's test file.")
    flags.DEFINE_float("classifier_dropout", 0.1, "Dropout before the classifier in training. "
                       "Default: BERT's.", flag_values=flag_values)
    techniques.define_technique_flags(flag_values)
    flags.adopt_module_key_flags(fine_tuner, flag_values)
    flags.adopt_module_key_flags(techniques, flag_values)


# --- data and model ---------------------------------------------------------------------------


def find_split(data, split):
    """Path of the data file of a split; raises UserError if there is none."""
    return tasks.split_file(data.task, data.data_dir, split, tf.io.gfile.exists)


def encode(data, source, need_labels=True, task=None):
    """examples.Examples of a file; task: that reads it, if not the usual one."""
    return cached_examples(task or data.task, data.labels, source, data.encoder, data.cache,
                           data.input_encoding, need_labels)


def classifier(features, config, num_labels, dropout=0.0, seed=0, **options):
    """The classification head over a batch; options: further ones of modeling.AlbertModel."""
    model = modeling.AlbertModel(
        config, *[features[name] for name in predictor.FEATURES], dropout_seed=seed, **options)
    return modeling.classification_head(
        model.pooled_output, None, num_labels, config, dropout, seed)


def classifier_variables(config, num_labels):
    """Name -> shape of every variable that training makes."""
    return checkpoints.variables_of(lambda: classifier(
        {name: tf.zeros([1, 1], tf.int32) for name in predictor.FEATURES}, config, num_labels))


def classifier_function(config, num_labels, engine, training, dropout, chosen):
    """The model_fn of training that the Estimator calls; chosen: techniques.Techniques."""
    def scalars_of(features, step, word_shift):
        rows = techniques.twice(features) if chosen.rdrop_weight else features
        logits = classifier(rows, config, num_labels, dropout, step, training=True,
                            one_hot_embeddings=bool(engine.tpu), word_shift=word_shift).logits
        losses = techniques.classification_losses(logits, rows["label_ids"], chosen)
        right = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), rows["label_ids"])
        loss = tf.reduce_mean(losses)
        if chosen.rdrop_weight:
            loss += 0.5 * chosen.rdrop_weight * tf.reduce_mean(techniques.divergence(logits))
        return collections.OrderedDict(
            loss=loss, accuracy=tf.reduce_mean(tf.cast(right, tf.float32)))

    def model_fn(features, labels, mode, params):
        del labels, mode, params
        step = tf.cast(tf.train.get_or_create_global_step(), tf.int32)
        scalars = techniques.with_adversary(
            functools.partial(scalars_of, features, step), chosen.fgm_epsilon)
        return estimator.train_spec(
            engine, training, scalars.pop("loss"), scalars, ema_decay=chosen.ema_decay,
            rate_factors=techniques.rate_factors(config, chosen.layer_decay))
    return model_fn


# --- the jobs ---------------------------------------------------------------------------------


def prepare(settings, description):
    """(Data, AlbertConfig, Engine) of a run; raises UserError where files do not fit one another.

    description: what output_dir says of itself, or None.
    """
    task = tasks.task_named(settings.task_name, settings.columns, settings.header)
    config, tokenizer = fine_tuner.config_and_tokenizer(
        settings.bert_config_file, settings.vocab_file, settings.do_lower_case,
        settings.max_seq_length)
    labels = task.labels or (tuple(description["labels"]) if description else label_order(
        task, tasks.split_file(task, settings.data_dir, "train", tf.io.gfile.exists),
        settings.input_encoding))
    data = Data(task, settings.data_dir, labels, TextEncoder(tokenizer, settings.max_seq_length),
                settings.input_encoding, os.path.join(settings.output_dir, "encoded"))
    plan = settings.init_checkpoint and checkpoints.plan_initialization(
        settings.init_checkpoint, classifier_variables(config, len(labels)))
    return data, config, run_settings.engine_of(settings, plan)


def loader(settings, data, config, engine):
    """Function (name of the flag of a batch size, checkpoint) -> the run's model, a Predictor.

    A checkpoint of None is the best or newest of output_dir, else --init_checkpoint.
    """
    description = {"head": HEAD, "labels": data.labels, "pair": data.task.pair}
    description.update({name: getattr(settings, name) for name in REMEMBERED})

    def load(batch_flag, checkpoint=None):
        checkpoint = (checkpoint or predictor.chosen_checkpoint(engine.output_dir)
                      or engine.plan.prefix)
        return predictor.Predictor(
            predictor.ModelFiles(description, config, settings.vocab_file, checkpoint),
            getattr(settings, batch_flag),
            settings.max_seq_length if settings.pad_to_max_length else None,
            engine.session_config)
    return load


def train_classifier(settings, data, config, engine, load):
    """Trains; settings: of the flags; load: see loader."""
    examples = encode(data, find_split(data, "train"))
    description = dict(
        {name: getattr(settings, name) for name in REMEMBERED}, head=HEAD, labels=data.labels,
        pair=data.task.pair, save_best=settings.save_best, made_from={
            "examples": os.path.basename(examples.path), "config": config.to_json(),
            "with_mean": settings.ema_decay > 0})
    fine_tuner.start_afresh_if_changed(engine, description, config, settings.vocab_file,
                                       classifier_variables(config, len(data.labels)))
    former_run.write_settings(engine.output_dir, config, settings)
    chosen = techniques.techniques_of(settings, data.labels, np.bincount(
        EncodedRows(examples).targets, minlength=len(data.labels)))
    training = fine_tuner.training_of_epochs(settings, examples.rows)
    watched = settings.save_best or settings.patience
    dev = encode(data, find_split(data, "dev")) if watched else None

    def evaluate():
        model = load("eval_batch_size", checkpoints.newest_checkpoint(engine.output_dir))
        return score(model, dev, "eval_batch_size")[0]

    fine_tuner.fine_tune(
        engine, training, examples, classifier_function(
            config, len(data.labels), engine, training, settings.classifier_dropout, chosen),
        settings.max_seq_length, settings.pad_to_max_length, fine_tuner.watched_training(
            settings, training, examples.rows, evaluate, ("accuracy", "macro_f1", "loss"),
            report_text))


def score(model, examples, batch_flag):
    """(report, or None where labels are missing; probabilities [rows, C]) of encoded examples.

    batch_flag: name of the flag that says the rows of a step.
    """
    tf.logging.info("%s with %s", examples.source, model.files.checkpoint)
    rows = EncodedRows(examples)
    with failures.forward_advice(batch_flag, model.batch_size, model.encoder.max_seq_length):
        probabilities, log_probs = model.collected(rows, ("probabilities", "log_probs"))
    report = None if examples.unlabelled else report_of(log_probs, rows.targets, model.labels)
    return report, probabilities


def evaluate_split(model, data, split, output_dir):
    """Writes and prints the class report of the dev or test file."""
    report, _ = score(model, encode(data, find_split(data, split)), "eval_batch_size")
    name = "eval_results" if split == "dev" else "eval_results_test"
    text = report_text(report)
    tf.logging.info("report: %s", write_report(output_dir, name, report, text))
    sys.stdout.write(text)
    sys.stdout.flush()


def predict(model, data, source, output_dir):
    """Writes test_results.tsv for a file, or the test file: a line for each line of it."""
    task = data.task
    if not source:
        source = find_split(data, "test")
    elif not tf.io.gfile.exists(source):
        raise cli.UserError("--predict_file: no file {!r}".format(source))
    else:
        task = tasks.reader_for(task, source)
    examples = encode(data, source, need_labels=False, task=task)
    report, probabilities = score(model, examples, "predict_batch_size")
    path = os.path.join(output_dir, "test_results.tsv")
    write_predictions(path, probabilities, data.labels)
    tf.logging.info("%d rows of %s predicted: %s", examples.rows, source, path)
    if report:
        sys.stdout.write("{} of {}: accuracy = {}\n".format(path, source, report["accuracy"]))
        sys.stdout.flush()


def export_files(model, data, output_dir, seed):
    """Writes saved_model/ and the TFLite files to output_dir, and compares them with the model."""
    sources = tasks.files_there(data.task, data.data_dir, tf.io.gfile.exists)
    if sources:
        batches = text_batches(data.task, sources, data.input_encoding, data.encoder, CHECKED_ROWS)
    else:
        batches = random_batches(data.encoder, CHECKED_ROWS, seed)
    for line in export.export_and_check(model, output_dir, HEAD, batches):
        print(line, flush=True)


def main(flag_values):
    """Checks everything, then trains, evaluates, predicts and exports as the flags say.

    Returns:
      the exit code: 1 if a line of standard input did not read.
    """
    tf.logging.set_verbosity(tf.logging.INFO)
    cli.require_flags(flag_values, ["output_dir"])
    settings, description = fine_tuner.recall(
        cli.settings_of(flag_values),
        {name for name in flag_values if flag_values[name].present}, HEAD, REMEMBERED)
    fine_tuner.check_fine_tuning_settings(settings)
    if not 0 <= settings.classifier_dropout < 1:
        raise cli.UserError("--classifier_dropout is {}, must be from 0 to below 1".format(
            settings.classifier_dropout))
    data, config, engine = prepare(settings, description)
    checkpoints.require_folder(settings.output_dir)
    load = loader(settings, data, config, engine)
    with failures.explained(settings.output_dir):
        if settings.do_train:
            train_classifier(settings, data, config, engine, load)
        else:
            fine_tuner.check_trained(engine, classifier_variables(config, len(data.labels)), HEAD,
                                     settings.init_checkpoint)
        if settings.do_eval:
            evaluate_split(load("eval_batch_size"), data, settings.eval_split, settings.output_dir)
        if settings.do_predict and settings.predict_file != "-":
            predict(load("predict_batch_size"), data, settings.predict_file, settings.output_dir)
        if settings.do_export:
            export_files(load("predict_batch_size"), data, settings.output_dir,
                         settings.random_seed)
        if settings.do_predict and settings.predict_file == "-":
            return cli.print_answers(predictor.answer_lines(
                load("predict_batch_size"), sys.stdin.buffer, settings.input_encoding))
    return 0


if __name__ == "__main__":
    cli.run(main, define_flags)

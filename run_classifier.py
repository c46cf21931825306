"""Fine-tunes ALBERT on a classification task, evaluates it, predicts with it, exports it.

In: a task's files (see tasks.py), a vocabulary, a config and a checkpoint to start from.
Out in --output_dir: checkpoints, eval_results.txt and .json, test_results.tsv, export/, and
all that the folder needs to answer alone: classifier.json, albert_config.json, vocab.txt.
"""

import collections
import functools
import io
import os

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import cli
import modeling
from fine_tuning import (
    fine_tuner,
    outcomes,
    predictor,
    several_runs,
    step,
    tasks,
    techniques,
)
from fine_tuning.examples import (
    EncodedRows,
    TextEncoder,
    cached_examples,
    fold_examples,
    label_order,
    random_batches,
    read_bytes,
    text_batches,
)
from fine_tuning.report import write_predictions, write_submission
from training import failures, run_settings

CHECKED_ROWS = 200  # an export is compared with the model on so many
REMEMBERED = ("task_name", "columns", "header", "outcome", "data_dir", "input_encoding",
              "max_seq_length", "do_lower_case")

Data = collections.namedtuple("Data", "task data_dir outcome encoder input_encoding cache fold")
# outcome: see outcomes, with the labels; encoder: TextEncoder; cache: folder of encoded files.
# fold: None, or (its number from 1, their number): what dev is of the training file.


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
    flags.DEFINE_enum("outcome", None, tasks.OUTCOMES, "What a row gets: one class, a set of "
                      "labels, or a score. Default: the task's, one class for your own data.",
                      flag_values=flag_values)
    string("predict_file", None, "File to predict, with or without labels; - answers standard "
           "input line by line. Default: the task's test file.")
    flags.DEFINE_float("classifier_dropout", 0.1, "Dropout before the classifier in training. "
                       "Default: BERT's.", flag_values=flag_values)
    flags.DEFINE_integer(
        "num_folds", 0, "Train so many models, each without one part of the training file, which "
        "is its dev; predictions are the mean of all. Default: 0, one model.",
        flag_values=flag_values)
    flags.DEFINE_bool("clue_submission", False, "Also write the predictions as CLUE's site takes "
                      "them, an id and a label in each line of <task>_predict.json. Off: other "
                      "tasks have no such file.", flag_values=flag_values)
    techniques.define_technique_flags(flag_values)
    flags.adopt_module_key_flags(fine_tuner, flag_values)
    flags.adopt_module_key_flags(techniques, flag_values)


# --- data and model ---------------------------------------------------------------------------


def find_split(data, split):
    """Path of the data file of a split; raises UserError if there is none."""
    return tasks.split_file(data.task, data.data_dir, split, tf.io.gfile.exists)


def encode_split(data, split):
    """examples.Examples of a split; in a run over folds train and dev share the training file."""
    if not data.fold or split == "test":
        return encode(data, find_split(data, split))
    return fold_examples(encode(data, find_split(data, "train")), *data.fold,
                         inside=split == "dev")


def encode(data, source, need_labels=True, task=None):
    """examples.Examples of a file; task: that reads it, if not the usual one."""
    return cached_examples(task or data.task, data.outcome, source, data.encoder, data.cache,
                           data.input_encoding, need_labels)


def classifier(features, config, num_labels, dropout=0.0, seed=0, **options):
    """The classification head over a batch; options: further ones of modeling.AlbertModel."""
    model = modeling.AlbertModel(
        config, *[features[name] for name in predictor.FEATURES], dropout_seed=seed, **options)
    return modeling.classification_head(
        model.pooled_output, None, num_labels, config, dropout, seed)


def classifier_objective(config, outcome, dropout, chosen):
    """The head's step.Objective; outcome: see outcomes; chosen: Techniques."""
    def sums(features, dropout_seed, **options):
        rows = techniques.twice(features) if chosen.rdrop_weight else features
        logits = classifier(rows, config, len(outcome.labels), dropout, dropout_seed,
                            **options).logits
        losses = outcome.losses(logits, rows["label_ids"], chosen)  # [B] or [2B]
        weights = step.real_rows(rows) / (2.0 if chosen.rdrop_weight else 1.0)
        loss = tf.reduce_sum(weights * losses)
        if chosen.rdrop_weight:
            loss += 0.5 * chosen.rdrop_weight * tf.reduce_sum(
                step.real_rows(features) * techniques.divergence(logits))
        figures = outcome.progress(logits, rows["label_ids"])
        return collections.OrderedDict([("loss", loss)] + [
            (name, tf.reduce_sum(weights * values)) for name, values in figures.items()])
    return step.row_objective(sums)


# --- the jobs ---------------------------------------------------------------------------------


def known_labels(task, data_dir, input_encoding, description):
    """The labels in order: of a model that knows them, else the task's, else the training file's.

    description: what the model's folder says of itself, or None.
    """
    if description:
        labels = tuple(description["labels"])
        if task.labels and set(labels) != set(task.labels):
            raise cli.UserError("--task_name={} has the labels {}, the model {}".format(
                task.name, ", ".join(task.labels), ", ".join(labels)))
        return labels
    if task.labels:
        return task.labels
    if not data_dir:
        raise cli.UserError("--data_dir is required: the labels of --task_name={} are those of its "
                            "training file, where no model's folder names them".format(task.name))
    return label_order(task, tasks.split_file(task, data_dir, "train", tf.io.gfile.exists),
                       input_encoding)


def task_of_settings(settings):
    """The tasks.Task of the flags."""
    return tasks.task_named(settings.task_name, settings.columns, settings.header,
                            settings.outcome)


def prepare_classifier(settings, description):
    """(Data, fine_tuner.Run); raises UserError where files do not fit one another.

    description: what the folder of the model says of itself, or None.
    """
    place = run_settings.place_of(settings)
    task = task_of_settings(settings)
    config, tokenizer = fine_tuner.config_and_tokenizer(
        settings.bert_config_file, settings.vocab_file, settings.do_lower_case,
        settings.max_seq_length)
    labels = known_labels(task, settings.data_dir, settings.input_encoding, description)
    data = Data(task, settings.data_dir, outcomes.KINDS[task.outcome](labels, description),
                TextEncoder(tokenizer, settings.max_seq_length), settings.input_encoding,
                fine_tuner.cache_folder(settings.output_dir, place), settings.fold)
    return data, fine_tuner.Run(
        settings, place, predictor.Predictor,
        dict({name: getattr(settings, name) for name in REMEMBERED}, pair=task.pair,
             **data.outcome.description()),
        config, lambda features: classifier(features, config, len(labels)))


def train_classifier(run, data):
    """Trains, and looks at the dev file on the way if that is asked for."""
    settings = run.settings
    techniques.check_ranges(settings)
    outcomes.check_techniques(data.outcome, settings)
    examples = encode_split(data, "train")
    dev = encode_split(data, "dev") if fine_tuner.watches(settings) else None
    chosen = techniques.techniques_of(settings, data.outcome.labels,
                                      data.outcome.counts(EncodedRows(examples).targets))
    run.train(examples,
              classifier_objective(run.config, data.outcome, settings.classifier_dropout, chosen),
              lambda model: score([model], dev, "eval_batch_size")[0],
              data.outcome.FIGURES, data.outcome.report_text,
              {"with_mean": True} if chosen.ema_decay else None,
              fgm_epsilon=chosen.fgm_epsilon, passes=2 if chosen.rdrop_weight else 1,
              ema_decay=chosen.ema_decay,
              rate_factors=techniques.rate_factors(run.config, chosen.layer_decay))
    has_dev = data.fold or tasks.split_there(data.task, data.data_dir, "dev", tf.io.gfile.exists)
    if data.outcome.NAME == "label_sets" and has_dev:
        keep_thresholds(run, data)


def keep_thresholds(run, data):
    """Lets the trained model know from which probability on each label is predicted best on dev."""
    model, rows = run.load("eval_batch_size"), EncodedRows(encode_split(data, "dev"))
    probabilities, = model.collected(rows, data.outcome.KEPT)
    thresholds = outcomes.best_thresholds(probabilities, rows.targets == 1)
    tf.logging.info("thresholds by dev: %s", ", ".join(
        "{} {:.4f}".format(*pair) for pair in zip(data.outcome.labels, thresholds)))
    run.amend_description(thresholds=thresholds)


def score(models, examples, batch_flag):
    """(report, or None where labels are missing; answers [rows, C]) of encoded examples.

    The answer of a blank line is not a number.

    Args:
      models: one or more Predictors, whose answers are averaged.
      examples: examples.Examples.
      batch_flag: name of the flag that says the rows of a step.
    """
    rows, found = EncodedRows(examples), []
    for model in models:
        tf.logging.info("%s with %s", examples.source, model.files.checkpoint)
        with failures.forward_advice(batch_flag, model.batch_size, model.encoder.max_seq_length):
            found.append(model.collected(rows, model.outcome.KEPT))
    report = None if examples.unlabelled else models[0].outcome.report(found, rows.targets)
    answers = np.mean([arrays[0] for arrays in found], axis=0)
    answers[rows.starts == rows.ends] = np.nan  # blank lines
    return report, answers


def file_to_predict(data, source):
    """(path, the task that reads it) of --predict_file, or of the test file."""
    if source:
        return source, tasks.reader_for(data.task, source)
    return find_split(data, "test"), data.task


def predict(models, data, source, output_dir, clue_submission):
    """Writes test_results.tsv, a line for each line of the file, and what CLUE's site takes."""
    source, task = file_to_predict(data, source)
    examples = encode(data, source, need_labels=False, task=task)
    report, answers = score(models, examples, "predict_batch_size")
    path = os.path.join(output_dir, "test_results.tsv")
    write_predictions(path, answers, models[0].outcome)
    tf.logging.info("%d rows of %s predicted: %s", examples.rows, source, path)
    if clue_submission:
        submission = os.path.join(output_dir, tasks.CLUE_FILES[task.name])
        ids = tasks.row_ids(source, tasks.decoded_lines(
            io.BytesIO(read_bytes(source)), source, data.input_encoding))
        answered = answers[~np.isnan(answers).any(axis=1)]
        write_submission(submission, ids, answered, data.outcome.labels)
        tf.logging.info("for CLUE's site: %s", submission)
    if report:
        figure = data.outcome.FIGURES[0]
        fine_tuner.print_text("{} of {}: {} = {}\n".format(path, source, figure, report[figure]))


def require_files(data, settings):
    """Raises UserError where a file that the job reads after the training is missing or no use."""
    if settings.do_eval and not data.fold:
        find_split(data, settings.eval_split)
    if settings.do_predict and not settings.predict_file:
        find_split(data, "test")
    if settings.do_predict and settings.predict_file not in (None, "-") and (
            not tf.io.gfile.exists(settings.predict_file)):
        raise cli.UserError("--predict_file: no file {!r}".format(settings.predict_file))
    if settings.do_predict and settings.clue_submission:
        source, task = settings.predict_file, data.task
        if source != "-":
            source, task = file_to_predict(data, source)
        if source == "-" or task.name not in tasks.CLUE_FILES or not tasks.reads_json(task):
            raise cli.UserError("--clue_submission: {} of --task_name={} is no JSON file of one of "
                                "CLUE's tasks: {}".format(source, task.name,
                                                          ", ".join(tasks.CLUE_FILES)))


def rows_to_check(data, seed):
    """Batches of rows to compare an export on; random ones where there are no files."""
    sources = tasks.files_there(data.task, data.data_dir, tf.io.gfile.exists)
    if sources:
        return text_batches(data.task, sources, data.input_encoding, data.encoder, CHECKED_ROWS)
    return random_batches(data.encoder, CHECKED_ROWS, seed)


def classifier_jobs(settings, description):
    """Trains, evaluates, predicts and exports as the flags say; see several_runs."""
    data, run = prepare_classifier(settings, description)
    require_files(data, settings)
    return run.carry_out(
        train=lambda: train_classifier(run, data),
        report_on=lambda model: score([model], encode_split(data, settings.eval_split),
                                      "eval_batch_size")[0],
        report_text=data.outcome.report_text,
        predict=lambda model: predict([model], data, settings.predict_file, settings.output_dir,
                                      settings.clue_submission),
        to_check=lambda: rows_to_check(data, settings.random_seed))


def carry_out_over_folds(settings):
    """Trains a model for each fold; evaluates and predicts test files by the mean of them all."""
    several_runs.check_folds(settings)
    tests = settings.do_eval and settings.eval_split == "test"
    data, _ = prepare_classifier(settings, None)
    require_files(data, fine_tuner.changed(settings, do_eval=tests))
    folds = {"fold_{}".format(number): {"fold": (number, settings.num_folds)}
             for number in range(1, settings.num_folds + 1)}
    several_runs.trained_runs(settings, classifier_jobs, data.outcome.FIGURES, folds.items())
    folders = [os.path.join(settings.output_dir, name) for name in folds]
    if tests:
        models = [predictor.Predictor(folder, settings.eval_batch_size) for folder in folders]
        report, _ = score(models, encode_split(data, "test"), "eval_batch_size")
        fine_tuner.publish(settings.output_dir, "eval_results_test", report,
                           data.outcome.report_text(report))
    if settings.do_predict:
        models = [predictor.Predictor(folder, settings.predict_batch_size) for folder in folders]
        predict(models, data, settings.predict_file, settings.output_dir,
                settings.clue_submission)
    return 0


def main(flag_values):
    """Checks everything, then trains, evaluates, predicts and exports as the flags say.

    Returns:
      the exit code: 1 if a line of standard input did not read.
    """
    tf.logging.set_verbosity(tf.logging.INFO)
    cli.require_flags(flag_values, ["output_dir"])
    settings, description = fine_tuner.completed_settings(
        cli.settings_of(flag_values), cli.given_flags(flag_values), predictor.Predictor.HEAD,
        REMEMBERED)
    if settings.do_train and not 0 <= settings.classifier_dropout < 1:
        raise cli.UserError("--classifier_dropout is {}, must be from 0 to below 1".format(
            settings.classifier_dropout))
    settings = fine_tuner.changed(settings, fold=None)
    if settings.num_folds and settings.do_train:
        return carry_out_over_folds(settings)
    return several_runs.carry_out_over_seeds(
        settings, description, classifier_jobs,
        outcomes.KINDS[task_of_settings(settings).outcome].FIGURES)


if __name__ == "__main__":
    cli.run(main, define_flags)

"""Fine-tunes ALBERT on reading comprehension, evaluates it, predicts with it, exports it.

In: SQuAD-like JSON (CMRC 2018, DRCD, your own; see fine_tuning/reading.py), a vocabulary, a config
and a checkpoint to start from.
Out in --output_dir: checkpoints, eval_results.txt and .json, predictions.json,
nbest_predictions.json, export/, and all that the folder needs to answer alone: reading.json,
albert_config.json, vocab.txt.
"""

import collections
import functools
import itertools
import os

import tensorflow.compat.v1 as tf
from absl import flags

import cli
import modeling
from fine_tuning import fine_tuner, predictor, reading, several_runs, step
from fine_tuning.examples import batches_of, cache_key, cached_rows, random_batches, read_bytes
from fine_tuning.reading_metric import reading_report
from fine_tuning.reading_predictor import OF_ANSWERS, OF_WINDOWS, ReadingPredictor
from fine_tuning.tasks import files_there, split_file, task_among
from training import failures, run_settings

CHECKED_WINDOWS = 32  # an export is compared with the model on so many
FIGURES = ("f1", "exact_match")  # on dev; the first one chooses
REMEMBERED = ("task_name", "data_dir", "dev_file", "input_encoding",
              "do_lower_case") + tuple(OF_WINDOWS) + tuple(OF_ANSWERS)

MrcData = collections.namedtuple(
    "MrcData", "task files encoder input_encoding null_answers cache")
# task: reading.ReadingTask; files: split -> path, or None where no job needs it;
# encoder: reading.WindowEncoder; cache: folder of encoded files.


def define_flags(flag_values):
    """Defines this script's flags."""
    fine_tuner.define_fine_tuning_flags(
        flag_values, "F1", (2.0, "published for CMRC 2018"),
        max_seq_length=(OF_WINDOWS["max_seq_length"],
                        "holds more than half of CMRC 2018's passages whole"),
        train_batch_size=(32, "BERT's for fine-tuning"),
        learning_rate=(3e-5, "published for CMRC 2018; small models want more"))
    string, integer = [functools.partial(define, flag_values=flag_values) for define in (
        flags.DEFINE_string, flags.DEFINE_integer)]
    string("task_name", None, "Task: {}. Required, unless output_dir knows it.".format(
        ", ".join(reading.TASKS)))
    string("train_file", None, "File to train on; its folder is data_dir where that is not given. "
           "Default: the task's in data_dir.")
    string("dev_file", None, "File for --do_eval, --save_best and --patience. Default: the task's "
           "in data_dir.")
    string("predict_file", None, "File to predict, with or without answers; - answers standard "
           "input line by line, a question, a tab and a passage each. Default: the task's test "
           "file in data_dir.")
    integer("doc_stride", OF_WINDOWS["doc_stride"], "Tokens from one window over a long passage "
            "to the next. Default: BERT's.")
    integer("max_query_length", OF_WINDOWS["max_query_length"], "Tokens of a question; the rest is "
            "cut off. Default: BERT's.")
    integer("max_answer_length", OF_ANSWERS["max_answer_length"], "Tokens of an answer. Default: "
            "nineteen answers in twenty of CMRC 2018 are no longer, and all of DRCD.",
            lower_bound=1)
    integer("n_best_size", OF_ANSWERS["n_best_size"], "Answers of each question in "
            "nbest_predictions.json. Default: BERT's.", lower_bound=1)
    flags.DEFINE_bool("null_answers", OF_ANSWERS["null_answers"], "Some questions have no answer, "
                      "which is then the empty text. Off: CMRC 2018 and DRCD have one to each.",
                      flag_values=flag_values)
    flags.adopt_module_key_flags(fine_tuner, flag_values)


# --- data -------------------------------------------------------------------------------------


def files_of(settings, task):
    """split -> path of the data file, None where no job needs it; UserError if one is missing."""
    asked = {"train": settings.do_train,
             "dev": fine_tuner.watches(settings)
             or settings.do_eval and settings.eval_split == "dev",
             "test": settings.do_eval and settings.eval_split == "test",
             "predict": settings.do_predict and settings.predict_file != "-"}
    files = {}
    for split, needed in asked.items():
        given = getattr(settings, split + "_file", None)
        if needed and given and not tf.io.gfile.exists(given):
            raise cli.UserError("--{}_file: no file {!r}".format(split, given))
        files[split] = (given or split_file(
            task, settings.data_dir, "test" if split == "predict" else split,
            tf.io.gfile.exists)) if needed else None
    return files


def questions_in(data, split, need_answers=True):
    """The reading.Questions of a split's file; None where no job needs it."""
    source = data.files[split]
    if source is None:
        return None
    return reading.questions_of(read_bytes(source), source, need_answers, data.null_answers,
                                data.input_encoding)


def encode_passages(data):
    """Examples of the training file, a row for each window."""
    source, encoder = data.files["train"], data.encoder
    settings = [ReadingPredictor.HEAD, data.null_answers, data.input_encoding] + [
        getattr(encoder, name) for name in OF_WINDOWS]

    def rows():
        questions = questions_in(data, "train")
        spans = reading.answer_spans(questions, source, data.null_answers)
        for number, (question, span) in enumerate(zip(questions, spans)):
            was_cut = encoder.cuts(question)
            for window in encoder.windows(number, question, span) if span else ():
                yield window.ids, window.first, [window.start, window.end], was_cut

    examples = cached_rows(source, cache_key(settings, read_bytes(source), encoder.tokenizer),
                           data.cache, rows, need_labels=True)
    tf.logging.info(
        "%s: %d windows, %d tokens on average, longest %d; in %d the question is cut to %d tokens",
        source, examples.rows, round(examples.tokens / examples.rows), examples.longest,
        examples.cut, encoder.max_query_length)
    return examples


# --- model ------------------------------------------------------------------------------------


def reader(features, config, training=False, **options):
    """The span head over a batch; its losses are there in training only.

    options: further ones of modeling.AlbertModel.
    """
    model = modeling.AlbertModel(config, *[features[name] for name in predictor.FEATURES],
                                 training=training, pooler=False, **options)
    if not training:
        return modeling.span_head(model)
    starts, ends = tf.unstack(features["label_ids"], num=2, axis=1)
    return modeling.span_head(model, features["input_mask"], starts, ends)


def reader_objective(config):
    """The head's step.Objective."""
    def sums(features, dropout_seed, **options):
        head = reader(features, config, dropout_seed=dropout_seed, **options)
        places = tf.stack([tf.argmax(logits, axis=-1, output_type=tf.int32) for logits in (
            head.start_logits, head.end_logits)], axis=1)  # [B, 2]
        right = tf.reduce_all(tf.equal(places, features["label_ids"]), axis=1)
        weights = step.real_rows(features)
        return collections.OrderedDict(
            loss=tf.reduce_sum(weights * head.example_loss),
            accuracy=tf.reduce_sum(weights * tf.cast(right, tf.float32)))
    return step.row_objective(sums)


# --- the jobs ---------------------------------------------------------------------------------


def prepare_reader(settings):
    """(MrcData, fine_tuner.Run); UserError where files do not fit one another."""
    place = run_settings.place_of(settings)
    task = task_among(reading.TASKS, settings.task_name)
    files = files_of(settings, task)
    config, tokenizer = fine_tuner.config_and_tokenizer(
        settings.bert_config_file, settings.vocab_file, settings.do_lower_case,
        settings.max_seq_length)
    encoder = reading.WindowEncoder(tokenizer, *[getattr(settings, name) for name in OF_WINDOWS])
    data = MrcData(task, files, encoder, settings.input_encoding, settings.null_answers,
                   fine_tuner.cache_folder(settings.output_dir, place))
    return data, fine_tuner.Run(
        settings, place, ReadingPredictor,
        {name: getattr(settings, name) for name in REMEMBERED}, config,
        lambda features: reader(features, config))


def train_reader(run, data, dev):
    """Trains; dev: Questions to look at on the way, or None."""
    examples = encode_passages(data)
    run.train(examples, reader_objective(run.config), lambda model: report_on(model, dev),
              FIGURES, report_lines)


def answers_to(model, questions, batch_flag):
    """{question id: [Candidate]} by a ReadingPredictor, in the order of the questions."""
    tf.logging.info("%d questions with %s", len(questions), model.files.checkpoint)
    with failures.forward_advice(batch_flag, model.batch_size, model.encoder.max_seq_length):
        return {question.id: found for question, found in model.answers(questions)}


def report_on(model, questions):
    """The reading_report of a ReadingPredictor on Questions."""
    return report_of_answers(questions, answers_to(model, questions, "eval_batch_size"))


def report_of_answers(questions, answers):
    """The reading_report of {question id: [Candidate]}."""
    return reading_report({name: found[0].text for name, found in answers.items()},
                          {question.id: [answer.text for answer in question.answers]
                           for question in questions})


def report_lines(report):
    """A reading_report as lines of text."""
    return "".join("{} = {}\n".format(*item) for item in report.items())


def write_answers(model, questions, source, output_dir):
    """Writes predictions.json and nbest_predictions.json: each question of a file once."""
    answers = answers_to(model, questions, "predict_batch_size")
    paths = [os.path.join(output_dir, name)
             for name in ("predictions.json", "nbest_predictions.json")]
    cli.write_whole(paths[0], reading.predictions_text(answers))
    cli.write_whole(paths[1], reading.nbest_text(answers))
    tf.logging.info("%d questions of %s answered: %s", len(answers), source, ", ".join(paths))
    if all(question.answers for question in questions):
        fine_tuner.print_text("{}: exact_match = {exact_match}, f1 = {f1}\n".format(
            paths[0], **report_of_answers(questions, answers)))


def passages_to_check(data, data_dir, seed):
    """Batches of windows to compare an export on; random ones where there are no files."""
    windows = (window for source in files_there(data.task, data_dir, tf.io.gfile.exists)
               for question in reading.questions_of(read_bytes(source), source, False,
                                                    encoding=data.input_encoding)
               for window in data.encoder.windows(0, question))
    rows = [(window.ids, window.first) for window in itertools.islice(windows, CHECKED_WINDOWS)]
    return batches_of(rows) or random_batches(data.encoder, CHECKED_WINDOWS, seed)


def reader_jobs(settings, description):
    """Trains, evaluates, predicts and exports as the flags say; see several_runs."""
    del description  # nothing of the model hangs on it
    data, run = prepare_reader(settings)
    asked = {split: questions_in(data, split, need_answers=split != "predict")
             for split in ("dev", "test", "predict")}
    return run.carry_out(
        train=lambda: train_reader(run, data, asked["dev"]),
        report_on=lambda model: report_on(model, asked[settings.eval_split]),
        report_text=report_lines,
        predict=lambda model: write_answers(model, asked["predict"], data.files["predict"],
                                            settings.output_dir),
        to_check=lambda: passages_to_check(data, settings.data_dir, settings.random_seed))


def with_data_dir(settings):
    """The settings with the folder of --train_file where --data_dir is not given."""
    if settings.data_dir or not settings.train_file:
        return settings
    return fine_tuner.changed(settings, data_dir=os.path.dirname(settings.train_file) or ".")


def main(flag_values):
    """Checks everything, then trains, evaluates, predicts and exports as the flags say.

    Returns:
      the exit code: 1 if a line of standard input did not read.
    """
    tf.logging.set_verbosity(tf.logging.INFO)
    cli.require_flags(flag_values, ["output_dir"])
    settings, description = fine_tuner.completed_settings(
        cli.settings_of(flag_values), cli.given_flags(flag_values), ReadingPredictor.HEAD,
        REMEMBERED, with_data_dir)
    return several_runs.carry_out_over_seeds(settings, description, reader_jobs, FIGURES)


if __name__ == "__main__":
    cli.run(main, define_flags)

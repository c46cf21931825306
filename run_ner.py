"""Fine-tunes ALBERT on sequence labelling: which characters are a person, a place, a company?

In: files of a character and its tag a line, or JSON lines (see fine_tuning/labelling.py), a
vocabulary, a config and a checkpoint to start from.
Out in --output_dir: checkpoints, eval_results.txt and .json, predictions.jsonl and .conll,
export/, and all that the folder needs to answer alone: labelling.json, albert_config.json,
vocab.txt.
"""

import collections
import functools
import io
import os

import tensorflow.compat.v1 as tf
from absl import flags

import cli
import modeling
from fine_tuning import crf, fine_tuner, labelling, predictor, several_runs, step
from fine_tuning.examples import (
    TextEncoder,
    batches_of,
    cache_key,
    cached_rows,
    random_batches,
    read_bytes,
)
from fine_tuning.labelling_predictor import LabellingPredictor, mentions_line, window_ids
from fine_tuning.tag_schemes import (
    SCHEMES,
    Entity,
    conll_text,
    entities_from_tags,
    entity_report,
    entity_report_text,
    tags_of,
)
from fine_tuning.tasks import decoded_lines, files_there, split_file, task_among
from training import failures, run_settings

CHECKED_ROWS = 200  # an export is compared with the model on so many
CRF_RATE = 100.0  # times the encoder's: at the encoder's own a CRF learns next to nothing
FIGURES = ("f1", "precision", "recall")  # on dev; the first one chooses
REMEMBERED = ("task_name", "data_dir", "input_encoding", "max_seq_length", "do_lower_case", "crf")

NerTask = collections.namedtuple(
    "NerTask", "task data_dir input_encoding scheme types tokenizer max_seq_length cache")
# task: labelling.LabellingTask; scheme, types: of the training file's tags;
# cache: folder of encoded files.


def define_flags(flag_values):
    """Defines this script's flags."""
    fine_tuner.define_fine_tuning_flags(
        flag_values, "F1", (5.0, "tags need more than classes"),
        max_seq_length=(128, "most sentences; longer ones are read in parts"),
        train_batch_size=(32, "BERT's for fine-tuning"),
        learning_rate=(5e-5, "BERT's for tagging; small models want more, tiny 3e-4"))
    string, boolean, real = [functools.partial(define, flag_values=flag_values) for define in (
        flags.DEFINE_string, flags.DEFINE_bool, flags.DEFINE_float)]
    string("task_name", None, "Task: {}; your own data are bio (columns, whatever their scheme) or "
           "jsonl. Required, unless output_dir knows it.".format(", ".join(labelling.TASKS)))
    string("predict_file", None, "File to predict: as the task's, or plain text of one sentence a "
           "line; - answers standard input line by line. Default: the task's test file.")
    boolean("crf", False, "Train a CRF over the tags. Off: without it invalid sequences are ruled "
            "out too.")
    real("crf_learning_rate", None, "Highest rate of the CRF's transitions. Default: {:g} times "
         "learning_rate.".format(CRF_RATE), lower_bound=0.0)
    real("classifier_dropout", 0.1, "Dropout before the tag head in training. Default: BERT's.",
         lower_bound=0.0, upper_bound=0.99)
    boolean("cluener_submission", False, "Also write the predictions as cluener_predict.json, the "
            "form in which CLUENER takes them. Off: no other task has it.")
    flags.adopt_module_key_flags(fine_tuner, flag_values)


# --- data -------------------------------------------------------------------------------------


def find_tagged(data, split):
    """Path of the data file of a split; raises UserError if there is none."""
    return split_file(data.task, data.data_dir, split, tf.io.gfile.exists)


def read_tagged(source, input_encoding, types=None, need_labels=True):
    """(sentences, Scheme) of a file, see labelling.read_sentences; UserError if it has none."""
    lines = decoded_lines(io.BytesIO(read_bytes(source)), source, input_encoding)
    sentences, scheme = labelling.read_sentences(source, lines, types, need_labels)
    if not sentences:
        raise cli.UserError("{}: no sentences".format(source))
    return sentences, scheme


def encode_windows(data, sentences):
    """Examples of the training file, a row for each window."""
    source = find_tagged(data, "train")
    settings = [LabellingPredictor.HEAD, data.scheme.name, data.types, data.max_seq_length,
                data.input_encoding]
    examples = cached_rows(source, cache_key(settings, read_bytes(source), data.tokenizer),
                           data.cache, lambda: window_rows(data, sentences), need_labels=True)
    tf.logging.info("%s: %d sentences in %d windows, longest %d tokens", source, len(sentences),
                    examples.rows, examples.longest)
    return examples


def window_rows(data, sentences):
    """Yields (ids, their number, the number of each one's tag, False) of each window.

    Says how many sentences have an entity that the tokens cannot tell exactly: it ends within a
    word, say, or leaves no token.
    """
    numbers = {tag: number for number, tag in enumerate(tags_of(data.scheme, data.types))}
    inexact = 0
    for sentence in sentences:
        windows = labelling.windows_of(sentence.text, data.tokenizer, data.max_seq_length - 2)
        tags = [labelling.window_tags(sentence, window, data.scheme) for window in windows]
        for window, own in zip(windows, tags):
            ids = window_ids(window, data.tokenizer)
            yield ids, len(ids), [0] + [numbers[tag] for tag in own] + [0], False
        told = labelling.text_entities(windows, [
            [(entity, 1.0) for entity in entities_from_tags(own)] for own in tags])
        inexact += [entity for entity, _ in told] != sentence.entities
    if inexact:
        tf.logging.info("%d of %d sentences have an entity whose ends are no ends of tokens: the "
                        "model is told the nearest", inexact, len(sentences))


# --- model ------------------------------------------------------------------------------------


def tagger(features, config, num_tags, with_crf, dropout=0.0, dropout_seed=0, **options):
    """Logits [B, S, T] of a batch, and the CRF's transitions [T, T] or None.

    options: further ones of modeling.AlbertModel.
    """
    model = modeling.AlbertModel(config, *[features[name] for name in predictor.FEATURES],
                                 dropout_seed=dropout_seed, pooler=False, **options)
    logits = modeling.tag_head(model.sequence_output, num_tags, config, dropout, dropout_seed)
    return logits, tf.cast(crf.transition_scores(num_tags), tf.float32) if with_crf else None


def tokens_of_rows(features):
    """Tokens of each row, [CLS] and [SEP] aside: int32 [B]."""
    return tf.maximum(tf.reduce_sum(features["input_mask"], axis=1) - 2, 0)


def tag_sums(logits, transitions, features, tags):
    """Over the tokens, [CLS] and [SEP] aside, the sum of their losses and how many are right."""
    logits, truth = logits[:, 1:], tf.maximum(features["label_ids"][:, 1:], 0)  # [B, S-1]
    lengths = tokens_of_rows(features)
    weights = tf.cast(tf.sequence_mask(lengths, tf.shape(truth)[1]), tf.float32)
    if transitions is None:
        losses = weights * tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=truth, logits=logits)
    else:
        losses = -crf.log_likelihood(logits, truth, lengths, transitions, tags)
    best = tf.argmax(logits, axis=-1, output_type=tf.int32)
    right = weights * tf.cast(tf.equal(best, truth), tf.float32)
    return collections.OrderedDict(loss=tf.reduce_sum(losses), tag_accuracy=tf.reduce_sum(right))


def tagger_objective(config, tags, settings):
    """The head's step.Objective, a mean over tokens; settings: of the flags."""
    def sums(features, dropout_seed, **options):
        logits, transitions = tagger(features, config, len(tags), settings.crf,
                                     settings.classifier_dropout, dropout_seed, **options)
        return tag_sums(logits, transitions, features, tags)
    return step.Objective(
        lambda features: tf.cast(tf.reduce_sum(tokens_of_rows(features)), tf.float32), sums)


def crf_rate_factors(settings):
    """By what the rate of the CRF's variables differs, see optimization.create_optimizer."""
    factor = CRF_RATE
    if settings.crf_learning_rate is not None:
        factor = settings.crf_learning_rate / settings.learning_rate
    return [("^{}/".format(crf.SCOPE), factor)]


# --- the jobs ---------------------------------------------------------------------------------


def prepare_tagger(settings, description):
    """(NerTask, sentences of the training file or None, fine_tuner.Run).

    description: what output_dir says of itself, or None.
    Raises:
      UserError: files that do not fit one another.
    """
    place = run_settings.place_of(settings)
    task = task_among(labelling.TASKS, settings.task_name)
    config, tokenizer = fine_tuner.config_and_tokenizer(
        settings.bert_config_file, settings.vocab_file, settings.do_lower_case,
        settings.max_seq_length)
    if settings.max_seq_length < 3:
        raise cli.UserError("--max_seq_length={} is too short: [CLS] a [SEP] are 3".format(
            settings.max_seq_length))
    sentences = None
    if description:
        kept = {name: description[name] for name in predictor.OF_LABELS if name in description}
        scheme, types = SCHEMES[description["scheme"]], description["types"]
    else:
        source = split_file(task, settings.data_dir or "", "train", tf.io.gfile.exists)
        sentences, scheme = read_tagged(source, settings.input_encoding)
        types = labelling.types_found(sentences, source)
        kept = {"scheme": scheme.name, "types": types}
    data = NerTask(task, settings.data_dir, settings.input_encoding, scheme, types, tokenizer,
                   settings.max_seq_length, fine_tuner.cache_folder(settings.output_dir, place))
    return data, sentences, fine_tuner.Run(
        settings, place, LabellingPredictor,
        dict({name: getattr(settings, name) for name in REMEMBERED}, **kept),
        config, lambda features: tagger(
            features, config, len(predictor.labels_in(kept)), settings.crf))


def train_tagger(run, data, sentences, dev):
    """Trains; dev: sentences to look at on the way, or None."""
    settings = run.settings
    examples = encode_windows(data, sentences)
    run.train(examples, tagger_objective(run.config, tags_of(data.scheme, data.types), settings),
              lambda model: found_report(model, dev), FIGURES,
              entity_report_text, {"crf": settings.crf},
              rate_factors=crf_rate_factors(settings))


def found_report(model, sentences):
    """The entity_report of a LabellingPredictor on sentences with labels."""
    with failures.forward_advice("eval_batch_size", model.batch_size,
                                 model.description["max_seq_length"]):
        found = [[entity for entity, _ in entities] for entities in
                 model.entities(sentence.text for sentence in sentences)]
    return entity_report([sentence.entities for sentence in sentences], found,
                         model.description["types"])


def write_mentions(model, data, source, output_dir, cluener_submission):
    """Writes predictions.jsonl and .conll for a file, or the test file."""
    source = source or find_tagged(data, "test")
    if not tf.io.gfile.exists(source):
        raise cli.UserError("--predict_file: no file {!r}".format(source))
    sentences, _ = read_tagged(source, data.input_encoding, need_labels=False)
    texts = [sentence.text for sentence in sentences]
    with failures.forward_advice("predict_batch_size", model.batch_size, data.max_seq_length):
        found = model.predict(texts)
    contents = {
        "predictions.jsonl": "".join(mentions_line(*pair) + "\n" for pair in zip(texts, found)),
        "predictions.conll": "".join(conll_text(text, model.character_tags(text, mentions))
                                     for text, mentions in zip(texts, found))}
    if cluener_submission:
        contents["cluener_predict.json"] = "".join(
            labelling.cluener_line(number, text, [mention[:3] for mention in mentions]) + "\n"
            for number, (text, mentions) in enumerate(zip(texts, found)))
    for name, content in contents.items():
        cli.write_whole(os.path.join(output_dir, name), content)
    tf.logging.info("%d sentences of %s predicted: %s", len(texts), source, ", ".join(
        os.path.join(output_dir, name) for name in contents))
    if all(sentence.entities is not None for sentence in sentences):
        report = entity_report(
            [sentence.entities for sentence in sentences],
            [[Entity(*mention[:3]) for mention in mentions] for mentions in found], data.types)
        fine_tuner.print_text("predictions of {}: f1 = {}\n".format(source, report["f1"]))


def windows_to_check(data, seed):
    """Batches of windows to compare an export on; random ones where there are no files."""
    sources = files_there(data.task, data.data_dir, tf.io.gfile.exists)
    rows = []
    if sources:
        sentences, _ = read_tagged(sources[0], data.input_encoding, need_labels=False)
        rows = [window_ids(window, data.tokenizer) for sentence in sentences[:CHECKED_ROWS]
                for window in labelling.windows_of(sentence.text, data.tokenizer,
                                                   data.max_seq_length - 2)]
    return batches_of([(ids, len(ids)) for ids in rows]) or random_batches(
        TextEncoder(data.tokenizer, max(5, data.max_seq_length)), CHECKED_ROWS, seed)


def tagger_jobs(settings, description):
    """Trains, evaluates, predicts and exports as the flags say; see several_runs."""
    data, sentences, run = prepare_tagger(settings, description)
    dev = tested = None
    if fine_tuner.watches(settings):
        dev, _ = read_tagged(find_tagged(data, "dev"), data.input_encoding, data.types)
    if settings.do_eval:
        tested, _ = read_tagged(find_tagged(data, settings.eval_split), data.input_encoding,
                                data.types)
    return run.carry_out(
        train=lambda: train_tagger(run, data, sentences, dev),
        report_on=lambda model: found_report(model, tested),
        report_text=entity_report_text,
        predict=lambda model: write_mentions(model, data, settings.predict_file,
                                             settings.output_dir, settings.cluener_submission),
        to_check=lambda: windows_to_check(data, settings.random_seed))


def main(flag_values):
    """Checks everything, then trains, evaluates, predicts and exports as the flags say.

    Returns:
      the exit code: 1 if a line of standard input did not read.
    """
    tf.logging.set_verbosity(tf.logging.INFO)
    cli.require_flags(flag_values, ["output_dir"])
    settings, description = fine_tuner.completed_settings(
        cli.settings_of(flag_values), cli.given_flags(flag_values), LabellingPredictor.HEAD,
        REMEMBERED)
    return several_runs.carry_out_over_seeds(settings, description, tagger_jobs, FIGURES)


if __name__ == "__main__":
    cli.run(main, define_flags)

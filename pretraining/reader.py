"""Reads pre-training TFRecords: checks them against the flags, then feeds batches.

In: files written by create_pretraining_data.py.  Out: a tf.data.Dataset of dicts of int32 (weights:
float32) tensors, by the names of records.py.

The order of training is a function of (seed, step) alone: epoch e shuffles the files, then the
records, with seed + e. So a resumed run goes on with the very records that an undisturbed one
would have seen, and nothing about the position is saved. Dynamic records are masked here, batch b
with the seed (seed, b).
"""

import collections
import functools
import json
import os
from math import isnan

import tensorflow.compat.v1 as tf

from cli import UserError, match_files, refuse_pipes
from pretraining import dynamic_masking, record_files
from pretraining_data import manifest, records

SHUFFLE_BUFFER = 10000  # records; about 25 MB at length 512
PARALLEL_FILES = 16
ENDLESS = 2 ** 62
MASKED_AT_ONCE = 32  # records of an evaluation
BOUND_BY = dict.fromkeys(("input_ids", "masked_lm_ids", "token_ids"), "the config's vocab_size ")
BOUND_BY["masked_lm_positions"] = "--max_seq_length "

# masking: dynamic_masking.Options where the records are dynamic, None where masks stand in them.
# manifests: {path: content} of the manifests that stand beside the files.
# vocab_size: the config's, None where it is not known.
Source = collections.namedtuple(
    "Source", "files compression seq_length max_predictions masking manifests vocab_size",
    defaults=(None,))


def feature_lengths(seq_length, max_predictions):
    """Feature name -> (length, dtype) of one record."""
    words = {name: (seq_length, tf.int64) for name in ("input_ids", "input_mask", "segment_ids")}
    return dict(words, masked_lm_positions=(max_predictions, tf.int64),
                masked_lm_ids=(max_predictions, tf.int64),
                masked_lm_weights=(max_predictions, tf.float32),
                next_sentence_labels=(1, tf.int64))


def find_files(patterns, flag_name):
    """cli.match_files for TFRecords on any file system TensorFlow knows, gs:// among them.

    Of a folder the files are taken whose names hold .tfrecord or .tf_record, but no manifest.
    """
    def find(pattern):
        try:
            return [path for path in tf.io.gfile.glob(pattern) if not path.endswith(".json")]
        except tf.errors.NotFoundError:  # TensorFlow 1.15, where a folder is missing
            return []

    found = match_files(patterns, flag_name, find, tf.io.gfile.isdir, inside="*.tf*record*")
    refuse_pipes(found, flag_name)
    return found


def peek(files, seq_length, max_predictions, flag_name="input_file", skip_corrupt=False,
         vocab_size=None):
    """Checks the manifests, and the first record of every file, or the first that fits.

    Args:
      files: paths, at least one.
      seq_length, max_predictions: the lengths that every record must have.
      flag_name: str, the flag that named the files, for messages.
      skip_corrupt: bool, pass over records at a file's beginning that do not fit.
      vocab_size: the config's, above all token ids; None where it is not known.
    Returns:
      Source.
    Raises:
      UserError: a file cannot be read, is empty, is no TFRecord file, or holds other lengths than
        asked for or values out of range; a manifest names other lengths or more tokens.
    """
    def compression_of(path):
        try:
            return records.compression_of(path)
        except (OSError, tf.errors.OpError) as error:
            raise UserError("--{}: {} cannot be read: {}".format(
                flag_name, path, getattr(error, "message", error))) from None

    kinds = {path: compression_of(path) for path in files}
    if len(set(kinds.values())) > 1:
        raise UserError("--{}: {} is compressed and {} is not; read them in separate runs".format(
            flag_name, *[next(p for p in files if kinds[p] == kind) for kind in ("GZIP", "")]))
    manifests = read_manifests(files, seq_length, max_predictions, vocab_size)
    check = functools.partial(check_record, seq_length=seq_length, vocab_size=vocab_size,
                              max_predictions=max_predictions)
    dynamic = {path for path in files if first_is_dynamic(path, check, flag_name, skip_corrupt)}
    masking = dynamic_options(files, dynamic, manifests) if dynamic else None
    return Source(list(files), kinds[files[0]], seq_length, max_predictions, masking, manifests,
                  vocab_size)


def first_is_dynamic(path, check, flag_name, skip_corrupt):
    """Whether a file's first record holds no masks; with skip_corrupt the first that fits.

    check: function(record, path) that says so of a record, or raises UserError; see check_record.
    """
    refusal = None
    for record in records.read_records(path):
        try:
            if record is None:
                raise UserError("--{}: {} is not a TFRecord file, or is damaged".format(
                    flag_name, path))
            return check(record, path)
        except UserError as error:
            refusal = refusal or error
            if not skip_corrupt:
                break
    raise refusal or UserError("--{}: {} holds no record".format(flag_name, path))


def check_record(record, path, seq_length, max_predictions, vocab_size=None):
    """Raises UserError where a serialized record does not fit the flags; True if it is dynamic.

    vocab_size: above all token ids; None lets any pass that is not negative.
    """
    try:
        features = tf.train.Example.FromString(record).features.feature
    except Exception as error:  # protobuf raises another class in each of its versions
        raise UserError("{} holds no tf.train.Example: {}".format(path, error)) from None
    if set(features) == set(dynamic_masking.FEATURES):
        check_dynamic(features, path, seq_length, vocab_size)
        return True
    bounds = static_bounds(seq_length, vocab_size)
    for name, (length, dtype) in sorted(feature_lengths(seq_length, max_predictions).items()):
        if name not in features:
            raise UserError("{}: records have no feature {!r}; they have: {}".format(
                path, name, ", ".join(sorted(features)) or "none"))
        kind = "float_list" if dtype == tf.float32 else "int64_list"
        stored = features[name].WhichOneof("kind") or kind
        if stored != kind:
            raise UserError("{}: records have {} as {}, must be {}".format(
                path, name, stored, kind))
        values = getattr(features[name], kind)
        if len(values.value) != length:
            flag = "max_predictions_per_seq" if "masked" in name else "max_seq_length"
            raise UserError("{}: records have {} of length {}, but --{} asks for {}".format(
                path, name, len(values.value), flag, length))
        check_values(path, name, values.value, bounds.get(name, float("inf")))
    if not any(features["masked_lm_weights"].float_list.value):
        raise UserError("{}: masked_lm_weights are 0 everywhere: nothing is to be predicted".format(
            path))
    return False


def static_bounds(seq_length, vocab_size=None):
    """Feature name -> what all its values are below; they are at least 0."""
    bounds = dict.fromkeys(("input_ids", "masked_lm_ids"), vocab_size or tf.int32.max)
    bounds.update(dict.fromkeys(("input_mask", "segment_ids", "next_sentence_labels"), 2))
    return dict(bounds, masked_lm_positions=seq_length)


def check_dynamic(features, path, seq_length, vocab_size=None):
    """check_record for the parsed features of a dynamic record."""
    if sum(map(len, features["token_ids"].bytes_list.value)) % 2:
        raise UserError("{}: token_ids are an odd number of bytes, must be two a token".format(
            path))
    found = dynamic_masking.record_values(features)
    tokens = len(found["token_ids"])
    bounds = dict(token_ids=vocab_size or tf.int32.max, segment_b_start=tokens,
                  next_sentence_labels=2)
    for name, values in sorted(found.items()):
        most = seq_length if name == "token_ids" else 1
        if not 1 <= len(values) <= most:
            raise UserError("{}: records have {} of length {}, must be from 1 to {}".format(
                path, name, len(values), most))
        check_values(path, name, values, bounds[name])


def check_values(path, name, values, bound):
    """Raises UserError where a feature has a value that is negative or not below bound."""
    for value in values if any(map(isnan, values)) else (min(values), max(values)):
        if not 0 <= value < bound:
            raise UserError("{}: {} holds {}, must be at least 0 and below {}{}".format(
                path, name, value, BOUND_BY.get(name, ""), bound))


def read_manifests(files, seq_length, max_predictions, vocab_size=None):
    """{path: content} of the manifests beside the files, each checked against flags and config.

    Raises:
      UserError: a manifest is damaged, or names other lengths, or more tokens than vocab_size.
    """
    manifests = {}
    for path in sorted({manifest.manifest_of(path) for path in files}):
        if tf.io.gfile.exists(path):
            with tf.io.gfile.GFile(path, "rb") as stream:
                try:
                    manifests[path] = json.loads(stream.read().decode("utf-8"))
                except ValueError as error:
                    raise UserError("{} is damaged: {}".format(path, error)) from None
    for path, content in manifests.items():
        manifest.require_manifest(path, content)
        for flag, asked in (("max_seq_length", seq_length),
                            ("max_predictions_per_seq", max_predictions)):
            if content["settings"][flag] != asked:
                raise UserError("{}: records were made with --{}={}, but {} is asked for".format(
                    path, flag, content["settings"][flag], asked))
        if vocab_size and content["vocab"]["size"] > vocab_size:
            raise UserError("{}: records were made with a vocabulary of {} tokens, the config has "
                            "vocab_size {}".format(path, content["vocab"]["size"], vocab_size))
        found = sum(manifest.manifest_of(name) == path for name in files)
        made = sum(counts["instances"] > 0 for counts in content["shards"].values())
        if found < made:
            tf.logging.warning("%s: %d of %d shards are among the files", path, found, made)
    return manifests


def dynamic_options(files, dynamic, manifests):
    """dynamic_masking.Options for files that must all be dynamic and made in one way."""
    for path in files:
        if path not in dynamic:
            raise UserError("{} holds no masks and {} does; read them in separate runs".format(
                sorted(dynamic)[0], path))
        if manifest.manifest_of(path) not in manifests:
            raise UserError("{}: its masks are made in training, which needs {}".format(
                path, manifest.manifest_of(path)))
    first, *others = sorted(manifests)
    for other in others:
        difference = manifest.first_difference(dynamic_masking.relevant(manifests[first]),
                                               dynamic_masking.relevant(manifests[other]))
        if difference:
            raise UserError("{} and {} are to be masked in other ways: {}".format(
                first, other, difference))
    return dynamic_masking.options_from_manifest(manifests[first])


def without_corrupt(source, folder):
    """The source without its corrupt records; files that hold some are copied to `folder`."""
    files, _ = record_files.without_damage(source.files, source.compression, folder,
                                           lambda path: record_check(source, path))
    return source._replace(files=files)


def record_check(source, path):
    """function(record) that raises UserError for a record of a source's file that does not fit."""
    def check(record):
        dynamic = check_record(record, path, source.seq_length, source.max_predictions,
                               source.vocab_size)
        if dynamic != bool(source.masking):
            raise UserError("{} holds masks in some records and none in others".format(path))

    return check


def find_damage(sources):
    """(path, record number, reason) of the first record that cannot be read, or None."""
    for source in sources:
        for path in source.files:
            damage = next(record_files.damages(path, record_check(source, path)), None)
            if damage:
                return (path,) + damage
    return None


def count_source(source):
    """How many records the source's files hold in all."""
    return sum(record_files.count_records(path, source.compression) for path in source.files)


def source_of_machine(source, worker, workers):
    """(what this machine reads of a source, whether it has to leave records to the others).

    Each of several machines reads files of its own, or, where there are fewer files than machines,
    every workers-th record of all.
    """
    if workers == 1 or len(source.files) < workers:
        return source, workers > 1
    return source._replace(files=source.files[worker::workers]), False


def training_dataset(source, batch_size, seed, first_record=0, worker=0, workers=1):
    """Endless batches of batch_size records for one of the machines that share a training.

    Args:
      source: Source of all machines.
      batch_size: records in a batch; each step takes one for each device.
      seed: int, the same on every machine.
      first_record: how many records all machines have seen before.
      worker, workers: this machine's number, and how many there are.
    """
    source, leaves_some = source_of_machine(source, worker, workers)
    passed = first_record if leaves_some else first_record // workers
    epoch, skipped = divmod(passed, count_source(source)) if passed else (0, 0)
    files = tf.constant(source.files)

    def one_epoch(number):
        order = tf.data.Dataset.from_tensor_slices(files).shuffle(
            len(source.files), seed=seed + number, reshuffle_each_iteration=False)
        serialized = order.interleave(
            lambda path: file_records(path, source),
            cycle_length=min(len(source.files), PARALLEL_FILES), block_length=1)
        return serialized.shuffle(SHUFFLE_BUFFER, seed=seed + number,
                                  reshuffle_each_iteration=False)

    serialized = tf.data.Dataset.range(epoch, ENDLESS).flat_map(one_epoch).skip(skipped)
    if leaves_some:
        serialized = serialized.shard(workers, worker)
    return parsed(serialized.batch(batch_size, drop_remainder=True), source, seed + worker,
                  first_record // workers // batch_size)


def file_records(path, source):
    """The serialized records of a file of source, a scalar tensor.

    TensorFlow takes a file with a few bytes too many for whole, and ends the process where a record
    says that it is longer than all memory. So the lengths are looked at first, once in a run; where
    they are compressed, that means all of the file.
    """
    if not any("://" in name for name in source.files):
        path = tf.py_func(lambda name: whole_file(os.fsdecode(name), source.compression), [path],
                          tf.string)
        path.set_shape([])
    return tf.data.TFRecordDataset(path, source.compression)


@functools.lru_cache(maxsize=None)
def whole_file(path, compression):
    """The path of a file; raises ValueError where its records do not fill it."""
    try:
        record_files.count_frames(path, compression)
    except UserError as error:
        raise ValueError(str(error)) from None
    return path


def evaluation_dataset(source, batch_size):
    """Every record once, in file order; the last batch is filled up with rows of zeros.

    A row of zeros has an input_mask of zeros, by which the metrics leave it out. Dynamic records
    are masked in batches of their own, so that the masks do not depend on batch_size.
    """
    def fill(features):
        missing = batch_size - tf.shape(features["next_sentence_labels"])[0]
        return {name: filled(value, missing) for name, value in features.items()}

    def filled(value, missing):
        value = tf.pad(value, [[0, missing]] + [[0, 0]] * (value.shape.ndims - 1))
        value.set_shape([batch_size] + value.shape.as_list()[1:])
        return value

    serialized = tf.data.Dataset.from_tensor_slices(source.files).flat_map(
        lambda path: file_records(path, source))
    if not source.masking:
        return parsed(serialized.batch(batch_size), source).map(fill)
    rows = parsed(serialized.batch(MASKED_AT_ONCE), source).unbatch()
    return rows.batch(batch_size).map(fill)


def parsed(batches, source, seed=0, first_batch=0):
    """Parses serialized records a whole batch at a time, twice as fast as one by one.

    Dynamic records get their masks by (seed, number of the batch). A batch with a record that does
    not fit raises InvalidArgumentError; find_damage() says which one and why.
    """
    def parse(number, batch):
        if source.masking:
            return dynamic_masking.parse_batch(
                batch, tf.stack([tf.constant(seed, tf.int64), number]), source.masking,
                source.vocab_size)
        return parse_static(batch, source)

    def parse_or_refuse(number, batch):
        # What parse_example says of a damaged record holds its bytes, which are no text: Python
        # fails to decode them, or crashes. Hence its errors end here, and refuse() speaks.
        good = tf.data.Dataset.from_tensors((number, batch)).map(parse).apply(
            tf.data.experimental.ignore_errors())
        shapes, types = (tf.data.get_output_shapes(good), tf.data.get_output_types(good))

        def refuse(zero):
            with tf.control_dependencies([tf.Assert(False, ["a record does not fit"])]):
                return {name: tf.zeros([size or zero for size in shape.as_list()], types[name])
                        for name, shape in shapes.items()}

        return good.concatenate(tf.data.Dataset.from_tensors(0).map(refuse)).take(1)

    # Not a parallel interleave: at the end of a session TensorFlow 1.15 may crash in one.
    return batches.enumerate(first_batch).flat_map(parse_or_refuse).prefetch(
        tf.data.experimental.AUTOTUNE)


def parse_static(batch, source):
    """Features of a batch of serialized static records [B] that are all within bounds."""
    lengths = feature_lengths(source.seq_length, source.max_predictions)
    features = tf.parse_example(batch, {
        name: tf.FixedLenFeature([length], dtype) for name, (length, dtype) in lengths.items()})
    weights = features["masked_lm_weights"]  # [B, P]
    within = [tf.reduce_all(tf.greater_equal(features[name], 0) & tf.less(features[name], bound))
              for name, bound in sorted(static_bounds(source.seq_length,
                                                      source.vocab_size).items())]
    within += [tf.reduce_all(tf.greater_equal(weights, 0.0) & tf.math.is_finite(weights)),
               tf.reduce_all(tf.greater(tf.reduce_max(weights, 1), 0.0))]
    features["next_sentence_labels"] = tf.reshape(features["next_sentence_labels"], [-1])  # [B]
    with tf.control_dependencies([tf.Assert(tf.reduce_all(within), ["out of bounds"])]):
        return {name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else tf.identity(value)
                for name, value in features.items()}

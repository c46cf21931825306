"""dynamic_masking.py against masking.py: the same rules for each row, the same shares."""

import collections
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags
from helpers.toy_records import serialized, toy_record
from helpers.toys import write_text

import create_pretraining_data
import tokenization
from cli import UserError
from pretraining import dynamic_masking, reader
from pretraining_data import manifest, masking, records

LENGTH, PREDICTIONS = 64, 10


@pytest.fixture(scope="module")
def tables(toy_vocab):
    return masking.VocabTables(tokenization.load_vocab(toy_vocab), tokenization.is_cjk)


@pytest.fixture(scope="module")
def rows(tables):
    """Rows of 64 instances of 5 to 64 tokens in random words of 1 to 5."""
    rng = np.random.RandomState(5)
    ids, starts = rng.choice(tables.ordinary, 4000), rng.random_sample(4000) < 0.55
    lengths = np.append(rng.randint(2, LENGTH - 2, 62), [2, LENGTH - 3])
    first = rng.randint(0, 3900, 64)
    middle = first + 1 + (rng.random_sample(64) * (lengths - 1)).astype(int)
    pairs = np.stack([first, middle, first + lengths, rng.randint(0, 2, 64)], 1)
    return masking.gather(ids, starts, pairs, tables)


def options_of(tables, **changes):
    options = dynamic_masking.Options(LENGTH, PREDICTIONS, 0.15, True, 1, tables.mask,
                                      tables.ordinary, None)
    return options._replace(**changes)


def masked_batches(rows, options, count):
    """`count` times the features of the rows, with seeds (3, 0), (3, 1), …"""
    with tf.Graph().as_default(), tf.Session() as session:
        batch = tf.constant(records.encode_dynamic(rows))
        number = tf.placeholder(tf.int64, [])
        features = dynamic_masking.parse_batch(batch, tf.stack([tf.constant(3, tf.int64), number]),
                                               options)
        assert all(value.shape.is_fully_defined() for value in features.values())
        return [session.run(features, {number: index}) for index in range(count)]


def as_masks(features, rows):
    """masking.Masks from the features of a batch; checks all that must hold of them."""
    positions, targets, offsets, input_ids = [], [], [0], []
    for row in range(len(rows.labels)):
        length = rows.offsets[row + 1] - rows.offsets[row]
        used = int(features["masked_lm_weights"][row].sum())
        assert features["masked_lm_weights"][row].tolist() == [1.0] * used + [0.0] * (
            PREDICTIONS - used)
        for name in ("masked_lm_positions", "masked_lm_ids"):
            assert not features[name][row][used:].any()
        assert features["input_mask"][row].tolist() == [1] * length + [0] * (LENGTH - length)
        first = rows.first_lengths[row]
        assert features["segment_ids"][row].tolist() == (
            [0] * first + [1] * (length - first) + [0] * (LENGTH - length))
        assert not features["input_ids"][row][length:].any()
        positions += features["masked_lm_positions"][row][:used].tolist()
        targets += features["masked_lm_ids"][row][:used].tolist()
        offsets.append(offsets[-1] + used)
        input_ids += features["input_ids"][row][:length].tolist()
    assert features["next_sentence_labels"].tolist() == rows.labels.tolist()
    return masking.Masks(np.array(input_ids), np.array(positions), np.array(targets),
                         np.array(offsets))


def words_of(rows, row):
    """Positions in the row of each word, without [CLS] and [SEP]: list of sets."""
    begin, end = rows.offsets[row], rows.offsets[row + 1]
    starts = np.flatnonzero(rows.starts[begin:end]).tolist() + [end - begin]
    special = {0, rows.first_lengths[row] - 1, end - begin - 1}
    return [set(range(first, last)) for first, last in zip(starts, starts[1:])
            if first not in special]


@pytest.mark.parametrize("ngram", [1, 3])
@pytest.mark.parametrize("whole_words", [True, False])
def test_every_batch_keeps_the_rules(tables, rows, ngram, whole_words):
    options = options_of(tables, ngram=ngram, whole_words=whole_words)
    parts_of_words = 0
    for features in masked_batches(rows, options, 12):
        masks = as_masks(features, rows)
        restored = masks.input_ids.copy()
        for row in range(len(rows.labels)):
            part = slice(masks.offsets[row], masks.offsets[row + 1])
            positions = masks.positions[part].tolist()
            assert positions == sorted(set(positions))
            restored[rows.offsets[row] + masks.positions[part]] = masks.target_ids[part]
            words, masked = words_of(rows, row), set(positions)
            parts_of_words += sum(bool(word & masked) and not word <= masked for word in words)
            length = int(rows.offsets[row + 1] - rows.offsets[row])
            wanted = min(max(1, int(round(length * 0.15))), PREDICTIONS)
            shortest = min(map(len, words)) if whole_words else 1
            assert len(masked) <= max(wanted, shortest)
            left = wanted - len(masked)
            assert all(len(word) > left for word in words if not word & masked) or not whole_words
            assert masked or shortest > PREDICTIONS
        assert np.array_equal(restored, rows.ids)
    assert (parts_of_words == 0) == whole_words


@pytest.mark.parametrize("ngram", [1, 2])
def test_the_distribution_is_that_of_static_masks(tables, rows, ngram):
    """Per row and place: how often it is masked; in all: what is read there, lengths of runs."""
    draws = 250
    static, dynamic = collections.Counter(), collections.Counter()
    for features in masked_batches(rows, options_of(tables, ngram=ngram), draws):
        count_masks(dynamic, rows, as_masks(features, rows), tables)
    for seed in range(draws):
        count_masks(static, rows, masking.mask_rows(
            rows, tables, 0.15, PREDICTIONS, True, ngram, False, np.random.RandomState(seed)),
            tables)
    places = [key for key in set(static) | set(dynamic) if key[0] == "place"]
    differences = np.array([dynamic[key] - static[key] for key in places])
    deviations = np.sqrt([max(static[key], 5) * 2.0 for key in places])
    assert np.abs(differences / deviations).max() < 5.5
    assert abs((differences / deviations).mean()) < 0.15
    for kind in ("read", "run"):
        total = sum(count for key, count in static.items() if key[0] == kind)
        for key in {key for key in set(static) | set(dynamic) if key[0] == kind}:
            assert abs(dynamic[key] - static[key]) < 0.012 * total, key


def count_masks(counts, rows, masks, tables):
    flat = masks.positions + np.repeat(rows.offsets[:-1], np.diff(masks.offsets))
    counts.update(("place", position) for position in flat.tolist())
    read = masks.input_ids[flat]
    counts.update({("read", "mask"): int((read == tables.mask).sum()),
                   ("read", "same"): int((read == rows.ids[flat]).sum()),
                   ("read", "other"): int(((read != tables.mask)
                                           & (read != rows.ids[flat])).sum())})
    assert not set(read.tolist()) - set(tables.ordinary.tolist()) - {tables.mask}
    runs = np.diff(np.flatnonzero(np.concatenate([[True], np.diff(flat) > 1, [True]])))
    counts.update(("run", min(int(run), 8)) for run in runs)


def test_a_seed_gives_the_same_masks_and_another_gives_others(tables, rows):
    first, second = masked_batches(rows, options_of(tables), 2)
    again = masked_batches(rows, options_of(tables), 2)[1]
    assert all(np.array_equal(second[name], again[name]) for name in second)
    same = (first["masked_lm_positions"] == second["masked_lm_positions"]).all(1)
    assert same.mean() < 0.2


def test_ngrams_have_their_odds():
    with tf.Graph().as_default(), tf.Session() as session:
        begins = session.run(dynamic_masking.ngram_begins(
            tf.ones([100, 512], tf.bool), tf.constant([1, 2]), 3))
    lengths = np.diff(np.flatnonzero(begins))
    shares = np.bincount(lengths, minlength=4)[1:] / len(lengths)
    assert np.abs(shares - [6 / 11.0, 3 / 11.0, 2 / 11.0]).max() < 0.012


def test_continuation_targets(tables, rows):
    options = options_of(tables, continuation=tables.continuation)
    (features,) = masked_batches(rows, options, 1)
    masks = as_masks(features, rows)
    flat = masks.positions + np.repeat(rows.offsets[:-1], np.diff(masks.offsets))
    wanted = np.where(rows.starts[flat], rows.ids[flat], tables.continuation[rows.ids[flat]])
    assert np.array_equal(masks.target_ids, wanted)
    assert (masks.target_ids != rows.ids[flat]).sum() > 20


# ---- through the files -------------------------------------------------------------------------


def create_records(folder, vocab, text, name="tf_x", **changes):
    values = flags.FlagValues()
    create_pretraining_data.define_flags(values)
    options = dict(vocab_file=vocab, input_file=text, max_seq_length=LENGTH, num_workers=1,
                   max_predictions_per_seq=PREDICTIONS, masking="dynamic",
                   output_file=os.path.join(str(folder), name + ".tfrecord"))
    options.update(changes)
    values(["create"] + ["--{}={}".format(*option) for option in options.items()])
    create_pretraining_data.main(values)
    pattern = os.path.join(str(folder), name + "*.tfrecord")
    return reader.find_files(pattern, "input_file")


def first_batches(source, count, first_record=0, batch_size=4):
    with tf.Graph().as_default(), tf.Session() as session:
        data = reader.training_dataset(source, batch_size, 7, first_record)
        batch = tf.data.make_one_shot_iterator(data).get_next()
        return [session.run(batch) for _ in range(count)]


def test_manifest_and_files_give_the_options(tmp_path, toy_vocab, toy_corpus, tables):
    files = create_records(tmp_path, toy_vocab, toy_corpus, ngram=2, continuation_targets=True,
                           num_shards=2)
    source = reader.peek(files, LENGTH, PREDICTIONS)
    more = [str(tmp_path / name) for name in ("a.tf_record.1", "b.tf_record", "c.tfrecords")]
    for path in more:
        shutil.copy(files[0], path)
    write_text(tmp_path / "b.tf_record.manifest.json", "{}")
    assert reader.find_files(str(tmp_path), "input_file") == more + files  # no manifest
    os.mkfifo(str(tmp_path / "d.tfrecord"))
    with pytest.raises(UserError, match="--input_file: .*d.tfrecord is a pipe or device"):
        reader.find_files(str(tmp_path), "input_file")
    assert source.masking.ngram == 2 and source.masking.mask_id == tables.mask
    assert np.array_equal(source.masking.ordinary, tables.ordinary)
    assert np.array_equal(source.masking.continuation, tables.continuation)
    reader.peek(files, LENGTH, PREDICTIONS, vocab_size=tables.size)
    with pytest.raises(UserError, match="manifest.json: .* vocab_size {}".format(tables.size - 1)):
        reader.peek(files, LENGTH, PREDICTIONS, vocab_size=tables.size - 1)


def test_batches_are_masked_anew_and_resume_exactly(tmp_path, toy_vocab, toy_corpus):
    files = create_records(tmp_path, toy_vocab, toy_corpus, compress=True)
    source = reader.peek(files, LENGTH, PREDICTIONS)
    batches = first_batches(source, 12)
    for batch, again in zip(batches[5:], first_batches(source, 7, first_record=20)):
        assert all(np.array_equal(batch[name], again[name]) for name in batch)
    masks = {batch["input_ids"].tobytes() for batch in batches}
    assert len(masks) == 12
    assert {name: value.shape for name, value in batches[0].items()} == {
        "input_ids": (4, LENGTH), "input_mask": (4, LENGTH), "segment_ids": (4, LENGTH),
        "masked_lm_positions": (4, PREDICTIONS), "masked_lm_ids": (4, PREDICTIONS),
        "masked_lm_weights": (4, PREDICTIONS), "next_sentence_labels": (4,)}


def evaluated_rows(source, batch_size):
    """input_ids of an evaluation, without the rows that only fill up the last batch."""
    seen = []
    with tf.Graph().as_default(), tf.Session() as session:
        batch = tf.data.make_one_shot_iterator(
            reader.evaluation_dataset(source, batch_size)).get_next()
        try:
            while True:
                seen.append(session.run(batch)["input_ids"])
        except tf.errors.OutOfRangeError:
            pass
    rows = np.concatenate(seen)
    assert len(rows) % batch_size == 0
    return rows[rows[:, 0] != 0]


def test_evaluation_gives_the_same_masks_each_time(tmp_path, toy_vocab, toy_corpus):
    files = create_records(tmp_path, toy_vocab, toy_corpus)
    source = reader.peek(files, LENGTH, PREDICTIONS)
    once = evaluated_rows(source, 5)
    assert len(once) == reader.count_source(source)
    for batch_size in (5, 7, 64):
        assert np.array_equal(evaluated_rows(source, batch_size), once)


def test_what_does_not_fit_is_refused(tmp_path, toy_vocab, toy_corpus):
    files = create_records(tmp_path, toy_vocab, toy_corpus)
    static = create_records(tmp_path, toy_vocab, toy_corpus, "tf_static", masking="static")
    other = create_records(tmp_path, toy_vocab, toy_corpus, "tf_other", ngram=3)
    for wrong, words in (((32, PREDICTIONS), "--max_seq_length=64, but 32"),
                         ((LENGTH, 20), "--max_predictions_per_seq=10, but 20")):
        with pytest.raises(UserError, match=words):
            reader.peek(files, *wrong)
    with pytest.raises(UserError, match="holds no masks"):
        reader.peek(files + static, LENGTH, PREDICTIONS)
    with pytest.raises(UserError, match="settings.ngram was 3, now 1"):
        reader.peek(files + other, LENGTH, PREDICTIONS)
    write_text(manifest.manifest_of(files[0]), "{")
    with pytest.raises(UserError, match="tf_x.manifest.json is damaged"):
        reader.peek(files, LENGTH, PREDICTIONS)
    os.remove(manifest.manifest_of(files[0]))
    with pytest.raises(UserError, match="needs .*tf_x.manifest.json"):
        reader.peek(files, LENGTH, PREDICTIONS)


@pytest.mark.parametrize("name, number, words", [
    ("token_ids", 40000, "token_ids holds 7232, must be .* below the config's vocab_size"),
    ("segment_b_start", LENGTH, "segment_b_start holds 64, must be .* below"),
    ("next_sentence_labels", -1, "next_sentence_labels holds -1")])
def test_values_of_a_dynamic_record_are_checked(rows, tables, name, number, words):
    sound = records.encode_dynamic(rows)
    for record in sound:
        assert reader.check_record(record, "x", LENGTH, PREDICTIONS, tables.size)
    example = tf.train.Example.FromString(sound[0])
    feature = example.features.feature[name]
    if name == "token_ids":
        feature.bytes_list.value[0] += np.array(number, "<u2").tobytes()
    else:
        feature.int64_list.value[0] = number
    if name == "token_ids":
        odd = tf.train.Example.FromString(sound[0])
        odd.features.feature[name].bytes_list.value[0] += b"x"
        with pytest.raises(UserError, match="odd number of bytes"):
            reader.check_record(odd.SerializeToString(), "x", LENGTH, PREDICTIONS)
    with pytest.raises(UserError, match="x: " + words):
        reader.check_record(example.SerializeToString(), "x", LENGTH, PREDICTIONS,
                                       tables.size)


def changed_record(record, name, value):
    """A dynamic record with another value of a feature."""
    example = tf.train.Example.FromString(record)
    feature = example.features.feature[name]
    values = feature.bytes_list.value if name == "token_ids" else feature.int64_list.value
    values[0] = value
    return example.SerializeToString()


BAD_RECORDS = {  # what a good record becomes, and what is said of it
    "static": (lambda record: serialized(toy_record(np.random.RandomState(0), LENGTH, PREDICTIONS)),
               "holds masks in some records and none in others"),
    "odd": (lambda record: changed_record(record, "token_ids", b"abc"), "odd number of bytes"),
    "no token": (lambda record: changed_record(record, "token_ids", b""), "and below 0"),
    "too long": (lambda record: changed_record(record, "token_ids", b"\1\0" * (LENGTH + 1)),
                 "token_ids of length 65, must be from 1 to 64"),
    "behind": (lambda record: changed_record(record, "segment_b_start", 1000), "holds 1000"),
    "before": (lambda record: changed_record(record, "segment_b_start", -5), "holds -5"),
    "label": (lambda record: changed_record(record, "next_sentence_labels", 2), "holds 2")}


@pytest.mark.parametrize("kind", sorted(BAD_RECORDS))
def test_a_later_record_that_does_not_fit_is_named_or_left_out(tmp_path, toy_vocab, toy_corpus,
                                                               kind):
    path, = create_records(tmp_path, toy_vocab, toy_corpus)
    change, words = BAD_RECORDS[kind]
    found = list(records.read_records(path))
    with open(path, "ab") as stream:
        stream.write(records.frame(change(found[0])))
    source = reader.peek([path], LENGTH, PREDICTIONS)
    with pytest.raises(tf.errors.InvalidArgumentError):
        first_batches(source, 1 + len(found), batch_size=1)
    where, number, reason = reader.find_damage([source])
    assert (where, number) == (path, len(found)) and words in reason
    left = reader.without_corrupt(source, str(tmp_path / "intact"))
    assert len(first_batches(left, 1 + len(found), batch_size=1)) == 1 + len(found)


def test_a_static_manifest_is_checked_and_missing_shards_are_named(tmp_path, toy_vocab, toy_corpus,
                                                                  caplog):
    files = create_records(tmp_path, toy_vocab, toy_corpus, masking="static", num_shards=3)
    caplog.set_level("WARNING")
    source = reader.peek(files[:2], LENGTH, PREDICTIONS)
    assert source.masking is None and "2 of 3 shards are among the files" in caplog.text
    path = manifest.manifest_of(files[0])
    with open(path, encoding="utf-8") as stream:
        content = json.load(stream)
    content["settings"]["max_seq_length"] = 128
    write_text(path, json.dumps(content))
    with pytest.raises(UserError, match="--max_seq_length=128, but 64"):
        reader.peek(files, LENGTH, PREDICTIONS)


def test_records_are_an_eighth_of_the_static_size(tmp_path, toy_vocab, toy_corpus):
    """At full length: 10 static copies against one dynamic."""
    sizes = [sum(os.path.getsize(path) for path in create_records(
        tmp_path, toy_vocab, toy_corpus, name, masking=name, max_seq_length=512,
        max_predictions_per_seq=76)) for name in ("static", "dynamic")]
    assert 8 * sizes[1] < sizes[0]

"""Texts become the ids BERT would see; a cache is never stale; batches hold each row once."""

import glob
import io
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toys import TOY_SENTENCES, write_text

import cli
import modeling  # noqa: F401, it sets TensorFlow up
from cli import UserError
from fine_tuning import tasks
from fine_tuning.examples import (
    EncodedRows,
    TextEncoder,
    batches_per_epoch,
    cached_examples,
    example_batches,
    padded_arrays,
    read_header,
    write_cache,
)
from fine_tuning.outcomes import Classes
from tokenization import FullTokenizer

LCQMC = tasks.task_named("lcqmc")


@pytest.fixture(scope="module")
def tokenizer(toy_vocab):
    return FullTokenizer(toy_vocab)


def pair_lines(count):
    """LCQMC lines whose lengths vary, each text different."""
    return "".join("{}{}\t{}\t{}\n".format(
        TOY_SENTENCES[n % 12][:1 + n * 7 % 8], n, TOY_SENTENCES[(n + 5) % 12], n % 2)
        for n in range(count))


def encoded(folder, tokenizer, text, length=48, need_labels=True, name="train.txt"):
    path = write_text(folder / name, text)
    return cached_examples(LCQMC, Classes(LCQMC.labels), path, TextEncoder(tokenizer, length),
                           str(folder / "encoded"), "utf-8", need_labels)


def batches_of(examples, batch_size, count, seed=1, **settings):
    """The first `count` training batches, as NumPy arrays."""
    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(
            example_batches(examples, batch_size, seed, **settings))
        session.run(iterator.initializer)
        batch = iterator.get_next()
        return [session.run(batch) for _ in range(count)]


def rows_in(batches):
    return np.concatenate([batch["row"] for batch in batches]).tolist()


def test_pair_and_single_text_as_bert_lays_them_out(tokenizer):
    encoder = TextEncoder(tokenizer, 12)
    ids, first, was_cut = encoder("天气有雨", "多")
    assert tokenizer.convert_ids_to_tokens(ids) == [
        "[CLS]", "天", "气", "有", "雨", "[SEP]", "多", "[SEP]"]
    assert (first, was_cut) == (6, False)
    ids, first, was_cut = encoder("天气预报说明天有雨天气")
    assert len(ids) == first == 12 and was_cut
    assert ids[-1] == tokenizer.vocab["[SEP]"]


def test_the_longer_text_is_cut_token_by_token(tokenizer):
    for room in (2, 3, 7, 8):
        encoder = TextEncoder(tokenizer, room + 3)
        for length_a in range(10):
            for length_b in range(10):
                kept_a, kept_b = length_a, length_b
                while kept_a + kept_b > room:
                    if kept_a > kept_b:
                        kept_a -= 1
                    else:
                        kept_b -= 1
                ids, first, was_cut = encoder("天" * length_a, "雨" * length_b)
                assert (first - 2, len(ids) - first - 1) == (kept_a, kept_b)
                assert was_cut == (length_a + length_b > room)


def test_too_short_a_length_fails(tokenizer):
    with pytest.raises(UserError, match="--max_seq_length=4 is too short"):
        TextEncoder(tokenizer, 4)


def test_training_batches_encoded_rows_and_texts_agree(tmp_path, tokenizer):
    lines = pair_lines(9)
    examples = encoded(tmp_path, tokenizer, lines)
    rows, encoder = EncodedRows(examples), TextEncoder(tokenizer, 48)
    pairs = [tuple(line.split("\t")[:2]) for line in lines.splitlines()]
    assert len(rows) == 9
    for batch in batches_of(examples, 4, 3):
        for expected in (padded_arrays([encoder(*pairs[row])[:2] for row in batch["row"]]),
                         padded_arrays([rows[row] for row in batch["row"]])):
            for name, array in zip(("input_ids", "input_mask", "segment_ids"), expected):
                assert np.array_equal(batch[name], array)
        assert batch["label_ids"].tolist() == [row % 2 for row in batch["row"]]
        assert np.array_equal(batch["label_ids"], rows.targets[batch["row"]])


@pytest.mark.parametrize("targets", [
    [[3, 4], [5, -1]], [[1, 2, 3, 4], [5, 6, 7]]], ids=["two a row", "one a token"])
def test_rows_hold_several_targets_or_one_for_each_token(tmp_path, targets):
    path = str(tmp_path / "rows.ids")
    write_cache(path, "x", [([8, 9, 7, 6], 2, targets[0], False), ([5, 4, 3], 3, targets[1], 1)])
    examples = read_header(path, "x")
    assert (examples.rows, examples.cut, examples.unlabelled) == (2, 1, 0)
    assert [list(row) for row in EncodedRows(examples).targets] == targets
    batch, = batches_of(examples, 2, 1)
    width = max(map(len, targets))
    for row, found in zip(batch["row"], batch["label_ids"]):
        assert found.tolist() == targets[row] + [-1] * (width - len(targets[row]))


def test_training_takes_each_row_once_an_epoch_in_a_new_order(tmp_path, tokenizer):
    examples = encoded(tmp_path, tokenizer, pair_lines(41))
    steps = batches_per_epoch(examples.rows, 8, False)
    assert steps == 6
    batches = batches_of(examples, 8, 2 * steps, seed=3)
    first, second = rows_in(batches[:steps]), rows_in(batches[steps:])
    assert sorted(first) == sorted(second) == list(range(41)) and first != second
    resumed = batches_of(examples, 8, 4, seed=3, start_batch=8)
    assert rows_in(resumed) == rows_in(batches[8:])
    assert rows_in(batches_of(examples, 8, 2 * steps, seed=4)) != first + second


def test_training_in_whole_batches_also_with_fewer_rows_than_a_batch(tmp_path, tokenizer):
    few = batches_of(encoded(tmp_path, tokenizer, pair_lines(3)), 8, 3, pad_to=48,
                     whole_batches=True, seed=1)
    assert [batch["input_ids"].shape for batch in few] == [(8, 48)] * 3
    assert all(set(batch["row"]) == {0, 1, 2} for batch in few)
    many = batches_of(encoded(tmp_path, tokenizer, pair_lines(20)), 8, 2, pad_to=48,
                      whole_batches=True, seed=1)
    assert len(set(rows_in(many))) == 16


def test_little_padding_is_left_in_training(tmp_path, tokenizer):
    examples = encoded(tmp_path, tokenizer, pair_lines(400))
    batches = batches_of(examples, 8, 50, seed=1)
    assert np.mean([batch["input_mask"].mean() for batch in batches]) > 0.97


def test_a_cell_of_5000_characters_is_cut_and_counted(tmp_path, tokenizer):
    examples = encoded(tmp_path, tokenizer, "雨" * 5000 + "\t天气\t1\n天\t气\t0\n")
    assert (examples.rows, examples.longest, examples.cut) == (2, 48, 1)


@pytest.mark.parametrize("text", [
    "雨" * 400000, "天" + " " * 5000 + "气 abc" * 300, "天" * 255 + "a" * 150 + "气" * 9000,
    "天" * 247 + "a" * 99 + "气" * 9000], ids=["cell", "blanks", "no word", "word at the cut"])
def test_a_long_cell_is_cut_before_it_is_tokenized(tokenizer, monkeypatch, text):
    encoder, read = TextEncoder(tokenizer, 48), []
    whole = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text[:20000]))[:46]
    tokenize = tokenizer.tokenize
    monkeypatch.setattr(
        tokenizer, "tokenize", lambda part: read.append(len(part)) or tokenize(part))
    ids, _, was_cut = encoder(text)
    assert ids[1:-1] == whole and was_cut
    assert sum(read) <= 13000


def test_blank_lines_stay_in_prediction_and_are_left_out_of_training(tmp_path, tokenizer):
    text = "天\t雨\t1\n" + "\n" * 4
    examples = encoded(tmp_path, tokenizer, text, need_labels=False)
    assert (examples.rows, examples.unlabelled, examples.targets) == (5, 0, 1)
    assert [len(row[0]) for row in map(EncodedRows(examples).__getitem__, range(5))] == [
        5, 0, 0, 0, 0]
    assert encoded(tmp_path, tokenizer, text).rows == 1


def test_the_cache_is_used_only_for_the_very_same_input(tmp_path, tokenizer, toy_vocab):
    lines = pair_lines(5)
    first = encoded(tmp_path, tokenizer, lines)
    os.utime(first.path, (1, 1))
    assert encoded(tmp_path, tokenizer, lines) == first
    assert os.path.getmtime(first.path) == 1
    shorter = encoded(tmp_path, tokenizer, lines, length=16)
    changed = encoded(tmp_path, tokenizer, lines.replace("天", "雨"))
    cased = encoded(tmp_path, FullTokenizer(toy_vocab, do_lower_case=False), lines)
    assert len({first.path, shorter.path, changed.path, cased.path}) == 4
    assert shorter.longest == 16 < changed.longest
    assert glob.glob(str(tmp_path / "encoded" / "*")) == [cased.path]


def test_a_file_that_fails_leaves_no_cache(tmp_path, tokenizer):
    with pytest.raises(UserError, match=r"train\.txt, line 2: label '2' is not one of 0, 1"):
        encoded(tmp_path, tokenizer, "天\t雨\t1\n天\t雨\t2\n")
    assert not glob.glob(str(tmp_path / "encoded" / "*.ids"))
    with pytest.raises(UserError, match=r"train\.txt: no rows"):
        encoded(tmp_path, tokenizer, "\n\n")


def test_unlabelled_rows_pass_in_prediction_only(tmp_path, tokenizer):
    unlabelled = encoded(tmp_path, tokenizer, "天\t雨\n气\t有\n", need_labels=False)
    assert EncodedRows(unlabelled).targets.tolist() == [-1, -1] and unlabelled.unlabelled == 2
    with pytest.raises(UserError, match=r"train\.txt, line 1: no label"):
        encoded(tmp_path, tokenizer, "天\t雨\n气\t有\n")
    labelled = encoded(tmp_path, tokenizer, "天\t雨\t0\n气\t有\t1\n")
    assert EncodedRows(labelled).targets.tolist() == [0, 1]


def test_an_interrupted_write_is_not_taken_for_a_cache(tmp_path, tokenizer):
    first = encoded(tmp_path, tokenizer, pair_lines(5))
    os.rename(first.path, cli.temporary_name(first.path))
    with io.open(cli.temporary_name(first.path), "r+b") as stream:
        stream.truncate(30)
    assert encoded(tmp_path, tokenizer, pair_lines(5)) == first
    assert sorted(rows_in(batches_of(first, 8, 1))) == [0, 1, 2, 3, 4]

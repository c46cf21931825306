"""The loss to expect of the records at hand; a training that does not go below it is warned of."""

import math
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_records import run_script, toy_record, write_toy_records
from helpers.toys import toy_tokens

import create_pretraining_data
from pretraining import plateau, reader
from pretraining_data import records

VOCAB = len(toy_tokens())


def test_counts_are_those_of_the_masked_words(tmp_path):
    paths = [write_toy_records(tmp_path / ("tf_%d.tfrecord" % seed), 9, seed) for seed in range(2)]
    wanted = np.zeros(VOCAB, np.int64)
    for seed in range(2):
        rng = np.random.RandomState(seed)
        for _ in range(9):
            record = toy_record(rng)
            np.add.at(wanted, record["masked_lm_ids"][record["masked_lm_weights"] > 0], 1)
    source = reader.peek(paths, 16, 3)
    assert plateau.token_counts(source, VOCAB).tolist() == wanted.tolist()
    few = plateau.token_counts(source, VOCAB, most=4)
    assert 0 < few.sum() < wanted.sum() and (few <= wanted).all()


def test_dynamic_records_count_every_word_but_the_specials(tmp_path, toy_vocab, toy_corpus):
    output = tmp_path / "tf_x.tfrecord"
    run_script(create_pretraining_data, "--input_file=" + toy_corpus, "--output_file=%s" % output,
               "--vocab_file=" + toy_vocab, "--max_seq_length=32", "--max_predictions_per_seq=5",
               "--masking=dynamic", "--num_workers=1")
    source = reader.peek([str(output)], 32, 5)
    counts = plateau.token_counts(source, VOCAB)
    tokens = toy_tokens()
    assert counts[[tokens.index(name) for name in ("[CLS]", "[SEP]", "[PAD]", "[MASK]")]].sum() == 0
    made = [records.WORD_START_BIT - 1 & word for record in tf.python_io.tf_record_iterator(
        str(output)) for word in np.frombuffer(tf.train.Example.FromString(record).features.feature[
            "token_ids"].bytes_list.value[0], "<u2")]
    specials = sum(tokens[token] in ("[CLS]", "[SEP]") for token in made)
    assert counts.sum() == len(made) - specials > 0


def test_entropy_of_a_sample_is_that_of_its_source():
    assert plateau.entropy(np.array([0, 0, 7])) == 0.0
    rng = np.random.RandomState(3)
    shares = rng.dirichlet(np.full(500, 0.3))
    true = -(shares * np.log(np.maximum(shares, 1e-300))).sum()
    found = [plateau.entropy(rng.multinomial(4000, shares)) for _ in range(20)]
    assert abs(np.mean(found) - true) < 0.02 and np.ptp(found) < 0.2


@pytest.mark.parametrize("losses, warned_at", [
    ([6.4] * 30, [10, 20]), ([6.4] * 12 + [3.0] * 18, [10]), ([4.0] * 30, []),
    ([float("nan")] * 12, [])])
def test_a_training_that_stays_is_warned_of_at_longer_and_longer_intervals(losses, warned_at,
                                                                           caplog):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.create_global_step()
        session.run(tf.global_variables_initializer())
        hook = plateau.PlateauHook(tf.zeros([]), 6.45, num_warmup_steps=4, patience=6)
        hook.after_create_session(session, None)
        for loss in losses:
            hook.after_run(None, types.SimpleNamespace(results=np.float32(loss)))
    said = [record.args[0] for record in caplog.records if "plateau" in record.getMessage()]
    assert said == warned_at


def test_what_is_expected_is_said(caplog):
    caplog.set_level("INFO")
    plateau.log_expectation(6.4321, 21128)
    assert "9.96 is guessing (ln 21128), 6.43 is" in caplog.text
    assert abs(math.log(21128) - 9.96) < 0.005

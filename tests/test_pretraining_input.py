"""The order of the records: a function of seed and step, the same in both TensorFlow versions."""

import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy_records import serialized, toy_record

import pretraining_input

FILES, IN_A_FILE = 3, 7
FIRST_TWELVE = [2, 3, 20, 16, 5, 17, 19, 9, 7, 18, 1, 15]  # with the default seed
COUNT = FILES * IN_A_FILE


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Records numbered by their second token, 7 in each of three files."""
    folder, paths = tmp_path_factory.mktemp("records"), []
    for number in range(FILES):
        paths.append(str(folder / ("tf_%d.tfrecord" % number)))
        with tf.python_io.TFRecordWriter(paths[-1]) as writer:
            for index in range(IN_A_FILE):
                record = toy_record(np.random.RandomState(0))
                record["input_ids"][2] = number * IN_A_FILE + index
                writer.write(serialized(record))
    return pretraining_input.peek(paths, 16, 3)


def numbers(source, count, batch_size=1, seed=12345, **place):
    """The numbers of the next `count` records, batch by batch."""
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = pretraining_input.training_dataset(source, batch_size, seed, **place)
        batch = tf.data.make_one_shot_iterator(dataset).get_next()["input_ids"]
        return list(itertools.chain.from_iterable(
            session.run(batch)[:, 2].tolist() for _ in range(count // batch_size)))


def test_order_is_one_of_seed_and_step(source):
    order = numbers(source, 3 * COUNT)
    epochs = [order[start:start + COUNT] for start in range(0, 3 * COUNT, COUNT)]
    assert all(sorted(epoch) == list(range(COUNT)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert numbers(source, COUNT, seed=1) != epochs[0]
    assert order[:12] == FIRST_TWELVE  # on both versions of TensorFlow
    for passed in (1, 20, 21, 30, 45):
        assert numbers(source, 15, first_record=passed) == order[passed:passed + 15]
    assert numbers(source, 20, 4, first_record=8) == order[8:28]


def test_machines_read_files_of_their_own(source):
    shares = [numbers(source, 14, worker=worker, workers=3) for worker in range(3)]
    assert [{number // IN_A_FILE for number in share} for share in shares] == [{0}, {1}, {2}]
    assert all(sorted(share[:7]) == sorted(share[7:]) == sorted(set(share)) for share in shares)
    resumed = numbers(source, 4, first_record=30, worker=1, workers=3)
    assert resumed == shares[1][10:14]


def test_machines_share_too_few_files_by_record(source):
    order = numbers(source, 40)
    shares = [numbers(source, 10, worker=worker, workers=4) for worker in range(4)]
    assert [number for row in zip(*shares) for number in row] == order
    assert numbers(source, 5, first_record=20, worker=3, workers=4) == order[23:40:4]


def test_evaluation_fills_up_with_rows_that_do_not_count(source):
    with tf.Graph().as_default(), tf.Session() as session:
        batch = tf.data.make_one_shot_iterator(
            pretraining_input.evaluation_dataset(source, 8)).get_next()
        batches = [session.run(batch) for _ in range(3)]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(batch)
    rows = np.concatenate([one["input_mask"][:, 0] for one in batches])
    assert rows.tolist() == [1] * COUNT + [0] * 3
    assert np.concatenate([one["input_ids"][:, 2] for one in batches])[:COUNT].tolist() == list(
        range(COUNT))

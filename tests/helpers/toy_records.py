"""Pre-training records made without the project's writer, and runs of scripts in this process."""

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from helpers.toys import toy_tokens

FIRST_WORD = 6  # ids below are specials


def toy_record(rng, seq_length=16, predictions=3, length=None):
    """One record of random words: feature name -> array."""
    length = length or seq_length
    vocab = len(toy_tokens())
    ids = rng.randint(FIRST_WORD, vocab, size=length)
    ids[0], ids[length // 2], ids[-1] = 3, 4, 4
    positions = np.sort(rng.choice([i for i in range(length) if ids[i] > 4], predictions, False))
    labels = ids[positions].copy()
    ids[positions] = 5
    swapped = rng.randint(2)
    ids[1] = FIRST_WORD + swapped  # sentence order can be read off the first word
    keep = positions != 1
    padded = np.zeros(seq_length, np.int64)
    padded[:length] = ids
    mask = (np.arange(seq_length) < length).astype(np.int64)
    segments = mask * (np.arange(seq_length) > length // 2)
    return dict(input_ids=padded, input_mask=mask, segment_ids=segments,
                masked_lm_positions=positions * keep, masked_lm_ids=labels * keep,
                masked_lm_weights=keep.astype(np.float32),
                next_sentence_labels=np.array([swapped]))


def serialized(record):
    """The record as the bytes of a tf.train.Example."""
    example = tf.train.Example()
    for name, values in record.items():
        feature = example.features.feature[name]
        if values.dtype == np.float32:
            feature.float_list.value.extend(values.tolist())
        else:
            feature.int64_list.value.extend(values.tolist())
    return example.SerializeToString()


def write_toy_records(path, count, seed=0, compressed=False, **lengths):
    """Writes `count` records of toy_record; returns the path as str."""
    rng = np.random.RandomState(seed)
    options = tf.python_io.TFRecordOptions(
        tf.python_io.TFRecordCompressionType.GZIP if compressed
        else tf.python_io.TFRecordCompressionType.NONE)
    with tf.python_io.TFRecordWriter(str(path), options) as writer:
        for _ in range(count):
            writer.write(serialized(toy_record(rng, **lengths)))
    return str(path)


def pretraining_arguments(config, records, output, *more, **changes):
    """Arguments of run_pretraining.py for toy records, whose paths are one string or a list."""
    settings = dict(bert_config_file=config, output_dir=str(output),
                    input_file=records if isinstance(records, str) else ",".join(records),
                    max_seq_length=16, max_predictions_per_seq=3, train_batch_size=8,
                    num_train_steps=4, num_warmup_steps=1, save_checkpoints_steps=4,
                    eval_batch_size=8, log_every_steps=1, learning_rate=0.01,
                    optimizer="lamb")
    settings.update(changes)
    return ["--%s=%s" % item for item in settings.items()] + list(more)


def run_script(script, *arguments):
    """Runs a script's main() in this process, with flags of its own."""
    values = flags.FlagValues()
    script.define_flags(values)
    values([script.__name__] + list(arguments))
    with tf.Graph().as_default():
        return script.main(values)

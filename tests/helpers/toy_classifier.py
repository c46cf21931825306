"""A classifier with random weights in a folder that describes itself, made in a second."""

import os

import tensorflow.compat.v1 as tf
from helpers.toys import TOY_SENTENCES

import modeling
from fine_tuning import predictor

PAIRS = [(TOY_SENTENCES[n % 12][:2 + n % 7], TOY_SENTENCES[(n * 5 + 1) % 12]) for n in range(23)]


def write_classifier(folder, vocab, config, pair=True, labels=("0", "1"), task="lcqmc",
                     columns=None, **said):
    """Saves a checkpoint and its description; weights are large enough to tell texts apart."""
    os.makedirs(str(folder), exist_ok=True)
    config = modeling.AlbertConfig.from_json_file(config)
    config.initializer_range = 0.2
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(5)
        model = modeling.AlbertModel(config, tf.zeros([1, 1], tf.int32))
        modeling.classification_head(model.pooled_output, None, len(labels), config)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, os.path.join(str(folder), "model.ckpt-7"))
    predictor.write_description(str(folder), {
        "head": "classifier", "task_name": task, "columns": columns, "data_dir": None,
        "labels": list(labels), "pair": pair, "max_seq_length": 40, "do_lower_case": True,
        "input_encoding": "utf-8", **said}, config, vocab)
    return str(folder)

"""A model of sequence labelling with random weights, made in a second."""

import os

import tensorflow.compat.v1 as tf

import modeling
from fine_tuning import predictor
from fine_tuning.tag_schemes import SCHEMES, tags_of


def write_labeller(folder, vocab, config, types=("LOC", "PER")):
    """Saves a checkpoint without a CRF and its description; returns the folder as str."""
    config = modeling.AlbertConfig.from_json_file(config)
    config.initializer_range = 0.3
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(5)
        model = modeling.AlbertModel(config, tf.zeros([1, 1], tf.int32), pooler=False)
        modeling.tag_head(model.sequence_output, len(tags_of(SCHEMES["BIO"], types)), config)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, os.path.join(str(folder), "model.ckpt-7"))
    predictor.write_description(str(folder), {
        "head": "labelling", "task_name": "bio", "data_dir": None, "types": list(types),
        "scheme": "BIO", "crf": False, "max_seq_length": 40, "do_lower_case": True,
        "input_encoding": "utf-8"}, config, vocab)
    return str(folder)

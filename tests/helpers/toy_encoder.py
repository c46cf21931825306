"""A pre-trained folder with random weights, as run_pretraining.py leaves one, made in a second."""

import io
import json
import os

import tensorflow.compat.v1 as tf
from helpers.toy_styles import STYLES
from helpers.toys import write_text

import modeling

ENCODER_STYLES = ("albert_zh", "preln", "google")


def write_pretrained(folder, style, vocab=None, layers=2, **flags):
    """Saves a checkpoint, albert_config.json, flags.json and the vocabulary if it is named."""
    folder = str(folder)
    values = {key: value for key, value in STYLES[style].items()
              if key not in modeling.AlbertConfig.IGNORED}
    values.update(initializer_range=0.1, num_hidden_layers=layers,
                  embedding_style="google" if style == "google" else "albert_zh")
    config = modeling.AlbertConfig(**values)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(5)
        ids = tf.zeros([1, 2], tf.int32)
        model = modeling.AlbertModel(config, ids)
        modeling.masked_lm_head(model, ids, ids, tf.ones([1, 2]))
        modeling.sentence_order_head(model, tf.zeros([1], tf.int32))
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, os.path.join(folder, "model.ckpt-7"))
    write_text(os.path.join(folder, "albert_config.json"), config.to_json())
    write_text(os.path.join(folder, "flags.json"), json.dumps(flags))
    if vocab:
        with io.open(vocab, encoding="utf-8") as stream:
            write_text(os.path.join(folder, "vocab.txt"), stream.read())
    return folder

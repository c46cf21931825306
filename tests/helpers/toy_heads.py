"""Labelling and reading models with random weights in folders that describe themselves."""

import json

from helpers.numpy_models import random_weights
from helpers.toys import write_text

import modeling
from fine_tuning import predictor, reading_predictor
from weights import checkpoints, formats, layouts

TYPES = ["LOC", "PER"]
SAID = {"labelling": {"task_name": "bio", "scheme": "BIO", "types": TYPES, "crf": False,
                      "max_seq_length": 40},
        "reading": dict(reading_predictor.OF_WINDOWS, task_name="own", dev_file=None,
                        max_seq_length=40, doc_stride=12, max_query_length=12,
                        **reading_predictor.OF_ANSWERS)}
HEADS = {"labelling": layouts.Heads(False, tags=1 + 2 * len(TYPES)),
         "reading": layouts.Heads(False, spans=True)}


def write_model(folder, vocab, values, head, more=(), **said):
    """Saves a model of a config's values with the head "labelling" or "reading".

    more: arrays of the checkpoint beside the model's.  said: what its description says otherwise.
    Returns:
      (its folder, AlbertConfig, name -> array).
    """
    folder.mkdir(parents=True)
    path = write_text(folder / "albert_config.json", json.dumps(values))
    config = modeling.AlbertConfig.from_json_file(path)
    weights = random_weights(formats.variables_with(config, HEADS[head]))
    checkpoints.write_checkpoint(str(folder), "model.ckpt-7", dict(weights, **dict(more)))
    predictor.write_description(str(folder), dict(
        SAID[head], head=head, data_dir=None, do_lower_case=True, input_encoding="utf-8",
        **said), config, vocab)
    return str(folder), config, weights

"""Answers over HTTP with a trained model: JSON for programs, a page for people.

In: the folder of a fine-tuning run, the SavedModel it exported, or the folder of a pre-training
run.  Out: a server (see serving/server.py) that loads the model once and answers until SIGTERM; it
prints its address when it is ready.

    python serve.py --model_dir=output/lcqmc
    curl -d '{"rows": [["花呗怎么还款", "如何还花呗"]]}' http://127.0.0.1:8000/predict

Needs two more packages: ./setup.sh --with=serve
"""

import asyncio
import functools
import importlib
import os
import time

import tensorflow.compat.v1 as tf
from absl import flags

import cli
from fill_mask import MaskFiller, filled_answer
from fine_tuning.labelling_predictor import LabellingPredictor
from fine_tuning.predictor import EXTRA, Predictor, read_description, saved_model_in
from fine_tuning.reading_predictor import ReadingPredictor
from serving.batching import Service

DIGITS = 6  # of a probability


def web_server():
    """The module serving.server, or a UserError that says how to get what it needs."""
    try:
        return importlib.import_module("serving.server")
    except ImportError as error:
        raise cli.UserError("needs tornado and prometheus_client: ./setup.sh --with=serve "
                            "({})".format(error)) from error


# --- one function for each kind of model ------------------------------------------------------


def as_they_are(texts):
    """A row as Predictor.predict takes it: one text by itself, two as a pair."""
    return texts if len(texts) > 1 else texts[0]


def classification(model_dir, batch_size, _):
    """Answers of a classifier, say {"label": ..., "probabilities": {label: ...}}; see outcomes."""
    model = Predictor(model_dir, batch_size)

    def answer(rows):
        return [model.outcome.answer(row, DIGITS) for row in model.predict(rows)]
    return Service({"labels": model.labels, "task_name": model.description["task_name"]},
                   {True: (2,), False: (1,), None: (1, 2)}[model.pair], as_they_are, answer)


def labelling(model_dir, batch_size, _):
    """Answers of sequence labelling: {"entities": [{"type", "start", "end", ...}]}."""
    model = LabellingPredictor(model_dir, batch_size)

    def answer(rows):
        return [{"entities": [mention._replace(
            confidence=round(mention.confidence, DIGITS))._asdict() for mention in mentions]}
            for mentions in model.predict(rows)]
    return Service({"types": model.description["types"],
                    "task_name": model.description["task_name"]}, (1,), as_they_are, answer)


def reading(model_dir, batch_size, top_k):
    """Answers to (question, passage): {"text", "start", "end", ..., "others": [the next best]}."""
    model = ReadingPredictor(model_dir, batch_size)

    def answer(rows):
        found = [[candidate._replace(
            score=round(candidate.score, DIGITS), probability=round(candidate.probability, DIGITS)
        )._asdict() for candidate in candidates[:top_k]] for candidates in model.predict(rows)]
        return [dict(best, others=others) for best, *others in found]
    return Service({"task_name": model.description["task_name"]}, (2,), as_they_are, answer)


def filling_in(model_dir, batch_size, top_k):
    """Answers of a pre-trained model to texts with [MASK], as fill_mask.py --format=json."""
    model = MaskFiller(model_dir, top_k, batch_size=batch_size)

    def answer(rows):
        return [filled_answer(row.text, candidates)
                for row, candidates in zip(rows, model.fill_encoded(rows))]
    return Service({}, (1,), lambda texts: model.encode(texts[0]), answer)


LOADERS = {"classifier": classification, "labelling": labelling, "reading": reading,
           "masked_words": filling_in}  # head -> function(model_dir, batch_size, top_k)


def service_of(model_dir, batch_size, top_k):
    """Loads the model of a folder, whatever kind it is of: a Service.

    Raises:
      UserError: the folder holds no model.
    """
    exported = saved_model_in(model_dir)
    description = read_description(os.path.join(exported, EXTRA) if exported else model_dir)
    head = description["head"] if description else "masked_words"
    service = LOADERS[head](model_dir, batch_size, top_k)
    return service._replace(about=dict(service.about, head=head))


# --- the server -------------------------------------------------------------------------------


def define_flags(flag_values):
    """Defines this script's flags."""
    string, integer = [functools.partial(define, flag_values=flag_values)
                       for define in (flags.DEFINE_string, flags.DEFINE_integer)]
    string("model_dir", None, "Folder of a fine-tuning run, of an exported SavedModel or of a "
           "pre-training run. Required.")
    string("host", "127.0.0.1", "Address to listen at. Default: this machine alone; 0.0.0.0 lets "
           "others in, and nothing here asks who they are.")
    integer("port", 8000, "Port to listen at; 0 takes a free one, which is printed.",
            lower_bound=0, upper_bound=65535)
    integer("batch_size", 32, "Rows of a prediction: what waits is joined. Default: more gains "
            "little on a CPU and makes the others wait.", lower_bound=1)
    integer("top_k", 5, "Tokens for each [MASK] of a pre-trained model, answers of reading "
            "comprehension to a question. Default: as fill_mask.py.",
            lower_bound=1)
    integer("max_body_bytes", 1 << 20, "Bytes of a request. Default: 300,000 Chinese characters.",
            lower_bound=64)
    integer("max_rows", 256, "Rows of a request. Default: some seconds' work of a base model.",
            lower_bound=1)
    integer("max_chars", 10000, "Characters of a text. Default: long articles; classifiers cut a "
            "text at their own max_seq_length.", lower_bound=1)
    integer("max_waiting_rows", 4096, "Rows that may wait; beyond it is 503. Default: better a "
            "quick no than an answer nobody waits for.", lower_bound=1)
    integer("body_timeout", 10, "Seconds a client has to send a request. Default: a slow one "
            "holds a connection, not the others.", lower_bound=1)
    integer("end_timeout", 25, "Seconds that SIGTERM leaves what is under way. Default: below the "
            "30 after which Docker and Kubernetes kill.", lower_bound=0)


def main(flag_values):
    """Takes the port, loads the model, answers until SIGTERM."""
    tf.logging.set_verbosity(tf.logging.INFO)
    started = time.time()
    cli.require_flags(flag_values, ["model_dir"])
    web = web_server()
    listener = web.listening_socket(flag_values.host, flag_values.port)
    service = service_of(flag_values.model_dir, flag_values.batch_size, flag_values.top_k)
    limits = web.Limits(
        flag_values.max_body_bytes, flag_values.max_rows, flag_values.max_chars,
        flag_values.max_waiting_rows, flag_values.body_timeout, flag_values.end_timeout)
    server = web.Server(service, limits, flag_values.batch_size)
    tf.logging.info("%s (%s) loaded in %.1f s", flag_values.model_dir, service.about["head"],
                    time.time() - started)
    address = "http://[{}]:{}" if ":" in flag_values.host else "http://{}:{}"
    print(address.format(flag_values.host, listener.getsockname()[1]), flush=True)
    asyncio.run(server.serve_until_signalled(listener))


if __name__ == "__main__":
    cli.run(main, define_flags)

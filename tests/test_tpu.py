"""The graphs of a TPU with eight cores, as its Estimator builds them; there is none to run them."""

import socket

import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_models import toy_model
from helpers.toy_records import write_toy_records
from tensorflow_estimator.python.estimator.tpu import tpu_context

import cli
import run_pretraining
from pretraining import reader
from training import estimator, hooks, machines, run_settings
from weights import checkpoints

CORES = 8
PLAN = "what initialize_from() is handed"


@pytest.fixture
def eight_cores(monkeypatch):
    """TensorFlow is told of a TPU that is not there."""
    library = tpu_context.tpu_system_metadata_lib
    metadata = getattr(library, "TPUSystemMetadata", None) or library._TPUSystemMetadata
    found = metadata(num_cores=CORES, num_hosts=1, num_of_cores_per_host=CORES, topology=None,
                     devices=[])
    monkeypatch.setattr(library, "_query_tpu_system_metadata", lambda *args, **kwargs: found)


def run_on_cores(folder, config, *more):
    """(model_fn, Engine) of a run on the cores."""
    values = cli.flags.FlagValues()
    run_pretraining.define_flags(values)
    values(["run_pretraining.py", "--do_train", "--use_tpu", "--master=grpc://127.0.0.1:8470",
            "--output_dir=" + str(folder), "--train_batch_size=32", "--eval_batch_size=16",
            "--max_seq_length=16", "--max_predictions_per_seq=3", "--num_train_steps=4",
            "--num_warmup_steps=1"] + list(more))
    settings = cli.settings_of(values)
    engine = run_settings.engine_of(settings, PLAN)
    training = run_settings.Training(32, 0.01, 4, 1, "lamb", settings.micro_batch_size,
                                     settings.recompute == "true")
    return run_pretraining.model_function(config, engine, training), engine


@pytest.fixture
def source(tmp_path):
    return reader.peek([write_toy_records(tmp_path / "tf_toy.tfrecord", 70)], 16, 3)


@pytest.mark.parametrize("more", [
    [], ["--micro_batch_size=2", "--recompute=true", "--precision=bf16"]], ids=" ".join)
def test_the_training_graph(eight_cores, source, tmp_path, monkeypatch, more):
    started, seen = [], []
    monkeypatch.setattr(checkpoints, "initialize_from", started.append)
    config = toy_model(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    model_fn, engine = run_on_cores(tmp_path, config, *more)
    trainer = estimator.make_estimator(model_fn, engine)

    def look(spec, *unused):
        graph = tf.get_default_graph()
        seen.append(spec)
        kinds = [operation.type for operation in graph.get_operations()]
        assert kinds.count("CrossReplicaSum") > 31  # each gradient and scalar
        assert "OutfeedDequeueTuple" in kinds and "WriteSummary" in kinds, sorted(set(kinds))
        return 0.0

    monkeypatch.setattr(trainer, "_train_with_estimator_spec", look)
    trainer.train(run_pretraining.training_input(engine, source, 32), max_steps=4)
    assert started == [PLAN]
    assert [type(hook) for hook in seen[0].training_hooks].count(hooks.LoopHook) == 1


def test_a_tpu_that_does_not_answer_is_named(monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(machines, "TPU_SECONDS", 0.2)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = "grpc://127.0.0.1:%d" % listening.getsockname()[1]
        with pytest.raises(cli.UserError, match="the TPU at %s does not answer" % address):
            machines.await_tpu(address)
        assert "waiting for the TPU at " + address in caplog.text
        listening.listen(1)
        machines.await_tpu(address)
    machines.await_tpu("a-name")
    tpu = run_settings.Tpu("a-name", None, None, None, CORES, 1, {})
    with pytest.raises(cli.UserError, match="--tpu_name 'a-name' cannot be looked up: .*grpc://"):
        estimator.tpu_estimator(None, tpu, {})


def test_the_evaluation_graph(eight_cores, source, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(checkpoints, "initialize_from", started.append)
    trainer = estimator.make_estimator(*run_on_cores(tmp_path, toy_model()))
    monkeypatch.setattr(trainer, "_evaluate_run", lambda *args, **kwargs: {})
    trainer.evaluate(lambda params: reader.evaluation_dataset(
        source, params["batch_size"]), steps=2)
    assert started == [PLAN]

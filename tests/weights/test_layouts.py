"""Google's layout: forward, gradients and names against an independent NumPy model."""

import json
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.numpy_models import (
    GOOGLE_CONFIG,
    NumpyGoogleAlbert,
    google_shapes,
    random_features,
    random_weights,
)
from helpers.toy_records import run_script, write_toy_records
from helpers.toys import TOY_CONFIG, toy_tokens, write_text

import modeling
import run_pretraining
from cli import UserError
from weights import checkpoints, layouts


def albert_config(folder, **changes):
    """The AlbertConfig of a file with Google's keys."""
    path = write_text(folder / "albert_config.json", json.dumps(dict(GOOGLE_CONFIG, **changes)))
    return modeling.AlbertConfig.from_json_file(path)


def build(config, features):
    """Model, both heads and the sum of their losses over constant features."""
    model = modeling.AlbertModel(config, *[tf.constant(features[name]) for name in (
        "input_ids", "input_mask", "segment_ids")])
    rows, pooled = model.outputs_at(tf.constant(features["masked_lm_positions"]))
    masked = modeling.masked_lm_head(rows, model, *[tf.constant(features["masked_lm_" + name])
                                                    for name in ("ids", "weights")])
    order = modeling.sentence_order_head(pooled, tf.constant(features["next_sentence_labels"]),
                                         config)
    return model, masked, order, masked.loss + order.loss


def variables_of_config(config):
    features = random_features(config.vocab_size)
    return checkpoints.variables_of(lambda: build(config, features))


VARIANTS = [{"num_hidden_layers": 1}, {"num_hidden_layers": 2}, {"num_hidden_groups": 2},
            {"num_hidden_layers": 2, "num_hidden_groups": 2, "hidden_act": "relu"},
            {"num_hidden_layers": 3, "num_hidden_groups": 2},
            {"num_hidden_layers": 2, "num_hidden_groups": 6}]  # as in albert_tiny_google_fast


@pytest.mark.parametrize("changes", VARIANTS)
def test_forward_and_gradients_equal_numpy(tmp_path, changes):
    values = dict(GOOGLE_CONFIG, **changes)
    weights = random_weights(google_shapes(values))
    features = random_features(values["vocab_size"])
    checkpoints.write_checkpoint(str(tmp_path), "model.ckpt-best", weights)
    config = albert_config(tmp_path, **changes)
    plan = checkpoints.plan_initialization(str(tmp_path), variables_of_config(config))
    assert not plan.missing and not plan.unused
    with tf.Graph().as_default(), tf.Session() as session:
        model, masked, order, loss = build(config, features)
        variables = tf.trainable_variables()
        gradients = [tf.convert_to_tensor(g) for g in tf.gradients(loss, variables)]
        checkpoints.initialize_from(plan)
        session.run(tf.global_variables_initializer())
        found, slopes = session.run([
            dict(layers=tf.stack(model.all_encoder_layers), pooled=model.pooled_output,
                 masked=masked.logits, order=order.logits, loss=loss), gradients])
    reference = NumpyGoogleAlbert(values, weights)
    for name, expected in reference.run(features).items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-4, err_msg=name)
    for variable, slope in zip(variables, slopes):
        stored = plan.loaded[variable.op.name]
        difference = directional_difference(reference, features, stored, slope)
        assert abs(difference - np.sum(slope.astype(np.float64) ** 2)) < 1e-4 * (
            1 + abs(difference)), stored


def directional_difference(reference, features, name, direction, size=1e-5):
    """The loss's slope along `direction` of one variable, by central difference."""
    value, losses = reference.weights[name], []
    for sign in (1, -1):
        reference.weights[name] = value + sign * size * direction
        losses.append(reference.run(features)["loss"])
    reference.weights[name] = value
    return (losses[0] - losses[1]) / (2 * size)


@pytest.mark.parametrize("changes", VARIANTS)
def test_every_variable_has_its_name_at_google(tmp_path, changes):
    shapes = google_shapes(dict(GOOGLE_CONFIG, **changes))
    variables = variables_of_config(albert_config(tmp_path, **changes))
    assert {layouts.google_name(name): shape for name, shape in variables.items()} == shapes
    keys = dict(layouts.config_keys(variables))
    layers = changes.get("num_hidden_layers", 4)
    assert keys.pop("num_hidden_layers", layers) == layers  # told where no layers share
    assert keys == layouts.config_keys(shapes)
    config = dict(GOOGLE_CONFIG, embedding_style="google")
    config.update(changes)
    assert keys == {key: config[key] for key in keys}


@pytest.mark.parametrize("sharing", ["all", "attention", "ffn", "none"])
def test_sharing_is_recognised_by_the_names(sharing):
    config = modeling.AlbertConfig(**dict(TOY_CONFIG, vocab_size=100, parameter_sharing=sharing))
    keys = layouts.config_keys(variables_of_config(config))
    assert keys["parameter_sharing"] == sharing
    assert keys.get("num_hidden_layers", 2) == 2
    for key, value in keys.items():
        assert getattr(config, key) == value


@pytest.mark.parametrize("prefix", ["module/", "tower/module/"])
def test_a_prefix_and_optimizer_slots_do_not_matter(tmp_path, prefix):
    shapes = google_shapes(GOOGLE_CONFIG, labels=3)
    arrays = {prefix * name.startswith("bert/") + name: array
              for name, array in random_weights(shapes).items()}
    arrays.update({name + "/adam_m": array for name, array in list(arrays.items())})
    arrays["global_step"] = np.int64(7)
    checkpoints.write_checkpoint(str(tmp_path), "model.ckpt", arrays)
    config = albert_config(tmp_path)
    plan = checkpoints.plan_initialization(str(tmp_path / "model.ckpt.index"),
                                           variables_of_config(config))
    assert len(plan.loaded) == len(shapes) - 2 and plan.unused == ["output_bias", "output_weights"]
    assert plan.loaded["bert/encoder/layer_shared/output/LayerNorm/beta"] == (
        prefix + "bert/encoder/transformer/group_0/inner_group_0/LayerNorm_1/beta")
    assert {name.split("/")[0] for name in plan.missing} == {"cls"}


ALBERT_ZH = dict(TOY_CONFIG, vocab_size=100, intermediate_size=48, num_hidden_layers=4)
MISFITS = [  # config of the checkpoint, of the model, what the message says
    (GOOGLE_CONFIG, ALBERT_ZH, 'embedding_style is google, the config\'s is albert_zh; a config '
     'that fits has "embedding_style": "google", "num_hidden_groups": 1$'),
    (ALBERT_ZH, dict(GOOGLE_CONFIG, hidden_size=64),
     'embedding_style is albert_zh, the config\'s is google; a config that fits has '
     '"embedding_style": "albert_zh", "parameter_sharing": "all", "hidden_size": 32$'),
    (ALBERT_ZH, dict(ALBERT_ZH, parameter_sharing="none"),
     'it has no bert/encoder/layer_0/.*a config that fits has "parameter_sharing": "all"$'),
    (dict(ALBERT_ZH, parameter_sharing="attention"), dict(ALBERT_ZH, parameter_sharing="ffn"),
     'a config that fits has "parameter_sharing": "attention"$'),
    (dict(GOOGLE_CONFIG, num_hidden_groups=2), GOOGLE_CONFIG,
     'it has no bert/encoder/layer_shared/.*a config that fits has "num_hidden_groups": 2$'),
    (GOOGLE_CONFIG, dict(GOOGLE_CONFIG, num_hidden_groups=2),
     'a config that fits has "num_hidden_groups": 1$'),
    (ALBERT_ZH, dict(ALBERT_ZH, hidden_size=64, vocab_size=120, intermediate_size=40),
     r'variable bert/\S+ has shape \[.*\] there and \[.*\] in this model; a config that fits has '
     '"vocab_size": 100, "hidden_size": 32, "intermediate_size": 48$'),
    (dict(GOOGLE_CONFIG, max_position_embeddings=64), GOOGLE_CONFIG,
     r'has shape \[64, 16\] there and \[128, 16\] in this model; .*'
     '"max_position_embeddings": 64$')]


@pytest.mark.parametrize("stored, wanted, words", MISFITS)
def test_a_checkpoint_that_does_not_fit_names_the_keys_that_would(tmp_path, stored, wanted, words):
    configs = [modeling.AlbertConfig.from_json_file(write_text(
        tmp_path / "config.json", json.dumps(values))) for values in (stored, wanted)]
    there, here = [variables_of_config(config) for config in configs]
    checkpoints.write_checkpoint(str(tmp_path), "model.ckpt", random_weights(there))
    with pytest.raises(UserError, match=words) as caught:
        checkpoints.plan_initialization(str(tmp_path), here)
    assert "\n" not in str(caught.value)


def test_a_plain_bert_is_named_as_such(tmp_path):
    variables = variables_of_config(modeling.AlbertConfig(**ALBERT_ZH))
    shapes = {name.replace("layer_shared", "layer_0"): shape for name, shape in variables.items()
              if "word_embeddings" not in name}
    shapes["bert/embeddings/word_embeddings"] = [100, 32]
    checkpoints.write_checkpoint(str(tmp_path), "bert_model.ckpt", random_weights(shapes))
    with pytest.raises(UserError, match="is a plain BERT"):
        checkpoints.plan_initialization(str(tmp_path), variables)


def test_folders_of_public_archives(tmp_path):
    weights = random_weights(google_shapes(GOOGLE_CONFIG))
    checkpoints.write_checkpoint(str(tmp_path), "model.ckpt-best", weights)
    prefix = str(tmp_path / "model.ckpt-best")
    os.remove(str(tmp_path / "checkpoint"))
    assert checkpoints.find_checkpoint(str(tmp_path)) == prefix
    write_text(tmp_path / "checkpoint", 'model_checkpoint_path: "/another/machine/model.ckpt-9"\n')
    assert checkpoints.find_checkpoint(str(tmp_path)) == prefix
    checkpoints.write_checkpoint(str(tmp_path), "other.ckpt", {"x": np.zeros(1)})
    os.remove(str(tmp_path / "checkpoint"))
    with pytest.raises(UserError, match="several checkpoints, name one: .*best, .*other.ckpt"):
        checkpoints.find_checkpoint(str(tmp_path))


def test_pretraining_goes_on_from_googles_names(tmp_path, caplog):
    values = dict(GOOGLE_CONFIG, vocab_size=len(toy_tokens()), num_hidden_layers=1)
    config = write_text(tmp_path / "albert_config.json", json.dumps(values))
    source = tmp_path / "public"
    source.mkdir()
    checkpoints.write_checkpoint(str(source), "model.ckpt-best",
                                 random_weights(google_shapes(values)))
    records = write_toy_records(tmp_path / "tf.tfrecord", 8)

    def run(output, **settings):
        settings = dict(dict(
            bert_config_file=config, input_file=records, output_dir=str(output),
            max_seq_length=16, max_predictions_per_seq=3, train_batch_size=8, num_train_steps=1,
            num_warmup_steps=0), **settings)
        run_script(run_pretraining, *["--%s=%s" % item for item in settings.items()])
    run(tmp_path / "out", init_checkpoint=str(source), do_train=True)
    assert "initialised 32 of 32 variables" in caplog.text
    names = {name for name, _ in tf.train.list_variables(str(tmp_path / "out"))}
    assert "bert/encoder/layer_shared/attention/self/query/kernel/adam_m" in names
    with pytest.raises(UserError, match="give it as --init_checkpoint"):
        run(source, do_eval=True)


def test_groups_that_others_round_otherwise():
    assert layouts.same_groups_everywhere(12, 12) and layouts.same_groups_everywhere(24, 1)
    assert all(layouts.same_groups_everywhere(12, groups) for groups in range(1, 13))
    assert not layouts.same_groups_everywhere(22, 22)

"""The model against the reference's numbers, and the invariants of the three ideas."""

import json
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers.toy_models import build, case_inputs, load, reference_config, set_variables, toy_config
from helpers.toys import FIXTURES, ROOT, TOY_CONFIG, write_text

import modeling
from cli import UserError

CASES = ("main", "full", "single", "short", "fullpad")
TOLERANCE = {"fullpad": 2e-3}  # -10000 in float32 quantises the scores of an all-padding row


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_every_layer_and_head_equals_the_reference(case, one_hot):
    with tf.Graph().as_default(), tf.Session() as session:
        model, masked, order = build(reference_config(), case_inputs(case),
                                     one_hot_embeddings=one_hot)
        fetches = {
            "embedding_output": model.embedding_output,
            "all_encoder_layers": tf.stack(model.all_encoder_layers),
            "sequence_output": model.sequence_output, "pooled_output": model.pooled_output,
            "mlm_logits": masked.logits, "mlm_log_probs": masked.log_probs,
            "mlm_example_loss": masked.example_loss, "mlm_loss": masked.loss,
            "sop_logits": order.logits, "sop_log_probs": order.log_probs,
            "sop_example_loss": order.example_loss, "sop_loss": order.loss,
            "total_loss": masked.loss + order.loss}
        set_variables(session, load("variables"))
        found = session.run(fetches)
    expected = load("outputs")
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[case + "/" + name], err_msg=name, rtol=0,
                                   atol=TOLERANCE.get(case, 1e-4))


def test_gradients_equal_the_reference():
    expected = load("gradients")
    with tf.Graph().as_default(), tf.Session() as session:
        _, masked, order = build(reference_config(), case_inputs("main"))
        variables = tf.trainable_variables()
        gradients = [tf.convert_to_tensor(g)
                     for g in tf.gradients(masked.loss + order.loss, variables)]
        clipped, norm = tf.clip_by_global_norm(gradients, 1.0)
        set_variables(session, load("variables"))
        found, found_clipped, found_norm = session.run([gradients, clipped, norm])
    assert abs(found_norm - 13.479275703430176) < 1e-3
    for variable, gradient, after in zip(variables, found, found_clipped):
        for kind, value in (("grad", gradient), ("clipped", after)):
            np.testing.assert_allclose(value, expected[kind + "/" + variable.op.name], rtol=0,
                                       atol=1e-4, err_msg=variable.op.name)


@pytest.mark.parametrize("size", ["tiny", "base", "large", "xlarge", "xxlarge"])
def test_names_and_shapes_of_every_size(size):
    with open(os.path.join(FIXTURES, "parameter_tables.json"), encoding="utf-8") as stream:
        expected = json.load(stream)[size]
    config = modeling.AlbertConfig.from_json_file(
        os.path.join(ROOT, "albert_config", "albert_config_%s.json" % size))
    assert config.ln_type == expected["ln_type"]
    with tf.Graph().as_default():
        build(config, case_inputs("single"))
        found = [[v.op.name, v.shape.as_list()] for v in tf.trainable_variables()]
    assert sorted(found) == sorted(expected["variables"])
    assert sum(int(np.prod(shape)) for _, shape in found) == expected["total"]


def encoder_variables(layers, **changes):
    """Names of the encoder's variables, with their sizes."""
    with tf.Graph().as_default():
        modeling.AlbertModel(toy_config(num_hidden_layers=layers, **changes), tf.zeros([1, 4],
                                                                                  tf.int32))
        return {v.op.name[len("bert/encoder/"):]: int(np.prod(v.shape.as_list()))
                for v in tf.trainable_variables("bert/encoder")}


def test_sharing_modes():
    shared, unshared = encoder_variables(3), encoder_variables(3, parameter_sharing="none")
    assert shared == encoder_variables(6)
    assert sum(unshared.values()) == 3 * sum(shared.values())
    assert {name.split("/")[0] for name in unshared} == {"layer_0", "layer_1", "layer_2"}
    attention = encoder_variables(2, parameter_sharing="attention")
    assert {"/".join(name.split("/")[:2]) for name in attention} == {
        "layer_shared/attention", "layer_shared/intermediate_0", "layer_shared/intermediate_1",
        "layer_shared/output_0", "layer_shared/output_1"}
    ffn = encoder_variables(2, parameter_sharing="ffn")
    assert {"/".join(name.split("/")[:2]) for name in ffn} == {
        "layer_shared/attention_0", "layer_shared/attention_1", "layer_shared/intermediate",
        "layer_shared/output"}


def numpy_layer_norm(x, weights, scope):
    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    return normed * weights[scope + "/LayerNorm/gamma"] + weights[scope + "/LayerNorm/beta"]


def numpy_gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def numpy_dense(x, weights, scope):
    return x @ weights[scope + "/kernel"] + weights[scope + "/bias"]


def numpy_attention(x, mask, weights, scope, heads):
    batch, length, hidden = x.shape
    query, key, value = [
        numpy_dense(x, weights, scope + "/self/" + name).reshape(
            batch, length, heads, hidden // heads).transpose(0, 2, 1, 3)  # [B, N, S, D]
        for name in ("query", "key", "value")]
    scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(hidden // heads)  # [B, N, S, S]
    scores = scores + (1.0 - mask[:, None, None, :]) * -10000.0
    weight = np.exp(scores - scores.max(-1, keepdims=True))
    weight /= weight.sum(-1, keepdims=True)
    context = (weight @ value).transpose(0, 2, 1, 3).reshape(batch, length, hidden)  # [B, S, H]
    return numpy_dense(context, weights, scope + "/output/dense")


def numpy_preln_layers(features, weights, config):
    """Sequence outputs of each layer in plain NumPy, double precision."""
    ids, segments = features["input_ids"], features["segment_ids"]
    x = weights["bert/embeddings/word_embeddings"][ids]
    x = x @ weights["bert/embeddings/word_embeddings_2"]
    x = x + weights["bert/embeddings/token_type_embeddings"][segments]
    x = x + weights["bert/embeddings/position_embeddings"][:ids.shape[1]]
    x = numpy_layer_norm(x, weights, "bert/embeddings")
    layers, shared = [], "bert/encoder/layer_shared"
    for _ in range(config.num_hidden_layers):
        normed = numpy_layer_norm(x, weights, shared + "/attention/output")
        x = x + numpy_attention(normed, features["input_mask"], weights, shared + "/attention",
                                config.num_attention_heads)
        normed = numpy_layer_norm(x, weights, shared + "/output")
        inner = numpy_gelu(numpy_dense(normed, weights, shared + "/intermediate/dense"))
        x = x + numpy_dense(inner, weights, shared + "/output/dense")
        layers.append(x)
    return np.stack(layers)


def test_preln_equals_numpy():
    features, config = case_inputs("main"), reference_config()
    config.ln_type = "preln"
    values = load("variables")
    weights = {name: values[name].astype(np.float64) for name in values.files}
    with tf.Graph().as_default(), tf.Session() as session:
        model, _, _ = build(config, features)
        set_variables(session, values)
        found = session.run(tf.stack(model.all_encoder_layers))
    np.testing.assert_allclose(found, numpy_preln_layers(features, weights, config), rtol=0,
                               atol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"ln_type": "preln"}, {"embedding_style": "google"}])
def test_padding_changes_nothing(changes):
    ids = np.array([[2, 11, 12, 13, 3, 0, 0, 0]], np.int32)
    mask = (ids > 0).astype(np.int32)
    with tf.Graph().as_default(), tf.Session() as session:
        config = toy_config(**changes)
        padded = modeling.AlbertModel(config, tf.constant(ids), tf.constant(mask))
        plain = modeling.AlbertModel(config, tf.constant(ids[:, :5]))
        session.run(tf.global_variables_initializer())
        long, short = session.run([padded.sequence_output, plain.sequence_output])
    np.testing.assert_allclose(long[:, :5], short, atol=1e-5)


def test_the_span_head_equals_numpy_and_its_loss_knows_no_padding():
    ids = np.array([[2, 11, 12, 3, 0, 0], [2, 14, 15, 16, 17, 3]], np.int32)
    mask, starts, ends = (ids > 0).astype(np.int32), [1, 0], [2, 4]
    with tf.Graph().as_default(), tf.Session() as session:
        model = modeling.AlbertModel(toy_config(initializer_range=0.3), tf.constant(ids),
                                     tf.constant(mask))
        head = modeling.span_head(model, tf.constant(mask), starts, ends)
        first = modeling.AlbertModel(model.config, tf.constant(ids[:1, :4]))
        short = modeling.span_head(first, tf.ones([1, 4], tf.int32), starts[:1], ends[:1])
        without_places = modeling.span_head(first, tf.ones([1, 4], tf.int32))
        session.run(tf.global_variables_initializer())
        weights, bias = [tf.global_variables("cls/squad/output_" + name)[0]
                         for name in ("weights", "bias")]
        bias.load([0.5, -0.25], session)
        x, w, b, found, loss = session.run([model.sequence_output, weights, bias, head,
                                           short.example_loss])
    expected = x @ w.T + b  # [B, S, 2]
    np.testing.assert_allclose(found.start_logits, expected[..., 0], atol=1e-5)
    np.testing.assert_allclose(found.end_logits, expected[..., 1], atol=1e-5)
    losses = []
    for row, length in ((0, 4), (1, 6)):
        log_probs = expected[row, :length] - np.log(np.exp(expected[row, :length]).sum(0))
        losses.append(-(log_probs[starts[row], 0] + log_probs[ends[row], 1]) / 2)
    np.testing.assert_allclose(found.example_loss, losses, atol=1e-5)
    assert loss == pytest.approx(losses[0], abs=1e-5)
    assert without_places.example_loss is None


def test_dropout_is_seeded_and_keeps_the_rate():
    with tf.Graph().as_default(), tf.Session() as session:
        seed = tf.placeholder(tf.int32, [])
        model = modeling.AlbertModel(
            toy_config(hidden_dropout_prob=0.25), tf.ones([8, 16], tf.int32), training=True,
            dropout_seed=seed)
        session.run(tf.global_variables_initializer())
        first, again, other = [session.run(model.embedding_output, {seed: s}) for s in (1, 1, 2)]
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    assert abs(np.mean(first == 0) - 0.25) < 0.03


def test_shapes_unknown_before_the_run():
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.placeholder(tf.int32, [None, None])
        model = modeling.AlbertModel(toy_config(), ids)
        session.run(tf.global_variables_initializer())
        assert session.run(model.sequence_output, {ids: [[1] * 7] * 2}).shape == (2, 7, 32)


@pytest.mark.parametrize("change, words", [
    ({"hidden_act": "gelo"}, "hidden_act is 'gelo'"),
    ({"ln_type": "both"}, "ln_type is 'both'"),
    ({"hidden_size": 30}, "hidden_size 30 is not a multiple of num_attention_heads 4"),
    ({"num_layers": 3}, "unknown key 'num_layers'"),
    ({"vocab_size": 0}, "vocab_size is 0"),
    ({"vocab_size": 2 ** 31}, "vocab_size is 2147483648, must be a whole number"),
    ({"num_hidden_layers": 1001}, "num_hidden_layers is 1001, must be a whole number"),
    ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob is 1.0"),
    ({"num_hidden_groups": 2, "embedding_style": "albert_zh", }, "num_hidden_groups is 2"),
])
def test_bad_config_is_refused_in_one_line(tmp_path, change, words):
    values = dict(dict(TOY_CONFIG, vocab_size=100), **change)
    path = write_text(tmp_path / "config.json", json.dumps(values))
    with pytest.raises(UserError) as caught:
        modeling.AlbertConfig.from_json_file(path)
    assert words in str(caught.value) and path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_config_files(tmp_path):
    missing = {k: v for k, v in TOY_CONFIG.items() if k not in ("vocab_size", "ln_type")}
    path = write_text(tmp_path / "a.json", json.dumps(missing))
    with pytest.raises(UserError, match="'vocab_size' is missing"):
        modeling.AlbertConfig.from_json_file(path)
    path = write_text(tmp_path / "b.json", "{not json")
    with pytest.raises(UserError, match="JSON"):
        modeling.AlbertConfig.from_json_file(path)
    with pytest.raises(UserError, match="no file"):
        modeling.AlbertConfig.from_json_file(str(tmp_path / "none.json"))
    public = dict(missing, vocab_size=100, directionality="bidi", pooler_type="first")
    config = modeling.AlbertConfig.from_json_file(
        write_text(tmp_path / "c.json", json.dumps(public)))
    assert config.ln_type == "postln" and config.embedding_style == "albert_zh"
    google = dict(missing, vocab_size=100, num_hidden_groups=1, inner_group_num=1, gap_size=0)
    config = modeling.AlbertConfig.from_json_file(
        write_text(tmp_path / "d.json", json.dumps(google)))
    assert config.embedding_style == "google"
    again = modeling.AlbertConfig(**json.loads(config.to_json()))
    assert again.__dict__ == config.__dict__


def test_sequence_above_the_config_is_refused():
    with tf.Graph().as_default(), pytest.raises(UserError, match="129 .* 128"):
        modeling.AlbertModel(toy_config(), tf.zeros([1, 129], tf.int32))

@pytest.mark.parametrize("style", [{}, {"ln_type": "preln"}, {"embedding_style": "google"}])
def test_words_are_heard_above_their_places_at_first(style):
    """The part of a token's input to the layers that tells which it is, against where it stands."""
    def spreads(initialization):
        config = toy_config(embedding_size=64, initialization=initialization, **style)
        with tf.Graph().as_default(), tf.Session() as session:
            ids = tf.constant(np.arange(5, 69)[np.newaxis])
            model = modeling.AlbertModel(config, ids)
            session.run(tf.global_variables_initializer())
            words = tf.gather(model.embedding_table, ids[0])
            if not style.get("embedding_style"):
                words = tf.matmul(words, model.embedding_projection)
            with tf.variable_scope("bert/embeddings", reuse=True):
                places = tf.get_variable("position_embeddings")
            return session.run([tf.math.reduce_std(words), tf.math.reduce_std(places)])

    words, places = spreads("scaled")
    assert words > 4 * places
    words, places = spreads("bert")
    assert words < 1.1 * places


def test_the_old_first_values_stay_to_be_had():
    with tf.Graph().as_default(), tf.Session() as session:
        build(toy_config(initialization="bert", initializer_range=0.05), case_inputs("single"))
        session.run(tf.global_variables_initializer())
        found = {v.op.name: session.run(v) for v in tf.trainable_variables() if len(v.shape) > 1}
    assert all(0.03 < value.std() < 0.06 for value in found.values())
    with pytest.raises(UserError, match="initialization is 'other', must be one of: scaled, bert"):
        toy_config(initialization="other")

"""ALBERT (Lan et al., arXiv 1909.11942): a BERT encoder with three changes.

In: token ids, mask and segment ids of a batch.  Out: hidden states, and a loss for each head.

  1 factorized embeddings      V*H parameters become V*E + E*H             (paper, section 3.1)
  2 cross-layer sharing        all L layers read one set of variables      (paper, section 3.1)
  3 sentence-order prediction  were two neighbouring segments swapped?     (paper, section 3.1)

Dimensions: B batch, S sequence, V vocabulary, E embedding, H hidden, I intermediate, N heads,
D head size (N*D = H), L layers, P predictions per sequence, C classes.
"""

import collections
import functools
import json
import math

import tensorflow.compat.v1 as tf

from cli import UserError
from layers import (
    activation,
    attend_to,
    dense,
    dropout,
    gather_positions,
    later,
    layer_norm,
    look_up,
    matmul_last,
    matrix,
    merge_heads,
    shape_list,
    split_heads,
    vector,
)
from recompute import chained

tf.disable_v2_behavior()
tf.enable_resource_variables()

MASKED_SCORE = -10000.0  # added to the attention scores of padding

Head = collections.namedtuple("Head", "loss example_loss log_probs logits")
Rates = collections.namedtuple("Rates", "hidden attention seed")
LayerScopes = collections.namedtuple("LayerScopes", "attention intermediate output")


class AlbertConfig(object):
    """Sizes and switches of one model; each field is a key of the JSON file.

    ln_type: "postln" norms after each sum, as BERT; "preln" before each sublayer.
    parameter_sharing: what the layers share: "all", "attention", "ffn" or "none".
    embedding_style: "albert_zh" adds position and type embeddings, H wide, after the projection;
      "google" adds them E wide, norms, then projects.
    num_hidden_groups: with "google", the number of sets of layer variables; 1 shares all.
    initialization: how a matrix starts that comes from no checkpoint: "scaled" to its width, or as
      BERT all of one initializer_range, "bert"; see layers.first_spread.
    """

    REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                "intermediate_size")
    DEFAULTS = {"embedding_size": 128, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 512,
                "type_vocab_size": 2, "initializer_range": 0.02, "ln_type": "postln",
                "parameter_sharing": "all", "embedding_style": "albert_zh",
                "initialization": "scaled", "num_hidden_groups": 1, "inner_group_num": 1}
    CHOICES = {"ln_type": ("postln", "preln"), "embedding_style": ("albert_zh", "google"),
               "initialization": ("scaled", "bert"),
               "hidden_act": ("gelu", "gelu_new", "gelu_erf", "relu", "tanh"),
               "parameter_sharing": ("all", "attention", "ffn", "none")}
    FRACTIONS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
    IGNORED = ("directionality", "pooler_fc_size", "pooler_num_attention_heads",
               "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
               "net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor")

    def __init__(self, **values):
        """Takes the fields by name; UserError names a key that is unknown, missing or wrong."""
        unknown = sorted(set(values) - set(self.REQUIRED) - set(self.DEFAULTS))
        missing = sorted(set(self.REQUIRED) - set(values))
        if unknown:
            raise UserError("unknown key {!r}; known are: {}".format(
                unknown[0], ", ".join(self.REQUIRED + tuple(sorted(self.DEFAULTS)))))
        if missing:
            raise UserError("key {!r} is missing".format(missing[0]))
        self.__dict__.update(self.DEFAULTS)
        self.__dict__.update(values)
        self.validate()

    @classmethod
    def from_json_file(cls, path):
        """Reads a config file. Google's keys choose its layout; BERT's unused keys are ignored."""
        try:
            with tf.io.gfile.GFile(path, "rb") as stream:
                values = json.loads(stream.read().decode("utf-8-sig"))
            values = {key: value for key, value in values.items() if key not in cls.IGNORED}
        except tf.errors.OpError as error:
            raise UserError("--bert_config_file: no file {!r}: {}".format(
                path, error.message)) from None
        except (ValueError, AttributeError) as error:
            raise UserError("{} does not hold one JSON object: {}".format(path, error)) from None
        if "num_hidden_groups" in values or "inner_group_num" in values:
            values.setdefault("embedding_style", "google")
        try:
            config = cls(**values)
        except UserError as error:
            raise UserError("{}: {}".format(path, error)) from None
        if "ln_type" not in values and config.embedding_style == "albert_zh":
            log = tf.logging.warning if config.hidden_size >= 4096 else tf.logging.info
            log("%s has no ln_type: taken as postln. The public xxlarge models lack it though "
                "they are preln; the variable names are the same in both.", path)
        return config

    def to_json(self):
        """The text of the config's JSON file, without the keys of the other layout."""
        foreign = (("num_hidden_groups", "inner_group_num") if self.embedding_style == "albert_zh"
                   else ("ln_type", "parameter_sharing"))
        return json.dumps({name: value for name, value in self.__dict__.items()
                           if name not in foreign}, indent=2, sort_keys=True) + "\n"

    def validate(self):
        """Raises UserError for the first value that no model can be built from."""
        for name, value in sorted(self.__dict__.items()):
            if name in self.CHOICES:
                allowed = value in self.CHOICES[name]
                rule = "one of: " + ", ".join(self.CHOICES[name])
            elif name in self.FRACTIONS:
                allowed = isinstance(value, (int, float)) and 0 <= value < 1
                rule = "a number from 0 to below 1"
            else:
                allowed = type(value) is int and value >= 1
                rule = "a whole number from 1"
            if not allowed:
                raise UserError("{} is {!r}, must be {}".format(name, value, rule))
        if self.hidden_size % self.num_attention_heads:
            raise UserError("hidden_size {} is not a multiple of num_attention_heads {}".format(
                self.hidden_size, self.num_attention_heads))
        if self.embedding_style == "google" and self.ln_type == "preln":
            raise UserError("embedding_style is 'google', which has no ln_type 'preln'")
        if self.embedding_style == "google" and self.parameter_sharing != "all":
            raise UserError("embedding_style is 'google', which shares by num_hidden_groups and "
                            "not by parameter_sharing {!r}".format(self.parameter_sharing))
        if self.embedding_style == "albert_zh" and self.num_hidden_groups != 1:
            raise UserError("num_hidden_groups is {}, needs embedding_style 'google'".format(
                self.num_hidden_groups))
        if self.inner_group_num != 1:
            raise UserError("inner_group_num is {}, must be 1".format(self.inner_group_num))
        if self.num_hidden_groups > self.num_hidden_layers:
            raise UserError("num_hidden_groups {} is above num_hidden_layers {}".format(
                self.num_hidden_groups, self.num_hidden_layers))


class AlbertModel(object):
    """The encoder, under the variable scope `bert`.

    Attributes:
      embedding_table [V, E], embedding_projection [E, H], embedding_output [B, S, H],
      all_encoder_layers: L tensors [B, S, H], sequence_output [B, S, H], pooled_output [B, H];
      with `positions` the last layer and sequence_output are [B, 1+P, H].
    """

    def __init__(self, config, input_ids, input_mask=None, segment_ids=None, training=False,
                 dropout_seed=0, one_hot_embeddings=False, recompute=False, positions=None,
                 pooler=True):
        """Builds the graph.

        Args:
          config: AlbertConfig.
          input_ids: int32 [B, S].
          input_mask: int32 [B, S], 1 on tokens and 0 on padding; default: no padding.
          segment_ids: int32 [B, S], 0 in the first segment and 1 in the second; default: 0.
          training: bool, whether the config's dropout is applied and gradients are taken.
          dropout_seed: int32 scalar, equal seeds drop equal units; let it follow the step.
          one_hot_embeddings: bool, look words up by a matrix product, which a TPU prefers.
          recompute: bool, keep only each layer's input for the gradient: a third more work.
          positions: int32 [B, P], the only ones beside 0 whose output is wanted: the last layer
            computes no others. Default: all.
          pooler: bool, whether there is a pooled_output; heads over the sequence have none.
        Raises:
          UserError: S is known before the run and above max_position_embeddings.
        """
        batch, length = shape_list(input_ids)
        if isinstance(length, int) and length > config.max_position_embeddings:
            raise UserError("sequence length {} is above the config's max_position_embeddings "
                            "{}".format(length, config.max_position_embeddings))
        input_mask = tf.ones_like(input_ids) if input_mask is None else input_mask
        segment_ids = tf.zeros_like(input_ids) if segment_ids is None else segment_ids
        rates = Rates(config.hidden_dropout_prob if training else 0.0,
                      config.attention_probs_dropout_prob if training else 0.0, dropout_seed)
        self.config = config
        self.positions = positions
        with tf.variable_scope("bert", reuse=tf.AUTO_REUSE):
            words, self.embedding_table = factorized_embedding(
                input_ids, config, one_hot_embeddings)
            embed = embed_google if config.embedding_style == "google" else embed_albert_zh
            self.embedding_output, self.embedding_projection = embed(
                words, segment_ids, config, rates)
            bias = (1.0 - tf.cast(input_mask, words.dtype)) * MASKED_SCORE
            bias = tf.reshape(bias, [batch, 1, 1, length])  # [B, 1, 1, S]
            with tf.variable_scope("encoder"):
                self.all_encoder_layers = encoder(
                    self.embedding_output, bias, config, rates, training, recompute, positions)
            self.sequence_output = self.all_encoder_layers[-1]
            with tf.variable_scope("pooler"):
                first_token = self.sequence_output[:, 0]
                self.pooled_output = tf.tanh(
                    dense(first_token, config.hidden_size, config)) if pooler else None

    def output_at(self, positions):
        """The sequence's output at positions [B, P]: [B, P, H]."""
        if self.positions is None:
            return gather_positions(self.sequence_output, positions)
        if positions is not self.positions:
            raise ValueError("the model was built for other positions")
        return self.sequence_output[:, 1:]


# ---------------------------------------------------------------------------------------------
# 1 Factorized embeddings: a table [V, E] and a projection [E, H] in place of a table [V, H].


def factorized_embedding(input_ids, config, one_hot=False):
    """Looks the words up in the E-wide table; returns ([B, S, E], table [V, E])."""
    with tf.variable_scope("embeddings"):
        table = matrix("word_embeddings", [config.vocab_size, config.embedding_size], config)
    return look_up(table, input_ids, one_hot), table


def embed_albert_zh(words, segment_ids, config, rates):
    """Projects, then adds type and position H wide, then norms: ([B, S, H], [E, H])."""
    with tf.variable_scope("embeddings"):
        projection = matrix("word_embeddings_2", [config.embedding_size, config.hidden_size],
                            config)
        x = add_type_and_position(matmul_last(words, projection), segment_ids, config)
        return dropout(layer_norm(x), rates.hidden, rates.seed, "embeddings"), projection


def embed_google(words, segment_ids, config, rates):
    """Adds type and position E wide, norms, then projects: ([B, S, H], [E, H])."""
    with tf.variable_scope("embeddings"):
        x = layer_norm(add_type_and_position(words, segment_ids, config))
        x = dropout(x, rates.hidden, rates.seed, "embeddings")
    with tf.variable_scope("encoder"):
        x = dense(x, config.hidden_size, config, "embedding_hidden_mapping_in")
        with tf.variable_scope("embedding_hidden_mapping_in"):
            projection = matrix("kernel", [config.embedding_size, config.hidden_size], config)
    return x, projection


def add_type_and_position(x, segment_ids, config):
    """x [B, S, W] plus the segment's and the position's embedding, both W wide."""
    width, length = shape_list(x)[-1], shape_list(x)[1]
    types = matrix("token_type_embeddings", [config.type_vocab_size, width], config)
    positions = matrix("position_embeddings", [config.max_position_embeddings, width], config)
    return x + look_up(types, segment_ids, one_hot=True) + tf.expand_dims(positions[:length], 0)


# ---------------------------------------------------------------------------------------------
# 2 Cross-layer sharing: which variables layer number `index` reads is decided by layer_scopes.


def encoder(x, attention_bias, config, rates, training=False, recompute=False, positions=None):
    """The output of each of L layers over x [B, S, H]; attention_bias is [B, 1, 1, S]."""
    outputs, weights = [], {}
    for index in range(config.num_hidden_layers):
        layer = functools.partial(
            transformer_layer, attention_bias=attention_bias, config=config, rates=rates,
            index=index, positions=positions if index + 1 == config.num_hidden_layers else None)
        x = chained(layer, x, weights, recompute) if training else layer(x)
        outputs.append(x)
    return outputs


def layer_scopes(index, config):
    """Variable scopes of layer `index`; layers with equal scopes share their variables."""
    if config.parameter_sharing == "attention":
        return LayerScopes("layer_shared/attention", "layer_shared/intermediate_%d" % index,
                           "layer_shared/output_%d" % index)
    if config.parameter_sharing == "ffn":
        return LayerScopes("layer_shared/attention_%d" % index, "layer_shared/intermediate",
                           "layer_shared/output")
    groups = config.num_hidden_groups
    layer = "layer_shared"
    if config.parameter_sharing == "none" or 1 < groups == config.num_hidden_layers:
        layer = "layer_%d" % index
    elif groups > 1:
        layer = "group_%d" % (index * groups // config.num_hidden_layers)
    return LayerScopes(layer + "/attention", layer + "/intermediate", layer + "/output")


def transformer_layer(x, attention_bias, config, rates, index, positions=None, after=None):
    """Self-attention, then feed-forward, each with its residual: [B, S, H] -> [B, S, H].

    With positions [B, P] only 0 and these are carried on, [B, 1+P, H]; `after`: see layers.later.
    """
    rates = rates._replace(seed=later(rates.seed, after))
    scopes = layer_scopes(index, config)

    def rows(y):
        if positions is None:
            return y
        return gather_positions(y, tf.pad(positions, [[0, 0], [1, 0]]))

    def attend(y):
        return self_attention(rows(y), y, attention_bias, config, rates, scopes.attention, index)

    def feed(y):
        return feed_forward(y, config, scopes)

    x = residual(x, attend, scopes.attention + "/output", config, rates, "attention", index, rows)
    return residual(x, feed, scopes.output, config, rates, "output", index)


def residual(x, sublayer, norm_scope, config, rates, site, index, rows=tf.identity):
    """norm(x + sublayer(x)) for postln, x + sublayer(norm(x)) for preln; rows(x) is added."""
    if config.ln_type == "preln":
        return rows(x) + dropout(sublayer(layer_norm(x, norm_scope)), rates.hidden, rates.seed,
                                 site, index)
    return layer_norm(rows(x) + dropout(sublayer(x), rates.hidden, rates.seed, site, index),
                      norm_scope)


def self_attention(x, source, attention_bias, config, rates, scope, index):
    """softmax(Q Kᵀ / √D + bias) V of all N heads, then projected; Q from x, K, V from source."""
    heads, hidden = config.num_attention_heads, config.hidden_size
    with tf.variable_scope(scope):
        query, key, value = [
            split_heads(dense(y, hidden, config, "self/" + name), heads)  # [B, N, S, D]
            for name, y in (("query", x), ("key", source), ("value", source))]
        query *= 1.0 / math.sqrt(hidden // heads)
        drop = functools.partial(dropout, rate=rates.attention, seed=rates.seed, site="weights",
                                 index=index)
        context = merge_heads(attend_to(query, key, value, attention_bias, drop))  # [B, S, H], as x
        return dense(context, hidden, config, "output/dense")


def feed_forward(x, config, scopes):
    """H -> I -> H with the activation between."""
    inner = dense(x, config.intermediate_size, config, scopes.intermediate + "/dense")
    return dense(activation(config)(inner), config.hidden_size, config, scopes.output + "/dense")


# ---------------------------------------------------------------------------------------------
# 3 Heads: sentence order and masked words for pre-training, classes for fine-tuning.


def sentence_order_head(model, labels):
    """Were the two segments swapped? labels int [B], 1 = swapped (paper, section 3.1)."""
    with tf.variable_scope("cls/seq_relationship", reuse=tf.AUTO_REUSE):
        return class_scores(model.pooled_output, labels, 2, model.config)


def masked_lm_head(model, positions, labels, weights, weight_sum=None):
    """Predicts the words behind [MASK].

    Args:
      positions, labels: int32 [B, P], where the masked tokens stand and which they were.
      weights: float [B, P], 0 for unused places.
      weight_sum: the loss is divided by it; default: the sum of weights. A micro-batch is given
        the whole batch's sum.
    Returns:
      Head with example_loss [B*P], log_probs and logits [B*P, V].
    """
    config = model.config
    google = config.embedding_style == "google"
    with tf.variable_scope("cls/predictions", reuse=tf.AUTO_REUSE):
        x = tf.reshape(model.output_at(positions), [-1, config.hidden_size])  # [B*P, H]
        with tf.variable_scope("transform"):
            width = config.embedding_size if google else config.hidden_size
            x = layer_norm(activation(config)(dense(x, width, config)))
        if not google:
            x = tf.matmul(x, model.embedding_projection, transpose_b=True)  # [B*P, E]
        bias = vector("output_bias", config.vocab_size)
        logits = tf.matmul(x, model.embedding_table, transpose_b=True) + bias
    weights = tf.reshape(weights, [-1])  # [B*P]
    if weight_sum is None:
        weight_sum = tf.reduce_sum(weights)
    head = softmax_head(logits, tf.reshape(labels, [-1]))  # labels [B*P]
    return head._replace(
        loss=tf.reduce_sum(weights * head.example_loss) / (weight_sum + 1e-5))


def classification_head(pooled_output, labels, num_labels, config, dropout_rate=0.0,
                        dropout_seed=0):
    """C classes from pooled_output [B, H]; labels int [B], or None when they are not known."""
    x = dropout(pooled_output, dropout_rate, dropout_seed, "classifier")
    with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
        return class_scores(x, labels, num_labels, config)


def class_scores(x, labels, num_labels, config):
    """Head of x [B, H] · output_weightsᵀ + output_bias, with the mean loss over the batch."""
    weights = matrix("output_weights", [num_labels, config.hidden_size], config)
    logits = tf.matmul(x, weights, transpose_b=True) + vector("output_bias", num_labels)
    return softmax_head(logits, labels)


def tag_head(sequence_output, num_tags, config, dropout_rate=0.0, dropout_seed=0):
    """Logits [B, S, T] of T tags at each place of sequence_output [B, S, H]."""
    batch, length, hidden = shape_list(sequence_output)
    x = dropout(sequence_output, dropout_rate, dropout_seed, "classifier")
    with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
        head = class_scores(tf.reshape(x, [-1, hidden]), None, num_tags, config)  # [B*S, H]
    return tf.reshape(head.logits, [batch, length, num_tags])  # [B, S, T]


def softmax_head(logits, labels):
    """Head of logits [M, C] and labels int [M] or None; `loss` is the mean over M."""
    logits = tf.cast(logits, tf.float32)
    log_probs = tf.nn.log_softmax(logits)
    if labels is None:
        return Head(None, None, log_probs, logits)
    example_loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return Head(tf.reduce_mean(example_loss), example_loss, log_probs, logits)

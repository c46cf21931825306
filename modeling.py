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
from gradients import Chain, attention
from layers import (
    Dropout,
    activation,
    dense,
    dropout,
    gather_positions,
    layer_norm,
    look_up,
    matmul_last,
    matrix,
    merge_heads,
    shape_list,
    split_heads,
    vector,
)

tf.disable_v2_behavior()
tf.enable_resource_variables()

MOST_LAYERS = 1000  # each takes its time to build; the paper has 24 at most
MASKED_SCORE = -10000.0  # added to the attention scores of padding

Head = collections.namedtuple("Head", "loss example_loss log_probs logits")
SpanHead = collections.namedtuple("SpanHead", "example_loss start_logits end_logits")
LayerScopes = collections.namedtuple("LayerScopes", "attention intermediate output")


class AlbertConfig(object):
    """Sizes and switches of one model; each field is a key of the JSON file.

    ln_type: "postln" norms after each sum, as BERT; "preln" before each sublayer.
    parameter_sharing: what the layers share: "all", "attention", "ffn" or "none".
    embedding_style: "albert_zh" adds position and type embeddings, H wide, after the projection;
      "google" adds them E wide, norms, then projects.
    num_hidden_groups: with "google", the number of sets of layer variables; 1 shares all. Above
      num_hidden_layers, as in the public albert_tiny_google_fast, each layer has its own set and
      the numbers between stay unused, as with its publisher.
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
                most = MOST_LAYERS if name == "num_hidden_layers" else 2 ** 31 - 1
                allowed = type(value) is int and 1 <= value <= most
                rule = "a whole number from 1 to {}".format(most)
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


class AlbertModel(object):
    """The encoder, under the variable scope `bert`.

    Attributes:
      embedding_table [V, E], embedding_projection [E, H], embedding_output [B, S, H],
      all_encoder_layers: L tensors [B, S, H], sequence_output [B, S, H] the last of them,
      pooled_output [B, H].
    """

    def __init__(self, config, input_ids, input_mask=None, segment_ids=None, training=False,
                 dropout_seed=0, one_hot_embeddings=False, recompute=False, pooler=True,
                 word_shift=None):
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
          pooler: bool, whether there is a pooled_output; heads over the sequence have none.
          word_shift: float [V, E], added to the words that are looked up; default: 0.
        Raises:
          UserError: S is known before the run and above max_position_embeddings.
        """
        batch, length = shape_list(input_ids)
        if isinstance(length, int) and length > config.max_position_embeddings:
            raise UserError("sequence length {} is above the config's max_position_embeddings "
                            "{}".format(length, config.max_position_embeddings))
        input_mask = tf.ones_like(input_ids) if input_mask is None else input_mask
        segment_ids = tf.zeros_like(input_ids) if segment_ids is None else segment_ids
        self.config = config
        self.drop = Dropout(config.hidden_dropout_prob if training else 0.0,
                            config.attention_probs_dropout_prob if training else 0.0,
                            dropout_seed, layer=0)
        with tf.variable_scope("bert", reuse=tf.AUTO_REUSE):
            words, self.embedding_table = factorized_embedding(
                input_ids, config, one_hot_embeddings)
            if word_shift is not None:
                words += look_up(tf.cast(word_shift, words.dtype), input_ids, one_hot_embeddings)
            embed = embed_google if config.embedding_style == "google" else embed_albert_zh
            self.embedding_output, self.embedding_projection = embed(
                words, segment_ids, config, self.drop)
            bias = (1.0 - tf.cast(input_mask, words.dtype)) * MASKED_SCORE
            self.attention_bias = tf.reshape(bias, [batch, 1, 1, length])  # [B, 1, 1, S]
            with tf.variable_scope("encoder"):
                self.chains = encoder(Chain(self.embedding_output, training, recompute),
                                      self.attention_bias, config, self.drop)
        self.all_encoder_layers = [chain.output for chain in self.chains[1:]]
        self.sequence_output = self.all_encoder_layers[-1]
        self.pooled_output = self.pooled(self.sequence_output[:, 0]) if pooler else None

    def pooled(self, first_token):
        """tanh(first_token · kernel + bias) of the last layer's [CLS]: [B, H] -> [B, H]."""
        with tf.variable_scope("bert/pooler", reuse=tf.AUTO_REUSE):
            return tf.tanh(dense(first_token, self.config.hidden_size, self.config))

    def outputs_at(self, positions):
        """Rows of sequence_output at positions [B, P], and pooled_output, for less work.

        The last layer is built once more and computes these rows alone, a sixth of a tiny model's
        step; TensorFlow runs only what is asked for, so the whole one then costs nothing.

        Returns:
          ([B, P, H], [B, H]).
        """
        last = self.config.num_hidden_layers - 1
        with tf.variable_scope("bert/encoder", reuse=tf.AUTO_REUSE):
            rows = self.chains[last].then(lambda x: layer_at(
                tf.pad(positions, [[0, 0], [1, 0]]), x, self.attention_bias, self.config,
                layer_scopes(last, self.config), self.drop._replace(layer=last))).output
        return rows[:, 1:], self.pooled(rows[:, 0])


# ---------------------------------------------------------------------------------------------
# 1 Factorized embeddings: a table [V, E] and a projection [E, H] in place of a table [V, H].


def factorized_embedding(input_ids, config, one_hot=False):
    """Looks the words up in the E-wide table; returns ([B, S, E], table [V, E])."""
    with tf.variable_scope("embeddings"):
        table = matrix("word_embeddings", [config.vocab_size, config.embedding_size], config)
    return look_up(table, input_ids, one_hot), table


def embed_albert_zh(words, segment_ids, config, drop):
    """Projects, then adds type and position H wide, then norms: ([B, S, H], [E, H])."""
    with tf.variable_scope("embeddings"):
        projection = matrix("word_embeddings_2", [config.embedding_size, config.hidden_size],
                            config)
        x = add_type_and_position(matmul_last(words, projection), segment_ids, config)
        return drop.of_hidden(layer_norm(x), "embeddings"), projection


def embed_google(words, segment_ids, config, drop):
    """Adds type and position E wide, norms, then projects: ([B, S, H], [E, H])."""
    with tf.variable_scope("embeddings"):
        x = layer_norm(add_type_and_position(words, segment_ids, config))
        x = drop.of_hidden(x, "embeddings")
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


def encoder(chain, attention_bias, config, drop):
    """Carries a chain's [B, S, H] through L layers; returns it before the first and after each."""
    chains = [chain]
    for index in range(config.num_hidden_layers):
        layer = functools.partial(
            transformer_layer, attention_bias=attention_bias, config=config,
            scopes=layer_scopes(index, config), drop=drop._replace(layer=index))
        chains.append(chains[-1].then(layer))
    return chains


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


def transformer_layer(x, attention_bias, config, scopes, drop, source=None):
    """Self-attention, then feed-forward, each with its residual: [B, S, H] -> [B, S, H].

    attention_bias [B, 1, 1, S] is added to the scores; source [B, S, H] is what is attended to,
    default: x, normed before with preln.
    """
    def attend(y):
        return self_attention(y, y if source is None else source, attention_bias, config,
                              scopes.attention, drop)

    def feed(y):
        return feed_forward(y, config, scopes)

    x = residual(x, attend, scopes.attention + "/output", config, drop, "attention")
    return residual(x, feed, scopes.output, config, drop, "output")


def layer_at(positions, x, attention_bias, config, scopes, drop):
    """The rows of transformer_layer's output at positions [B, P]: [B, S, H] -> [B, P, H]."""
    source = layer_norm(x, scopes.attention + "/output") if config.ln_type == "preln" else x
    return transformer_layer(gather_positions(x, positions), attention_bias, config, scopes, drop,
                             source)


def residual(x, sublayer, norm_scope, config, drop, site):
    """norm(x + sublayer(x)) for postln, x + sublayer(norm(x)) for preln."""
    if config.ln_type == "preln":
        return x + drop.of_hidden(sublayer(layer_norm(x, norm_scope)), site)
    return layer_norm(x + drop.of_hidden(sublayer(x), site), norm_scope)


def self_attention(x, source, attention_bias, config, scope, drop):
    """softmax(Q Kᵀ / √D + bias) V of all N heads, then projected; Q from x, K, V from source."""
    heads, hidden = config.num_attention_heads, config.hidden_size
    with tf.variable_scope(scope):
        query, key, value = [
            split_heads(dense(y, hidden, config, "self/" + name), heads)  # [B, N, S, D]
            for name, y in (("query", x), ("key", source), ("value", source))]
        query *= 1.0 / math.sqrt(hidden // heads)
        context = attention(query, key, value, attention_bias, drop.of_attention())
        return dense(merge_heads(context), hidden, config, "output/dense")


def feed_forward(x, config, scopes):
    """H -> I -> H with the activation between."""
    inner = dense(x, config.intermediate_size, config, scopes.intermediate + "/dense")
    return dense(activation(config)(inner), config.hidden_size, config, scopes.output + "/dense")


# ---------------------------------------------------------------------------------------------
# 3 Heads: sentence order and masked words for pre-training, classes for fine-tuning.


def sentence_order_head(pooled_output, labels, config):
    """Were the two segments swapped? labels int [B], 1 = swapped (paper, section 3.1)."""
    with tf.variable_scope("cls/seq_relationship", reuse=tf.AUTO_REUSE):
        return class_scores(pooled_output, labels, 2, config)


def masked_lm_head(output, model, labels, weights):
    """Predicts the words behind [MASK].

    Args:
      output: [B, P, H], the last layer's rows of the masked tokens, see AlbertModel.outputs_at;
        or of the places in use alone, [M, H], with labels and weights [M].
      model: AlbertModel, whose embeddings the words are compared with.
      labels: int32 [B, P], which words they were.
      weights: float [B, P], 0 for unused places.
    Returns:
      Head with example_loss [B*P], log_probs and logits [B*P, V].
    """
    config = model.config
    google = config.embedding_style == "google"
    with tf.variable_scope("cls/predictions", reuse=tf.AUTO_REUSE):
        x = tf.reshape(output, [-1, config.hidden_size])  # [B*P, H]
        with tf.variable_scope("transform"):
            width = config.embedding_size if google else config.hidden_size
            x = layer_norm(activation(config)(dense(x, width, config)))
        if not google:
            x = tf.matmul(x, model.embedding_projection, transpose_b=True)  # [B*P, E]
        bias = vector("output_bias", config.vocab_size)
        logits = tf.matmul(x, model.embedding_table, transpose_b=True) + bias
    weights = tf.reshape(weights, [-1])  # [B*P]
    head = softmax_head(logits, tf.reshape(labels, [-1]))  # labels [B*P]
    return head._replace(
        loss=tf.reduce_sum(weights * head.example_loss) / (tf.reduce_sum(weights) + 1e-5))


def classification_head(pooled_output, labels, num_labels, config, dropout_rate=0.0,
                        dropout_seed=0):
    """C classes from pooled_output [B, H]; labels int [B], or None when they are not known.

    A pre-LN encoder has no norm of its own at its end: as in albert_zh, its pooled output is normed
    once more here.
    """
    x = pooled_output
    if config.ln_type == "preln":
        with tf.variable_scope("loss", reuse=tf.AUTO_REUSE):
            x = layer_norm(x)
    x = dropout(x, dropout_rate, dropout_seed, "classifier")
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


def span_head(model, input_mask=None, starts=None, ends=None):
    """Where does the answer stand? Scores of each place as its first and as its last.

    Args:
      model: AlbertModel.
      input_mask: int32 [B, S]; padding takes no part in the loss, which does not depend on it.
      starts, ends: int [B], or None when they are not known, nor the loss, which alone needs the
        mask.
    Returns:
      SpanHead: logits float32 [B, S]; example_loss [B], the mean of both places', or None.
    """
    config = model.config
    with tf.variable_scope("cls/squad", reuse=tf.AUTO_REUSE):
        weights = matrix("output_weights", [2, config.hidden_size], config)
        bias = vector("output_bias", 2)
    logits = matmul_last(model.sequence_output, tf.transpose(weights)) + bias  # [H, 2] -> [B, S, 2]
    logits = tf.unstack(tf.cast(logits, tf.float32), axis=-1)
    if starts is None:
        return SpanHead(None, *logits)
    padding = (1.0 - tf.cast(input_mask, tf.float32)) * MASKED_SCORE
    losses = [softmax_head(scores + padding, places).example_loss
              for scores, places in zip(logits, (starts, ends))]
    return SpanHead((losses[0] + losses[1]) / 2.0, *logits)


def softmax_head(logits, labels):
    """Head of logits [M, C] and labels int [M] or None; `loss` is the mean over M."""
    logits = tf.cast(logits, tf.float32)
    log_probs = tf.nn.log_softmax(logits)
    if labels is None:
        return Head(None, None, log_probs, logits)
    example_loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return Head(tf.reduce_mean(example_loss), example_loss, log_probs, logits)

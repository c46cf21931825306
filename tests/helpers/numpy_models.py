"""A small model of Google's style: config, weights, inputs; NumPy forwards of it and of plain BERT.

The forwards read Google's own variable names, in double precision, and share nothing with the
project's code.
"""

import collections

import numpy as np

GOOGLE_CONFIG = {
    "attention_probs_dropout_prob": 0, "hidden_act": "gelu", "hidden_dropout_prob": 0,
    "embedding_size": 16, "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 48,
    "max_position_embeddings": 128, "num_attention_heads": 4, "num_hidden_layers": 4,
    "num_hidden_groups": 1, "net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0,
    "inner_group_num": 1, "down_scale_factor": 1, "type_vocab_size": 2, "vocab_size": 100}


def google_shapes(config, labels=0):
    """OrderedDict of Google's variable names -> shape; `labels` adds a classifier of that width."""
    vocab, embedding, hidden, inner = [config[key] for key in (
        "vocab_size", "embedding_size", "hidden_size", "intermediate_size")]
    shapes = collections.OrderedDict()

    def add_norm(scope, width):
        shapes[scope + "/beta"] = shapes[scope + "/gamma"] = [width]

    def add_dense(scope, width, units):
        shapes[scope + "/kernel"], shapes[scope + "/bias"] = [width, units], [units]

    shapes["bert/embeddings/word_embeddings"] = [vocab, embedding]
    shapes["bert/embeddings/token_type_embeddings"] = [2, embedding]
    shapes["bert/embeddings/position_embeddings"] = [config["max_position_embeddings"], embedding]
    add_norm("bert/embeddings/LayerNorm", embedding)
    add_dense("bert/encoder/embedding_hidden_mapping_in", embedding, hidden)
    layers, groups = config["num_hidden_layers"], config["num_hidden_groups"]
    for group in sorted({int(index / layers * groups) for index in range(layers)}):
        scope = "bert/encoder/transformer/group_%d/inner_group_0/" % group
        for name in ("query", "key", "value"):
            add_dense(scope + "attention_1/self/" + name, hidden, hidden)
        add_dense(scope + "attention_1/output/dense", hidden, hidden)
        add_norm(scope + "LayerNorm", hidden)
        add_dense(scope + "ffn_1/intermediate/dense", hidden, inner)
        add_dense(scope + "ffn_1/intermediate/output/dense", inner, hidden)
        add_norm(scope + "LayerNorm_1", hidden)
    add_dense("bert/pooler/dense", hidden, hidden)
    if labels:
        shapes["output_weights"], shapes["output_bias"] = [labels, hidden], [labels]
        return shapes
    add_dense("cls/predictions/transform/dense", hidden, embedding)
    add_norm("cls/predictions/transform/LayerNorm", embedding)
    shapes["cls/predictions/output_bias"] = [vocab]
    shapes["cls/seq_relationship/output_weights"] = [2, hidden]
    shapes["cls/seq_relationship/output_bias"] = [2]
    return shapes


def random_weights(shapes, seed=3, scale=0.2):
    """float32 arrays of these shapes; gammas lie around 1."""
    rng = np.random.RandomState(seed)
    return {name: (name.endswith("gamma") + scale * rng.randn(*shape)).astype(np.float32)
            for name, shape in sorted(shapes.items())}


def random_features(vocab_size, seed=5, batch=3, length=12, predictions=2):
    """A batch of token ids with padding, two segments and masked positions."""
    rng = np.random.RandomState(seed)
    lengths = rng.randint(length // 2, length + 1, size=batch)
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    return {"input_ids": (rng.randint(1, vocab_size, [batch, length]) * mask).astype(np.int32),
            "input_mask": mask,
            "segment_ids": (mask * (np.arange(length) >= length // 3)).astype(np.int32),
            "masked_lm_positions": rng.randint(0, length // 2, [batch, predictions]).astype(
                np.int32),
            "masked_lm_ids": rng.randint(1, vocab_size, [batch, predictions]).astype(np.int32),
            "masked_lm_weights": np.ones([batch, predictions], np.float32),
            "next_sentence_labels": rng.randint(0, 2, [batch]).astype(np.int32)}


ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3))),
    "relu": lambda x: np.maximum(x, 0)}


# Scopes of one layer: query, key, value, output, norm, inner, outer, norm after.
GOOGLE_LAYER = ["attention_1/self/query", "attention_1/self/key", "attention_1/self/value",
                "attention_1/output/dense", "LayerNorm", "ffn_1/intermediate/dense",
                "ffn_1/intermediate/output/dense", "LayerNorm_1"]
BERT_LAYER = ["attention/self/query", "attention/self/key", "attention/self/value",
              "attention/output/dense", "attention/output/LayerNorm", "intermediate/dense",
              "output/dense", "output/LayerNorm"]


class NumpyBert(object):
    """Forward pass over plain BERT's variables, all in float64."""

    def __init__(self, config, weights):
        self.config = config
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}
        self.act = ACTIVATIONS[config["hidden_act"]]

    def dense(self, x, scope):
        return x @ self.weights[scope + "/kernel"] + self.weights[scope + "/bias"]

    def norm(self, x, scope):
        centred = x - x.mean(-1, keepdims=True)
        normed = centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + 1e-12)
        return normed * self.weights[scope + "/gamma"] + self.weights[scope + "/beta"]

    def layer(self, x, mask, scopes):
        """One layer, head by head: x [B, S, H]."""
        width = self.config["hidden_size"] // self.config["num_attention_heads"]
        query, key, value = [self.dense(x, scope) for scope in scopes[:3]]
        heads = []
        for start in range(0, self.config["hidden_size"], width):
            part = slice(start, start + width)
            scores = np.einsum("bid,bjd->bij", query[..., part], key[..., part]) / np.sqrt(width)
            scores += -10000.0 * (1 - mask[:, None, :])
            weight = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weight / weight.sum(-1, keepdims=True) @ value[..., part])
        x = self.norm(x + self.dense(np.concatenate(heads, -1), scopes[3]), scopes[4])
        return self.norm(x + self.dense(self.act(self.dense(x, scopes[5])), scopes[6]), scopes[7])

    def layer_scopes(self, index):
        return ["bert/encoder/layer_%d/%s" % (index, part) for part in BERT_LAYER]

    def embed(self, features):
        """What the first layer reads, [B, S, H]."""
        w, ids = self.weights, features["input_ids"]
        x = (w["bert/embeddings/word_embeddings"][ids]
             + w["bert/embeddings/token_type_embeddings"][features["segment_ids"]]
             + w["bert/embeddings/position_embeddings"][None, :ids.shape[1]])
        return self.norm(x, "bert/embeddings/LayerNorm")

    def run(self, features):
        """Every layer, the pooled output, both heads' logits, the sum of both losses."""
        w, x, layers = self.weights, self.embed(features), []
        for index in range(self.config["num_hidden_layers"]):
            x = self.layer(x, features["input_mask"], self.layer_scopes(index))
            layers.append(x)
        pooled = np.tanh(self.dense(x[:, 0], "bert/pooler/dense"))
        rows = np.concatenate([x[row, places] for row, places in
                               enumerate(features["masked_lm_positions"])])
        transformed = self.norm(self.act(self.dense(rows, "cls/predictions/transform/dense")),
                                "cls/predictions/transform/LayerNorm")
        masked = (transformed @ w["bert/embeddings/word_embeddings"].T
                  + w["cls/predictions/output_bias"])
        order = (pooled @ w["cls/seq_relationship/output_weights"].T
                 + w["cls/seq_relationship/output_bias"])
        loss = (cross_entropy(masked, features["masked_lm_ids"].reshape(-1))  # [B*P]
                + cross_entropy(order, features["next_sentence_labels"].reshape(-1)))  # [B]
        return {"layers": np.stack(layers), "pooled": pooled, "masked": masked, "order": order,
                "loss": loss}


class NumpyGoogleAlbert(NumpyBert):
    """The same over the variables of Google's ALBERT."""

    def layer_scopes(self, index):
        group = int(index / self.config["num_hidden_layers"] * self.config["num_hidden_groups"])
        return ["bert/encoder/transformer/group_%d/inner_group_0/%s" % (group, part)
                for part in GOOGLE_LAYER]

    def embed(self, features):
        return self.dense(super().embed(features), "bert/encoder/embedding_hidden_mapping_in")


def cross_entropy(logits, labels):
    """Mean over the rows of logits [M, C]."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -log_probs[np.arange(len(labels)), labels].mean()

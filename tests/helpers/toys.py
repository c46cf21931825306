"""Where things lie, and the words and sizes that the toys of all tests are made of."""

import io
import os
import string

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARED = os.path.join(os.path.dirname(ROOT), "shared")
FIXTURES = os.path.join(ROOT, "tests", "fixtures")

TOY_SENTENCES = """
清晨的渔港很热闹。
渔民把新鲜的鱼搬上岸。
市场里的人越来越多。
孩子们跟着父母挑选海鲜。
今年的产量比去年高。
天气预报说明天有雨。
图书馆下午三点开门。
他们用5G手机查询路线。
新的桥在2019年建成。
老师让大家写一篇短文。
模型需要很多数据。
使用语言模型来预测下一个词的概率。
""".split()

TOY_CONFIG = {
    "vocab_size": 0, "embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 128,
    "type_vocab_size": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "initializer_range": 0.02, "ln_type": "postln"}


def write_text(path, text):
    """Writes text as UTF-8 with the line ends it has; returns the path as str."""
    with io.open(str(path), "w", encoding="utf-8", newline="") as stream:
        stream.write(text)
    return str(path)


def toy_tokens():
    """Specials, then the sentences' characters, letters and digits, then their ## twins."""
    ordinary = "".join(TOY_SENTENCES) + string.ascii_lowercase + string.digits + "，？！"
    characters = sorted(set(ordinary))
    specials = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return specials + characters + ["##" + character for character in characters]


def pair_rows(count, start=0):
    """LCQMC lines of different lengths; the second text alone tells the label."""
    return "".join("{}\t{}\t{}\n".format(
        TOY_SENTENCES[n % 12][:2 + n % 5], "明天" if n % 2 else "图书馆", n % 2)
        for n in range(start, start + count))

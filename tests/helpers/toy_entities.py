"""Toy sentences with places, persons and things, of the characters of the toy vocabulary."""

import random
import re

from helpers.toys import write_text

ENTITIES = {"LOC": ["渔港", "市场", "图书馆", "桥"], "PER": ["渔民", "孩子们", "老师", "父母"],
            "DEV": ["5G手机", "模型"]}
PATTERNS = ["清晨的{LOC}很热闹。", "{PER}把新鲜的鱼搬上岸。", "{LOC}里的{PER}越来越多。",
            "今年{PER}用{DEV}查询{LOC}。", "新的{LOC}在2019年建成。", "{PER}让{PER}写一篇短文。",
            "天气预报说明天有雨。", "使用{DEV}来预测下一个词的概率。"]


def tagged_sentence(rng):
    """[(character, BIO tag)] of a sentence drawn at random."""
    pairs = []
    for part in re.split(r"(\{\w+\})", rng.choice(PATTERNS)):
        kind = part.strip("{}")
        if part.startswith("{"):
            words = rng.choice(ENTITIES[kind])
            pairs += [(char, ("I-" if number else "B-") + kind)
                      for number, char in enumerate(words)]
        else:
            pairs += [(char, "O") for char in part]
    return pairs


def write_tagged(folder, **counts):
    """Writes <split>.txt with as many sentences; returns the folder as str."""
    for split, count in counts.items():
        rng = random.Random(len(split))
        write_text(folder / (split + ".txt"), "\n\n".join(
            "\n".join("{} {}".format(*pair) for pair in tagged_sentence(rng))
            for _ in range(count)) + "\n")
    return str(folder)

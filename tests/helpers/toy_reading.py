"""Questions about passages of the toy vocabulary, in the form of CMRC 2018; a model for them."""

import json
import os

import tensorflow.compat.v1 as tf
from helpers.toys import TOY_SENTENCES, write_text

import modeling
from fine_tuning import predictor

ASKED = (("2019", "桥在哪年建成"), ("今年的产量", "比去年高"), ("渔民", "把鱼搬上岸"),
         ("三点", "图书馆下午"), ("5G手机", "用什么查询"), ("雨", "明天有什么"),
         ("短文", "大家写什么"), ("数据", "模型需要什么"),
         ("海鲜", "孩子们挑选什么"), ("老师", "谁让大家写短文"))


def squad(*passages):
    """The object of a file; a passage is (context, [(id, question, [(answer, start)])])."""
    return {"version": "v1.0", "data": [{"id": str(number), "title": "", "paragraphs": [{
        "id": str(number), "context": context, "qas": [{
            "id": name, "question": question,
            "answers": [{"text": text, "answer_start": start} for text, start in answers]}
            for name, question, answers in questions]}]}
        for number, (context, questions) in enumerate(passages)]}


def toy_passages(count, start=0):
    """`count` passages of four toy sentences with a question each; its answer stands in any."""
    found, twice = [], TOY_SENTENCES * 2
    for number in range(start, start + count):
        answer, question = ASKED[number % len(ASKED)]
        holding = [answer in sentence for sentence in twice].index(True, 4)
        first = holding - number // len(ASKED) % 4
        context = "".join(twice[first:first + 4])
        found.append((context, [("Q%d" % number, question + "？",
                                 [(answer, context.index(answer))])]))
    return found


def write_squad(path, *passages):
    """Writes passages as a file; returns its path."""
    return write_text(path, json.dumps(squad(*passages), ensure_ascii=False))


def write_reader(folder, vocab, config, null_answers=False):
    """Saves a checkpoint with random weights and its description; returns the folder as str."""
    config = modeling.AlbertConfig.from_json_file(config)
    config.initializer_range = 0.3
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(5)
        modeling.span_head(modeling.AlbertModel(config, tf.zeros([1, 1], tf.int32), pooler=False))
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, os.path.join(str(folder), "model.ckpt-7"))
    predictor.write_description(str(folder), {
        "head": "reading", "task_name": "own", "data_dir": None, "max_seq_length": 40,
        "doc_stride": 12, "max_query_length": 12, "max_answer_length": 8, "n_best_size": 20,
        "null_answers": null_answers, "do_lower_case": True, "input_encoding": "utf-8"},
        config, vocab)
    return str(folder)

"""Each public file format reads as it is published; odd rows fail with file, line and labels."""

import io
import json
import os

import pytest
from helpers.toys import write_text

from cli import UserError
from fine_tuning import tasks


def rows_of(task, path, encoding="utf-8", need_labels=False):
    """All Rows of a file in a task's format."""
    with io.open(path, "rb") as stream:
        lines = tasks.filled_lines(stream, path, encoding)
        return list(tasks.checked_rows(task, path, lines, task.labels, need_labels))


def texts_and_labels(rows):
    return [(row.text_a, row.text_b, row.label) for row in rows]


def json_lines(path, *records):
    return write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n"
                                    for record in records))


@pytest.mark.parametrize("text", [
    "今天\t明天\t1\n好\t坏\t0\n",
    "text_a\ttext_b\tlabel\n今天\t明天\t1\n好\t坏\t0",
    "\ufeffsentence1\tsentence2\tlabel\r\n今天\t明天\t1\r\n好\t坏\t0\r\n",
    "句子1\t句子2\tlabel\n\n今天\t明天\t1 \n\n好\t坏\t0\n\n\n",
    "label\ttext_b\ttext_a\n1\t明天\t今天\n0\t坏\t好\n",
])
def test_lcqmc_with_and_without_header_bom_crlf_and_empty_lines(tmp_path, text):
    path = write_text(tmp_path / "train.txt", text)
    rows = rows_of(tasks.task_named("lcqmc_pair"), path)
    assert texts_and_labels(rows) == [("今天", "明天", "1"), ("好", "坏", "0")]


def test_quotes_are_plain_text_and_line_separators_do_not_split(tmp_path):
    path = write_text(tmp_path / "train.txt", '"今天\t明"天\t1\n好\u2028\x85\x0c\t\'坏\t0\n')
    rows = rows_of(tasks.task_named("lcqmc"), path)
    assert texts_and_labels(rows) == [('"今天', '明"天', "1"), ("好\u2028\x85\x0c", "'坏", "0")]
    assert [row.line for row in rows] == [1, 2]


def test_a_first_row_is_data_even_if_its_text_looks_like_a_name(tmp_path):
    path = write_text(tmp_path / "train.txt", "label\t标签\t1\n")
    rows = rows_of(tasks.task_named("lcqmc"), path)
    assert texts_and_labels(rows) == [("label", "标签", "1")]


def test_row_of_two_columns_names_file_line_and_columns(tmp_path):
    path = write_text(tmp_path / "train.txt", "今天\t明天\t1\n\n好\t坏\n")
    with pytest.raises(UserError, match=r"train\.txt, line 3: 2 columns where 3 are expected "
                                        r"\(text_a, text_b, label\)"):
        rows_of(tasks.task_named("lcqmc"), path)


def test_bad_and_missing_labels_name_file_line_and_allowed_labels(tmp_path):
    task = tasks.task_named("lcqmc")
    path = write_text(tmp_path / "train.txt", "今天\t明天\t1\n好\t坏\t2\n")
    with pytest.raises(UserError, match=r"train\.txt, line 2: label '2' is not one of 0, 1"):
        rows_of(task, path, need_labels=True)
    path = write_text(tmp_path / "test.txt", "今天\t明天\n")
    with pytest.raises(UserError, match=r"test\.txt, line 1: no label"):
        rows_of(task, path, need_labels=True)


def test_files_without_labels(tmp_path):
    pairs = write_text(tmp_path / "pairs.txt", "今天\t明天\n好\t坏\n")
    assert texts_and_labels(rows_of(tasks.task_named("lcqmc"), pairs)) == [
        ("今天", "明天", None), ("好", "坏", None)]
    objects = json_lines(tmp_path / "pairs.jsonl", {"q": "今天", "a": "明天"})
    assert texts_and_labels(rows_of(tasks.task_named("jsonl", "text_a=q,text_b=a"), objects)) == [
        ("今天", "明天", None)]
    single = write_text(tmp_path / "single.tsv", "text_a\n今天\n好\n")
    assert texts_and_labels(rows_of(tasks.task_named("chnsenticorp"), single)) == [
        ("今天", None, None), ("好", None, None)]


def test_not_utf8_names_line_byte_and_flag(tmp_path):
    path = str(tmp_path / "train.txt")
    with io.open(path, "wb") as stream:
        stream.write("a\tb\t1\n".encode("ascii") + "今天\t明天\t1\n".encode("gb18030"))
    task = tasks.task_named("lcqmc")
    with pytest.raises(UserError, match=r"train\.txt, line 2: byte 0x\w\w at offset 0 .*"
                                        r"--input_encoding"):
        rows_of(task, path)
    assert rows_of(task, path, "gb18030")[1].text_a == "今天"


def test_sentence_pair_and_chnsenticorp_put_the_label_first(tmp_path):
    path = write_text(tmp_path / "train.tsv", "1\t今天\t明天\n")
    assert texts_and_labels(rows_of(tasks.task_named("sentence_pair"), path)) == [
        ("今天", "明天", "1")]
    path = write_text(tmp_path / "dev.tsv", "label\ttext_a\n1\t房间 很大\n0\t不好\n")
    assert texts_and_labels(rows_of(tasks.task_named("chnsenticorp"), path)) == [
        ("房间 很大", None, "1"), ("不好", None, "0")]


def test_xnli_reads_the_translated_training_file_and_the_chinese_rows(tmp_path):
    task = tasks.task_named("xnli")
    path = write_text(tmp_path / "multinli.train.zh.tsv",
                      "premise\thypo\tlabel\n天 晴\t下雨\tcontradictory\n天 晴\t晴\tentailment\n")
    assert texts_and_labels(rows_of(task, path)) == [
        ("天 晴", "下雨", "contradiction"), ("天 晴", "晴", "entailment")]
    columns = "language gold_label sentence1_parse sentence1 sentence2 sentence1_tokenized"
    path = write_text(tmp_path / "xnli.dev.tsv", columns.replace(" ", "\t") + "\n"
                      "ar\tneutral\tx\ta\tb\tc\nzh\tneutral\tx\t他说\t他想\t他 说\n")
    assert texts_and_labels(rows_of(task, path)) == [("他说", "他想", "neutral")]
    assert tasks.split_file(task, str(tmp_path), "train").endswith("multinli.train.zh.tsv")


def test_clue_pairs_and_sentences(tmp_path):
    path = json_lines(tmp_path / "a.json",
                      {"sentence1": "借款", "sentence2": "还款", "label": "0"},
                      {"sentence1": "借款", "sentence2": "还款", "id": 7})
    assert texts_and_labels(rows_of(tasks.task_named("afqmc"), path)) == [
        ("借款", "还款", "0"), ("借款", "还款", None)]
    path = json_lines(tmp_path / "t.json", {"label": "108", "label_desc": "news_edu",
                                            "sentence": "上课时", "keywords": ""})
    assert texts_and_labels(rows_of(tasks.task_named("tnews"), path)) == [("上课时", None, "108")]
    path = json_lines(tmp_path / "i.json", {"label": 11, "label_des": "薅羊毛", "sentence": "应用"})
    assert texts_and_labels(rows_of(tasks.task_named("iflytek"), path)) == [("应用", None, "11")]
    path = json_lines(tmp_path / "c.json",
                      {"sentence1": "甲", "sentence2": "乙", "label": "-"},
                      {"sentence1": "甲", "sentence2": "乙", "label": "neutral"})
    assert texts_and_labels(rows_of(tasks.task_named("cmnli"), path)) == [("甲", "乙", "neutral")]
    assert len(tasks.TASKS["tnews"].labels) == 15 and len(tasks.TASKS["iflytek"].labels) == 119


def test_csl_joins_keywords_and_wsc_marks_both_spans(tmp_path):
    path = json_lines(tmp_path / "csl.json", {"id": 1, "abst": "为解决问题", "label": "1",
                                              "keyword": ["水声学", "定位"]})
    assert texts_and_labels(rows_of(tasks.task_named("csl"), path)) == [
        ("水声学，定位", "为解决问题", "1")]
    span = {"span1_index": 1, "span1_text": "床", "span2_index": 4, "span2_text": "它"}
    path = json_lines(tmp_path / "wsc.json",
                      {"target": span, "label": "true", "text": "这床旧，它要换"},
                      {"target": dict(span, span2_index=3), "label": False, "text": "这床旧，它"})
    task = tasks.task_named("wsc")
    with pytest.raises(UserError, match=r"wsc\.json, line 2: the span '它' is not at index 3"):
        rows_of(task, path)
    path = json_lines(tmp_path / "wsc2.json",
                      {"target": span, "label": True, "text": "这床旧，它要换"})
    assert texts_and_labels(rows_of(task, path)) == [("这_床_旧，[它]要换", None, "true")]


@pytest.mark.parametrize("line, message", [
    ("{", r"x\.json, line 1: not JSON"),
    ("[1]", r"x\.json, line 1: a JSON object is expected, found a list"),
    ('{"sentence1": "a"}', r"x\.json, line 1: no key 'sentence2' in an object .*sentence1"),
])
def test_odd_json_lines_fail_clearly(tmp_path, line, message):
    path = write_text(tmp_path / "x.json", line + "\n")
    with pytest.raises(UserError, match=message):
        rows_of(tasks.task_named("afqmc"), path)


def test_own_columns_by_position_by_name_and_by_key(tmp_path):
    path = write_text(tmp_path / "train.tsv", "7\t好\t今天\n8\t坏\t明天\n")
    task = tasks.task_named("tsv", "-,label,text_a")
    assert texts_and_labels(rows_of(task, path)) == [("今天", None, "好"), ("明天", None, "坏")]
    assert not task.pair
    path = write_text(tmp_path / "dev.tsv", "编号\t类\t问\t答\n7\t好\t今天\t明天\n")
    task = tasks.task_named("tsv", "text_a=问,text_b=答,label=类")
    assert texts_and_labels(rows_of(task, path)) == [("今天", "明天", "好")] and task.pair
    path = json_lines(tmp_path / "dev.jsonl", {"问": "今天", "类": 3})
    task = tasks.task_named("jsonl", "text_a=问,label=类")
    assert texts_and_labels(rows_of(task, path)) == [("今天", None, "3")]


@pytest.mark.parametrize("name, columns, message", [
    ("foo", None, "--task_name: unknown task 'foo'; known: lcqmc, .*wsc, tsv, jsonl"),
    ("tsv", None, "--task_name=tsv needs --columns"),
    ("tsv", "text_a,labl", "--columns=text_a,labl: made of"),
    ("tsv", "text_a=x,label", "either every part has a = or none"),
    ("jsonl", "text_a,label", "--columns: jsonl reads JSON objects"),
])
def test_unknown_task_and_bad_columns(name, columns, message):
    with pytest.raises(UserError, match=message):
        tasks.task_named(name, columns)


def test_missing_split_names_the_files_looked_for(tmp_path):
    with pytest.raises(UserError, match=r"no dev file for the task lcqmc \(looked for dev\.txt"):
        tasks.split_file(tasks.task_named("lcqmc"), str(tmp_path), "dev")


def test_labels_found_are_sorted_by_value_and_checked():
    rows = [tasks.Row(n, "a", None, label) for n, label in enumerate(["10", "9", "-1", "9"])]
    assert tasks.labels_found(rows, "train.tsv") == ("-1", "9", "10")
    words = [tasks.Row(1, "a", None, "坏"), tasks.Row(2, "a", None, "好")]
    assert tasks.labels_found(words, "train.tsv") == ("坏", "好")
    with pytest.raises(UserError, match=r"train\.tsv: 1 different labels"):
        tasks.labels_found(rows[:1], "train.tsv")


@pytest.mark.parametrize("name, folder, split, count", [
    ("lcqmc", "lcqmc", "dev", 8802), ("lcqmc", "lcqmc", "test", 12500),
    ("chnsenticorp", "chnsenticorp", "train", None), ("afqmc", "afqmc", "dev", 4316),
    ("thucnews", "thucnews_titles", "test", 10000)])
def test_real_files_read_whole(shared_data, name, folder, split, count):
    task = tasks.task_named(name)
    path = tasks.split_file(task, os.path.join(shared_data, folder), split)
    rows = rows_of(task, path, need_labels=True)
    with io.open(path, encoding="utf-8", newline="\n") as stream:
        lines = sum(bool(line.strip()) for line in stream)
    assert len(rows) == (count or lines - 1)
    assert {row.label for row in rows} == set(task.labels)

"""Each public file format reads as it is published; odd rows fail with file, line and labels."""

import io
import json
import os

import pytest
from helpers.toys import write_text

from cli import UserError
from fine_tuning import tasks


def rows_of(task, path, encoding="utf-8", need_labels=False):
    """All Rows of a file in a task's format, but those of blank lines."""
    with io.open(path, "rb") as stream:
        lines = tasks.decoded_lines(stream, path, encoding)
        return [row for row in tasks.checked_rows(task, path, lines, task.labels, need_labels)
                if row.text_a is not None]


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
                      {"sentence1": "甲", "sentence2": "丙", "label": "-"},
                      {"sentence1": "甲", "sentence2": "乙", "label": "neutral"})
    for task in map(tasks.task_named, ("cmnli", "ocnli")):
        assert texts_and_labels(rows_of(task, path, need_labels=True)) == [("甲", "乙", "neutral")]
        assert texts_and_labels(rows_of(task, path)) == [
            ("甲", "丙", None), ("甲", "乙", "neutral")]
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
    ("[1]", r"x\.json, line 1: a JSON object is expected, found 1"),
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
    ("foo", None, "--task_name: unknown task 'foo'; known: lcqmc, .*wsc, stsb, multilabel, tsv, "
     "csv, jsonl"),
    ("tsv", None, "--task_name=tsv needs --columns"),
    ("tsv", "text_a,labl", "--columns=text_a,labl: made of"),
    ("tsv", "text_a=x,label", "either every part has a = or none"),
    ("jsonl", "text_a,label", "--columns: jsonl reads JSON objects"),
    ("tsv", "text_a=x", "--header=false: --columns=text_a=x names columns of a header"),
])
def test_unknown_task_and_bad_columns(name, columns, message):
    with pytest.raises(UserError, match=message):
        tasks.task_named(name, columns, "false")


def test_missing_split_names_the_files_looked_for(tmp_path):
    with pytest.raises(UserError, match=r"no dev file for the task lcqmc \(looked for dev\.txt"):
        tasks.split_file(tasks.task_named("lcqmc"), str(tmp_path), "dev")


def labelled(*labels):
    return [tasks.Row(number, "a", None, label) for number, label in enumerate(labels, 1)]


@pytest.mark.parametrize("labels, order", [
    (["10", "9", "-1", "9"], ("-1", "9", "10")), (["1", "01", "0", "1"], ("0", "01", "1")),
    (["--1", "2", "10"], ("--1", "10", "2")), (["²", "3"], ("3", "²"))])
def test_labels_are_sorted_by_value_or_as_text_always_alike(labels, order):
    assert tasks.labels_found(labelled(*labels), "train.tsv") == order
    assert tasks.labels_found(labelled(*reversed(labels)), "train.tsv") == order


def test_labels_found_are_checked():
    rows = labelled("10", "9", "-1", "9")
    words = [tasks.Row(1, "a", None, "坏"), tasks.Row(2, "a", None, "好")]
    assert tasks.labels_found(words, "train.tsv") == ("坏", "好")
    with pytest.raises(UserError, match=r"train\.tsv: 1 different labels"):
        tasks.labels_found(rows[:1], "train.tsv")


# --- what was guessed -------------------------------------------------------------------------


def test_a_label_of_the_first_line_alone_may_be_a_header_nobody_knew():
    rows = labelled("target", "1", "0", "1")
    with pytest.raises(UserError, match="train.tsv, line 1: the label 'target' stands in no other "
                                        "line: .*--header=true or --header=false"):
        tasks.labels_found(rows, "train.tsv", is_table=True)
    assert tasks.labels_found(rows, "train.tsv") == ("0", "1", "target")
    assert tasks.labels_found(labelled("1", "0", "1"), "train.tsv", is_table=True) == ("0", "1")


@pytest.mark.parametrize("header, expected", [
    ("auto", [("contents", "target"), ("好", "1")]), ("true", [("好", "1")]),
    ("false", [("contents", "target"), ("好", "1")])])
def test_header_says_whether_the_first_line_is_one(tmp_path, header, expected):
    path = write_text(tmp_path / "train.tsv", "contents\ttarget\n好\t1\n")
    task = tasks.task_named("tsv", "text_a,label", header)
    assert [(row.text_a, row.label) for row in rows_of(task, path)] == expected
    known = write_text(tmp_path / "known.tsv", "text\tlabel\n好\t1\n")
    count = 2 if header == "false" else 1
    assert len(rows_of(tasks.task_named("tsv", "text_a,label", header), known)) == count


def test_unlabelled_text_that_reads_like_a_name_is_no_header(tmp_path):
    path = write_text(tmp_path / "test.txt", "title\nquery\n")
    assert [row.text_a for row in rows_of(tasks.task_named("thucnews"), path)] == [
        "title", "query"]


def test_a_header_taken_for_a_row_is_named_where_its_label_is_not_allowed(tmp_path):
    path = write_text(tmp_path / "train.txt", "甲\t乙\t类\n天\t气\t1\n")
    with pytest.raises(UserError, match="line 1: label '类' is not one of 0, 1; if .*--header=tr"):
        rows_of(tasks.task_named("lcqmc"), path)


def test_an_empty_label_is_none_and_no_class(tmp_path):
    path = write_text(tmp_path / "train.tsv", "今天\t1\n明天\t \n")
    task = tasks.task_named("tsv", "text_a,label")
    assert texts_and_labels(rows_of(task, path)) == [("今天", None, "1"), ("明天", None, None)]
    with pytest.raises(UserError, match=r"train\.tsv, line 2: no label"):
        rows_of(task, path, need_labels=True)


@pytest.mark.parametrize("record, message", [
    ({"t": None, "c": 1}, "'t' is null, not a text"), ({"t": True, "c": 1}, "'t' is true, not"),
    ({"t": ["a"], "c": 1}, "'t' is .*, not a text"), ({"t": "a", "c": {}}, "'c' is {}, not a t")])
def test_what_is_no_text_in_json_is_refused(tmp_path, record, message):
    path = json_lines(tmp_path / "train.jsonl", {"t": "好", "c": 0}, record)
    with pytest.raises(UserError, match=r"train\.jsonl, line 2: " + message):
        rows_of(tasks.task_named("jsonl", "text_a=t,label=c"), path)


def test_a_comma_file_gets_a_hint(tmp_path):
    path = write_text(tmp_path / "train.tsv", "天气,1\n")
    with pytest.raises(UserError, match="no label; .*--task_name=csv"):
        rows_of(tasks.task_named("tsv", "text_a,label"), path, need_labels=True)
    with pytest.raises(UserError, match="1 columns where 3 are expected .*--task_name=csv"):
        rows_of(tasks.task_named("lcqmc"), path)


# --- commas, arrays, lines that come alone ----------------------------------------------------


def test_comma_tables_with_quotes_and_lines_in_a_cell(tmp_path):
    path = write_text(tmp_path / "train.csv", '\ufefflabel,review\r\n1,"很好,真""好"""\r\n'
                                              '0,"房间\r\n不好"\r\n\r\n1,好\r\n')
    rows = rows_of(tasks.task_named("csv", "label,text_a"), path)
    assert [(row.line, row.text_a, row.label) for row in rows] == [
        (2, '很好,真"好"', "1"), (3, "房间\n不好", "0"), (6, "好", "1")]
    path = write_text(tmp_path / "bad.csv", '1,好\n0,"坏\n')
    with pytest.raises(UserError, match=r"bad\.csv, line 2: unexpected end of data"):
        rows_of(tasks.task_named("csv", "label,text_a"), path)


@pytest.mark.parametrize("indent, lines", [(None, [1, 1]), (1, [2, 7])])
def test_json_as_one_array_or_over_several_lines(tmp_path, indent, lines):
    records = [{"sentence1": "今天", "sentence2": "明天", "label": label} for label in "01"]
    task = tasks.task_named("afqmc")
    path = write_text(tmp_path / "array.json",
                      json.dumps(records, ensure_ascii=False, indent=indent))
    rows = rows_of(task, path)
    assert [row.line for row in rows] == lines
    assert texts_and_labels(rows) == [("今天", "明天", "0"), ("今天", "明天", "1")]
    path = write_text(tmp_path / "objects.json", "\n".join(
        json.dumps(record, ensure_ascii=False, indent=2) for record in records))
    assert texts_and_labels(rows_of(task, path)) == texts_and_labels(rows)
    path = write_text(tmp_path / "bad.json", '[{"a": 1},\n{"b": }]\n')
    with pytest.raises(UserError, match=r"bad\.json, line 2: not JSON"):
        rows_of(task, path)


@pytest.mark.parametrize("name, columns, line, expected", [
    ("sentence_pair", None, "1\t甲\t乙", ("甲", "乙", "1")),
    ("sentence_pair", None, "甲\t乙", ("甲", "乙", None)),
    ("lcqmc", None, "甲\t乙\t1", ("甲", "乙", "1")),
    ("chnsenticorp", None, "1\t甲", ("甲", None, "1")),
    ("chnsenticorp", None, "甲", ("甲", None, None)),
    ("tnews", None, '{"sentence": "甲", "label": "100"}', ("甲", None, "100")),
    ("tnews", None, "甲", ("甲", None, None)),
    ("afqmc", None, "甲\t乙", ("甲", "乙", None)),
    ("csv", "label,text_a", '1,"甲,乙"', ("甲,乙", None, "1")),
    ("tsv", "text_a=问,label=类", "甲\t1", ("甲", None, "1")),
    ("tsv", "-,label,text_a", "甲", ("甲", None, None)),
    ("lcqmc", None, " ", (None, None, None))])
def test_a_line_alone_reads_as_it_does_in_a_file(name, columns, line, expected):
    row = tasks.row_of_line(tasks.task_named(name, columns), "pipe", 3, line)
    assert row == (3,) + expected


@pytest.mark.parametrize("name, line, message", [
    ("lcqmc", "甲", "pipe, line 3: 1 columns where 2 are expected"),
    ("chnsenticorp", "1\t甲\t乙", "pipe, line 3: 3 columns where 2 are expected"),
    ("tnews", '{"sentence": ', "pipe, line 3: not JSON"),
    ("tnews", '{"sentence": "甲"} {"sentence": "乙"}', "pipe, line 3: 2 JSON objects where one")])
def test_a_line_that_does_not_read_names_what_is_expected(name, line, message):
    with pytest.raises(UserError, match=message):
        tasks.row_of_line(tasks.task_named(name), "pipe", 3, line)


# --- real data --------------------------------------------------------------------------------


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

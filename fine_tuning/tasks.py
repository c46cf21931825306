"""The classification tasks: where their files are, how a row reads, which labels there are.

In: a folder of data in a public file format.  Out: Row(line, text_a, text_b, label).
A task is one entry in TASKS. A data set of your own needs none: --task_name=tsv or jsonl, with
--columns where its columns are not called text_a, text_b and label. No TensorFlow in here.
"""

import collections
import csv
import functools
import itertools
import json
import math
import os
import re

from absl import logging

from cli import UserError

Row = collections.namedtuple("Row", "line text_a text_b label")
Row.__doc__ = """One example: line number from 1; text_b is None for one text; label str or None.

text_a is None for a blank line.
"""

Task = collections.namedtuple("Task", "name pair labels files rows columns outcome header",
                              defaults=("classes", "auto"))
Task.__doc__ = """One entry of the table.

pair: a row holds two texts.  labels: tuple of str, or None: those found in the training file.
files: split -> names tried in that order.  rows: reader (path, lines, task) -> Rows.
columns: columns in order, or a dict of column -> name in the header or key of the JSON object.
outcome: one of OUTCOMES.  header: "true", "false" or "auto": is the first line of a table one?
"""

SPLITS = ("train", "dev", "test")
COLUMNS = ("text_a", "text_b", "label")
# What public data sets call the three columns in their header lines.
ALIASES = {
    "text_a": ("text_a", "sentence1", "sentence", "text", "premise", "question1", "review",
               "title", "query"),
    "text_b": ("text_b", "sentence2", "hypothesis", "hypo", "question2"),
    "label": ("label", "labels", "gold_label", "class", "category", "标签", "类别")}
MOST_LABELS = 1000
NUMBER = re.compile("-?[0-9]+")
UNDECIDED = "-"  # the label of JSON rows on which the annotators did not agree
COMMA_HINT = "; --task_name=csv reads columns between commas"
HEADER_HINT = "; if this line is a header, say --header=true"
HEADERS = ("auto", "true", "false")
OUTCOMES = ("classes", "label_sets", "score")  # what a row is to get, see outcomes.py
LABEL_SEPARATOR, NO_MEMBER = ",", "-"  # of a set of labels in one cell; the empty set
SCORE_LABELS = ("score",)


def decoded_lines(stream, path, encoding):
    r"""Yields (line number from 1, text) of a binary stream; a line ends at \n or \r\n only.

    Raises:
      UserError: bytes that are not in this encoding: file, line, byte.
    """
    for number, raw in enumerate(stream, 1):
        yield number, decoded_line(raw, number, path, encoding)


def decoded_or_not(stream, path, encoding):
    """Yields (line number, text, None or the UserError) of a stream that one bad line ends not.

    In the text of such a line a mark stands for each byte that is not in this encoding.
    """
    for number, raw in enumerate(stream, 1):
        try:
            yield number, decoded_line(raw, number, path, encoding), None
        except UserError as error:
            yield number, raw.decode(encoding, "replace").rstrip("\r\n"), error


def decoded_line(raw, number, path, encoding):
    """The text of one line of bytes; see decoded_lines."""
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError("{}, line {}: byte {:#04x} at offset {} is not {}; name the file's "
                        "encoding with --input_encoding, say gb18030".format(
                            path, number, raw[error.start], error.start, encoding)) from error
    if text.endswith("\n"):
        text = text[:-2] if text.endswith("\r\n") else text[:-1]
    return text.lstrip("\ufeff") if number == 1 else text


# --- tables: columns between tabs or commas ---------------------------------------------------


def named_columns(cells, columns):
    """Positions of text_a, text_b and label if these cells are a header line, else None.

    A header holds the names that --columns gives; or, where only positions are asked, at least
    two names that public data sets use, or text_a alone; or such a name for the label where the
    label stands (the texts are then taken by position).
    """
    names = [cell.strip().strip('"').lower() for cell in cells]
    if isinstance(columns, dict):
        positions = {column: names.index(name.lower()) for column, name in columns.items()
                     if name.lower() in names}
        return positions if "text_a" in positions else None
    found = {}
    for position, name in enumerate(names):
        for column in COLUMNS:
            if column in columns and name in ALIASES[column]:
                found.setdefault(column, position)
    if len(found) >= 2 or names == ["text_a"]:
        return found
    by_position = positional_columns(cells, columns)
    return by_position if found.get("label", -1) == by_position.get("label") else None


def positional_columns(cells, columns):
    """Positions in a file without a header; one column less than asked means: no labels."""
    if len(cells) == len(columns) - 1 and "label" in columns:
        columns = [column for column in columns if column != "label"]
    return {column: position for position, column in enumerate(columns) if column in COLUMNS}


def columns_expected(columns, positions):
    """Number of columns of each line, where the label's is there only if positions has it."""
    return len(columns) - ("label" in columns and "label" not in positions)


def table_layout(cells, task, where):
    """(positions, number of columns, is header) from the cells of a table's first line.

    Raises:
      UserError: named columns are not in the header, or a text column is missing.
    """
    columns = task.columns
    positions = named_columns(cells, columns) if task.header != "false" else None
    if positions is None and isinstance(columns, dict):
        raise UserError("{}: no header with the columns {} of --columns; found {}".format(
            where, ", ".join(sorted(columns.values())), ", ".join(cells)))
    is_header = positions is not None or task.header == "true"
    if positions is None:
        positions = positional_columns(cells, columns)
    for column in ("text_a", "text_b"):
        if column in columns and column not in positions:
            raise UserError("{}: no column {} in the header {}".format(
                where, column, ", ".join(cells)))
    if not is_header:
        return positions, columns_expected(columns, positions), False
    logging.info("%s is a header: %s", where, ", ".join(
        "{} = column {}".format(column, positions[column] + 1)
        for column in COLUMNS if column in positions))
    return positions, len(cells), True


def row_of_cells(number, cells, positions, width, where):
    """The Row of one line's cells; raises UserError for another number of columns."""
    if len(cells) != width:
        raise UserError("{}: {} columns where {} are expected ({}){}".format(
            where, len(cells), width, ", ".join(sorted(positions, key=positions.get)),
            COMMA_HINT if len(cells) == 1 and "," in cells[0] else ""))
    text_a, text_b, label = (cells[positions[column]] if column in positions else None
                             for column in COLUMNS)
    return Row(number, text_a, text_b, label and label.strip())


def table_rows(path, numbered_cells, task):
    """Rows of a table, with or without a header; see tsv_rows.

    numbered_cells: (line number, cells) of each line; no cells for a blank one.
    """
    positions = None
    for number, cells in numbered_cells:
        where = "{}, line {}".format(path, number)
        if not any(cell.strip() for cell in cells):
            yield Row(number, None, None, None)
            continue
        if positions is None:
            positions, width, is_header = table_layout(cells, task, where)
            if is_header:
                continue
        yield row_of_cells(number, cells, positions, width, where)


def tsv_rows(path, lines, task):
    """Rows of a tab-separated file; a quote is plain text.

    Args:
      path: str for the messages.  lines: (number, text) pairs.
      task: Task; in its columns "-" is one to ignore.
    Raises:
      UserError: a line with another number of columns.
    """
    return table_rows(path, ((number, text.split("\t")) for number, text in lines), task)


def csv_cells(path, lines):
    """Yields (line number, cells) of a comma-separated file, whose quoted cells may hold lines."""
    csv.field_size_limit(2 ** 30)
    first = 0
    reader = csv.reader((text + "\n" for _, text in lines), strict=True)
    try:
        for cells in reader:
            yield first + 1, cells
            first = reader.line_num
    except csv.Error as error:
        raise UserError("{}, line {}: {}".format(path, first + 1, error)) from error


def csv_rows(path, lines, task):
    """Rows of a comma-separated file with quotes; the arguments are those of tsv_rows."""
    return table_rows(path, csv_cells(path, lines), task)


def xnli_rows(path, lines, task):
    """XNLI: the Chinese rows of the 15-language files; the translated training file whole.

    The arguments are those of tsv_rows; the training file spells contradiction "contradictory".
    """
    lines = iter(lines)
    header = next(lines, (1, ""))
    names = header[1].split("\t")
    place = names.index("language") if "language" in names else len(names)
    chinese = (line for line in lines if line[1].split("\t")[place:place + 1] in ([], ["zh"]))
    for row in tsv_rows(path, itertools.chain([header], chinese), task):
        yield row._replace(label="contradiction") if row.label == "contradictory" else row


# --- JSON objects: one a line, one over several lines, or an array of them --------------------


def json_objects(path, lines):
    """Yields (line number, what stands there) of a JSON file; None for a blank line.

    The first line that holds anything tells whether it is one object a line.

    Raises:
      UserError: it is no JSON.
    """
    lines = iter(lines)
    for number, text in lines:
        if text.strip():
            break
        yield number, None
    else:
        return
    try:
        by_line = isinstance(json.loads(text), dict)
    except ValueError:
        by_line = False
    if not by_line:
        for item in json_document(path, [text] + [text for _, text in lines], number):
            yield item
        return
    for place, line in itertools.chain([(number, text)], lines):
        try:
            yield place, json.loads(line) if line.strip() else None
        except ValueError as error:
            raise UserError("{}, line {}: not JSON ({})".format(path, place, error)) from error


def json_document(path, lines, first_number):
    """Yields (line number, value) of an array's members, or of objects one after the other.

    lines: texts, the first of which has the line number first_number.
    """
    text, first_line = "\n".join(lines), first_number
    try:
        is_array = text.lstrip().startswith("[")
        if is_array:
            json.loads(text)
        between = re.compile(r"[\s,]*" if is_array else r"\s*")
        counted, place = 0, text.index("[") + 1 if is_array else 0
        while True:
            place = between.match(text, place).end()
            if text[place:place + 1] in ("", "]"):
                return
            value, end = json.JSONDecoder().raw_decode(text, place)
            first_number += text.count("\n", counted, place)
            counted = place
            yield first_number, value
            place = end
    except ValueError as error:
        raise UserError("{}, line {}: not JSON ({})".format(
            path, first_line + getattr(error, "lineno", 1) - 1, error)) from error


def json_rows(path, lines, task, texts=None):
    """Rows of a JSON file.

    Args:
      path: str for the messages.  lines: (number, text) pairs.
      task: Task, whose columns are a dict column -> key.
      texts: optional function (object) -> (text_a, text_b) for texts that are put together.
    Raises:
      UserError: no JSON, no object, or a key is missing or holds no text.
    """
    for number, record in json_objects(path, lines):
        if record is None:
            yield Row(number, None, None, None)
            continue
        where = "{}, line {}".format(path, number)
        if not isinstance(record, dict):
            raise UserError("{}: a JSON object is expected, found {}".format(
                where, json.dumps(record)[:40]))
        try:
            pair = texts(record) if texts else tuple(
                text_of(record, task.columns[column]) if column in task.columns else None
                for column in ("text_a", "text_b"))
            label = label_of(record, task.columns.get("label"))
        except (KeyError, ValueError, TypeError) as error:
            raise UserError("{}: {} in an object with the keys {}".format(
                where, "no key {}".format(error) if isinstance(error, KeyError) else error,
                ", ".join(record))) from error
        yield Row(number, pair[0], pair[1], label)


def text_of(record, key):
    """A text or number of a JSON object as text; raises ValueError for anything else."""
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("{!r} is {}, not a text,".format(key, json.dumps(value)[:40]))
    return str(value)


def label_of(record, key):
    """The label of a JSON object as text, None where it has none."""
    label = record.get(key)
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, list):
        return LABEL_SEPARATOR.join(map(str, label)) or NO_MEMBER
    return None if label is None else text_of(record, key)


def members_of(label):
    """The set of labels that a cell holds."""
    members = {part.strip() for part in label.split(LABEL_SEPARATOR)}
    return members - {"", NO_MEMBER}


def reads_json(task):
    """Whether a task's files hold JSON objects."""
    return getattr(task.rows, "func", task.rows) is json_rows


def keywords_and_abstract(record):
    """CSL: (keywords joined by commas, abstract); do the keywords all belong to it?"""
    return "，".join(record["keyword"]), text_of(record, "abst")


def marked_spans(record):
    """WSC: the text with _noun_ and [pronoun] marked; do both mean the same? (text, None).

    Raises:
      ValueError: a span's text does not stand at its index.
    """
    target, text = record["target"], text_of(record, "text")
    spans = sorted((int(target[name + "_index"]), target[name + "_text"], marks)
                   for name, marks in (("span1", "__"), ("span2", "[]")))
    for start, span, (opening, closing) in reversed(spans):
        end = start + len(span)
        if text[start:end] != span:
            raise ValueError("the span {!r} is not at index {}".format(span, start))
        text = text[:start] + opening + span + closing + text[end:]
    return text, None


# --- the table --------------------------------------------------------------------------------


def split_names(*patterns):
    """split -> file names to try, from patterns such as "{}.txt"."""
    return {split: tuple(pattern.format(split) for pattern in patterns) for split in SPLITS}


TEXT_FILES = split_names("{}.txt", "{}.tsv")
TSV_FILES = split_names("{}.tsv", "{}.txt")
JSON_FILES = split_names("{}.json", "{}.jsonl", "{}1.0.json")
XNLI_FILES = {"train": ("multinli/multinli.train.zh.tsv", "multinli.train.zh.tsv"),
              "dev": ("xnli.dev.tsv",), "test": ("xnli.test.tsv",)}
STSB_FILES = {"train": ("STS-B.train.data", "train.tsv", "train.txt"),
              "dev": ("STS-B.valid.data", "dev.tsv", "dev.txt"),
              "test": ("STS-B.test.data", "test.tsv", "test.txt")}
OCNLI_FILES = dict(JSON_FILES, train=("train.50k.json",) + JSON_FILES["train"])

PAIR_THEN_LABEL = ("text_a", "text_b", "label")
TEXT_THEN_LABEL = ("text_a", "label")
JSON_PAIR = {"text_a": "sentence1", "text_b": "sentence2", "label": "label"}
JSON_SENTENCE = {"text_a": "sentence", "label": "label"}
BINARY = ("0", "1")
INFERENCE = ("contradiction", "entailment", "neutral")
TNEWS_LABELS = tuple(str(label) for label in range(100, 117) if label not in (105, 111))

TASKS = collections.OrderedDict((task.name, task) for task in (
    Task("lcqmc", True, BINARY, TEXT_FILES, tsv_rows, PAIR_THEN_LABEL),
    Task("lcqmc_pair", True, BINARY, TEXT_FILES, tsv_rows, PAIR_THEN_LABEL),
    Task("sentence_pair", True, BINARY, TSV_FILES, tsv_rows, ("label", "text_a", "text_b")),
    Task("chnsenticorp", False, BINARY, TSV_FILES, tsv_rows, ("label", "text_a")),
    Task("thucnews", False, tuple("0123456789"), TEXT_FILES, tsv_rows, ("text_a", "label")),
    Task("xnli", True, INFERENCE, XNLI_FILES, xnli_rows, PAIR_THEN_LABEL),
    Task("afqmc", True, BINARY, JSON_FILES, json_rows, JSON_PAIR),
    Task("tnews", False, TNEWS_LABELS, JSON_FILES, json_rows, JSON_SENTENCE),
    Task("iflytek", False, tuple(map(str, range(119))), JSON_FILES, json_rows, JSON_SENTENCE),
    Task("cmnli", True, INFERENCE, JSON_FILES, json_rows, JSON_PAIR),
    Task("ocnli", True, INFERENCE, OCNLI_FILES, json_rows, JSON_PAIR),
    Task("csl", True, BINARY, JSON_FILES,
         functools.partial(json_rows, texts=keywords_and_abstract), {"label": "label"}),
    Task("wsc", False, ("false", "true"), JSON_FILES,
         functools.partial(json_rows, texts=marked_spans), {"label": "label"}),
    Task("stsb", True, SCORE_LABELS, STSB_FILES, tsv_rows, PAIR_THEN_LABEL, "score"),
    Task("multilabel", None, None, TSV_FILES, tsv_rows, None, "label_sets"),
    Task("tsv", None, None, TSV_FILES, tsv_rows, None),
    Task("csv", None, None, split_names("{}.csv"), csv_rows, None),
    Task("jsonl", None, None, split_names("{}.jsonl", "{}.json"), json_rows, None),
))

# What CLUE's site (version 1.1 of the benchmark) calls the predictions of each of its tasks.
CLUE_FILES = {name: "{}_predict.json".format(there) for name, there in (
    ("afqmc", "afqmc"), ("tnews", "tnews11"), ("iflytek", "iflytek"), ("cmnli", "cmnli"),
    ("ocnli", "ocnli_50k"), ("csl", "csl"), ("wsc", "cluewsc11"))}


def task_among(known, name):
    """The task of --task_name, in upper or lower case; UserError lists the known ones."""
    if name.lower() not in known:
        raise UserError("--task_name: unknown task {!r}; known: {}".format(name, ", ".join(known)))
    return known[name.lower()]


def task_named(name, columns=None, header="auto", outcome=None):
    """The Task of --task_name, with the columns of --columns, --header and --outcome.

    Args:
      name: key of TASKS, upper or lower case.  header: one of HEADERS.
      outcome: one of OUTCOMES; None: the task's own.
      columns: None, or "label,text_a,-" (positions), or "text_a=问题,label=类别" (names).
    Raises:
      UserError: unknown task; columns that do not make one or two texts.
    """
    task = task_among(TASKS, name)._replace(header=header)
    if outcome not in (None, task.outcome):
        if task.labels or task.outcome != "classes":
            raise UserError("--outcome is {}, the task {} has {}".format(
                outcome, task.name, task.outcome))
        task = task._replace(outcome=outcome, labels=SCORE_LABELS if outcome == "score" else None)
    if columns:
        chosen = parsed_columns(columns)
    elif task.columns:
        return task
    else:
        raise UserError("--task_name={} needs --columns: in order, say text_a,text_b,label, or by "
                        "name, say text_a=question,label=class".format(task.name))
    if header == "false" and isinstance(chosen, dict) and not reads_json(task):
        raise UserError("--header=false: --columns={} names columns of a header".format(columns))
    if reads_json(task) and not isinstance(chosen, dict):
        raise UserError("--columns: {} reads JSON objects; name the keys, say "
                        "text_a=question,label=class".format(task.name))
    return task._replace(columns=chosen, pair="text_b" in chosen)


def parsed_columns(columns):
    """--columns as a tuple of names in order, or as a dict column -> name."""
    parts = [part.strip() for part in columns.split(",")]
    named = [part.split("=", 1) for part in parts if "=" in part]
    chosen = dict(named) if named else tuple(parts)
    plain = list(chosen)
    unknown = [part for part in plain if part not in COLUMNS + ("-",)]
    if named and len(named) < len(parts):
        raise UserError("--columns={}: either every part has a = or none".format(columns))
    if unknown or "text_a" not in plain or any(plain.count(name) > 1 for name in COLUMNS):
        raise UserError("--columns={}: made of text_a, text_b, label (each at most once, text_a "
                        "always) and - for a column to ignore".format(columns))
    return chosen


def row_ids(path, lines):
    """The ids of a CLUE file's rows: what the key "id" holds, else the row's number from 0."""
    return [record.get("id", number) for number, record in enumerate(
        record for _, record in json_objects(path, lines) if record is not None)]


def split_there(task, data_dir, split, exists=os.path.exists):
    """Path of the split's file in data_dir, or None; exists: tf.io.gfile.exists for gs://, too."""
    paths = [os.path.join(data_dir, name) for name in task.files[split]]
    return next((path for path in paths if exists(path)), None)


def split_file(task, data_dir, split, exists=os.path.exists):
    """The path split_there finds.

    Raises:
      UserError: it is not there; names what was looked for.
    """
    path = split_there(task, data_dir, split, exists)
    if path is None:
        raise UserError("--data_dir={}: no {} file for the task {} (looked for {})".format(
            data_dir, split, task.name, ", ".join(task.files[split])))
    return path


def files_there(task, data_dir, exists=os.path.exists):
    """Paths of the test, dev and train files that are in data_dir, which may be None."""
    paths = [os.path.join(data_dir or "", name) for split in reversed(SPLITS)
             for name in task.files[split]]
    return [path for path in paths if data_dir and exists(path)]


def reader_for(task, path):
    """The task, reading plain lines (text, or two with a tab between) if path is no JSON file."""
    if reads_json(task) and not path.endswith((".json", ".jsonl")):
        return task._replace(rows=tsv_rows, columns=plain_columns(task))
    return task


def plain_columns(task):
    """The columns of a line of plain text: the task's in order, else texts and then the label."""
    if not isinstance(task.columns, dict):
        return task.columns
    return PAIR_THEN_LABEL if task.pair else TEXT_THEN_LABEL


def row_of_line(task, path, number, text):
    """The Row of one line that comes alone, say through a pipe: the columns in order, no header.

    It may be a JSON object where the task's files hold such, or leave the label out.

    Raises:
      UserError: the line does not read as one of the task's.
    """
    if not text.strip():
        return Row(number, None, None, None)
    where = "{}, line {}".format(path, number)
    if reads_json(task) and text.lstrip().startswith("{"):
        rows = list(task.rows(path, [(number, text)], task))
        if len(rows) != 1:
            raise UserError("{}: {} JSON objects where one is expected".format(where, len(rows)))
        return rows[0]
    columns = plain_columns(task)
    cells = next(csv.reader([text])) if task.rows is csv_rows else text.split("\t")
    texts = [column for column in columns if column.startswith("text")]
    if len(cells) <= len(texts):
        columns = texts
    positions = positional_columns(cells, columns)
    return row_of_cells(number, cells, positions, columns_expected(columns, positions), where)


def is_undecided(task, row, labels):
    """Whether this is a JSON row on which the annotators did not agree."""
    return (row.label == UNDECIDED and reads_json(task) and task.outcome == "classes" and
            UNDECIDED not in (labels or ()))


def checked_row(task, row, path, labels):
    """The row; an empty or undecided label is none.  Raises UserError for one not allowed."""
    if not row.label or is_undecided(task, row, labels):
        return row._replace(label=None)
    wanted = wrong_label(task, row.label, labels)
    if wanted:
        may_be_header = row.line == 1 and task.header == "auto" and not reads_json(task)
        raise UserError("{}, line {}: label {!r} is not {}{}".format(
            path, row.line, row.label, wanted, HEADER_HINT if may_be_header else ""))
    return row


def wrong_label(task, label, labels):
    """What a label should have been where it is not allowed, else None; labels: None for any."""
    if task.outcome == "score":
        try:
            return None if math.isfinite(float(label)) else "a finite number"
        except ValueError:
            return "a number"
    members = members_of(label) if task.outcome == "label_sets" else {label}
    if labels is not None and not members.issubset(labels):
        return "{} {}".format("made of" if task.outcome == "label_sets" else "one of",
                              ", ".join(labels))
    return None


def checked_rows(task, path, lines, labels, need_labels):
    """The rows of a file; each label is checked.

    Args:
      task: Task.  path: str for the messages.  lines: (number, text) pairs.
      labels: allowed labels; None allows any.
      need_labels: whether a row without a label is an error. Then blank lines, and JSON rows on
        which the annotators did not agree, are left out and counted in the log; else they stay.
    Raises:
      UserError: a label is missing or not allowed: file, line, allowed labels.
    """
    left_out = collections.Counter()
    for row in task.rows(path, lines, task):
        if need_labels and row.text_a is None:
            left_out["empty lines"] += 1
        elif need_labels and is_undecided(task, row, labels):
            left_out["rows without an agreed label"] += 1
        else:
            row = checked_row(task, row, path, labels)
            if row.label is None and need_labels:
                raise UserError("{}, line {}: no label; a labelled file is needed here{}".format(
                    path, row.line,
                    COMMA_HINT if "," in row.text_a and task.rows is tsv_rows else ""))
            yield row
    for kind, count in sorted(left_out.items()):
        logging.info("%s: %d %s left out", path, count, kind)


def labels_found(rows, path, is_table=False, are_sets=False):
    """The labels of a training file's rows in order: numbers by value, others by text.

    Args:
      rows: Rows.  path: str for the messages.
      is_table: whether the first line may be a header that was not known as one.
      are_sets: whether a row's label is a set of them.
    Raises:
      UserError: one label only, or so many that the column cannot be right; a label that stands
        in the first line and nowhere else.
    """
    first, counts = None, collections.Counter()
    for row in rows:
        first = first or row
        counts.update(members_of(row.label) if are_sets else [row.label])
    if is_table and first and first.line == 1 and counts[first.label] == 1:
        raise UserError("{}, line 1: the label {!r} stands in no other line: is this a header? Say "
                        "--header=true or --header=false".format(path, first.label))
    if not 2 <= len(counts) <= MOST_LABELS:
        raise UserError("{}: {} different labels (such as {!r}); 2 to {} make sense: check "
                        "--columns".format(path, len(counts), min(counts, default=""),
                                           MOST_LABELS))
    numeric = all(NUMBER.fullmatch(label) for label in counts)
    return tuple(sorted(counts, key=(lambda label: (int(label), label)) if numeric else None))

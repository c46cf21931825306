"""The classification tasks: where their files are, how a row reads, which labels there are.

In: a folder of data in a public file format.  Out: Row(line, text_a, text_b, label).
A task is one entry in TASKS. A data set of your own needs none: --task_name=tsv or jsonl, with
--columns where its columns are not called text_a, text_b and label. No TensorFlow in here.
"""

import collections
import functools
import itertools
import json
import os

from absl import logging

from cli import UserError

Row = collections.namedtuple("Row", "line text_a text_b label")
Row.__doc__ = "One example: line number from 1; text_b is None for one text; label str or None."

Task = collections.namedtuple("Task", "name pair labels files rows columns")
Task.__doc__ = """One entry of the table.

pair: a row holds two texts.  labels: tuple of str, or None: those found in the training file.
files: split -> names tried in that order.  rows: reader (path, lines, columns) -> Rows.
columns: TSV columns in order, or a dict of column -> name in the header or key of the JSON object.
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


def decoded_lines(stream, path, encoding):
    r"""Yields (line number from 1, text) of a binary stream; a line ends at \n or \r\n only.

    Raises:
      UserError: bytes that are not in this encoding: file, line, byte.
    """
    for number, raw in enumerate(stream, 1):
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError as error:
            raise UserError("{}, line {}: byte {:#04x} at offset {} is not {}; name the file's "
                            "encoding with --input_encoding, say gb18030".format(
                                path, number, raw[error.start], error.start, encoding)) from error
        if text.endswith("\n"):
            text = text[:-2] if text.endswith("\r\n") else text[:-1]
        yield number, text.lstrip("\ufeff") if number == 1 else text


def filled_lines(stream, path, encoding):
    """The decoded lines without the empty ones, which are counted in the log."""
    empty = 0
    for number, text in decoded_lines(stream, path, encoding):
        if text.strip():
            yield number, text
        else:
            empty += 1
    if empty:
        logging.info("%s: %d empty lines ignored", path, empty)


# --- tab-separated files ----------------------------------------------------------------------


def named_columns(cells, columns):
    """Positions of text_a, text_b and label if these cells are a header line, else None.

    A header holds the names that --columns gives; or, where only positions are asked, at least
    two names that public data sets use, or nothing but such names; or such a name for the label
    where the label stands (the texts are then taken by position).
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
    if len(found) >= 2 or len(found) == len(names):
        return found
    by_position = positional_columns(cells, columns)
    return by_position if found.get("label", -1) == by_position.get("label") else None


def positional_columns(cells, columns):
    """Positions in a file without a header; one column less than asked means: no labels."""
    if len(cells) == len(columns) - 1 and "label" in columns:
        columns = [column for column in columns if column != "label"]
    return {column: position for position, column in enumerate(columns) if column in COLUMNS}


def table_layout(cells, columns, where):
    """(positions, number of columns, is header) from the cells of a file's first line.

    Raises:
      UserError: named columns are not in the header, or a text column is missing.
    """
    positions = named_columns(cells, columns)
    if positions is None and isinstance(columns, dict):
        raise UserError("{}: no header with the columns {} of --columns; found {}".format(
            where, ", ".join(sorted(columns.values())), ", ".join(cells)))
    if positions is None:
        positions = positional_columns(cells, columns)
        return positions, len(columns) - ("label" in columns and "label" not in positions), False
    for column in ("text_a", "text_b"):
        if column in columns and column not in positions:
            raise UserError("{}: no column {} in the header {}".format(
                where, column, ", ".join(cells)))
    logging.info("%s is a header: %s", where, ", ".join(
        "{} = column {}".format(column, positions[column] + 1)
        for column in COLUMNS if column in positions))
    return positions, len(cells), True


def tsv_rows(path, lines, columns):
    """Rows of a tab-separated file, with or without a header; a quote is plain text.

    Args:
      path: str for the messages.
      lines: (number, text) pairs.
      columns: names in order, "-" for one to ignore; or dict column -> name in the header.
    Raises:
      UserError: a line with another number of columns.
    """
    positions = None
    for number, text in lines:
        cells = text.split("\t")
        where = "{}, line {}".format(path, number)
        if positions is None:
            positions, width, is_header = table_layout(cells, columns, where)
            if is_header:
                continue
        if len(cells) != width:
            raise UserError("{}: {} columns where {} are expected ({})".format(
                where, len(cells), width, ", ".join(sorted(positions, key=positions.get))))
        text_a, text_b, label = (cells[positions[column]] if column in positions else None
                                 for column in COLUMNS)
        yield Row(number, text_a, text_b, label and label.strip())


def xnli_rows(path, lines, columns):
    """XNLI: the Chinese rows of the 15-language files; the translated training file whole.

    columns is what tsv_rows takes; the training file spells contradiction "contradictory".
    """
    lines = iter(lines)
    header = next(lines, (1, ""))
    names = header[1].split("\t")
    place = names.index("language") if "language" in names else len(names)
    chinese = (line for line in lines if line[1].split("\t")[place:place + 1] in ([], ["zh"]))
    for row in tsv_rows(path, itertools.chain([header], chinese), columns):
        yield row._replace(label="contradiction") if row.label == "contradictory" else row


# --- files of one JSON object a line ----------------------------------------------------------


def json_rows(path, lines, columns, texts=None):
    """Rows of a file with one JSON object a line.

    Args:
      path: str for the messages.
      lines: (number, text) pairs.
      columns: dict column -> key.
      texts: optional function (object) -> (text_a, text_b) for texts that are put together.
    Raises:
      UserError: a line is no JSON object, or a key is missing.
    """
    for number, text in lines:
        where = "{}, line {}".format(path, number)
        try:
            record = json.loads(text)
        except ValueError as error:
            raise UserError("{}: not JSON ({})".format(where, error)) from error
        if not isinstance(record, dict):
            raise UserError("{}: a JSON object is expected, found a {}".format(
                where, type(record).__name__))
        try:
            pair = texts(record) if texts else tuple(
                str(record[columns[column]]) if column in columns else None
                for column in ("text_a", "text_b"))
        except (KeyError, ValueError, TypeError) as error:
            raise UserError("{}: {} in an object with the keys {}".format(
                where, "no key {}".format(error) if isinstance(error, KeyError) else error,
                ", ".join(record))) from error
        label = record.get(columns.get("label"))
        yield Row(number, pair[0], pair[1], None if label is None else _label_text(label))


def _label_text(label):
    return str(label).lower() if isinstance(label, bool) else str(label)


def cmnli_rows(path, lines, columns):
    """CMNLI: as JSON; rows whose label is "-" (the annotators disagreed) are left out."""
    unsure = 0
    for row in json_rows(path, lines, columns):
        if row.label == "-":
            unsure += 1
        else:
            yield row
    if unsure:
        logging.info("%s: %d rows without an agreed label left out", path, unsure)


def keywords_and_abstract(record):
    """CSL: (keywords joined by commas, abstract); do the keywords all belong to it?"""
    return "，".join(record["keyword"]), record["abst"]


def marked_spans(record):
    """WSC: the text with _noun_ and [pronoun] marked; do both mean the same? (text, None).

    Raises:
      ValueError: a span's text does not stand at its index.
    """
    target, text = record["target"], record["text"]
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

PAIR_THEN_LABEL = ("text_a", "text_b", "label")
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
    Task("cmnli", True, INFERENCE, JSON_FILES, cmnli_rows, JSON_PAIR),
    Task("csl", True, BINARY, JSON_FILES,
         functools.partial(json_rows, texts=keywords_and_abstract), {"label": "label"}),
    Task("wsc", False, ("false", "true"), JSON_FILES,
         functools.partial(json_rows, texts=marked_spans), {"label": "label"}),
    Task("tsv", None, None, TSV_FILES, tsv_rows, None),
    Task("jsonl", None, None, split_names("{}.jsonl", "{}.json"), json_rows, None),
))


def task_named(name, columns=None):
    """The Task of --task_name, with the columns of --columns.

    Args:
      name: key of TASKS, upper or lower case.
      columns: None, or "label,text_a,-" (positions), or "text_a=问题,label=类别" (names).
    Raises:
      UserError: unknown task; columns that do not make one or two texts.
    """
    if name.lower() not in TASKS:
        raise UserError("--task_name: unknown task {!r}; known: {}".format(name, ", ".join(TASKS)))
    task = TASKS[name.lower()]
    if columns:
        chosen = parsed_columns(columns)
    elif task.columns:
        return task
    else:
        raise UserError("--task_name={} needs --columns: in order, say text_a,text_b,label, or by "
                        "name, say text_a=question,label=class".format(task.name))
    if task.rows is not tsv_rows and not isinstance(chosen, dict):
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


def split_file(task, data_dir, split, exists=os.path.exists):
    """Path of the split's file in data_dir; exists: tf.io.gfile.exists where it may be gs://.

    Raises:
      UserError: it is not there; names what was looked for.
    """
    names = task.files[split]
    for name in names:
        path = os.path.join(data_dir, name)
        if exists(path):
            return path
    raise UserError("--data_dir={}: no {} file for the task {} (looked for {})".format(
        data_dir, split, task.name, ", ".join(names)))


def files_there(task, data_dir, exists=os.path.exists):
    """Paths of the test, dev and train files that are in data_dir, which may be None."""
    paths = [os.path.join(data_dir or "", name) for split in reversed(SPLITS)
             for name in task.files[split]]
    return [path for path in paths if data_dir and exists(path)]


def reader_for(task, path):
    """The task, reading plain lines (text, or two with a tab between) if path is no JSON file."""
    if isinstance(task.columns, dict) and task.rows is not tsv_rows and not path.endswith(
            (".json", ".jsonl")):
        columns = PAIR_THEN_LABEL if task.pair else ("text_a", "label")
        return task._replace(rows=tsv_rows, columns=columns)
    return task


def checked_rows(task, path, lines, labels, need_labels):
    """The rows of a file; each label is checked.

    Args:
      task: Task.  path: str for the messages.  lines: (number, text) pairs.
      labels: allowed labels; None allows any.
      need_labels: whether a row without a label is an error.
    Raises:
      UserError: a label is missing or not allowed: file, line, allowed labels.
    """
    for row in task.rows(path, lines, task.columns):
        if row.label is None and need_labels:
            raise UserError("{}, line {}: no label; a labelled file is needed here".format(
                path, row.line))
        if row.label is not None and labels is not None and row.label not in labels:
            raise UserError("{}, line {}: label {!r} is not one of {}".format(
                path, row.line, row.label, ", ".join(labels)))
        yield row


def labels_found(rows, path):
    """The labels of a training file's rows in order: numbers by value, others by text.

    Raises:
      UserError: one label only, or so many that the column cannot be right.
    """
    found = {row.label for row in rows}
    if not 2 <= len(found) <= MOST_LABELS:
        raise UserError("{}: {} different labels (such as {!r}); 2 to {} make sense: check "
                        "--columns".format(path, len(found), min(found, default=""), MOST_LABELS))
    numeric = all(label.lstrip("-").isdecimal() for label in found)
    return tuple(sorted(found, key=int if numeric else None))

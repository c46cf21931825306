"""The house rules, checked on the source text: short functions, shapes said, no cycles, …

In: every .py file here.  Out: one complaint a line, "file:line: what is wrong".
A rule is a function from a Source to complaints; BAD_SNIPPETS shows for each what it objects to.
"""

import ast
import collections
import glob
import importlib
import importlib.util
import io
import os
import re
import subprocess
import sys
import tokenize

import pytest
from helpers.toys import ROOT

WITHOUT_TENSORFLOW = ["cli", "tokenization", "fine_tuning.labelling", "fine_tuning.reading",
                      "fine_tuning.reading_metric", "fine_tuning.tag_schemes",
                      "fine_tuning.tasks", "create_pretraining_data", "serving.batching"]
ROOMS = {  # what each room uses beside itself: rooms, and modules of the root
    "pretraining_data": {"cli", "tokenization"},
    "pretraining": {"pretraining_data", "training", "weights", "cli", "devices", "modeling"},
    "training": {"weights", "cli", "devices", "optimization"},
    "fine_tuning": {"training", "weights", "cli", "devices", "modeling", "optimization",
                    "tokenization"},
    "weights": {"cli", "modeling"},
    "serving": {"cli"},
}
DEFINED_IN_EVERY_SCRIPT = {"main", "define_flags"}
FUNCTION_LINES, FUNCTION_LINES_AS_A_RULE, FUNCTION_LINES_OF_NINE_IN_TEN = 60, 40, 30


class Source:
    """A file's text, syntax tree, comments [(line, text)] and logical lines [(line, tokens)]."""

    def __init__(self, path, text):
        self.path = path
        self.name = os.path.splitext(os.path.basename(path))[0]
        self.room = os.path.dirname(path)
        self.module = (self.room.replace("/", ".") + "." + self.name).lstrip(".")
        self.text = text
        self.tree = ast.parse(text)
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        self.comments = [(token.start[0], token.string.lstrip("#").strip())
                         for token in tokens if token.type == tokenize.COMMENT]
        self.logical_lines = [[]]
        for token in tokens:
            self.logical_lines[-1].append(token)
            if token.type == tokenize.NEWLINE:
                self.logical_lines.append([])

    @property
    def is_script(self):
        return any(isinstance(node, ast.If) and "__main__" in ast.dump(node.test)
                   for node in self.tree.body)

    def nodes(self, *kinds):
        return [node for node in ast.walk(self.tree) if isinstance(node, kinds)]

    def functions(self):
        return self.nodes(ast.FunctionDef)


def sources(*patterns):
    """The files of the repository that match patterns relative to its root."""
    found = []
    for pattern in patterns:
        for path in sorted(glob.glob(os.path.join(ROOT, pattern))):
            with open(path, encoding="utf-8") as stream:
                found.append(Source(os.path.relpath(path, ROOT), stream.read()))
    return found


MODULES = sources("*.py", *[room + "/*.py" for room in sorted(ROOMS)])
BENCHMARKS = sources("benchmarks/*.py")
TESTS = sources("tests/*.py", "tests/*/*.py")


def last_line(node):
    """The last line on which something of node begins."""
    return max(getattr(part, "lineno", 0) for part in ast.walk(node))


def dotted(node):
    """'tf.io.gfile' for the expression tf.io.gfile; '' for anything that is no dotted name."""
    if isinstance(node, ast.Attribute):
        return dotted(node.value) + "." + node.attr
    return node.id if isinstance(node, ast.Name) else ""


def constant(node):
    """The value of a literal, of either syntax tree (Python 3.7 and later); None for the rest."""
    return getattr(node, "value", getattr(node, "s", None)) if isinstance(
        node, (ast.Constant, ast.Str)) else None


# ---- rules about one file ----------------------------------------------------------------------


def functions_are_short(source):
    for function in source.functions():
        length = last_line(function) - function.lineno + 1
        if length > FUNCTION_LINES:
            yield function.lineno, "{} has {} lines".format(function.name, length)


def flags_are_read_in_main(source):
    """cli.py hands the flags to main; main reads them; define_… functions declare them."""
    allowed = set()
    for function in source.functions():
        if function.name == "main" or function.name.lstrip("_").startswith("define_"):
            allowed.update(map(id, ast.walk(function)))
    for node in source.nodes(ast.Name, ast.arg):
        name = node.id if isinstance(node, ast.Name) else node.arg
        if name in ("FLAGS", "flag_values") and id(node) not in allowed:
            yield node.lineno, "{} outside main() and define_flags()".format(name)


def flags_are_defined_on_demand(source):
    for call in source.nodes(ast.Call):
        if re.search(r"\bDEFINE_\w+$", dotted(call.func)) and "flag_values" not in [
                keyword.arg for keyword in call.keywords]:
            yield call.lineno, "a flag is defined without flag_values="


def only_scripts_print(source):
    for call in source.nodes(ast.Call):
        if dotted(call.func) == "print" and not source.is_script:
            yield call.lineno, "print in a module that is no script"


def reshapes_say_the_shape(source):
    for line in source.logical_lines:
        names = [token.string for token in line if token.type != tokenize.NL]
        calls = [index for index, name in enumerate(names[:-1])
                 if name in ("reshape", "transpose") and names[index + 1] == "("]
        comments = [token.string for token in line if token.type == tokenize.COMMENT]
        if calls and not any(re.search(r"\[.*\]", comment) for comment in comments):
            yield line[0].start[0], "a reshape or transpose without its # [shape]"


def variables_are_named(source):
    for node in source.nodes(ast.Attribute):
        if dotted(node).startswith(("tf.layers.", "tf.keras.layers.")):
            yield node.lineno, "{} names its variables by a counter".format(dotted(node))
    for call in source.nodes(ast.Call):
        given = [keyword.arg for keyword in call.keywords]
        if "default_name" in given or dotted(call.func) == "tf.Variable" and "name" not in given:
            yield call.lineno, "a variable or scope without a name of its own"


def no_name_starts_with_get(source):
    for node in source.nodes(ast.FunctionDef, ast.ClassDef, ast.Name, ast.arg):
        stored = not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store)
        name = getattr(node, "name", getattr(node, "id", getattr(node, "arg", None)))
        if stored and name.lower().startswith("get_"):
            yield node.lineno, "{}: a noun for a value, a verb for an action".format(name)


def tensorflow_is_imported_one_way(source):
    for node in source.nodes(ast.Attribute):
        if node.attr == "contrib":
            yield node.lineno, "tf.contrib"
    for node in source.nodes(ast.Import):
        for alias in node.names:
            as_agreed = (alias.name, alias.asname) == ("tensorflow.compat.v1", "tf")
            if alias.name.split(".")[0] == "tensorflow" and not as_agreed:
                yield node.lineno, "TensorFlow is imported as tensorflow.compat.v1"
    for node in source.nodes(ast.ImportFrom):
        if node.module == "__future__" or ".contrib" in (node.module or ""):
            yield node.lineno, "import from {}".format(node.module)
    for call in source.nodes(ast.Call):
        if dotted(call.func) == "tf.disable_v2_behavior" and source.name != "modeling":
            yield call.lineno, "modeling.py alone disables the behaviour of version 2"


def text_has_an_encoding(source):
    openers = {"open": "r", "io.open": "r", "gzip.open": "rb", "lzma.open": "rb", "os.fdopen": "r"}
    for call in source.nodes(ast.Call):
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("read_text", "write_text"):
            if "encoding" not in given:
                yield call.lineno, "{}() without encoding=".format(call.func.attr)
        if dotted(call.func) not in openers:
            continue
        mode = given.get("mode", call.args[1] if len(call.args) > 1 else None)
        mode = openers[dotted(call.func)] if mode is None else constant(mode)
        if mode is None or "b" in mode:
            continue
        if "encoding" not in given:
            yield call.lineno, "text is opened without encoding="
        elif "r" not in mode and "newline" not in given:
            yield call.lineno, "text is written without newline="


def is_code(text):
    """True for a comment that reads as a statement: a call, an import, a return, an assignment."""
    for statement in (text, text + " pass"):
        try:
            body = ast.parse(statement).body
        except (SyntaxError, ValueError):
            continue
        for node in body:
            inner = getattr(node, "value", None)
            if isinstance(node, (ast.Import, ast.ImportFrom, ast.For, ast.While, ast.If, ast.With,
                                 ast.FunctionDef, ast.Assert, ast.Raise, ast.Delete)):
                return True
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)) and isinstance(
                    inner, ast.Call):
                return True
    return False


def comments_are_prose(source):
    for line, comment in source.comments:
        if is_code(comment):
            yield line, "commented-out code"
        if re.search(r"(?i)\bauthor|copyright|created on|\bdate:|\b20\d\d-\d\d-\d\d", comment):
            yield line, "an author or date note"
    for number, line in enumerate(source.text.split("\n"), 1):
        if re.search(r"\b(TO" "DO|FIX" "ME|XX" "X|HA" "CK)\b", line):
            yield number, "unfinished work"


def docstrings_are_there(source):
    if not ast.get_docstring(source.tree):
        yield 1, "the module does not say what goes in and what comes out"
    for node in source.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            if node.name not in DEFINED_IN_EVERY_SCRIPT and not ast.get_docstring(node):
                yield node.lineno, "{} has no docstring".format(node.name)


def names_say_something(source):
    if re.search("util|helper|common|misc", source.name):
        yield 1, "the file's name says nothing about what is in it"


EVERYWHERE = [functions_are_short, tensorflow_is_imported_one_way, text_has_an_encoding,
              comments_are_prose, no_name_starts_with_get, names_say_something]
IN_MODULES = EVERYWHERE + [flags_are_read_in_main, flags_are_defined_on_demand,
                           only_scripts_print, reshapes_say_the_shape, variables_are_named,
                           docstrings_are_there]

BAD_SNIPPETS = {
    functions_are_short: "def f():\n" + "    x = 1\n" * 60,
    flags_are_read_in_main: "def f():\n    return FLAGS.x",
    flags_are_defined_on_demand: "flags.DEFINE_string('x', '', 'a long and useful text')",
    only_scripts_print: "print(1)",
    reshapes_say_the_shape: "y = tf.reshape(\n    x, [-1])  # flat",
    variables_are_named: "x = tf.layers.dense(x, 3)",
    no_name_starts_with_get: "def get_x():\n    pass",
    tensorflow_is_imported_one_way: "import tensorflow as tf",
    text_has_an_encoding: "x = open(path, 'w', encoding='utf-8')",
    comments_are_prose: "x = 1\n# y = f(x)",
    docstrings_are_there: '"""Said."""\ndef f():\n    pass',
    names_say_something: "",
}
GOOD_SNIPPETS = {
    functions_are_short: "def f():\n" + "    x = 1\n" * 59,
    flags_are_read_in_main: "def main(flag_values):\n    return flag_values.x",
    flags_are_defined_on_demand: "flags.DEFINE_string('x', '', 'text', flag_values=flag_values)",
    only_scripts_print: "print(1)\nif __name__ == '__main__':\n    main()",
    reshapes_say_the_shape: "y = tf.reshape(\n    x, [-1])  # [B*S]",
    variables_are_named: "x = tf.get_variable('x', [3])",
    no_name_starts_with_get: "y = tf.get_variable('x', [3])",
    tensorflow_is_imported_one_way: "import tensorflow.compat.v1 as tf",
    text_has_an_encoding: "x = open(path, 'w', encoding='utf-8', newline='')\ny = open(path, 'rb')",
    comments_are_prose: "x = 1  # [B, S]\n# if the file is empty: fail\n# loss = mlm + sop",
    docstrings_are_there: '"""Said."""\ndef f():\n    """Said."""',
}


@pytest.mark.parametrize("rule", IN_MODULES, ids=lambda rule: rule.__name__)
def test_a_rule_objects_to_the_fault_and_to_nothing_else(rule):
    assert list(rule(Source("some_utils.py", BAD_SNIPPETS[rule])))
    assert not list(rule(Source("some.py", GOOD_SNIPPETS.get(rule, ""))))


@pytest.mark.parametrize("rule", IN_MODULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule):
    checked = MODULES + BENCHMARKS + (TESTS if rule in EVERYWHERE else [])
    if rule in (flags_are_read_in_main, only_scripts_print):
        checked = [source for source in checked if source.name != "cli"]
    complaints = ["{}:{}: {}".format(source.path, line, complaint)
                  for source in checked for line, complaint in rule(source)]
    assert not complaints, "\n".join(complaints)


# ---- rules about the repository ----------------------------------------------------------------


def defined_twice(checked):
    """Names of top-level functions and classes that more than one file defines."""
    places = collections.defaultdict(list)
    for source in checked:
        for node in source.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                places[node.name].append("{}:{}".format(source.path, node.lineno))
    return ["{} is defined in {}".format(name, ", ".join(found)) for name, found in places.items()
            if len(found) > 1 and name not in DEFINED_IN_EVERY_SCRIPT]


def test_each_name_is_defined_once():
    assert defined_twice([Source("a.py", "def f(): pass"), Source("b.py", "class f: pass")])
    assert not defined_twice([Source("a.py", "def main(): pass"), Source("b.py", "def main(): 1")])
    assert defined_twice(MODULES + BENCHMARKS) == []


def test_functions_beyond_forty_lines_are_exceptions():
    functions = [(last_line(function) - function.lineno + 1, source.path + ": " + function.name)
                 for source in MODULES + BENCHMARKS for function in source.functions()]
    longer = sorted(pair for pair in functions if pair[0] > FUNCTION_LINES_AS_A_RULE)
    assert len(longer) <= 0.05 * len(functions), longer
    assert sorted(functions)[int(0.9 * len(functions))][0] <= FUNCTION_LINES_OF_NINE_IN_TEN


def imports(source, everywhere):
    """Names of the modules that source imports: at the top only, or everywhere."""
    found = set()
    for node in ast.walk(source.tree) if everywhere else source.tree.body:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            room = node.module in ROOMS
            found.update(node.module + "." + alias.name if room else node.module
                         for alias in node.names)
    return {name if name.split(".")[0] in ROOMS else name.split(".")[0] for name in found}


def room_faults(source, shared):
    """What source imports that its room does not use; shared: room -> what others may use of it."""
    for name in sorted(imports(source, everywhere=True)):
        room, _, module = name.partition(".")
        if room == source.room or not (room in ROOMS or os.path.exists(
                os.path.join(ROOT, room + ".py"))):
            continue
        if room not in ROOMS[source.room]:
            yield "{} imports {}".format(source.path, name)
        elif room in ROOMS and module not in shared[room]:
            yield "{} imports {}, which that room does not name".format(source.path, name)


def test_rooms_use_only_what_they_may():
    def faults(text):
        source = Source("pretraining/x.py", text)
        return list(room_faults(source, {"pretraining_data": ["records"]}))

    assert faults("import run_pretraining") and faults("from fine_tuning import tasks")
    assert faults("from pretraining_data.shards import x")
    assert not faults("import numpy\nimport cli\nfrom pretraining_data import records")
    shared = {room: importlib.import_module(room).__all__ for room in ROOMS}
    found = [fault for source in MODULES if source.room for fault in room_faults(source, shared)]
    assert found == []


def imported_tests(source):
    """Names of the test files that source imports; what tests share stands in tests/helpers."""
    return sorted(name for name in imports(source, everywhere=True)
                  if re.match(r"(test_|tests\b|conftest)", name)
                  and name not in {module.name for module in MODULES})


def test_no_test_imports_a_test():
    assert imported_tests(Source("x.py", "from test_modeling import f\nimport tests.conftest"))
    assert not imported_tests(Source("x.py", "import test_changes\nfrom helpers.toys import ROOT"))
    assert [(source.path, found) for source in TESTS for found in imported_tests(source)] == []


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_each_room_names_its_modules(room):
    named = re.findall(r"^  (\w+)  ", importlib.import_module(room).__doc__, re.MULTILINE)
    assert sorted(named) == sorted(source.name for source in MODULES
                                   if source.room == room and source.name != "__init__")


def test_the_root_holds_what_people_type_or_read_first():
    assert len([source for source in MODULES if not source.room]) <= 22


def reachable(start, graph):
    """All that is imported, directly or not, by module start of graph {name: imported names}."""
    seen, waiting = set(), [start]
    while waiting:
        for name in graph.get(waiting.pop(), ()):
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return seen


def test_no_module_imports_itself_in_a_circle():
    assert "a" in reachable("a", {"a": {"b"}, "b": {"c"}, "c": {"a"}})
    graph = {source.module: imports(source, everywhere=True) for source in MODULES}
    assert [name for name in graph if name in reachable(name, graph)] == []


def test_text_modules_import_no_tensorflow():
    graph = {source.module: imports(source, everywhere=False) for source in MODULES}
    assert "tensorflow" in reachable("modeling", graph)
    names = WITHOUT_TENSORFLOW + [name for name in graph if name.startswith("pretraining_data.")
                                  and not name.endswith("__init__")]
    assert [name for name in names if "tensorflow" in reachable(name, graph)] == []
    program = "import sys, {}; sys.exit('tensorflow' in sys.modules)".format(", ".join(names))
    assert subprocess.call([sys.executable, "-c", program], cwd=ROOT) == 0


def local_file_calls(source):
    """Calls that know local files only, in the modules whose paths may be gs:// ones."""
    for call in source.nodes(ast.Call):
        name = dotted(call.func)
        if name in ("open", "io.open") or re.match(
                r"os\.(path\.(exists|is\w+|get\w+)|listdir|makedirs|mkdir|remove|rename|replace|"
                r"stat|walk)$|(glob|shutil)\.", name):
            yield call.lineno, "{}() in place of tf.io.gfile".format(name)


def test_files_of_a_run_may_lie_in_any_file_system():
    for bad in ("open(path, 'rb')", "os.path.exists(path)", "shutil.copy(a, b)", "os.listdir(a)"):
        assert list(local_file_calls(Source("x.py", bad)))
    assert not list(local_file_calls(Source("x.py", "tf.io.gfile.GFile(os.path.join(a, b))")))
    graph = {source.module: imports(source, everywhere=True) for source in MODULES}
    used = reachable("run_pretraining", graph) | {"run_pretraining"}
    used -= {"training.memory", "training.precision"}  # read what this machine says of itself
    checked = [source for source in MODULES if source.module in used and "tensorflow" in
               graph[source.module]]
    assert {"training.estimator", "weights.checkpoints", "pretraining.reader", "modeling"} <= {
        source.module for source in checked}
    assert [(source.path, line, words) for source in checked
            for line, words in local_file_calls(source)] == []


def test_ruff_is_clean():
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed")
    command = [sys.executable, "-m", "ruff", "check", "--output-format=concise", "."]
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.returncode == 0, process.stdout.decode("utf-8")


@pytest.mark.parametrize(
    "path", ["setup.sh", "demo.sh", "test.sh", "create_pretrain_data.sh", ".ci/run"])
def test_shell_scripts_parse_and_can_be_started(path):
    path = os.path.join(ROOT, path)
    assert subprocess.call(["bash", "-n", path]) == 0
    assert os.access(path, os.X_OK)

"""What the documents promise: each command runs, each flag is in some --help, each name exists.

In: both READMEs, docs/ and the shell scripts.  Out: their commands, run in this process at toy
size in a folder that has what the README takes as given.
"""

import ast
import glob
import importlib
import os
import re
import shutil

import pytest
import tensorflow.compat.v1 as tf
from absl import flags
from helpers.readme import COMMANDS, PAGES, commands_of, python_call, text_of
from helpers.toy_classifier import write_classifier
from helpers.toy_records import run_script, write_toy_records
from helpers.toys import ROOT, write_text

# What a command holds that is not run here, and why.
NOT_RUN = [
    ("./setup.sh", "would install; tests/test_setup.py runs it with stand-ins"),
    ("./test.sh", "would run these tests"),
    ("./demo.sh", "takes minutes and is run as it is; its flags are checked here"),
    ("create_pretrain_data.sh", "tests/test_setup.py runs it with a stand-in"),
    ("source ", "activates the environment that runs this"),
    ("export ", "its value is filled in where it is used"),
    ("test_changes.py", "pytest collects it by itself"),
    ("--use_tpu", "there is no TPU"),
    ("TF_CONFIG=", "needs two machines; tests/test_devices.py has two processes"),
    ("create_pretraining_data_beam.py", "has its own test, for where Apache Beam is installed"),
    ("printf ", "tests/test_run_classifier.py has a pipe"),
    ("benchmark", "takes minutes and data that are not part of the project"),
    ("convert_checkpoint.py", "tests/test_conversion_commands.py runs them one after the other"),
    ("--output_dir=output/from_", "the same"),
    ("--task_name=multilabel", "tests/test_run_classifier.py runs it"),
    ("--task_name=stsb", "the same"),
    ("--output_dir=output/at_", "needs the records of a command above; "
     "tests/test_run_pretraining.py starts from a folder too"),
    ("docker ", "another program, which is not there"),
    ("--num_runs", "tests/test_run_classifier.py runs it"),
    ("--num_folds", "the same"),
    ("run_ner.py", "tests/test_run_ner.py runs it"),
    ("run_mrc.py", "tests/test_run_mrc.py runs it"),
    ("fill_mask.py", "tests/test_fill_mask.py runs it"),
    ("extract_features.py", "tests/test_extract_features.py runs it"),
    ("serve.py", "tests/test_serve.py runs it"),
    ("curl ", "asks that server"),
]
# Every other command runs with these in place of its own values, so that it takes a second.
TOY_VALUES = {
    "max_seq_length": 16, "max_predictions_per_seq": 3, "dupe_factor": 1,
    "train_batch_size": 4, "eval_batch_size": 4, "num_train_steps": 2, "num_warmup_steps": 1,
    "save_checkpoints_steps": 2, "num_shards": 1, "shard_range": "0:1", "num_workers": 1,
}
# Flags of the shell scripts and of other programs that the documents name.
OTHER_FLAGS = {"help", "which", "with", "flag", "runner"}


def script_names():
    """The scripts that take flags."""
    return [os.path.basename(path)[:-len(".py")] for path in sorted(glob.glob(ROOT + "/*.py"))
            if "cli.run(" in text_of(path) and os.path.basename(path) != "cli.py"]


def flags_of(name):
    """The flags of a script, as a FlagValues of its own."""
    values = flags.FlagValues()
    importlib.import_module(name.replace("/", ".")).define_flags(values)
    return values


# The pages' commands run on TensorFlow 2 alone, so that all tests together stay short.
RUN = [command for command in (commands_of(PAGES["zh"]["README"]) if tf.__version__ < "2"
                               else COMMANDS) if not any(mark in command for mark, _ in NOT_RUN)]


@pytest.fixture(scope="module")
def given(tmp_path_factory, toy_vocab, toy_config):
    """A folder with what the README takes as given, each at toy size."""
    folder = tmp_path_factory.mktemp("given")
    shutil.copytree(os.path.join(ROOT, "albert_config"), str(folder / "albert_config"))
    (folder / "data").mkdir()
    for name in ("tf_news_zh_1.tfrecord", "tf_domain.tfrecord"):
        write_toy_records(folder / "data" / name, 9)
    run_script(importlib.import_module("run_pretraining"), "--do_train",
               "--input_file=" + str(folder / "data" / "tf_domain.tfrecord"),
               "--bert_config_file=" + toy_config, "--output_dir=" + str(folder / "start"),
               *["--{}={}".format(name, value) for name, value in TOY_VALUES.items()
                 if name in flags_of("run_pretraining")])
    prefix = tf.train.latest_checkpoint(str(folder / "start"))
    for target in ("albert_config/bert_model.ckpt", "albert_base_zh/albert_model.ckpt",
                   "albert_xxlarge_zh/albert_model.ckpt"):
        (folder / target).parent.mkdir(exist_ok=True)
        for path in glob.glob(prefix + ".*"):
            shutil.copy(path, str(folder / target) + path[len(prefix):])
    shutil.rmtree(str(folder / "start"))
    give_classification(folder, toy_vocab, toy_config)
    return folder


def give_classification(folder, toy_vocab, toy_config):
    """Adds data sets and fine-tuned models to the folder."""
    for name in ("lcqmc", "my_data", "output", "albert_large_zh"):
        (folder / name).mkdir()
    (folder / "output" / "lcqmc").mkdir()
    for split in ("train", "dev", "test"):
        write_text(folder / "lcqmc" / (split + ".txt"), "天气\t有雨\t1\n图书馆\t开门\t0\n" * 3)
    write_text(folder / "my_data" / "train.tsv", "好\t天气\n坏\t有雨\n好\t有云\n")
    write_text(folder / "pairs.txt", "天气\t有雨\n")
    write_classifier(folder / "output" / "lcqmc", toy_vocab, toy_config)
    prefix = write_classifier(folder / "albert_large_zh", toy_vocab, toy_config) + "/model.ckpt-7"
    for path in glob.glob(prefix + ".*"):
        os.rename(path, path.replace("model.ckpt-7", "bert_model.ckpt"))


@pytest.mark.parametrize("command", RUN, ids=lambda command: " ".join(command.split()[:4]))
def test_a_command_of_the_readme_runs(command, given, tmp_path, toy_config, toy_vocab, toy_corpus,
                                      monkeypatch):
    name, arguments = python_call(command)
    place = tmp_path / "place"
    shutil.copytree(str(given), str(place))
    shutil.copy(toy_corpus, str(place / "my_domain.txt"))
    (place / "corpus").mkdir()
    shutil.copy(toy_corpus, str(place / "corpus" / "a.txt"))
    monkeypatch.chdir(place)
    values = flags_of(name)
    values([name] + arguments)
    if "output_file" in values and os.path.exists(values.output_file):
        os.remove(values.output_file)
    toy = dict(TOY_VALUES, bert_config_file=toy_config, vocab_file=toy_vocab)
    overrides = ["--{}={}".format(flag, value) for flag, value in toy.items() if flag in values]
    assert not run_script(importlib.import_module(name), *(arguments + overrides))
    made = [values[flag].value for flag in ("output_dir", "output_file", "model_dir")
            if flag in values and values[flag].value]
    assert os.path.exists(made[0])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.split()[:4]))
def test_a_command_of_the_readme_has_its_script_and_flags(command):
    call = python_call(command)
    if call is None:
        for path in re.findall(r"[\w./]+\.sh", command):
            assert os.path.exists(os.path.join(ROOT, path))
    elif call[1]:
        values = flags_of(call[0])
        texts = [word for word in call[1] if not word.startswith("--")]
        assert values([call[0]] + call[1]) == [call[0]] + texts
        assert not texts or call[0] == "fill_mask"
    else:
        assert os.path.exists(os.path.join(ROOT, call[0] + ".py"))


def test_commands_are_found_and_each_exception_has_its_command():
    assert commands_of("```bash\nexport A=x\npython a.py --b=$A \\\n  --c &\n```\n") == [
        "export A=x", "python a.py --b=x --c &"]
    assert python_call("nohup python3 a.py --b=x --c &") == ("a", ["--b=x", "--c"])
    assert RUN and [mark for mark, _ in NOT_RUN
                    if not any(mark in command for command in COMMANDS)] == []


def unknown_flags(text, known):
    return sorted(set(re.findall(r"(?<![\w-])--([a-z]\w*)", text)) - known)


def test_each_flag_that_is_named_is_in_some_help():
    benchmarks = [os.path.relpath(path, ROOT)[:-len(".py")]
                  for path in sorted(glob.glob(ROOT + "/benchmarks/*.py"))]
    known = {flag for name in script_names() + benchmarks for flag in flags_of(name)}
    assert "max_seq_length" in known and unknown_flags("`--no_such`", known) == ["no_such"]
    texts = [text_of("demo.sh"), text_of("create_pretrain_data.sh")] + [
        page for pages in PAGES.values() for page in pages.values()]
    assert [unknown_flags(text, known | OTHER_FLAGS) for text in texts] == [[]] * len(texts)


@pytest.mark.parametrize("name", script_names())
def test_each_flag_is_explained(name):
    values = flags_of(name)
    assert [flag for flag in values if len(values[flag].help.split()) < 3] == []


DOCUMENTS = [(language, name) for language, pages in PAGES.items() for name in sorted(pages)]


@pytest.mark.parametrize("language, name", DOCUMENTS)
def test_each_function_file_and_page_that_is_named_exists(language, name):
    text = PAGES[language][name]
    named = re.findall(r"`(\w+\.py):(\w+)`", text)
    assert named or name != "README"
    for path, function in named:
        tree = ast.parse(text_of(path))
        assert function in [getattr(node, "name", "") for node in ast.walk(tree)], function
    for path in re.findall(r"`((?:tests/|benchmarks/)?\w+\.(?:py|sh))", text):
        assert os.path.exists(os.path.join(ROOT, path)), path
    folder = ROOT if name == "README" else os.path.join(ROOT, "docs", language)
    for path in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert os.path.exists(os.path.join(folder, path)), path


def test_both_languages_have_the_same_pages():
    assert sorted(PAGES["zh"]) == sorted(PAGES["en"])
    for name, text in PAGES["zh"].items():
        other = PAGES["en"][name]
        assert headings_of(text) == headings_of(other), name
        assert code_of(text) == code_of(other), name
        assert table_shapes(text) == table_shapes(other), name
        assert len(text.splitlines()) <= 200 or name != "README"
    assert headings_of("# a\n\ntext\n\n## b\n```bash\n# c\n```") == [1, 2]


def headings_of(text):
    """The levels of the headings, in order."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [len(marks) for marks in re.findall(r"^(#+) ", prose, re.MULTILINE)]


def code_of(text):
    """The code blocks without their comments."""
    blocks = re.findall(r"^```(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(r"\s*# [^\n]*", "", block) for block in blocks]


def table_shapes(text):
    """How many cells each table row has."""
    return [line.count("|") for line in text.splitlines() if line.startswith("|")]

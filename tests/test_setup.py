"""What setup.sh chooses and create_pretrain_data.sh calls, with stand-ins for the interpreters.

In: the two scripts, in a folder with spaces in its name.  Out: what they choose, call and say.
Nothing is installed.
"""

import os
import shutil
import subprocess
import sys

import pytest
from helpers.toys import ROOT, write_text

TOOLS = ["basename", "bash", "cat", "cmp", "cp", "dirname", "head", "ln", "mktemp", "mv",
         "readlink", "rm", "sed", "sort", "uniq"]


@pytest.fixture
def place(tmp_path):
    """A bare machine: a copy of the scripts, an empty home, a PATH with the shell's tools alone."""
    repository = tmp_path / "a folder with spaces" / "repository"
    (repository / "albert_config").mkdir(parents=True)
    (repository / "data").mkdir()
    for name in ("setup.sh", "create_pretrain_data.sh", "requirements.txt", "requirements-tf2.txt"):
        shutil.copy(os.path.join(ROOT, name), str(repository))
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        os.symlink(shutil.which(tool), str(tmp_path / "bin" / tool))
    return tmp_path


def fake(path, script):
    """Writes a stand-in program of shell commands; returns its path as str."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "#!/bin/bash\n" + script + "\n")
    path.chmod(0o755)
    return str(path)


def fake_python(path, version):
    """A stand-in that answers the question of setup.sh as Python `version` would."""
    runtime = "tf1" if version.startswith("3.7.") else "tf2"
    return fake(path, '[ "$1" = -c ] && echo "{} {} {}"'.format(runtime, version, path))


def run(place, script, *arguments, **variables):
    """Runs a script of the copied repository; returns (exit code, stdout, stderr)."""
    environment = {"PATH": str(place / "bin"), "HOME": str(place / "home"), "LC_ALL": "C"}
    environment.update(variables)
    path = str(place / "a folder with spaces" / "repository" / script)
    process = subprocess.run(["bash", path] + list(arguments), env=environment, cwd=str(place),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    return process.returncode, process.stdout.decode("utf-8"), process.stderr.decode("utf-8")


def which(place, *arguments, **variables):
    """What `setup.sh --which` would take: (runtime, version, path), or None."""
    code, out, _ = run(place, "setup.sh", *(arguments or ("--which",)), **variables)
    assert (code == 0) == bool(out)
    return tuple(out.split(None, 2)) if out else None


# Pythons under /opt are found from any home and PATH.
OPT = ["/opt/conda", "/opt/miniconda3", "/opt/anaconda3"]
bare = pytest.mark.skipif(any(map(os.path.isdir, OPT)),
                          reason="the Pythons under /opt cannot be hidden from setup.sh")


def test_python_37_on_path_comes_first(place):
    fake_python(place / "bin" / "python3.11", "3.11.4")
    path = fake_python(place / "bin" / "python3.7", "3.7.9")
    assert which(place) == ("tf1", "3.7.9", path + "\n")


def test_a_shim_that_does_not_run_is_passed_over_for_pyenv_versions(place):
    fake(place / "bin" / "python3.7", "exit 127")
    path = fake_python(place / "home" / ".pyenv" / "versions" / "3.7.5" / "bin" / "python3.7",
                       "3.7.5")
    assert which(place) == ("tf1", "3.7.5", path + "\n")


def test_a_shim_hides_no_python_further_down_the_path(place):
    fake(place / "bin" / "python3.7", "exit 127")
    path = fake_python(place / "more" / "python3.7", "3.7.5")
    both = "{}:{}".format(place / "bin", place / "more")
    assert which(place, PATH=both) == ("tf1", "3.7.5", path + "\n")


@pytest.mark.parametrize("folder", [
    "miniconda3/envs/old", "anaconda3", "miniforge3/envs/py37",
    ".local/share/uv/python/cpython-3.7.9"])
def test_conda_and_uv_are_looked_through(place, folder):
    path = fake_python(place / "home" / folder / "bin" / "python3.7", "3.7.9")
    assert which(place) == ("tf1", "3.7.9", path + "\n")


def test_condas_own_list_of_environments_is_read(place):
    path = fake_python(place / "far away" / "env" / "bin" / "python3.7", "3.7.9")
    (place / "home" / ".conda").mkdir(parents=True)
    write_text(place / "home" / ".conda" / "environments.txt",
               str(place / "far away" / "env") + "\n")
    assert which(place) == ("tf1", "3.7.9", path + "\n")


@bare
def test_without_37_the_newest_that_tensorflow_215_knows(place):
    fake_python(place / "bin" / "python3.9", "3.9.2")
    path = fake_python(place / "bin" / "python3.10", "3.10.1")
    assert which(place) == ("tf2", "3.10.1", path + "\n")
    newest = fake_python(place / "bin" / "python3", "3.11.8")
    assert which(place) == ("tf2", "3.11.8", newest + "\n")
    assert which(place, "--which=tf1") is None


@bare
def test_with_no_python_at_all_one_line_says_what_to_install(place):
    fake(place / "bin" / "python3", "exit 1")
    for arguments in (["--which"], []):
        code, out, error = run(place, "setup.sh", *arguments)
        assert code == 1 and out == ""
        last = error.strip().split("\n")[-1]
        assert "install Python 3.7 or 3.9-3.11" in last and "PYTHON=" in last


@bare
def test_uv_fetches_python_311_where_there_is_none(place):
    python = fake_python(place / "fetched" / "python3.11", "3.11.9")
    fake(place / "bin" / "uv", 'echo "$@" >> "{}/uv.log"; [ "$2" = install ] || echo "{}"'.format(
        place, python))
    code, _, error = run(place, "setup.sh")
    assert (place / "uv.log").read_text(encoding="utf-8").split("\n")[0] == "python install -q 3.11"
    assert code == 1 and "Python 3.11.9 ({})".format(python) in error
    assert "{} cannot make a virtual environment".format(python) in error


def test_python_variable_forces_one(place):
    fake_python(place / "bin" / "python3.7", "3.7.9")
    path = fake_python(place / "own python", "3.9.9")
    assert which(place, PYTHON=path) == ("tf2", "3.9.9", path + "\n")


@pytest.mark.parametrize("script", ["exit 127", "exit 0"])
def test_python_variable_that_does_not_fit_fails(place, script):
    fake_python(place / "bin" / "python3.7", "3.7.9")
    path = fake(place / "own python", script)
    code, out, error = run(place, "setup.sh", "--which", PYTHON=path)
    assert (code, out) == (1, "") and path in error and len(error.strip().split("\n")) == 1


def test_the_running_interpreter_counts(place):
    runtime, version, path = which(place, PYTHON=sys.executable)
    assert version == ".".join(map(str, sys.version_info[:3]))
    assert runtime == ("tf1" if sys.version_info[:2] == (3, 7) else "tf2")
    assert os.path.exists(path.strip())


def finished_environment(place, runtime, requirements):
    """Lays a finished set-up of stand-ins; returns its folder."""
    repository = place / "a folder with spaces" / "repository"
    lines = [line for line in (repository / requirements).read_text(encoding="utf-8").split("\n")
             if line and not line.startswith("#")]
    folder = repository / (".venv-" + runtime)
    fake(folder / "bin" / "python", "exit 0")
    write_text(folder / "set-up", "\n".join(lines) + "\n")
    write_text(repository / "albert_config" / "vocab.txt", "own vocabulary\n")
    return folder


def test_a_finished_set_up_is_taken_as_it_is(place):
    folder = finished_environment(place, "tf1", "requirements.txt")
    code, out, error = run(place, "setup.sh")
    assert (code, out) == (0, "{}/bin/python\n".format(folder))
    assert "installing" not in error and "delete it to have that one again" in error


def test_venv_names_the_environment_that_is_there_and_the_reference_first(place):
    folder = finished_environment(place, "tf2", "requirements-tf2.txt")
    link = folder.parent / ".venv"
    code, _, error = run(place, "setup.sh")
    assert (code, os.readlink(str(link))) == (0, ".venv-tf2")
    assert error.endswith("ready: source .venv/bin/activate\n") and (link / "bin").is_dir()
    finished_environment(place, "tf1", "requirements.txt")
    for _ in range(2):
        assert run(place, "setup.sh")[0] == 0 and os.readlink(str(link)) == ".venv-tf1"
    path = fake(place / "bin" / "python3.11", 'echo "tf2 3.11.4 $0"')
    fake(folder / "bin" / "python", "echo 3.11.4")
    code, out, error = run(place, "setup.sh", PYTHON=path)
    assert code == 0 and out.endswith("{}/bin/python\n".format(folder)), error
    assert os.readlink(str(link)) == ".venv-tf1"
    assert error.endswith("ready: source .venv-tf2/bin/activate\n")


def test_a_venv_of_the_users_own_stays(place):
    folder = finished_environment(place, "tf1", "requirements.txt")
    own = folder.parent / ".venv"
    own.mkdir()
    code, _, error = run(place, "setup.sh")
    assert code == 0 and own.is_dir() and not os.path.islink(str(own))
    assert "it stays" in error and error.endswith("ready: source .venv-tf1/bin/activate\n")


@pytest.mark.parametrize("damage", ["no stamp", "other requirements", "does not run"])
def test_a_half_made_set_up_is_made_again(place, damage):
    folder = finished_environment(place, "tf1", "requirements.txt")
    fake_python(place / "bin" / "python3.7", "3.7.9")
    if damage == "no stamp":
        (folder / "set-up").unlink()
    elif damage == "other requirements":
        write_text(folder / "set-up", "tensorflow-gpu==1.14.0\n")
    else:
        fake(folder / "bin" / "python", "exit 1")
    code, _, error = run(place, "setup.sh")
    assert code == 1 and "Python 3.7.9" in error and "into .venv-tf1" in error
    assert not folder.exists()


def test_python_variable_of_the_other_runtime_is_refused(place):
    path = fake_python(place / "bin" / "python3.7", "3.7.9")
    assert which(place, "--which=tf1", PYTHON=path) == ("tf1", "3.7.9", path + "\n")
    assert which(place, "--which=tf2", PYTHON=path) is None


@pytest.mark.parametrize("broken", ["", "3.7", "3.11"])
def test_ci_tests_each_runtime_with_its_own_python(place, broken):
    """Whatever PYTHON says; where one fails the other is still tested, and the whole fails."""
    repository = place / "a folder with spaces" / "repository"
    (repository / ".ci").mkdir()
    shutil.copy(os.path.join(ROOT, ".ci", "run"), str(repository / ".ci"))
    for runtime, requirements, version, optional in (
            ("tf1", "requirements.txt", "3.7.9", ["serve"]),
            ("tf2", "requirements-tf2.txt", "3.11.9", ["serve", "huggingface"])):
        folder = finished_environment(place, runtime, requirements)
        fake(folder / "bin" / "python", "echo " + version)
        for name in optional:
            path = os.path.join(ROOT, "requirements-{}.txt".format(name))
            shutil.copy(path, str(repository))
            shutil.copy(path, str(folder / ("set-up-" + name)))
    record = 'echo "$PYTHON" >> "{}/tests.log"; [ "${{PYTHON##*python}}" != "{}" ]'
    fake(repository / "test.sh", record.format(place, broken))
    paths = [fake_python(place / "bin" / "python3.7", "3.7.9"),
             fake_python(place / "bin" / "python3.11", "3.11.9")]
    code, out, error = run(place, ".ci/run", PYTHON=paths[0])
    assert code == (1 if broken else 0), error
    assert (place / "tests.log").read_text(encoding="utf-8").split() == paths
    assert "tf1, Python 3.7.9" in out and "tf2, Python 3.11.9" in out


def test_unknown_argument_and_optional_set_fail(place):
    finished_environment(place, "tf1", "requirements.txt")
    assert "unknown argument --wich" in run(place, "setup.sh", "--wich")[2]
    code, _, error = run(place, "setup.sh", "--with=nothing")
    assert code == 1 and "there is no requirements-nothing.txt" in error
    for name in ("huggingface", "onnx"):
        code, _, error = run(place, "setup.sh", "--with=" + name)
        assert code == 1 and "--with={} needs TensorFlow 2.15".format(name) in error


# ---- create_pretrain_data.sh -------------------------------------------------------------------


def calls(place, *arguments, **variables):
    """Runs create_pretrain_data.sh with a recording $PYTHON: (exit code, list of calls, stderr)."""
    log = place / "calls.log"
    record = 'printf "%s\\n" "$@" "" >> "{}"'.format(log)
    variables.setdefault("PYTHON", fake(place / "recording python", record))
    code, _, error = run(place, "create_pretrain_data.sh", *arguments, **variables)
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return code, [call.split("\n") for call in text.split("\n\n") if call], error


def repository_path(place, *parts):
    return str(place.joinpath("a folder with spaces", "repository", *parts))


def test_without_arguments_the_shipped_text_at_the_published_lengths(place):
    write_text(repository_path(place, "data", "news_zh_1.txt"), "一。\n二。\n")
    code, made, error = calls(place)
    assert (code, error, len(made)) == (0, "", 1)
    assert made[0][0] == repository_path(place, "create_pretraining_data.py")
    assert set(made[0][1:]) == {
        "--input_file=" + repository_path(place, "data", "news_zh_1.txt"),
        "--output_file=" + repository_path(place, "data", "tf_news_zh_1.tfrecord"),
        "--vocab_file=" + repository_path(place, "albert_config", "vocab.txt"),
        "--do_whole_word_mask=True", "--max_seq_length=512", "--max_predictions_per_seq=76",
        "--masked_lm_prob=0.15"}


def test_one_record_file_for_each_text_and_flags_go_on(place):
    for name in ("my news.txt", "b.2019.txt.gz"):
        write_text(place / name, "一。\n")
    code, made, _ = calls(place, "my news.txt", "--dupe_factor=2", "b.2019.txt.gz",
                          "--max_seq_length=64")
    assert code == 0
    assert [call[-1] for call in made] == [
        "--output_file=" + repository_path(place, "data", "tf_my news.tfrecord"),
        "--output_file=" + repository_path(place, "data", "tf_b.2019.tfrecord")]
    for call, name in zip(made, ("my news.txt", "b.2019.txt.gz")):
        assert "--input_file=" + name in call and "--dupe_factor=2" in call
        assert call.index("--max_seq_length=64") > call.index("--max_seq_length=512")


def test_a_python_that_is_named_and_not_there_is_not_replaced_by_another(place):
    code, made, error = calls(place, PYTHON="/nowhere/python3")
    assert (code, made) == (1, [])
    assert error == "create_pretrain_data.sh: PYTHON=/nowhere/python3 is no program\n"


def test_bad_files_fail_before_any_work(place):
    write_text(place / "a.txt", "一。\n")
    write_text(place / "a.md", "一。\n")
    code, made, error = calls(place, "a.txt", "missing.txt")
    assert (code, made) == (1, []) and "no such file: missing.txt" in error
    code, made, error = calls(place, "a.txt", "a.md")
    assert (code, made) == (1, []) and "tf_a.tfrecord" in error


def test_a_folder_becomes_one_output(place):
    os.mkdir(str(place / "news"))
    code, made, _ = calls(place, "news/")
    assert code == 0 and len(made) == 1
    assert "--input_file=news/" in made[0] and "data/tf_news.tfrecord" in str(made[0])


def test_a_failing_interpreter_ends_the_script(place):
    write_text(place / "a.txt", "一。\n")
    write_text(place / "b.txt", "一。\n")
    log = place / "calls.log"
    python = fake(place / "failing", 'echo call >> "{}"; exit 3'.format(log))
    code, _, _ = run(place, "create_pretrain_data.sh", "a.txt", "b.txt", PYTHON=python)
    assert code == 3 and log.read_text(encoding="utf-8") == "call\n"


def test_the_set_up_is_used_without_python_variable(place):
    write_text(place / "a.txt", "一。\n")
    code, _, error = run(place, "create_pretrain_data.sh", "a.txt")
    assert code == 1 and "run ./setup.sh first" in error
    folder = finished_environment(place, "tf2", "requirements-tf2.txt")
    fake(folder / "bin" / "python", 'echo "$0"')
    code, out, _ = run(place, "create_pretrain_data.sh", "a.txt")
    assert (code, out) == (0, "{}/bin/python\n".format(folder))

"""How every script starts: what is understood of a command line, and who may write a folder."""

import os
import subprocess
import sys

import pytest
from absl import flags
from helpers.toys import ROOT, write_text

import cli


def values():
    found = flags.FlagValues()
    flags.DEFINE_bool("do_train", False, "", flag_values=found)
    flags.DEFINE_string("master", None, "", flag_values=found)
    return found


@pytest.mark.parametrize("arguments, trains", [
    (["--do_train", "True"], True), (["-do_train"], True), (["-do_train", "false"], False),
    (["--do_train", "--master", "True"], True), (["--do_train=True"], True)], ids=str)
def test_switches_are_understood_as_people_write_them(arguments, trains):
    found = values()
    assert found(cli.understood(["x.py"] + arguments, found)) == ["x.py"]
    assert found.do_train == trains
    assert found.master == ("True" if "--master" in arguments else None)


@pytest.mark.parametrize("flag, hint", [
    ("--export_dir=x", "--do_export"), ("--albert_config_file=x", "--bert_config_file"),
    ("-spm_model_file", "--vocab_file"), ("--gpu=0", "CUDA_VISIBLE_DEVICES")])
def test_flags_of_kindred_scripts_lead_to_the_right_one(flag, hint):
    with pytest.raises(cli.UserError, match="there is no --.*" + hint):
        cli.understood(["x.py", flag, "1"], values())
    finished = subprocess.run([sys.executable, os.path.join(ROOT, "create_pretraining_data.py"),
                               flag], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert finished.returncode == 1
    assert finished.stderr.decode("utf-8").startswith("create_pretraining_data.py: error: there")


def test_names_with_brackets_are_found_as_they_are(tmp_path):
    folder = tmp_path / "a[1]"
    os.mkdir(str(folder))
    path = write_text(folder / "b[2].txt", "渔港")
    write_text(folder / "b2.txt", "渔港")
    assert cli.match_files(path, "input_file") == [path]
    assert len(cli.match_files(str(folder), "input_file")) == 2
    with pytest.raises(cli.UserError, match="no file matches"):
        cli.match_files(str(tmp_path / "c[3].txt"), "input_file")


HOLD = """
import sys, time
sys.path.insert(0, {root!r})
import cli
with cli.sole_writer({folder!r}, "output_dir"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_has_one_writer_until_that_is_killed(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD.format(root=ROOT, folder=str(tmp_path))],
                              stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(cli.UserError, match="--output_dir .* by another run, process %d on \\S"
                           % holder.pid):
            with cli.sole_writer(str(tmp_path), "output_dir"):
                pass
    finally:
        holder.kill()
        holder.wait()
    for _ in range(2):
        with cli.sole_writer(str(tmp_path), "output_dir"):
            pass
        assert not os.listdir(str(tmp_path))
    with cli.sole_writer("gs://bucket/folder", "output_dir"):
        pass


@pytest.mark.parametrize("content, found", [
    ("渔港\r\n", "渔港\r\n"), ("渔港".encode("utf-8"), "渔港"), (iter([b"a", b"b"]), "ab")],
    ids=["text", "bytes", "parts"])
def test_a_file_is_written_whole(tmp_path, content, found):
    path = tmp_path / "a.txt"
    path.write_bytes(b"before")
    cli.write_whole(str(path), content)
    assert path.read_bytes().decode("utf-8") == found and os.listdir(str(tmp_path)) == ["a.txt"]


def test_what_fails_while_it_is_written_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"before")
    with pytest.raises(ZeroDivisionError):
        cli.write_whole(str(path), (b"x" if part else 1 / 0 for part in (1, 0)))
    with pytest.raises(KeyError), cli.whole(str(tmp_path / "folder")) as temporary:
        os.mkdir(temporary)
        raise KeyError("stop")
    assert path.read_bytes() == b"before" and os.listdir(str(tmp_path)) == ["a.txt"]


def test_temporaries_of_killed_runs_are_removed(tmp_path):
    for name in (".tf-00001-of-00002.tfrecord.tmp-77", ".tf-00000-of-00002.tfrecord.tmp-78", "a"):
        (tmp_path / name).write_bytes(b"")
    cli.remove_temporaries(str(tmp_path / "tf-00001-of-00002.tfrecord"))
    assert sorted(os.listdir(str(tmp_path))) == [".tf-00000-of-00002.tfrecord.tmp-78", "a"]

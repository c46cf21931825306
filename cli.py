"""How every script here starts: flags, one-line errors, UTF-8 output, files whole and by pattern.

In: the command line.  Out: a parsed flag set handed to main(), or one clear line and exit code 1.
This module imports no TensorFlow, so that data creation starts fast.
"""

import collections
import contextlib
import fcntl
import glob
import importlib
import logging
import os
import re
import shutil
import socket
import sys
import time
import types
import warnings

from absl import app, flags
from absl import logging as absl_logging

OF_TENSORFLOW = re.compile(r"[/\\]tensorflow(_core|_estimator)?[/\\]")
KEPT = ("Saving checkpoints", "Restoring parameters")
EXIT_CODE_OF_CTRL_C = 130
HINTS = {  # flags of kindred scripts
    "albert_config_file": "give the config as --bert_config_file",
    "export_dir": "--do_export writes export/<name>/<version>/ into --output_dir",
    "spm_model_file": "this model reads WordPiece, give its vocabulary as --vocab_file",
    "gpu": "every GPU that CUDA_VISIBLE_DEVICES leaves is taken, --num_devices takes fewer",
    "gpus": "--num_devices says how many GPUs are taken"}
LOCK = ".lock"  # in a folder that a process writes
ORPHANS_LIVE = 1.0  # seconds that the worker processes of a killed run may still hold its lock
MOST = 2 ** 31 - 1  # of a whole number; more is nowhere meant, and no tensor of int32 holds it

# open(path, mode); rename(source, target), over what is there; remove(path of a file or folder).
FileSystem = collections.namedtuple("FileSystem", "open rename remove")
LOCAL = FileSystem(open, os.replace, lambda path: (
    shutil.rmtree if os.path.isdir(path) else os.remove)(path))


class UserError(Exception):
    """Something the user can put right. The message names the file, line, flag or variable."""


def run(main, define_flags, takes_texts=False):
    """Defines the flags, parses sys.argv, calls main(flag_values); UserError becomes one line.

    Flags are defined here and not on import, so that scripts can import one another. With
    takes_texts main is also given the list of arguments that are no flags; else one is an error.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    define_flags(flags.FLAGS)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors of TensorFlow's C++ part only
    warnings.filterwarnings("ignore", module="tensorflow")
    logging.getLogger("tensorflow").handlers.clear()  # absl's handler writes each line already
    absl_logging.get_absl_handler().setFormatter(
        logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
    try:
        app.run(lambda arguments: _guarded(main, arguments, takes_texts),
                understood(sys.argv, flags.FLAGS))
    except UserError as error:
        end_at_once(error)


def understood(arguments, flag_values):
    """The arguments with `--flag True` of a switch as --flag=True.

    Raises:
      UserError: a flag of a kindred script, with a hint at what serves here.
    """
    joined = []
    for argument in arguments:
        former = joined[-1].lstrip("-") if joined and joined[-1].startswith("-") else ""
        name = argument.lstrip("-").partition("=")[0]
        if former in flag_values and flag_values[former].boolean and (
                argument.lower() in ("true", "false")):
            joined[-1] += "=" + argument
            continue
        if argument.startswith("-") and name in HINTS and name not in flag_values:
            raise UserError("there is no --{}: {}".format(name, HINTS[name]))
        joined.append(argument)
    return joined


def is_for_users(record):
    """Whether a line of TensorFlow's logger says what a user can do something with.

    Not its deprecation notices, nor what its own modules report of each graph, except checkpoints.
    """
    if not OF_TENSORFLOW.search(record.pathname):
        return True
    if record.levelno > logging.INFO:
        return "deprecated" not in record.getMessage()
    return record.getMessage().startswith(KEPT)


logging.getLogger("tensorflow").addFilter(is_for_users)  # here, for what comes while importing


def _guarded(main, arguments, takes_texts):
    try:
        if takes_texts:
            # The locale may be no UTF-8 one; the terminal's bytes are.
            return main(flags.FLAGS, [os.fsencode(text).decode("utf-8", "replace")
                                      for text in arguments[1:]])
        if len(arguments) > 1:
            raise UserError("unexpected argument {!r}: every setting is a --flag=value, and a "
                            "pattern with * stands in quotes".format(arguments[1]))
        return main(flags.FLAGS)
    except UserError as error:
        sys.stdout.flush()
        sys.stderr.write("{}: error: {}\n".format(os.path.basename(arguments[0]), error))
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("{}: interrupted\n".format(os.path.basename(arguments[0])))
        return EXIT_CODE_OF_CTRL_C


def settings_of(flag_values):
    """The project's own flags as a plain object, which main() hands down."""
    names = [flag.name for module, members in flag_values.flags_by_module_dict().items()
             if not module.startswith("absl.") for flag in members]
    return types.SimpleNamespace(**{name: flag_values[name].value for name in names})


def end_at_once(message):
    """Ends the process in one line from any thread, where the main one waits in TensorFlow."""
    sys.stdout.flush()
    sys.stderr.write("{}: error: {}\n".format(os.path.basename(sys.argv[0]), message))
    sys.stderr.flush()
    os._exit(1)


@contextlib.contextmanager
def sole_writer(output, flag_name, lock=None, shared=False):
    """Locks an output for this process while the body of a `with` statement writes there.

    The lock ends with the process and its worker processes, however they end. Only local outputs
    have one, not gs://.

    Args:
      output: str, the value of the flag.
      flag_name: str, named in the message.
      lock: path of the file that is locked; default: one in the folder `output`.
      shared: whether others that say so too may hold it at the same time.
    Raises:
      UserError: another process holds it.
    """
    if "://" in output:
        yield
        return
    lock = lock or os.path.join(output, LOCK)
    stream, holder = _locked(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    if holder is not None:
        raise UserError("--{} {!r} is being written by another run, {}; wait for its end, or take "
                        "another".format(flag_name, output, holder))
    with stream:
        stream.truncate(0)
        stream.write("process {} on {}\n".format(os.getpid(), socket.gethostname()))
        stream.flush()
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the last one clears up
                os.remove(lock)


def _locked(path, mode):
    """(the file, open and locked, None), or (None, what the process that holds it wrote there)."""
    started = time.time()
    while True:
        stream = open(path, "a+", encoding="utf-8", newline="")
        try:
            fcntl.flock(stream, mode | fcntl.LOCK_NB)
            if os.fstat(stream.fileno()).st_nlink:  # else its holder has removed it just now
                return stream, None
        except BlockingIOError:
            if time.time() > started + ORPHANS_LIVE:
                with stream:
                    stream.seek(0)
                    return None, stream.read().strip()
            time.sleep(0.1)
        stream.close()


def print_answers(answers):
    """Prints (line, whether it is an answer or a reason for none) of a pipe as they come.

    Returns:
      the exit code: 1 if there was none for one of them.
    """
    code = 0
    for line, is_answer in answers:
        if not is_answer:
            code = 1
        print(line, flush=True)
    return code


def file_system(path):
    """The FileSystem of a path: LOCAL, or TensorFlow's for one that begins as gs:// does."""
    if "://" not in path:
        return LOCAL
    gfile = importlib.import_module("tensorflow.compat.v1").io.gfile
    return FileSystem(gfile.GFile, lambda source, target: gfile.rename(source, target, True),
                      lambda path: (gfile.rmtree if gfile.isdir(path) else gfile.remove)(path))


def temporary_name(path):
    """The hidden name beside path under which this process writes it until it is complete."""
    return "{}{}-{}".format(temporary_stem(path), socket.gethostname(), os.getpid())


def temporary_stem(path):
    """How the hidden names of all machines and processes begin."""
    folder, name = os.path.split(path)
    return os.path.join(folder, ".{}.tmp-".format(name))


@contextlib.contextmanager
def whole(path, system=None):
    """In a `with` statement: the temporary name under which to write the file or folder `path`.

    It is renamed at the end; where the body raises, it is removed and path stays as it was.
    """
    system, temporary = system or file_system(path), temporary_name(path)
    try:
        yield temporary
        system.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to be told of
            system.remove(temporary)
        raise


def write_whole(path, content, system=None):
    """Writes a file that is whole or not there.

    content: text, which becomes UTF-8, bytes, or an iterable of parts in bytes.
    """
    if isinstance(content, str):
        content = content.encode("utf-8")
    with whole(path, system) as temporary:
        with (system or file_system(path)).open(temporary, "wb") as stream:
            for part in [content] if isinstance(content, bytes) else content:
                stream.write(part)


def remove_temporaries(path):
    """Removes what killed runs have left of a local file under its hidden names."""
    for old in glob.glob(glob.escape(temporary_stem(path)) + "*"):
        LOCAL.remove(old)


def refuse_pipes(paths, flag_name):
    """Raises UserError for a local path that is a pipe or device, which cannot be read twice."""
    for path in paths:
        if "://" not in path and os.path.exists(path) and not os.path.isfile(path):
            raise UserError("--{}: {} is a pipe or device; it is read more than once, so it must "
                            "be a file".format(flag_name, path))


def given_flags(flag_values):
    """Names of the flags that stand on the command line."""
    return {name for name in flag_values if flag_values[name].present}


def require_flags(flag_values, names):
    """Raises UserError for the first flag of names that is not set."""
    for name in names:
        if getattr(flag_values, name) in (None, ""):
            raise UserError("--{} is required".format(name))


def require_within(settings, least, most, *names):
    """Raises UserError for the first flag of names whose value is below `least` or above `most`."""
    for name in names:
        value = getattr(settings, name)
        if not least <= value <= most:
            raise UserError("--{} is {}, must be at {} {}".format(
                name, value, *("least", least) if value < least else ("most", most)))


def match_files(patterns, flag_name, find=glob.glob, is_directory=os.path.isdir, inside="*"):
    """Files for a comma-separated list of paths, patterns and directories, sorted in each member.

    Args:
      patterns: str, say "a.txt,corpus/*.txt,more/".
      flag_name: str, named in the message.
      find: glob function; tf.io.gfile.glob where paths may be gs://.
      is_directory: test that goes with `find`.
      inside: pattern of the files that are taken from a directory.
    Returns:
      list of paths, each once, hidden files left out.
    Raises:
      UserError: a member matches no file.
    """
    found = []
    for pattern in (part.strip() for part in patterns.split(",")):
        if not pattern:
            continue
        exact, wanted = glob.escape(pattern), pattern  # a name may hold [1] itself
        if is_directory(pattern):
            exact = wanted = os.path.join(exact, inside)
        matched = [path for path in sorted(find(exact) or find(wanted))
                   if not os.path.basename(path).startswith(".") and not is_directory(path)]
        if not matched:
            raise UserError("--{}: no file matches {!r} (working directory {!r})".format(
                flag_name, wanted, os.getcwd()))
        found.extend(matched)
    if not found:
        raise UserError("--{} names no file: {!r}".format(flag_name, patterns))
    return list(dict.fromkeys(found))

"""Runs of a script that end as by kill -9, at a step that the test chooses and not a clock."""

import signal
import subprocess
import sys

from helpers.toys import ROOT

PROGRAM = """
import importlib, os, signal, sys
root, name, last = sys.argv[1:4]
sys.argv[:] = [name + ".py"] + sys.argv[4:]
sys.path.insert(0, root)
import tensorflow.compat.v1 as tf
import cli
save = tf.train.Saver.save

def save_and_end(self, session, path, global_step=None, **options):
    save(self, session, path, global_step=global_step, **options)
    if global_step >= int(last):
        os.kill(os.getpid(), signal.SIGKILL)

tf.train.Saver.save = save_and_end
script = importlib.import_module(name)
cli.run(script.main, script.define_flags)
"""


def run_until_killed(script, step, arguments):
    """Runs a script's main() in a process that is killed when the checkpoint of a step is there."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, ROOT, script.__name__, str(step)]
                          + list(arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == -signal.SIGKILL, done.stdout.decode("utf-8", "replace")

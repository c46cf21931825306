"""Draws the curves of a training: losses, accuracies, rate, gradient norm, speed.

In: --output_dir of a run, with its event files.  Out: curves.png in that folder.
"""

import tensorflow.compat.v1 as tf
from absl import flags

import cli
from training import curves


def define_flags(flag_values):
    """Defines this script's flags."""
    flags.DEFINE_string("output_dir", None, "Folder of the run. Required.",
                        flag_values=flag_values)


def main(flag_values):
    """Draws the curves of one run."""
    tf.logging.set_verbosity(tf.logging.INFO)
    cli.require_flags(flag_values, ["output_dir"])
    curves.plot_run(flag_values.output_dir)


if __name__ == "__main__":
    cli.run(main, define_flags)

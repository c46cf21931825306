"""What happens beside the steps of a training: progress, the stop at a bad step or on a signal.

In: tensors of the training graph.  Out: log lines and TensorBoard scalars; a UserError that names
what is not finite; an orderly end, with a checkpoint, of a run that is told to go.
"""

import collections
import contextlib
import datetime
import math
import signal
import threading
import time

import tensorflow.compat.v1 as tf

from cli import UserError
from weights import checkpoints

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ProgressHook(tf.train.SessionRunHook):
    """Logs one line every few steps, with the means since the last one, and writes them as scalars.

    step/total, losses, accuracies, learning rate, examples/s, tokens/s, time left. A step that a
    loss scale skipped, whose gradients are not finite, is in no mean; left_out counts those.
    """

    def __init__(self, scalars, learning_rate, tokens, training, every_steps, output_dir):
        """Keeps the settings.

        Args:
          scalars: OrderedDict name -> scalar tensor.
          tokens: scalar tensor, tokens in a step over all devices, or None.
          training: run_settings.Training.
          output_dir: folder of the event file; None writes none.
        """
        self.names = list(scalars)
        self.fetches = dict(scalars, learning_rate=learning_rate)
        if tokens is not None:
            self.fetches["tokens"] = tokens
        self.training = training
        self.every_steps = every_steps
        self.writer = output_dir and tf.summary.FileWriterCache.get(output_dir)

    def after_create_session(self, session, coord):
        self.done = int(session.run(tf.train.get_global_step()))
        self.steps, self.started = [], time.time()

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.fetches)

    def after_run(self, run_context, run_values):
        self.steps.append(run_values.results)
        self.done += 1
        if self.done % self.every_steps == 0 or self.done >= self.training.num_train_steps:
            self.report(max(time.time() - self.started, 1e-9))
            self.steps, self.started = [], time.time()

    def report(self, seconds):
        """Logs and writes the means of the steps since the last report, which took `seconds`."""
        count = len(self.steps)
        taken = [values for values in self.steps
                 if all(math.isfinite(values[name]) for name in self.names)]
        means = collections.OrderedDict(
            (name, sum(float(values[name]) for values in taken) / len(taken))
            for name in self.names if taken)
        if len(taken) < count:
            means.update(left_out=count - len(taken))
        means.update(learning_rate=float(self.steps[-1]["learning_rate"]),
                     examples_per_second=self.training.batch_size * count / seconds)
        if "tokens" in self.fetches:
            tokens = sum(float(values["tokens"]) for values in self.steps)
            means.update(tokens_per_second=tokens / seconds)
        steps_left = max(self.training.num_train_steps - self.done, 0)
        tf.logging.info(
            "step %d/%d  %s  left %s", self.done, self.training.num_train_steps, "  ".join(
                "%s %.4g" % (name.replace("_per_second", "/s"), value)
                for name, value in means.items()),
            datetime.timedelta(seconds=int(steps_left * seconds / count)))
        if self.writer:
            self.writer.add_summary(tf.Summary(value=[
                tf.Summary.Value(tag=name, simple_value=value) for name, value in means.items()]),
                self.done)
            self.writer.flush()


class FiniteHook(tf.train.SessionRunHook):
    """Raises UserError after a step whose loss or gradient was not finite.

    The step itself changed nothing (optimization.create_optimizer), and as the training ends by an
    error no further checkpoint is saved.
    """

    def __init__(self, update, output_dir):
        """update: optimization.Update."""
        self.names = update.names
        self.fetches = dict(finite=update.finite, rate=update.learning_rate,
                            step=tf.train.get_global_step())
        self.output_dir = output_dir

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.fetches)

    def after_run(self, run_context, run_values):
        found = run_values.results
        if found["finite"].all():
            return
        bad = [name for name, finite in zip(self.names, found["finite"]) if not finite]
        raise UserError(
            "step {}: not finite at learning rate {:.3g}: {}{}; the update was left out, {}".format(
                int(found["step"]) + 1, float(found["rate"]),
                ", ".join(name if name == "loss" else "gradient of " + name for name in bad[:3]),
                " and %d more" % (len(bad) - 3) if len(bad) > 3 else "",
                what_next(self.output_dir)))


class LoopHook(tf.train.SessionRunHook):
    """Between two loops of a TPU: UserError if no step of the last was finite; the wish to end.

    A step that is not finite changes nothing and is not counted. A single one is left out, as the
    host looks at the TPU between two loops only.
    """

    def __init__(self, output_dir, told):
        """told: Termination."""
        self.output_dir = output_dir
        self.told = told

    def after_create_session(self, session, coord):
        self.done = int(session.run(tf.train.get_global_step()))

    def after_run(self, run_context, run_values):
        former, self.done = self.done, int(run_context.session.run(tf.train.get_global_step()))
        if self.done == former:
            raise UserError("after step {} no step of a whole loop had a finite loss and finite "
                            "gradients; {}".format(former, what_next(self.output_dir)))
        if self.told.requested:
            run_context.request_stop()


def what_next(output_dir):
    """The end of a message about steps that are not finite."""
    return ("the last good checkpoint is {}. Try a lower --learning_rate or a longer "
            "warm-up".format(checkpoints.newest_checkpoint(output_dir)))


class TerminationHook(tf.train.SessionRunHook):
    """Ends the training after the step in which one of the devices was told to go.

    All of them end after the same step, and the Estimator saves a checkpoint.
    """

    def __init__(self, told, agree):
        """told: Termination; agree: function, scalar tensor -> its mean over all devices."""
        self.told = told
        self.vote = tf.placeholder_with_default(0.0, [], "told_to_go")
        self.votes = agree(self.vote)

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.votes, {self.vote: float(self.told.requested)})

    def after_run(self, run_context, run_values):
        if run_values.results > 0.0:
            self.told.requested = True
            run_context.request_stop()


class Termination(object):
    """Whether SIGTERM or Ctrl-C came: `requested`, and which: `number`."""

    def __init__(self):
        self.requested = False
        self.number = signal.SIGTERM

    @contextlib.contextmanager
    def awaited(self):
        """Takes a signal as a wish to end soon; afterwards the process exits if one came."""
        self.requested = False
        in_main = threading.current_thread() is threading.main_thread()
        former = [signal.signal(number, self.note) for number in SIGNALS if in_main]
        try:
            yield self
        finally:
            for number, handler in zip(SIGNALS, former):
                signal.signal(number, handler)
        if self.requested:
            tf.logging.info("ended by %s; start again to go on", signal.Signals(self.number).name)
            raise SystemExit(128 + self.number)

    def note(self, number, frame):
        """The signals' handler; a second Ctrl-C ends the process at once."""
        del frame
        self.requested, self.number = True, number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tf.logging.warning("%s: saving a checkpoint after this step", signal.Signals(number).name)

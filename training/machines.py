"""Several machines in one training: waits until all are up, and ends when one is lost.

In: the addresses of TF_CONFIG, or a TPU's.  Out: log lines while one is awaited; where one does not
come or is lost, one line and the end, as TensorFlow would wait for it for ever.
"""

import contextlib
import socket
import threading
import time

import tensorflow.compat.v1 as tf

from cli import UserError, end_at_once
from weights.checkpoints import newest_checkpoint

POLL_SECONDS = 1.0
COMING_SECONDS = 600.0  # a machine may look at all its records first
REFUSED_SECONDS = 5.0  # its system says that nobody listens: the process has ended
SILENT_SECONDS = 30.0  # nothing comes back at all
SAID_SECONDS = 10.0
TPU_SECONDS = 60.0


class Watch(tf.train.SessionRunHook):
    """Looks every second whether the other machines of a training answer, until its last step."""

    def __init__(self, hosts, own, output_dir, last_step, told):
        """Keeps the settings.

        Args:
          hosts: "host:port" of every machine; own: this one's number.
          last_step: after which the machines part.
          told: hooks.Termination, which ends all of them.
        """
        self.hosts = [(number, host) for number, host in enumerate(hosts) if number != own]
        self.output_dir, self.last_step, self.told = output_dir, last_step, told
        self.ended = threading.Event()
        self.last_answer = {}  # host -> time

    @contextlib.contextmanager
    def kept(self):
        """Watches during a `with` statement."""
        self.started = time.time()
        thread = threading.Thread(target=self.look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.ended.set()

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(tf.train.get_global_step())

    def after_run(self, run_context, run_values):
        if run_values.results >= self.last_step or self.told.requested:
            self.ended.set()

    def look(self):
        """Asks each machine every second; ends the process for one that does not answer."""
        said = self.started
        while not self.ended.wait(POLL_SECONDS):
            now = time.time()
            saying = now - said > SAID_SECONDS
            said = now if saying else said
            for number, host in self.hosts:
                self.judge("machine {} ({})".format(number, host), host, now, saying)

    def judge(self, machine, host, now, saying):
        """Asks a machine; `saying` says that it is awaited; ends for one that is lost."""
        answer = answer_of(host)
        if answer == "up":
            self.last_answer[host] = now
            return
        if host not in self.last_answer:
            waited = now - self.started
            if waited > COMING_SECONDS:
                end_at_once("{} did not come up within {:.0f} seconds; start all machines of "
                            "TF_CONFIG".format(machine, COMING_SECONDS))
            if saying:
                tf.logging.info("waiting for %s: %.0f of %.0f seconds", machine, waited,
                                COMING_SECONDS)
            return
        silent = now - self.last_answer[host]
        bound = REFUSED_SECONDS if answer == "refused" else SILENT_SECONDS
        if silent > bound and not self.ended.is_set():
            end_at_once("{} is lost, it has not answered for {:.0f} seconds; the last complete "
                        "checkpoint is {}; start all machines again to go on from it".format(
                            machine, silent, newest_checkpoint(self.output_dir)))


def answer_of(host, seconds=POLL_SECONDS):
    """"up" where somebody listens at "host:port", "refused" where nobody does, else "silent"."""
    name, _, port = host.rpartition(":")
    try:
        socket.create_connection((name.strip("[]"), int(port)), timeout=seconds).close()
        return "up"
    except ConnectionRefusedError:
        return "refused"
    except (OSError, ValueError):
        return "silent"


def await_tpu(address):
    """Waits until a TPU answers at a grpc:// address; a name is for TensorFlow to look up.

    Raises:
      UserError: it does not within a minute.
    """
    started = time.time()
    while address.startswith("grpc://") and answer_of(address[len("grpc://"):]) != "up":
        waited = time.time() - started
        if waited > TPU_SECONDS:
            raise UserError("the TPU at {} does not answer; is it running, and reachable from this "
                            "machine?".format(address))
        tf.logging.info("waiting for the TPU at %s: %.0f of %.0f seconds", address, waited,
                        TPU_SECONDS)
        time.sleep(min(SAID_SECONDS, TPU_SECONDS))

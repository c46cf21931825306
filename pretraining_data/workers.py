"""Jobs over worker processes.

In: a function and its jobs.  Out: results as they come.  A failing worker ends the run with its own
error, a dead one with a clear line, and workers never outlive their parent.  No TensorFlow.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing import connection

from absl import logging

import cli


def usable_cores():
    """Number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(function, jobs, num_workers):
    """Yields (job, function(job)) in the order in which jobs finish.

    Args:
      function: a callable that can be pickled.
      jobs: list.
      num_workers: int; with one, or with one job, all happens in this process.
    Raises:
      UserError: of a job, or for a worker that was killed.
    """
    num_workers = min(num_workers, len(jobs))
    if num_workers <= 1:
        for job in jobs:
            yield job, function(job)
        return
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    workers = {}
    try:
        for _ in range(num_workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(function, theirs, os.getpid()))
            process.daemon = True
            process.start()
            theirs.close()
            workers[ours] = process
        yield from _hand_out(workers, list(jobs))
    finally:
        for process in workers.values():
            process.terminate()
        for process in workers.values():
            process.join()


def _hand_out(workers, jobs):
    """Gives each idle worker the next job; yields (job, result)."""
    waiting = list(reversed(jobs))
    running = {}
    for pipe in workers:
        running[pipe] = waiting.pop()
        pipe.send(running[pipe])
    while running:
        for pipe in connection.wait(list(running)):
            job = running.pop(pipe)
            try:
                result, error = pipe.recv()
            except EOFError:
                workers[pipe].join()
                raise cli.UserError(ending(workers[pipe].exitcode)) from None
            if error is not None:
                raise error
            if waiting:
                running[pipe] = waiting.pop()
                pipe.send(running[pipe])
            yield job, result


def ending(exit_code):
    """What to say of a worker that ended in the middle of a job."""
    if exit_code < 0:
        return ("a worker process was killed by signal {}; short of memory? Then use fewer "
                "--num_workers or more --num_shards".format(-exit_code))
    return "a worker process failed (exit code {}); its own error stands above".format(exit_code)


def _work(function, pipe, parent):
    """A worker's life: jobs in, (result, error) out, until the parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            answer = function(job), None
        except cli.UserError as error:
            answer = None, error
        except MemoryError:
            answer = None, cli.UserError("out of memory: use more --num_shards")
        except OSError as error:
            answer = None, cli.UserError(str(error))
        pipe.send(answer)


def watch(total, what):
    """A function to call after each finished job: a bar on a terminal, else a line a minute."""
    if sys.stderr.isatty():
        import tqdm
        tqdm.tqdm.monitor_interval = 0  # no thread beside processes that fork
        return tqdm.tqdm(total=total, unit=" " + what).update
    return ProgressLines(total, what)


class ProgressLines(object):
    """Logs done/total and the time to go, at most once a minute."""

    def __init__(self, total, what, interval=60.0, clock=time.time):
        self.total, self.what, self.interval, self.clock = total, what, interval, clock
        self.done, self.started = 0, clock()
        self.logged = self.started

    def __call__(self):
        self.done += 1
        now = self.clock()
        if now - self.logged >= self.interval and self.done < self.total:
            self.logged = now
            left = (now - self.started) / self.done * (self.total - self.done)
            logging.info("%d of %d %s, about %.0f s to go", self.done, self.total, self.what, left)


def _leave_with(parent):
    """Ends this process soon after its parent is gone, however that ended."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)

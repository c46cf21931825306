"""Rows of all requests that wait -> joined predictions, in a thread of their own.

In: requests of one or more rows, from any thread.  Out: a future of each, with its answers.

While a prediction runs, what comes in waits; the next prediction takes a row of each waiting
request in turn, so that a request of many rows does not hold up those of one, and a long row counts
as several. Nothing waits for others to come: on an idle server a row is predicted at once.
"""

import collections
import concurrent.futures
import threading

from absl import logging

from cli import UserError

CHARS_OF_A_ROW = 512  # a row with more of them counts as several: a model may cut it into windows

Service = collections.namedtuple("Service", "about texts encode answer")
Service.__doc__ = """A model that answers rows.

about: dict for JSON, what kind of model it is.  texts: how many texts a row may have, (1,), (2,)
or (1, 2).  encode: function (tuple of texts) -> what `answer` takes; raises UserError for a row
that this model cannot take.  answer: function (list of those) -> list of dicts for JSON.
"""


class TooManyWaiting(Exception):
    """More rows wait already than are allowed to."""


class Request(object):
    """Rows that are answered together.

    Attributes:
      rows: what they are.  answers: what is known so far, in the same order.
      taken: how many have gone into a prediction.  answered: how many are known.
      future: of the list of answers.
    """

    def __init__(self, rows):
        self.rows, self.answers = rows, [None] * len(rows)
        self.taken = self.answered = 0
        self.future = concurrent.futures.Future()

    def set_answer(self, place, answer):
        """Keeps the answer of one row; with the last one the future is done."""
        self.answers[place] = answer
        self.answered += 1
        if self.answered == len(self.rows) and self.future.set_running_or_notify_cancel():
            self.future.set_result(self.answers)

    def fail(self, error):
        """Ends the request with an exception; the rest of its rows is not predicted."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class Batcher(object):
    """A thread that predicts what waits.

    Attributes:
      waiting_rows: how many rows have not gone into a prediction yet.
    """

    def __init__(self, service, batch_size, most_waiting, observe=lambda rows: None):
        """Starts the thread, which ends with the process or by close().

        Args:
          service: Service.
          batch_size: rows of a prediction at most, see there.  most_waiting: rows that may wait.
          observe: called with the number of rows of each prediction.
        """
        self.service, self.observe = service, observe
        self.batch_size, self.most_waiting = batch_size, most_waiting
        self.waiting_rows, self.closed = 0, False
        self._requests = collections.deque()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="predictions", daemon=True)
        self._thread.start()

    def submit(self, rows):
        """A concurrent.futures.Future of the answers; cancelling it drops what is not predicted.

        Raises:
          TooManyWaiting: as it says.
        """
        request = Request(rows)
        with self._changed:
            if self.waiting_rows + len(rows) > self.most_waiting:
                raise TooManyWaiting
            self.waiting_rows += len(rows)
            self._requests.append(request)
            self._changed.notify()
        return request.future

    def close(self):
        """Ends the thread once nothing waits."""
        with self._changed:
            self.closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self):
        while True:
            with self._changed:
                while not self._requests and not self.closed:
                    self._changed.wait()
                if not self._requests:
                    return
                batch = self._next_batch()
            self._predict(self._encoded(batch))

    def _next_batch(self):
        """[(Request, number of the row)]: a row of each request in turn until the batch is full."""
        batch, counted = [], 0
        while self._requests and counted < self.batch_size:
            request = self._requests.popleft()
            if request.future.done():  # refused by an earlier row, or nobody waits any more
                self.waiting_rows -= len(request.rows) - request.taken
                continue
            batch.append((request, request.taken))
            counted += 1 + sum(map(len, request.rows[request.taken])) // CHARS_OF_A_ROW
            request.taken += 1
            self.waiting_rows -= 1
            if request.taken < len(request.rows):
                self._requests.append(request)
        return batch

    def _encoded(self, batch):
        """[(Request, number of the row, encoded row)]; a bad row fails its own request alone."""
        encoded = []
        for request, place in batch:
            try:
                encoded.append((request, place, self.service.encode(request.rows[place])))
            except UserError as error:
                request.fail(UserError("row {}: {}".format(place + 1, error)))
        return encoded

    def _predict(self, batch):
        batch = [part for part in batch if not part[0].future.done()]
        if not batch:
            return
        try:
            answers = self.service.answer([row for _, _, row in batch])
        except Exception as error:  # whatever it is, the others are to be answered
            if len(batch) == 1:
                logging.exception("a prediction failed")
                batch[0][0].fail(error)
            for part in batch if len(batch) > 1 else ():
                self._predict([part])
            return
        self.observe(len(batch))
        for (request, place, _), answer in zip(batch, answers):
            request.set_answer(place, answer)

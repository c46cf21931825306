"""HTTP around a Service: JSON in and out, limits, counters, a page for people, a clean end.

In: a batching.Service, a listening socket.  Out: answers until SIGTERM or SIGINT.

    GET  /         a page on which a person types texts
    POST /predict  {"rows": [row, ...]} -> {"answers": [answer, ...]}; a row is a text, or a pair
                   of texts as a list
    GET  /model    what kind of model it is, what a row is, and the limits
    GET  /healthz  {"status": "ok"}; 503 once it is ending
    GET  /metrics  for Prometheus

Each refusal is {"error": "..."} with a status of its own; a fault of the server is 500 and its
traceback stands in the server's log alone.
"""

import asyncio
import collections
import http
import json
import os
import signal
import socket

import prometheus_client
import tornado.httpserver
import tornado.netutil
import tornado.web
from absl import logging

from cli import UserError
from serving.batching import Batcher, TooManyWaiting

Limits = collections.namedtuple("Limits", "body rows chars waiting_rows body_seconds end_seconds")
Limits.__doc__ = """What one request, and all together, may take.

body: bytes of a request.  rows: of a request.  chars: of a text.  waiting_rows: of all requests
that wait.  body_seconds: from a request's head to its end.  end_seconds: from SIGTERM to the end.
"""
DISCARDED = 64  # times Limits.body that is read and thrown away, so that the client sees why
IDLE_SECONDS = 75  # of a connection without a request
SECONDS = (.005, .01, .02, .035, .05, .075, .1, .15, .2, .3, .5, .75, 1, 2, 5, 10)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page.html")
HEADERS = {"Server": "albert", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
           "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src "
           "'unsafe-inline'; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"}


class Refused(tornado.web.HTTPError):
    """A request that is not answered, with the words that the client sees."""

    def __init__(self, status, words):
        super().__init__(status)
        self.words = words


class Metrics(object):
    """The counters, in a registry of their own."""

    def __init__(self):
        self.registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        self.requests = prometheus_client.Counter(
            "albert_requests", "Requests by path and status", ["path", "status"],
            registry=self.registry)
        self.seconds = prometheus_client.Histogram(
            "albert_request_seconds", "Time from a request's head to its answer", ["path"],
            buckets=SECONDS, registry=self.registry)
        self.rows = prometheus_client.Histogram(
            "albert_prediction_rows", "Rows that one prediction joined", buckets=ROWS,
            registry=self.registry)
        self.waiting = prometheus_client.Gauge(
            "albert_waiting_rows", "Rows that wait for a prediction", registry=self.registry)

    def observe(self, handler):
        """Counts a finished request."""
        self.requests.labels(handler.PATH, handler.get_status()).inc()
        self.seconds.labels(handler.PATH).observe(handler.request.request_time())


# --- what a request asks ----------------------------------------------------------------------


def rows_of(body, texts, limits):
    """The rows of a request's body: a list of tuples of texts.

    Args:
      body: bytes.  texts: how many texts a row may have.  limits: Limits.
    Raises:
      Refused: 400 for what is no such request, 413 for one that is too large.
    """
    try:
        value = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Refused(400, "the body is not UTF-8: byte {}".format(error.start)) from None
    except (ValueError, RecursionError) as error:
        raise Refused(400, "the body is not JSON: {}".format(error)) from None
    rows = value.get("rows") if isinstance(value, dict) else None
    if not isinstance(rows, list) or not rows:
        raise Refused(400, 'expected {"rows": [...]} with at least one row')
    if len(rows) > limits.rows:
        raise Refused(413, "{} rows, at most {} are taken at once".format(len(rows), limits.rows))
    return [texts_of(row, texts, limits, "row {}".format(number))
            for number, row in enumerate(rows, 1)]


def texts_of(row, texts, limits, where):
    """The tuple of texts that a row is; raises Refused, naming `where`."""
    parts = [row] if isinstance(row, str) else row
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise Refused(400, "{}: a row is a text, or a list of texts".format(where))
    if len(parts) not in texts:
        raise Refused(400, "{}: {} texts, this model takes {}".format(
            where, len(parts), " or ".join(map(str, texts))))
    for text in parts:
        if len(text) > limits.chars:
            raise Refused(413, "{}: a text of {} characters, at most {} are taken".format(
                where, len(text), limits.chars))
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise Refused(400, "{}: half a surrogate pair is no character".format(where))
    return tuple(parts)


# --- what answers it --------------------------------------------------------------------------


class Handler(tornado.web.RequestHandler):
    """What all paths share; a path that does not exist is answered by this class itself."""

    PATH = "other"  # in the counters

    def initialize(self, server):
        self.server = server

    def set_default_headers(self):
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def prepare(self):
        self.server.under_way.add(self)
        if self.PATH == "other":
            raise Refused(404, "there is no {}; there are {}".format(
                self.request.path, ", ".join(sorted(PATHS))))

    def compute_etag(self):
        """None: answers are not cached."""
        return None

    def finish(self, chunk=None):
        """Ends the answer; it is under way until its last byte is with the system."""
        flushed = super().finish(chunk)
        flushed.add_done_callback(lambda _: self.server.under_way.discard(self))
        return flushed

    def on_connection_close(self):
        super().on_connection_close()
        self.server.under_way.discard(self)

    def write_json(self, value):
        """Ends the answer with a JSON object."""
        self.set_header("Content-Type", "application/json; charset=utf-8")
        return self.finish(json.dumps(value, ensure_ascii=False).encode("utf-8") + b"\n")

    def write_error(self, status_code, exc_info=(None, None, None), **_):
        words = getattr(exc_info[1], "words", http.HTTPStatus(status_code).phrase)
        if status_code == 405:
            methods = ", ".join(self.SUPPORTED_METHODS)
            self.set_header("Allow", methods)
            words = "{} takes {}".format(self.PATH, methods)
        if status_code == 503:
            self.set_header("Retry-After", "1")
        self.write_json({"error": words})

    def log_exception(self, typ, value, tb):
        if not isinstance(value, tornado.web.HTTPError):
            logging.error("%s %s failed", self.request.method, self.request.path,
                          exc_info=(typ, value, tb))


@tornado.web.stream_request_body
class PredictHandler(Handler):
    """Answers rows; of what is too large the rest is thrown away, then it is refused.

    Refused at once, it would meet a closed connection while it sends, and see no reason.
    """

    PATH, SUPPORTED_METHODS = "/predict", ("POST",)

    def initialize(self, server):
        super().initialize(server)
        self.chunks, self.size, self.future = [], 0, None

    def prepare(self):
        super().prepare()
        if self.server.ending:
            raise Refused(503, "the server is ending")

    def data_received(self, chunk):
        self.size += len(chunk)
        if self.size <= self.server.limits.body:
            self.chunks.append(chunk)

    async def post(self):
        """Waits for the answers of all rows."""
        server = self.server
        if self.size > server.limits.body:
            raise Refused(413, "the body has more than {} bytes".format(server.limits.body))
        rows = rows_of(b"".join(self.chunks), server.service.texts, server.limits)
        try:
            self.future = server.batcher.submit(rows)
        except TooManyWaiting:
            raise Refused(503, "too many rows wait already") from None
        try:
            answers = await asyncio.wrap_future(self.future)
        except UserError as error:
            raise Refused(400, str(error)) from None
        except asyncio.CancelledError:  # the client is gone
            return
        await self.write_json({"answers": answers})

    def on_connection_close(self):
        super().on_connection_close()
        if self.future is not None:
            self.future.cancel()


class PageHandler(Handler):
    """The page for people."""

    PATH, SUPPORTED_METHODS = "/", ("GET", "HEAD")

    def get(self):
        self.set_header("Content-Type", "text/html; charset=utf-8")
        return self.finish(self.server.page)

    head = get


class ModelHandler(Handler):
    """What kind of model it is."""

    PATH, SUPPORTED_METHODS = "/model", ("GET", "HEAD")

    def get(self):
        limits = self.server.limits
        return self.write_json(dict(self.server.service.about, texts=self.server.service.texts,
                                    limits={"body": limits.body, "rows": limits.rows,
                                            "chars": limits.chars}))

    head = get


class HealthHandler(Handler):
    """Whether it answers."""

    PATH, SUPPORTED_METHODS = "/healthz", ("GET", "HEAD")

    def get(self):
        if self.server.ending:
            raise Refused(503, "the server is ending")
        return self.write_json({"status": "ok"})

    head = get


class MetricsHandler(Handler):
    """The counters as Prometheus reads them."""

    PATH, SUPPORTED_METHODS = "/metrics", ("GET", "HEAD")

    def get(self):
        self.server.metrics.waiting.set(self.server.batcher.waiting_rows)
        self.set_header("Content-Type", prometheus_client.CONTENT_TYPE_LATEST)
        return self.finish(prometheus_client.generate_latest(self.server.metrics.registry))

    head = get


PATHS = {handler.PATH: handler for handler in (
    PageHandler, PredictHandler, ModelHandler, HealthHandler, MetricsHandler)}


# --- from start to end ------------------------------------------------------------------------


def listening_socket(host, port):
    """A socket that listens already, so that a port in use is said before a model is loaded.

    Raises:
      UserError: the port is in use or not allowed, or there is no such host.
    """
    try:
        return tornado.netutil.bind_sockets(
            port, host, socket.AF_INET6 if ":" in host else socket.AF_INET)[0]
    except OSError as error:
        raise UserError("--host={} --port={}: {}".format(host, port, error.strerror)) from None


class Server(object):
    """A batching.Service and who waits for it.

    Attributes:
      service, limits: see there.  batcher, metrics, page: what the handlers share.
      under_way: the handlers of requests that are not answered yet.
      ending: whether it takes no more requests.
    """

    def __init__(self, service, limits, batch_size):
        with open(PAGE, "rb") as stream:
            self.page = stream.read()
        self.service, self.limits, self.metrics = service, limits, Metrics()
        self.batcher = Batcher(service, batch_size, limits.waiting_rows, self.metrics.rows.observe)
        self.under_way, self.ending = set(), False

    async def serve(self, listener, asked_to_end):
        """Answers until an asyncio.Event, then what is under way, for end_seconds at most."""
        application = tornado.web.Application(
            [(path, handler, {"server": self}) for path, handler in PATHS.items()],
            default_handler_class=Handler, default_handler_args={"server": self},
            log_function=self.metrics.observe)
        http_server = tornado.httpserver.HTTPServer(
            application, max_body_size=DISCARDED * self.limits.body,
            body_timeout=self.limits.body_seconds, idle_connection_timeout=IDLE_SECONDS)
        http_server.add_socket(listener)
        await asked_to_end.wait()
        http_server.stop()
        self.ending = True
        loop = asyncio.get_event_loop()
        latest = loop.time() + self.limits.end_seconds
        while self.under_way and loop.time() < latest:
            await asyncio.sleep(0.01)
        logging.info("ended; %d requests are left without an answer", len(self.under_way))
        await http_server.close_all_connections()

    async def serve_until_signalled(self, listener):
        """Answers until SIGTERM or SIGINT; for the main thread."""
        asked_to_end = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_event_loop().add_signal_handler(number, asked_to_end.set)
        await self.serve(listener, asked_to_end)

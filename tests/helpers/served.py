"""A server in a thread of this process, and requests to it over real HTTP."""

import asyncio
import contextlib
import http.client
import json
import threading
import time

from serving import server

LIMITS = server.Limits(body=2000, rows=6, chars=50, waiting_rows=20, body_seconds=5, end_seconds=5)


@contextlib.contextmanager
def served(service, batch_size=4, **limits):
    """The server.Server of a Service, with its `port`; it has ended when the body is left."""
    listener = server.listening_socket("127.0.0.1", 0)
    made = server.Server(service, LIMITS._replace(**limits), batch_size)
    made.port = listener.getsockname()[1]
    loop = asyncio.new_event_loop()

    async def serve():
        made.asked_to_end = asyncio.Event()
        await made.serve(listener, made.asked_to_end)

    def run():
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    made.end = lambda: loop.call_soon_threadsafe(made.asked_to_end.set)
    ask(made.port, "GET", "/healthz")
    try:
        yield made
    finally:
        if not loop.is_closed():
            made.end()
        thread.join()
        made.batcher.close()


def ask(port, method, path, body=None, **headers):
    """(status, headers, body as bytes) of a request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, body, {
        name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    answer = response.status, response.headers, response.read()
    connection.close()
    return answer


def predict(port, rows):
    """(status, JSON object) of a request to predict some rows; of bytes as they are."""
    body = rows if isinstance(rows, bytes) else json.dumps({"rows": rows}).encode("utf-8")
    status, _, answer = ask(port, "POST", "/predict", body)
    return status, json.loads(answer.decode("utf-8"))


def wait_until(condition):
    """Waits for what another thread is about to do; fails after five seconds."""
    latest = time.time() + 5
    while not condition():
        assert time.time() < latest
        time.sleep(0.005)

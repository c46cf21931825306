"""Over real HTTP: answers, refusals, limits, counters, clients that misbehave, and the end."""

import concurrent.futures
import http.client
import json
import re
import socket
import threading

import pytest

pytest.importorskip("tornado", reason="needs tornado: ./setup.sh --with=serve")
pytest.importorskip("prometheus_client", reason="needs it: ./setup.sh --with=serve")

from helpers.served import ask, predict, served, wait_until

from cli import UserError
from serving import server
from serving.batching import Service

HEAD_OF_A_REQUEST = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"


class Model:
    """Answers a row of texts by their lengths; waits where it is told to."""

    def __init__(self, texts=(1, 2)):
        self.go_on, self.batches, self.asked = threading.Event(), [], 0
        self.go_on.set()
        self.service = Service({"head": "toy"}, texts, self.encode, self.answer)

    def encode(self, texts):
        if texts[0] == "unreadable":
            raise UserError("these texts cannot be read")
        return texts

    def answer(self, rows):
        self.asked += len(rows)
        assert self.go_on.wait(5)
        self.batches.append(len(rows))
        if ("fault",) in rows:
            raise ValueError("a secret of the server")
        return [{"lengths": [len(text) for text in row]} for row in rows]


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def port(model):
    with served(model.service) as running:
        yield running.port


def answers(*lengths):
    return 200, {"answers": [{"lengths": list(row)} for row in lengths]}


def test_rows_are_answered_in_their_order(port):
    assert predict(port, ["天气", ["好", "𠮷野家"], ["雨"]]) == answers([2], [1, 3], [1])
    status, headers, body = ask(port, "GET", "/model")
    assert status == 200 and headers["Content-Type"].startswith("application/json")
    assert json.loads(body.decode("utf-8")) == {
        "head": "toy", "texts": [1, 2], "limits": {"body": 2000, "rows": 6, "chars": 50}}


@pytest.mark.parametrize("body, status, words", [
    (b"", 400, "the body is not JSON"), (b"{'rows': 1}", 400, "the body is not JSON"),
    (b"\xff", 400, "the body is not UTF-8: byte 0"), (b"[" * 1990, 400, "expected|not JSON"),
    (b"[1]", 400, 'expected {"rows": '), (b'{"rows": []}', 400, "at least one row"),
    ([1], 400, "row 1: a row is a text, or a list of texts"),
    (["a", ["b", None]], 400, "row 2: a row is"), (["a", []], 400, "row 2: 0 texts, .*1 or 2$"),
    (["a"] * 7, 413, "7 rows, at most 6"), (["a", "x" * 51], 413, "row 2: a text of 51 char"),
    (b'{"rows": ["\\ud800"]}', 400, "row 1: half a surrogate pair"),
    (["a", "unreadable"], 400, "row 2: these texts cannot be read"),
    (b" " * 2001, 413, "the body has more than 2000 bytes")])
def test_what_cannot_be_answered_is_refused_in_words(port, body, status, words):
    found, answer = predict(port, body)
    assert found == status and list(answer) == ["error"] and re.search(words, answer["error"])
    assert predict(port, ["a"]) == answers([1])


def test_paths_and_methods_that_are_not_there(port):
    status, _, body = ask(port, "GET", "/no/such")
    assert status == 404 and b"/predict" in json.loads(body.decode())["error"].encode()
    status, headers, body = ask(port, "GET", "/predict")
    assert (status, headers["Allow"]) == (405, "POST")
    assert json.loads(body.decode()) == {"error": "/predict takes POST"}
    assert ask(port, "POST", "/healthz", b"{}")[0] == 405 and ask(port, "HEAD", "/")[0] == 200


def test_a_body_in_chunks_has_the_same_limit(port):
    def chunks(size):
        return iter([b'{"rows": ["ab"', b" " * size, b"]}"])
    status, _, body = ask(port, "POST", "/predict", chunks(100))
    assert (status, json.loads(body.decode())) == answers([2])
    assert ask(port, "POST", "/predict", chunks(3000))[0] == 413


def test_a_huge_body_sees_why_it_is_refused_and_the_connection_goes_on(model):
    with served(model.service, body=1 << 16) as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=20)
        for body, status in ((b"x" * (1 << 21), 413), (b'{"rows": ["a"]}', 200)) * 3:
            connection.request("POST", "/predict", body)
            response = connection.getresponse()
            assert (response.status, b"more than 65536 bytes" in response.read()) == (
                status, status == 413)
        connection.close()


def test_a_fault_of_the_server_is_not_shown_and_does_not_spread(port):
    assert predict(port, ["fault"]) == (500, {"error": "Internal Server Error"})
    assert predict(port, ["a"]) == answers([1])


def test_clients_at_the_same_time_are_joined(model):
    model.go_on.clear()
    with served(model.service) as running, concurrent.futures.ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(predict, running.port, ["x" * length]) for length in range(1, 7)]
        wait_until(lambda: model.asked + running.batcher.waiting_rows == 6)
        model.go_on.set()
        assert [future.result() for future in asked] == [
            answers([length]) for length in range(1, 7)]
    assert sum(model.batches) == 6 and max(model.batches) >= 3 and len(model.batches) <= 3


def test_more_than_may_wait_is_refused_at_once(model):
    model.go_on.clear()
    with served(model.service, waiting_rows=3) as running:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(predict, running.port, ["a", "b"])
            wait_until(lambda: model.asked == 2)
            status, headers, body = ask(running.port, "POST", "/predict", json.dumps(
                {"rows": ["x"] * 4}))
            model.go_on.set()
            assert first.result() == answers([1], [1])
    assert (status, headers["Retry-After"]) == (503, "1")
    assert json.loads(body.decode()) == {"error": "too many rows wait already"}


def test_slow_and_broken_clients_stop_nobody(model):
    with served(model.service, body_seconds=0.3) as running:
        clients = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(4)]
        for client, sent in zip(clients, (b"POST /pre", HEAD_OF_A_REQUEST,
                                          HEAD_OF_A_REQUEST + b'{"ro', b"no HTTP at all\r\n\r\n")):
            client.sendall(sent)
        assert predict(running.port, ["a"]) == answers([1])
        clients[2].close()
        clients[1].settimeout(5)
        assert clients[1].recv(100) == b""  # too slow: closed
        assert clients[3].recv(100).startswith(b"HTTP/1.1 400")
        assert predict(running.port, ["ab"]) == answers([2])
        wait_until(lambda: not running.under_way)
        for client in clients:
            client.close()


def test_what_nobody_waits_for_any_more_is_dropped(model):
    model.go_on.clear()
    with served(model.service, batch_size=1) as running:
        client = socket.create_connection(("127.0.0.1", running.port))
        body = json.dumps({"rows": ["a"] * 6}).encode()
        client.sendall(HEAD_OF_A_REQUEST.replace(b"100", b"%d" % len(body)) + body)
        wait_until(lambda: running.batcher.waiting_rows == 5)
        client.close()
        wait_until(lambda: not running.under_way)
        model.go_on.set()
        assert predict(running.port, ["b"]) == answers([1])
    assert model.batches == [1, 1]


def test_the_end_answers_what_is_under_way(model):
    model.go_on.clear()
    with served(model.service) as running, concurrent.futures.ThreadPoolExecutor(1) as pool:
        idle = http.client.HTTPConnection("127.0.0.1", running.port, timeout=5)
        idle.request("GET", "/healthz")
        assert idle.getresponse().read() == b'{"status": "ok"}\n'
        asked = pool.submit(predict, running.port, ["abc"])
        wait_until(lambda: model.asked)
        running.end()
        wait_until(lambda: running.ending)
        idle.request("GET", "/healthz")
        response = idle.getresponse()
        assert response.status == 503 and b"is ending" in response.read()
        with pytest.raises(ConnectionRefusedError):
            ask(running.port, "GET", "/healthz")
        model.go_on.set()
        assert asked.result() == answers([3])
        idle.close()


def test_metrics_count_requests_rows_and_time(port):
    for rows in (["a"], ["a", "b"], [1]):
        predict(port, rows)
    lines = ask(port, "GET", "/metrics")[2].decode().split("\n")
    assert 'albert_requests_total{path="/predict",status="200"} 2.0' in lines
    assert 'albert_requests_total{path="/predict",status="400"} 1.0' in lines
    assert 'albert_request_seconds_count{path="/predict"} 3.0' in lines
    assert "albert_prediction_rows_sum 3.0" in lines and "albert_waiting_rows 0.0" in lines
    assert any(line.startswith("process_resident_memory_bytes") for line in lines)


def test_the_page_needs_nothing_from_elsewhere(port):
    status, headers, body = ask(port, "GET", "/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert not re.search(rb"https?://|src=|@import|url\(", body) and b"<script>" in body


def test_a_port_in_use_is_one_line(port):
    with pytest.raises(UserError, match=r"--host=127.0.0.1 --port=\d+: Address already in use"):
        server.listening_socket("127.0.0.1", port)
    with pytest.raises(UserError, match="--host=no.such.host.invalid"):
        server.listening_socket("no.such.host.invalid", 0)

"""Clients that hold connections, or send heads without an end, on raw sockets."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from quire.http import serving
from support.live_server import MODEL, PATIENCE, LiveServer, Post, eventually, live_server
from support.server_process import SCRIPTED, ServerProcess

BODY = json.dumps({"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 3}).encode()
LINE = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HEAD = LINE + b"Content-Length: %d\r\n\r\n" % len(BODY)
METRICS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
KIB = 1024


@contextlib.contextmanager
def sockets(port: int, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            opened[-1].settimeout(PATIENCE)
            with contextlib.suppress(OSError):
                opened[-1].sendall(sent)
        yield opened


def read_all(client: socket.socket) -> bytes:
    """What comes until the server ends the connection, which it must."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while chunk := client.recv(2**16):
            received += chunk
    return received


def num_open(server: LiveServer) -> int:
    return len(server.server.server_state.connections)


def test_memory_is_given_back_once_a_crowd_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_CROWD", 20)
    monkeypatch.setattr(serving, "_FEW", 5)
    given_back: list[int] = []
    with live_server() as server:
        engine = server.server._engine
        monkeypatch.setattr(engine, "give_memory_back", lambda: given_back.append(num_open(server)))
        for count, times in ((10, 0), (30, 1)):
            with sockets(server.server.port, count):
                eventually(lambda count=count: server.server._crowd >= count)
                assert not given_back
            eventually(lambda: num_open(server) == 0)
            eventually(lambda times=times: len(given_back) == times)
        assert given_back == [0]


@pytest.mark.parametrize("sent", [b"", HEAD[:-2], HEAD, HEAD + BODY[:-1], METRICS])
def test_connections_that_are_held_lock_nobody_out(sent: bytes) -> None:
    with live_server(max_connections=6) as server:
        server.executor.hold()
        with Post(server, {**json.loads(BODY), "stream": True, "max_tokens": 50}) as stream:
            server.executor.let(steps=2)
            stream.read_until(b"data: ")
            with sockets(server.server.port, 40, sent) as held:
                for _ in range(5):
                    with httpx.Client(base_url=server.url, timeout=PATIENCE) as newcomer:
                        if sent == METRICS:  # which a thread renders: who is answered is not held
                            eventually(lambda: newcomer.get("/health").status_code == 200)
                        assert newcomer.get("/health").status_code == 200
                assert num_open(server) <= 6
                assert bool(read_all(held[0])) == (sent == METRICS)  # an answer, and the end
                server.executor.release()
                assert b"[DONE]" in stream.read_until(b"0\r\n\r\n")
                assert server.complete(prompt=[5], max_tokens=2).status_code == 200
        eventually(server.is_idle)


def test_connections_that_have_gone_make_room() -> None:
    with live_server(max_connections=2) as server:
        server.executor.hold()
        for number in range(5):
            with Post(server, {**json.loads(BODY), "max_tokens": 50}):
                eventually(lambda: server.engine.has_work)
            eventually(lambda number=number: server.num_aborted > number)
            server.executor.let(steps=1)
            eventually(server.is_idle)
        server.executor.release()


def test_connections_that_are_served_are_not_closed_for_others(server: LiveServer) -> None:
    with live_server(max_connections=3) as server, contextlib.ExitStack() as stack:
        server.executor.hold()
        body = {**json.loads(BODY), "stream": True, "max_tokens": 20}
        served = [stack.enter_context(Post(server, body)) for _ in range(3)]
        server.step_until(lambda: len(server.engine.scheduler.running) == 3)
        with sockets(server.server.port, 5) as refused:
            for each in refused:
                answer = read_all(each)
                assert answer.startswith(b"HTTP/1.1 503 ") and b"too_many_connections" in answer
        server.executor.release()
        for each in served:
            assert b"[DONE]" in each.read_until(b"0\r\n\r\n")
        eventually(lambda: server.http.get("/health").status_code == 200)


def test_a_client_that_does_not_read_makes_room() -> None:
    with live_server(max_connections=4) as server, contextlib.ExitStack() as stack:
        listening = socket.fromfd(
            server.server.servers[0].sockets[0].fileno(), socket.AF_INET, socket.SOCK_STREAM
        )
        stack.enter_context(listening).setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**12)
        for _ in range(4):
            deaf = stack.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**11)
            deaf.connect(("127.0.0.1", server.server.port))
            deaf.sendall(METRICS * 30)
        connections = server.server.server_state.connections
        eventually(
            lambda: [each._begun and each.flow.write_paused for each in connections] == [True] * 4
        )
        for _ in range(3):
            with httpx.Client(base_url=server.url, timeout=PATIENCE) as newcomer:
                assert newcomer.get("/health").status_code == 200


@pytest.mark.parametrize("behind", [1, 3])
def test_a_client_that_hangs_up_on_several_requests_leaves_none(
    server: LiveServer, behind: int, caplog: pytest.LogCaptureFixture
) -> None:
    server.executor.hold()
    body = json.dumps({"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 200}).encode()
    request = LINE + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with sockets(server.server.port, 1, request + METRICS * behind):
        eventually(lambda: len(server.engine.scheduler.running) == 1)
    eventually(lambda: server.num_aborted == 1)
    server.executor.release()
    eventually(server.is_idle)
    assert server.executor.num_steps < 200
    assert not any(record.exc_info for record in caplog.records)


def test_requests_sent_together_are_bounded(shared: LiveServer) -> None:
    with sockets(shared.server.port, 1, METRICS * 32) as (client,):
        answers = b""
        while answers.count(b"200 OK") < 32:
            answers += client.recv(2**16)
    with sockets(shared.server.port, 1, METRICS * 5000) as (client,):
        assert read_all(client).count(b"200 OK") <= 32


def test_a_head_must_come_in_time() -> None:
    with live_server(request_read_timeout=0.5) as server:
        server.server.config.timeout_keep_alive = 1
        server.executor.hold()
        with (
            Post(server, {**json.loads(BODY), "max_tokens": 4}) as answered,
            sockets(server.server.port, 3) as (silent, slow, second),
        ):
            second.sendall(HEAD + BODY + HEAD[:20])  # half a request behind a whole one
            with pytest.raises(ConnectionError):
                for byte in LINE + b"a" * 100:
                    slow.send(bytes([byte]))
                    time.sleep(0.02)
            assert read_all(silent) == b""
            assert num_open(server) >= 2  # those that wait for an answer
            server.executor.release()
            assert b"200 OK" in answered.read_until(b"usage")
            assert read_all(second).count(b"200 OK") == 1


def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    with live_server(request_read_timeout=1.0) as server:
        server.server.config.timeout_keep_alive = 1
        with sockets(server.server.port, 1) as (client,):
            for _ in range(6):  # more than the timeouts together
                client.sendall(HEAD)
                time.sleep(0.25)
                client.sendall(BODY)
                answer = b""
                while b"usage" not in answer:
                    answer += client.recv(2**16)
            assert read_all(client) == b""


CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        LINE + b"A: b\r\n" * 40_000,
        LINE + b"A: " + b"b" * 500 * KIB,
        LINE + b"A" * 500 * KIB,
        LINE + b"A: " + b"b" * 500 * KIB + b"\r\nContent-Length: 1\r\n\r\n1",
        b"GET /" + b"b" * 500 * KIB,
        CHUNKED + b"0\r\n" + b"A: b\r\n" * 40_000,
        CHUNKED + b"0\r\nA: " + b"b" * 500 * KIB,
        CHUNKED + b"1;" + b"b" * 500 * KIB,
    ],
)
@pytest.mark.parametrize("at_a_time", [100, 2**20])
def test_a_head_without_an_end_is_refused(
    shared: LiveServer, request_: bytes, at_a_time: int
) -> None:
    with sockets(shared.server.port, 1) as (client,):
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(request_), at_a_time):
                client.sendall(request_[start : start + at_a_time])
        answer = read_all(client)
        assert answer.startswith(b"HTTP/1.1 431 ")


def test_a_long_head_is_served(shared: LiveServer) -> None:
    with sockets(shared.server.port, 1) as (client,):
        head = HEAD.replace(b"Host: localhost", b"Host: localhost\r\nA: " + b"b" * 50 * KIB)
        for _ in range(3):  # the limit is of each request
            client.sendall(head + BODY)
            assert client.recv(2**16).startswith(b"HTTP/1.1 200 ")


def test_small_chunks_are_no_head(shared: LiveServer) -> None:
    with sockets(shared.server.port, 1) as (client,):
        body = b" " * 30_000 + BODY
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        request = CHUNKED + chunks + b"0\r\nA: b\r\n\r\n"
        for start in range(0, len(request), 20_000):
            client.sendall(request[start : start + 20_000])
            time.sleep(0.02)
        assert client.recv(2**16).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("after_start", [False, True])
def test_no_more_files_than_the_process_may_have(tmp_path: Path, after_start: bool) -> None:
    """Lowered before the start, connections keep below the limit; after it, they run into it."""
    lower = "resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))"
    setup = f"import resource, threading\n{lower}"
    if after_start:
        setup = f"import resource, threading\nthreading.Timer(1.0, lambda: {lower}).start()"
    with ServerProcess("-c", SCRIPTED.format(setup=setup), str(tmp_path / "trace")) as server:
        assert server.complete().status_code == 200
        time.sleep(1.5 if after_start else 0)
        with sockets(server.port, 400, HEAD[:30]):
            if not after_start:
                assert httpx.get(f"{server.url}/health").status_code == 200
                assert server.complete().status_code == 200
        eventually(lambda: answers(server))
        assert server.complete().status_code == 200
        server.process.terminate()
        assert server.ended() == 0


def answers(server: ServerProcess) -> bool:
    try:
        return httpx.get(f"{server.url}/health").status_code == 200
    except httpx.TransportError:
        return False

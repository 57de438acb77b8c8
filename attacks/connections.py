"""What is wrong below JSON: connections held open, read slowly or broken off, and no real HTTP."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

from attacks.attack import DROPPED, SERVED, Attack, completion
from attacks.crowd import crowd
from attacks.fields import most_outputs
from attacks.target import CLOSED, LEFT, Target, http_request

_HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
_BODY = _HEAD + b"content-length: %d\r\n\r\n"
_ANSWERED = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
_WATCHING = b"GET /v1/quire/blocks?stream=true HTTP/1.1\r\nhost: localhost\r\n\r\n"
_TRICKLE = 0.5  # seconds between two bytes of a slow client


def holding(
    count: int, begin: Callable[[Target], bytes], trickle: bytes = b""
) -> Callable[[Target], None]:
    """Open connections, send on each how a request begins, and keep them open, a byte at a time."""

    def run(target: Target) -> None:
        start = begin(target)
        with ExitStack() as stack:
            held = []
            for _ in range(count):
                if target.time_left == 0:
                    break
                with suppress(OSError):
                    connection = stack.enter_context(closing(target.connect()))
                    connection.sendall(start)
                    held.append(connection)
            for _ in target.rounds(_TRICKLE):
                held = [connection for connection in held if _send(connection, trickle)]
            if len(held) < count:
                target.answers[CLOSED] += count - len(held)

    return run


def unfinished(target: Target) -> bytes:
    """The largest body, but for its last bytes."""
    size = target.limits.max_body_bytes
    return _BODY % size + b" " * (size - 100)


def _send(connection: socket.socket, data: bytes) -> bool:
    """Whether the server still listens."""
    try:
        connection.setblocking(False)
        connection.send(data)
        return bool(connection.recv(1 << 16))
    except BlockingIOError:
        return True  # it has nothing to say yet
    except OSError:
        return False


def unread(target: Target) -> None:
    """Ask for streams that are as large as they may be, and never read them."""
    request = http_request("/v1/completions", most_outputs(target, stream=True))
    target.begin()
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(closing(target.connect()))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(request)
        time.sleep(target.time_left)


def hanging_up(target: Target) -> None:
    """Leave at any moment: within the request, before the answer, in the middle of a stream."""
    request = http_request("/v1/completions", completion(target, max_tokens=200, stream=True))

    def client(number: int) -> None:
        moments = random.Random(number)
        for _ in target.rounds(pause=0.01):
            with suppress(OSError), closing(target.connect()) as connection:
                if moments.random() < 0.5:  # by a reset instead of a proper end
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                whole = moments.random() < 0.7
                connection.sendall(request if whole else request[: moments.randrange(1, 400)])
                time.sleep(moments.expovariate(20.0))

    target.together(8, client)


def asking(target: Target) -> None:
    """Ask the page's questions, each another one and at length, and leave at once."""
    for number, _ in enumerate(target.rounds(pause=0.002)):
        path = f"/v1/quire/requests/{'x' * 40_000}{number}"
        with suppress(OSError), closing(target.connect()) as connection:
            connection.sendall(http_request(path, b"", "GET"))


def endless(piece: bytes) -> Callable[[Target], None]:
    """A request whose headers do not end: up to 64 KB every few milliseconds."""

    def run(target: Target) -> None:
        try:
            with closing(target.connect()) as connection:
                connection.sendall(_HEAD + b"x: ")
                for _ in target.rounds(pause=0.005):
                    connection.sendall(piece * (65536 // len(piece)))
        except TimeoutError:
            pass  # it reads no more, and the time is up
        except OSError:
            target.answers[CLOSED] += 1

    return run


def from_elsewhere(target: Target) -> None:
    """What a browser sends for a page of another site: its name for this address, or its origin."""
    request = http_request("/v1/completions", completion(target))
    requests = [
        request.replace(b"host: localhost", b"host: evil.example"),
        request.replace(b"host: localhost", b"host: evil.example:80"),
        request.replace(b"\r\n\r\n", b"\r\norigin: http://evil.example\r\n\r\n", 1),
        request.replace(b"\r\n\r\n", b"\r\norigin: null\r\n\r\n", 1),
    ]
    crowd(target, requests, 2, 0.2)


def pipelining(target: Target) -> None:
    """Requests one behind the other, on one connection, and no answer read."""
    request = http_request("/v1/completions", completion(target, max_tokens=20))
    request = request.replace(b"connection: close", b"connection: keep-alive")
    with suppress(OSError), closing(target.connect()) as connection:
        for _ in zip(range(1000), target.rounds(pause=0.002), strict=False):
            connection.sendall(request)
        time.sleep(target.time_left)


MALFORMED = (
    b"GARBAGE\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # a client that speaks TLS
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /health HTTP/9.9\r\n\r\n",
    b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
    b"GET /health HTTP/1.1\r\nno colon\r\n\r\n",
    b"GET /health HTTP/1.1\r\nhost: a\x00b\r\n\r\n",
    b"POST /%ff%00 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    _HEAD + b"content-length: -1\r\n\r\n",
    _HEAD + b"content-length: 99999999999999999999\r\n\r\n",
    _HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
    _HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    _HEAD + b"transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    _HEAD + b"transfer-encoding: chunked\r\n\r\nnothing\r\n",
    _HEAD + b"transfer-encoding: gzip\r\n\r\n",
    _HEAD + b"expect: 100-continue\r\ncontent-length: 10\r\n\r\n",
)


def malformed(target: Target) -> None:
    for _ in target.rounds(pause=0.0):
        for request in MALFORMED:
            target.send(request, patience=0.1)


def random_bytes(target: Target) -> None:
    generator = random.Random(0)
    for _ in target.rounds(pause=0.01):
        target.send(generator.randbytes(generator.randrange(1, 10_000)), patience=0.1)


CONNECTIONS = (
    Attack("2,000 connections, no request", holding(2000, lambda _: b""), DROPPED),
    Attack("10,000 that have been answered", holding(10_000, lambda _: _ANSWERED), DROPPED),
    Attack("questions of nobody's page", asking, frozenset({LEFT})),
    Attack("300 who watch and never read", holding(300, lambda _: _WATCHING), DROPPED),
    Attack("2,000 requests half sent", holding(2000, lambda _: _HEAD), DROPPED),
    Attack("500 headers, byte by byte", holding(500, lambda _: _HEAD + b"x: ", b"a"), DROPPED),
    Attack("500 bodies, byte by byte", holding(500, lambda _: _BODY % 999, b" "), DROPPED),
    Attack("40 bodies but for their end", holding(40, unfinished), DROPPED),
    Attack("a header without an end", endless(b"a"), DROPPED),
    Attack("headers without an end", endless(b"a\r\nx: "), DROPPED),
    Attack("1,000 requests in a row", pipelining, DROPPED),
    Attack("large streams, never read", unread, DROPPED),
    Attack("hanging up at any moment", hanging_up, SERVED),
    Attack("pages of another site", from_elsewhere, frozenset({"403"})),
    Attack("malformed HTTP", malformed, DROPPED | SERVED | {"100", "404", "405"}),
    Attack("random bytes", random_bytes, DROPPED),
)

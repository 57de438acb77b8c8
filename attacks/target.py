"""The server as an attacker sees it: an address, limits, and the answers that came."""

from __future__ import annotations

import json
import re
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any, NamedTuple

# An address of its own, so that a limit by client cannot fall on the innocent.
SOURCE = "127.0.0.2"
Address = tuple[str, int]
LEFT = "left"  # the attacker hung up before there was an answer
_PROBE = 2.0  # seconds in which a request that is not served is refused
_REFUSALS = ("400", "413", "422")
_LONGEST_REFUSAL = 4096  # bytes of its body
CLOSED = "closed"  # the server did


class Limits(NamedTuple):
    """What the server says that it takes."""

    model: str
    max_model_len: int
    max_body_bytes: int


class Target:
    """What an attack is run against, for so many seconds; it counts the answers.

    The server's cores are the attacker's too. So an attack prepares what it sends, which does not
    count, and pauses between two requests: what is measured is what the server makes of it.
    """

    def __init__(self, address: Address, limits: Limits, seconds: float) -> None:
        self.address = address
        self.limits = limits
        self.answers: Counter[str] = Counter()
        self._seconds = seconds
        self._end: float | None = None

    def begin(self) -> None:
        """From now on, time counts."""
        if self._end is None:
            self._end = time.monotonic() + self._seconds

    @property
    def time_left(self) -> float:
        return self._seconds if self._end is None else max(0.0, self._end - time.monotonic())

    def rounds(self, pause: float) -> Iterator[None]:
        """Until the time is up, with a pause after each."""
        self.begin()
        while self.time_left > 0:
            yield
            time.sleep(min(pause, self.time_left))

    def together(self, count: int, act: Callable[[int], None]) -> None:
        """``act`` of each number below ``count``, at once."""
        self.begin()
        threads = [threading.Thread(target=act, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def connect(self) -> socket.socket:
        """A connection whose waits end with the attack's time. Raises OSError."""
        source = (SOURCE, 0) if self.address[0].startswith("127.") else None
        return socket.create_connection(self.address, self.time_left or 0.001, source)

    def send(self, request: bytes, patience: float = float("inf")) -> str:
        """Send it, and read the answer to its end; the answer's status is counted."""
        self.answers[status := self._exchange(request, patience)[0]] += 1
        return status

    def post(self, body: bytes, path: str = "/v1/completions") -> str:
        return self.send(http_request(path, body))

    def call(self, method: str, path: str, body: Any = None) -> tuple[str, Any]:
        """The status and the JSON of an answer, which is counted."""
        data = b"" if body is None else json.dumps(body).encode()
        status, answer = self._exchange(http_request(path, data, method), float("inf"))
        self.answers[status] += 1
        with suppress(ValueError):
            return status, json.loads(answer.partition(b"\r\n\r\n")[2])
        return status, None

    def most(self, body: Callable[[int], bytes], up_to: int) -> int:
        """The largest number up to ``up_to`` whose completion is not refused, or 1."""
        low, high, middle = 1, up_to + 1, up_to
        while high - low > 1:
            status, _ = self._exchange(http_request("/v1/completions", body(middle)), _PROBE)
            low, high = (low, middle) if status.startswith(_REFUSALS) else (middle, high)
            middle = (low + high) // 2
        return low

    def _exchange(self, request: bytes, patience: float) -> tuple[str, bytes]:
        answer = b""
        try:
            with closing(self.connect()) as connection:
                connection.settimeout(min(patience, self.time_left) or 0.001)
                with suppress(ConnectionError):  # it may have answered before it had read all
                    connection.sendall(request)
                while piece := connection.recv(1 << 20):
                    answer = answer + piece if len(answer) < 1 << 20 else answer
        except TimeoutError:
            return (status_of(answer) if answer else LEFT), answer
        except OSError:
            pass
        return status_of(answer), answer


def status_of(answer: bytes | bytearray) -> str:
    """Its status; a refusal that says it at length is another."""
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    line = head.split(b"\r\n", 1)[0].split()
    if len(line) < 2:
        return CLOSED
    status = line[1].decode("ascii", "replace")
    return (
        f"{status} at length" if status.startswith("4") and len(body) > _LONGEST_REFUSAL else status
    )


def http_request(path: str, body: bytes, method: str = "POST") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def find_limits(address: Address) -> Limits:
    """Ask for the model and its length, and send a body that is too long to hear what is not.

    Raises OSError if the server does not answer.
    """
    target = Target(address, Limits("", 0, 0), 60.0)
    _, models = target.call("GET", "/v1/models")
    if models is None:
        raise ConnectionError(f"no models are listed at {address[0]}:{address[1]}")
    card = models["data"][0]
    return Limits(card["id"], card["max_model_len"] or 2048, _largest_body(target))


def _largest_body(target: Target, most: int = 1 << 28) -> int:
    """The figure in the message of a 413, which may come before the body has been sent."""
    head = http_request("/v1/completions", b"").replace(b"length: 0", b"length: %d" % most)
    piece, sent, answer = b" " * (1 << 16), 0, b""
    with closing(target.connect()) as connection:
        connection.sendall(head)
        with suppress(ConnectionError):
            while sent < most and not select.select([connection], [], [], 0)[0]:
                sent += connection.send(piece)
        with suppress(OSError):
            while received := connection.recv(1 << 16):
                answer += received
    named = re.search(rb"([\d,]+) bytes", answer.partition(b"\r\n\r\n")[2])
    return int(named[1].replace(b",", b"")) if named else sent

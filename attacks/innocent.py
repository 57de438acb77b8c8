"""Three that mean no harm, each in a process of its own: one asks for health, two read streams.

One of the streams is free, the other is written by a grammar. All tell through a pipe what they
see, for as long as they are let.
"""

from __future__ import annotations

import json
import time
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import NamedTuple

from attacks.target import Address, Limits, http_request
from attacks.wire import TimedConnection

_INTERVAL = 0.01  # between two questions for health
_PATIENCE = 120.0  # longer than any storm lets a server be silent
_RETRY = 0.05
_REPORT = 0.02  # chunks that come within this are told of together
_REFRAIN = (
    ", status)<|endoftext|>os.wait\n\nWait for completion of a child process.\n\n"
    "Returns a tuple of information about the child process:\n  (pid"
)
_ROOM = 128  # tokens that three of them may take
_GRAMMAR = "[a-z ,.\n]*§"  # which the demonstration model never comes to the end of


class Healthy(NamedTuple):
    """The server said that it is; if it did not at once, ``seconds`` count from the first time."""

    at: float
    seconds: float


class Chunks(NamedTuple):
    """So many came; ``seconds`` is the longest time between two of them."""

    at: float
    seconds: float
    number: int


class FirstChunk(NamedTuple):
    """A stream began, so many seconds after it was asked for, refusals included."""

    at: float
    seconds: float


class Ended(NamedTuple):
    """A stream ended; ``text`` is None if not as it should."""

    at: float
    text: str | None


def watch_health(address: Address, tell: Connection) -> None:
    request = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    asked = time.time()
    while True:
        arrived, status = 0.0, b""
        with suppress(OSError), closing(TimedConnection(address, request, _PATIENCE)) as server:
            arrived, status = server.receive()
        if status.startswith(b"HTTP/1.1 200 "):
            tell.send(Healthy(arrived, arrived - asked))
            time.sleep(_INTERVAL)
            asked = time.time()
        else:
            time.sleep(_INTERVAL)


def stream_request(limits: Limits, *, guided: bool = False) -> bytes:
    """One that goes on for long, and has the same text whatever it is batched with.

    For that no other token may ever be nearly as likely as the one chosen. The demonstration
    model is seldom so sure; it is as it repeats this.
    """
    body = {
        "model": limits.model, "prompt": _REFRAIN * 3, "user": "innocent", "stream": True,
        "max_tokens": limits.max_model_len - _ROOM, "ignore_eos": True, "temperature": 0,
        "seed": 7,
    }  # fmt: skip
    if guided:
        body["structured_outputs"] = {"regex": _GRAMMAR}
    return http_request("/v1/completions", json.dumps(body).encode())


def read_streams(address: Address, request: bytes, tell: Connection) -> None:
    """One stream after the other."""
    asked = time.time()
    while True:
        with suppress(OSError), closing(TimedConnection(address, request, _PATIENCE)) as server:
            if _read_stream(server, asked, tell):
                asked = time.time()
                continue
        time.sleep(_RETRY)


def _read_stream(server: TimedConnection, asked: float, tell: Connection) -> bool:
    """Tell of one stream; False if there was none."""
    last, data = server.receive()
    if not data.startswith(b"HTTP/1.1 200 "):
        return False
    tell.send(FirstChunk(last, last - asked))
    pieces, told, longest, count = [data], last, 0.0, 0
    with suppress(OSError):
        while data:
            arrived, data = server.receive()
            longest = max(longest, arrived - last)
            last = arrived
            pieces.append(data)
            count += data.count(b"data: ")
            if arrived - told > _REPORT:
                tell.send(Chunks(arrived, longest, count))
                told, longest, count = arrived, 0.0, 0
    tell.send(Chunks(last, longest, count))
    tell.send(Ended(last, text_of(b"".join(pieces))))
    return True


def text_of(answer: bytes) -> str | None:
    """The text of a stream that ended as it should: at its length, and said so."""
    lines = [line[6:] for line in answer.splitlines() if line.startswith(b"data: ")]
    if not lines or lines[-1] != b"[DONE]":
        return None
    choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
    if choices[-1]["finish_reason"] != "length":
        return None
    return "".join([choice["text"] for choice in choices])

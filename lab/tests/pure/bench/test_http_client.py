"""Bodies are read whole however they are framed and cut, and a broken one is noticed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire_lab.bench.http_client import HttpClient

EVENTS = b'data: {"n": 1}\n\ndata: {"n": 2}\r\n\r\n: a comment\n\ndata:{"n":3}\n\ndata: [DONE]\n\n'


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    lines = [b"%x;note=1\r\n%b\r\n" % (len(part), part) for part in parts]
    return b"Transfer-Encoding: Chunked\r\n\r\n" + b"".join(lines) + b"0\r\n\r\n"


FRAMINGS = {
    "until the end": b"\r\n" + EVENTS,
    "by its length": b"Content-Length: %d\r\n\r\n" % len(EVENTS) + EVENTS,
    "in one chunk": chunked(EVENTS, 1000),
    "in chunks of one": chunked(EVENTS, 1),
    "in chunks of seven": chunked(EVENTS, 7),
}


def exchange(rest: bytes, path: str = "/v1") -> tuple[list[Any], bytes]:
    """The events of an answer that a server on a socket gives, and what it was sent."""
    received = b""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        head = await reader.readuntil(b"\r\n\r\n")
        received = head + await reader.read(len(b'{"a": "b"}'))
        writer.write(b"HTTP/1.1 200 OK\r\nServer: test\r\n" + rest)
        await writer.drain()
        writer.close()

    async def ask() -> list[Any]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            client = HttpClient(f"http://127.0.0.1:{port}{path}", api_key="secret")
            async with client.send("POST", "/v1/completions", {"a": "b"}) as reply:
                assert reply.status == 200
                return [event async for event in reply.events()]

    return asyncio.run(ask()), received


@pytest.mark.parametrize("framing", FRAMINGS)
def test_events_survive_any_framing(framing: str) -> None:
    events, _ = exchange(FRAMINGS[framing])
    assert events == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_request_is_sent_whole() -> None:
    _, received = exchange(FRAMINGS["in one chunk"])
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"authorization: Bearer secret" in head and b"content-length: 10" in head
    assert body == b'{"a": "b"}'


@pytest.mark.parametrize(
    "rest",
    [
        b"\r\n" + EVENTS[:40],
        b"Content-Length: 1000\r\n\r\n" + EVENTS,
        chunked(EVENTS, 7)[:90],
        chunked(EVENTS[:40], 1000),
        b"Transfer-Encoding: chunked\r\n\r\n-5\r\n" + EVENTS,
        b"X: " + b"a" * (1 << 17),
    ],
    ids=["cut", "short", "within a chunk", "without its end", "no size", "an endless head"],
)
def test_a_stream_that_breaks_off_is_an_error(rest: bytes) -> None:
    with pytest.raises((EOFError, ValueError)):
        exchange(rest)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="url"):
        HttpClient(url)

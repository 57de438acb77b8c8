"""A streaming HTTP/1.1 client that takes little of the cores it shares with the server.

A general client costs about three times as much for each token that arrives, which a benchmark
on the server's own machine would charge to the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic_core import from_json

from quire.core.errors import ConfigError

_PORTS = {"http": 80, "https": 443}
_LONGEST_LINE = 1 << 22


@dataclass(frozen=True)
class Reply:
    """An answer whose body has still to be read."""

    status: int
    headers: dict[str, str]
    reader: asyncio.StreamReader

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes (RFC 9112, section 6.3). Raises EOFError if it breaks off."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            ended, rest = False, b""
            while not ended:
                if not (arrived := await self.reader.read(1 << 16)):
                    raise EOFError("the body ended within a chunk")
                data, rest, ended = _unchunk(rest + arrived)
                yield data
        elif "content-length" in self.headers:
            yield await self.reader.readexactly(int(self.headers["content-length"]))
        else:
            while chunk := await self.reader.read(1 << 16):
                yield chunk

    async def body(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def events(self) -> AsyncIterator[Any]:
        """The values of a stream of server-sent events, up to its [DONE]."""
        rest = b""
        async for chunk in self.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                if line.startswith(b"data:"):
                    yield from_json(data)
        raise EOFError("the stream ended without [DONE]")


def _unchunk(coded: bytes) -> tuple[bytes, bytes, bool]:
    """The data of all chunks that are complete, what follows them, and whether the body ends."""
    parts: list[bytes] = []
    start = 0
    while (line_end := coded.find(b"\r\n", start)) >= 0:
        size = int(coded[start:line_end].partition(b";")[0], 16)
        end = line_end + 2 + size
        if end + 2 > len(coded):
            break
        if size == 0:
            return b"".join(parts), b"", True
        parts.append(coded[line_end + 2 : end])
        start = end + 2
    return b"".join(parts), coded[start:], False


class HttpClient:
    """Requests to one server, each on a connection of its own."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or parts.hostname is None:
            raise ConfigError(f"url must be like http://host:port, got {url!r}")
        self._host, self._port = parts.hostname, parts.port or _PORTS[parts.scheme]
        self._tls = parts.scheme == "https"
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = f"host: {parts.netloc}\r\nconnection: close\r\n"
        if api_key is not None:
            self._headers += f"authorization: Bearer {api_key}\r\n"

    @asynccontextmanager
    async def send(self, method: str, path: str, body: Any = None) -> AsyncIterator[Reply]:
        """Send a request, ``body`` as JSON. Raises OSError or EOFError if there is no answer."""
        data = b"" if body is None else json.dumps(body).encode()
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._tls or None, limit=_LONGEST_LINE
        )
        try:
            head = (
                f"{method} {self._base}{path} HTTP/1.1\r\n{self._headers}"
                f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
            )
            writer.write(head.encode() + data)
            status, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
            headers = dict(field.lower().split(": ", 1) for field in fields if ": " in field)
            yield Reply(int(status.split()[1]), headers, reader)
        finally:
            writer.close()

    async def get(self, path: str) -> str:
        """The body of a GET. Raises OSError if the answer is not 200."""
        async with self.send("GET", path) as reply:
            body = (await reply.body()).decode()
        if reply.status != 200:
            raise OSError(f"GET {path}: status {reply.status}: {body[:500]}")
        return body

"""A streaming HTTP/1.1 client that takes little of the cores it shares with the server.

A general client takes about ten times as long for each token that arrives, which a benchmark on
the server's own machine would charge to the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser
from pydantic_core import from_json

from quire.core.errors import ConfigError

_PORTS = {"http": 80, "https": 443}
_AT_ONCE = 1 << 16
_LONGEST_HEAD = 1 << 16


class HttpReply:
    """An answer whose body has still to be read; httptools calls what begins with ``on_``."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.headers: dict[str, str] = {}
        self._reader = reader
        self._parser = HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._has_head = self._ended = False

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1").lower()

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        self._ended = True

    async def head(self) -> None:
        """Read up to the body. Raises EOFError if there is no answer."""
        size = 0
        while not self._has_head:
            size += await self._feed()
            if size > _LONGEST_HEAD and not self._has_head:
                raise EOFError(f"no body in the first {size} bytes")

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, one of a known length whole. Raises EOFError if it breaks off."""
        whole = "content-length" in self.headers
        while True:
            if self._parts and (self._ended or not whole):
                parts, self._parts = self._parts, []
                yield b"".join(parts)
            if self._ended:
                return
            await self._feed()

    async def _feed(self) -> int:
        arrived = await self._reader.read(_AT_ONCE)
        if arrived:
            try:
                self._parser.feed_data(arrived)
            except HttpParserError as error:
                raise EOFError(f"the answer is not HTTP: {error}") from error
        elif self._has_head and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self._ended = True  # a body of neither ends with its connection
        else:
            raise EOFError("the connection ended before the answer did")
        return len(arrived)

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
    async def send(self, method: str, path: str, body: Any = None) -> AsyncIterator[HttpReply]:
        """Send a request, ``body`` as JSON. Raises OSError or EOFError if there is no answer."""
        data = b"" if body is None else json.dumps(body).encode()
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._tls or None
        )
        try:
            head = (
                f"{method} {self._base}{path} HTTP/1.1\r\n{self._headers}"
                f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
            )
            writer.write(head.encode() + data)
            reply = HttpReply(reader)
            await reply.head()
            yield reply
        finally:
            writer.close()

    async def get(self, path: str) -> str:
        """The body of a GET. Raises OSError if the answer is not 200."""
        async with self.send("GET", path) as reply:
            body = (await reply.body()).decode()
        if reply.status != 200:
            raise OSError(f"GET {path}: status {reply.status}: {body[:500]}")
        return body

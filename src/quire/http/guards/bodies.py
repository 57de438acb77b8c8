"""The bodies of requests: read within bounds of size, time and memory, parsed off the event loop.

A route takes the bare request and asks for its body here; so nothing is read before something
wants it, and all of it happens in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from email.message import Message
from functools import partial
from typing import TypeVar

from fastapi import Request
from starlette.exceptions import HTTPException

from quire.engine.input_processor import InputProcessor
from quire.http.config.server import ServerConfig
from quire.http.guards.parsing import Body, is_packed, parse, unpacked

# What the size of the largest body is made of where no flag says it.
_PER_CHARACTER = 6  # bytes of JSON: "\u00e9"
_PER_TOKEN_ID = 8  # "151935, "
_BESIDE_PROMPTS = 2**18  # messages' names and roles, logit_bias, stop strings, whatever else
_SMALLEST, LARGEST_BODY = 2**20, 2**25

_SMALL = 2**16  # bytes: parsed at once, for a thread costs more; and not counted as unread
_LEAST_UNREAD = 2**26

_T = TypeVar("_T")


def default_max_body_bytes(input_processor: InputProcessor) -> int:
    """A body that has room for any prompt that can be served, however its JSON is spelled.

    That is the longest text that may be tokenized, all of its characters escaped, or a prompt of
    max_model_len token ids. As most tokens are far shorter than the longest, and few texts are
    escaped, it is room for some 50 ordinary prompts of that length at once. Short models get a
    mebibyte, for as many; and above 32, parsing takes too long.
    """
    text = input_processor.max_characters * _PER_CHARACTER
    token_ids = (input_processor.max_model_len or 0) * _PER_TOKEN_ID
    return min(max(text + _BESIDE_PROMPTS, token_ids + _BESIDE_PROMPTS, _SMALLEST), LARGEST_BODY)


class Bodies:
    """Reads and parses bodies, all those of one app.

    Small ones are parsed at once. The others go through one thread: a parser keeps the interpreter
    to itself, so that more of them would not be faster, but could gang up on everybody else.

    default_max_bytes: of the largest where the config does not say.
    give_back: called when a large one is done with.
    """

    def __init__(
        self,
        config: ServerConfig,
        default_max_bytes: int,
        give_back: Callable[[], None] = lambda: None,
    ) -> None:
        self._give_back = give_back
        self.max_bytes = config.max_body_bytes or default_max_bytes
        unread = config.max_unread_bytes or max(8 * self.max_bytes, _LEAST_UNREAD)
        self._max_unread = max(unread, self.max_bytes)  # so that any one alone can be read
        self._timeout = config.request_read_timeout
        self._unread = 0  # bytes of large bodies that have come and are not parsed yet
        self._parser = ThreadPoolExecutor(1, "quire-json")

    def close(self) -> None:
        self._parser.shutdown(cancel_futures=True)

    async def parse(self, http: Request, kind: type[Body], *, from_tools: bool = False) -> Body:
        """The request's body, read whole and checked.

        from_tools: that it is JSON need not be said, by anybody but a browser: its pages may send
        other types to any server.

        RequestError if it is not as it must be, HTTPException if it is too large, too slow or
        too much.
        """
        may_be_silent = from_tools and "origin" not in http.headers
        if not (may_be_silent or _is_json(http.headers.get("content-type"))):
            raise HTTPException(400, "the body must be a JSON object, sent as application/json")
        packed = is_packed(http.headers.get("content-encoding", ""))
        async with self.whole(http) as body:
            if len(body) <= _SMALL and not packed:
                return parse(body, kind)
            return await self.apart(partial(self._parse_packed if packed else parse, body, kind))

    async def apart(self, work: Callable[[], _T]) -> _T:
        """Have the thread that parses do it."""
        return await asyncio.get_running_loop().run_in_executor(self._parser, work)

    @asynccontextmanager
    async def whole(self, http: Request) -> AsyncIterator[bytearray]:
        """The body as it was sent, which counts as unread until the context is left.

        HTTPException if it is too large, too slow or too much.
        """
        if int(http.headers.get("content-length", 0)) > self.max_bytes:
            raise self._too_large()
        body = bytearray()
        try:
            await self._read_in_time(http, body)
            yield body
        finally:
            self._unread -= _counted(body)
            if _counted(body):
                self._give_back()

    async def _read_in_time(self, http: Request, body: bytearray) -> None:
        try:
            await asyncio.wait_for(self._read(http, body), self._timeout)
        except asyncio.TimeoutError:
            raise HTTPException(
                408,
                f"the body was not complete within {self._timeout:g} s (--request-read-timeout)",
            ) from None

    async def _read(self, http: Request, body: bytearray) -> None:
        async for chunk in http.stream():
            if len(body) + len(chunk) > self.max_bytes:
                raise self._too_large()
            before = _counted(body)
            body += chunk
            self._unread += _counted(body) - before
            if self._unread > self._max_unread:
                raise HTTPException(
                    503,
                    "too many large requests are being read (--max-unread-bytes): try again",
                    {"Retry-After": "1"},
                )

    def _parse_packed(self, body: bytearray, kind: type[Body]) -> Body:
        return parse(unpacked(body, self.max_bytes), kind)

    def _too_large(self) -> HTTPException:
        return HTTPException(
            413, f"the body is larger than {self.max_bytes:,} bytes (--max-body-bytes)"
        )


def _counted(body: bytearray) -> int:
    """How much of it counts as unread: nothing of what any connection may hold anyway."""
    return max(0, len(body) - _SMALL)


def _is_json(content_type: str | None) -> bool:
    message = Message()
    message["content-type"] = content_type or ""
    subtype = message.get_content_subtype()
    is_json = subtype == "json" or subtype.endswith("+json")
    return message.get_content_maintype() == "application" and is_json

"""The bodies of requests: read within bounds of size, time and memory, parsed off the event loop.

A route takes the bare request and asks for its body here; so nothing is read before something
wants it, and all of it happens in one place.

Python's JSON parsers keep the interpreter to themselves while they work, so what they are given is
bounded by bytes and by how many values it spells. Long texts are parsed at a gigabyte a second; a
megabyte of ``[],[],[]`` takes 150 ms.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from email.message import Message
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from fastapi import Request, Response
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from quire.core.errors import RequestError, cut, reason
from quire.engine.input_processor import InputProcessor
from quire.http.body_fields import Strict
from quire.http.config.server import ServerConfig
from quire.http.errors import first_complaint
from quire.http.unknown_fields import Passed
from quire.text import exact_json

MOST_CONTAINERS = 2**13  # lists and objects: 2,048 prompts, or as many messages with their parts
MOST_MEMBERS = 2**14  # fields of all objects
MOST_VALUES = 2**20  # and all values together: a million token ids

_PIECE = 2**18  # bytes looked at in one go; small enough for the processor's cache
_MOST_LEVELS = 200  # that the parser goes down
_MOST_DIGITS = 4300  # that Python makes a number of
_MAYBE_ROUNDED = re.compile(rb"[0-9][0-9.]{16}|[0-9][eE][+-]?[0-9]{3}")
_LONGEST_MATCH = 17  # bytes

Body = TypeVar("Body", bound=BaseModel)
Handler = Callable[[Request, Body], Awaitable[Response]]
"""Answers a request, given its body."""
_EITHER = 32 + zlib.MAX_WBITS  # gzip's frame or zlib's, as the data say
_PLAIN = ("", "identity")
_PACKED = ("gzip", "x-gzip", "deflate")


def parse(body: bytes | bytearray, kind: type[Body], passed: Passed | None = None) -> Body:
    """RequestError, or an HTTPException where no field can be named, if it is no such request."""
    _check_structure(body)
    try:
        data = from_json(body.removeprefix(codecs.BOM_UTF8))
        if _may_be_rounded(body):  # which a schema's numbers may not be
            data = json.loads(body, parse_float=exact_json.rounded)
    except ValueError as error:
        field = _unreadable_field(body)
        if field is None:
            raise HTTPException(400, _why_no_json(body, str(error))) from None
        raise RequestError(
            f"{field} holds invalid Unicode, or a number of more than {_MOST_DIGITS:,} digits",
            field,
        ) from None
    if not isinstance(data, dict):
        raise HTTPException(400, "the body must be a JSON object, sent as application/json")
    try:
        request = kind.model_validate(data, context=passed)
    except ValidationError as error:
        raise first_complaint(error) from None
    if passed is not None and isinstance(request, Strict):
        request.warnings.extend(passed.warnings.values())
    return request


def _may_be_rounded(body: bytes | bytearray) -> bool:
    """Looked for in pieces, between which other threads run: a search keeps them all waiting."""
    return any(
        _MAYBE_ROUNDED.search(body, start, start + _PIECE + _LONGEST_MATCH - 1)
        for start in range(0, len(body), _PIECE)
    )


def _why_no_json(body: bytes | bytearray, complaint: str) -> str:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"the body is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}"
    if "recursion limit" in complaint:
        return f"the body's lists and objects are more than {_MOST_LEVELS} levels deep"
    return f"the body is not valid JSON: {complaint}"


def _check_structure(body: bytes | bytearray) -> None:
    """Refuse what would take long to parse, without parsing it."""
    counts = _Marks(*map(body.count, (b"[", b"{", b":", b",")))
    if not counts.complaint:  # although they count texts too
        return
    complaint = _counts_outside_texts(body).complaint
    if complaint:
        raise HTTPException(400, complaint)


class _Marks(NamedTuple):
    """How often the characters occur that JSON's structure is made of."""

    brackets: int
    braces: int
    colons: int
    commas: int

    @property
    def complaint(self) -> str:
        containers = self.brackets + self.braces
        if containers > MOST_CONTAINERS:
            return f"the body holds more than {MOST_CONTAINERS:,} lists and objects"
        if self.colons > MOST_MEMBERS:
            return f"the objects in the body hold more than {MOST_MEMBERS:,} fields"
        if containers + self.commas > MOST_VALUES:
            return f"the body holds more than {MOST_VALUES:,} values"
        return ""


def _counts_outside_texts(body: bytes | bytearray) -> _Marks:
    """Count by numpy, which lets other threads run meanwhile."""
    bare = np.frombuffer(body.replace(rb"\\", b"__").replace(rb"\"", b"__"), np.uint8)
    totals = np.zeros(4, int)
    in_text = np.uint8(0)
    for start in range(0, len(bare), _PIECE):
        piece = bare[start : start + _PIECE]
        quotes = np.cumsum(piece == ord('"'), dtype=np.uint8) + in_text
        in_text = quotes[-1] & 1
        outside = quotes & 1 == 0
        totals += [np.count_nonzero((piece == ord(mark)) & outside) for mark in "[{:,"]
    return _Marks(*totals.tolist())


def _unreadable_field(body: bytes | bytearray) -> str | None:
    """The field of a body that is JSON by its grammar, but spells what Python cannot hold.

    JSON can spell half a character ("\\ud800"), and numbers without end.
    """

    def number(digits: str) -> object:
        return 0 if len(digits) <= _MOST_DIGITS else object()

    try:
        data = json.loads(body, parse_int=number, parse_float=number)
    except (ValueError, RecursionError):
        return None
    for name, value in data.items() if isinstance(data, dict) else ():
        try:
            json.dumps({name: value}, ensure_ascii=False).encode()
        except (UnicodeEncodeError, TypeError):
            return cut(ascii(name[:200])[1:-1])
    return None


def is_packed(encoding: str) -> bool:
    """Whether a body is compressed. HTTPException: the encoding is not understood."""
    name = encoding.strip().lower()
    if name in _PACKED:
        return True
    if name in _PLAIN:
        return False
    raise HTTPException(
        415, f"content-encoding {encoding[:50]!r} is not understood: gzip, deflate or identity are"
    )


def unpacked(body: bytes | bytearray, most: int) -> bytes:
    """What it holds; HTTPException if that is more than ``most`` bytes, or not whole."""
    unpacking = zlib.decompressobj(_EITHER)
    try:
        content = unpacking.decompress(body, most + 1)
    except zlib.error as error:
        raise HTTPException(400, f"the body cannot be unpacked: {reason(error)}") from None
    if len(content) > most:
        raise HTTPException(413, f"the body unpacks to more than {most:,} bytes (--max-body-bytes)")
    if not unpacking.eof or unpacking.unused_data:
        raise HTTPException(400, "the body cannot be unpacked: it is not one whole gzip stream")
    return content


# What the size of the largest body is made of where no flag says it.
_PER_CHARACTER = 6  # bytes of JSON: "\u00e9"
_PER_TOKEN_ID = 8  # "151935, "
_BESIDE_PROMPTS = 2**18  # messages' names and roles, logit_bias, stop strings, whatever else
_SMALLEST, LARGEST_BODY = 2**20, 2**25

_AT_ONCE = 2**14  # bytes: parsed at once, for a thread costs more
_SMALL = 2**16  # bytes that are not counted as unread
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
    count: called with the names of fields that were left out of one.
    """

    def __init__(
        self,
        config: ServerConfig,
        default_max_bytes: int,
        give_back: Callable[[], None] = lambda: None,
        count: Callable[[Iterable[str]], None] = lambda names: None,
    ) -> None:
        self._give_back, self._count = give_back, count
        self._strict = config.strict_fields
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
        passed = Passed(self._strict, "anthropic-beta" in http.headers)
        async with self.whole(http) as body:
            large = packed or len(body) > _AT_ONCE
            work = partial(self._parse_packed if packed else parse, body, kind, passed)
            request = await self.done(work, large=large)
        if large and isinstance(request, Strict):
            request.came_large()
        if passed.warnings:
            self._count(passed.warnings)
        return request

    def route(
        self, kind: type[Body], handle: Handler[Body], *, from_tools: bool
    ) -> Callable[[Request], Awaitable[Response]]:
        """What has ``handle`` answer a request, once its body is there."""

        async def route(http: Request) -> Response:
            return await handle(http, await self.parse(http, kind, from_tools=from_tools))

        route.__name__, route.__doc__ = handle.__name__, handle.__doc__
        return route

    async def apart(self, work: Callable[[], _T]) -> _T:
        """Do it in the thread that parses."""
        return await asyncio.get_running_loop().run_in_executor(self._parser, work)

    async def done(self, work: Callable[[], _T], *, large: bool) -> _T:
        """The same if it is large; else it is done at once."""
        return await self.apart(work) if large else work()

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

    def _parse_packed(self, body: bytearray, kind: type[Body], passed: Passed) -> Body:
        return parse(unpacked(body, self.max_bytes), kind, passed)

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

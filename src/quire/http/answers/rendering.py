"""Answers as objects of a declared type, and from them to the bytes of JSON.

The type that /openapi.json describes is the one that is built and serialised: its fields have the
order in which clients get them, its defaults are what they get where there is nothing to say, and
a field that is ``UNSET`` is left out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fastapi.responses import Response
from msgspec import UNSET, Struct
from msgspec.json import Encoder

# A list in the description. An iterator may be given in its place: one of its items at a time
# is in memory while a large answer is rendered.
if TYPE_CHECKING:
    Many = Iterable
else:
    Many = list

Json = dict[str, Any]
_JSON = "application/json"
_LEVELS = 5  # of an answer, down to the log-probabilities of one token
_REST = 0.001  # seconds: of rendering at a stretch, and of leaving Python to others after them


class Answer(Struct, forbid_unknown_fields=True):
    """What clients get as a JSON object."""


def _plain(value: object) -> object:
    """What the encoder does not know: iterators, and floats that know how they were written."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


encode = Encoder(enc_hook=_plain).encode
"""The bytes of JSON; null for a number that is not finite."""


def respond(
    answer: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer that is small, and so made at once."""
    return Response(encode(answer), status, headers, _JSON)


async def json_response(build: Callable[[], object], *, large: bool) -> Response:
    """What ``build`` returns as JSON; made in a thread if it is large."""

    def render() -> bytes:
        out = bytearray()
        _render(build(), _LEVELS, out, _rests())
        return bytes(out)

    content = await asyncio.to_thread(render) if large else encode(build())
    return Response(content, media_type=_JSON)


def _rests() -> Callable[[], None]:
    """To be called after each piece.

    A step of the engine is hundreds of short calls, after each of which it waits for Python for as
    long as another thread may keep it: beside an answer of 20 MB, it took ten times as long.
    """
    until = time.perf_counter() + _REST

    def rest() -> None:
        nonlocal until
        if time.perf_counter() >= until:
            time.sleep(_REST)
            until = time.perf_counter() + _REST

    return rest


def _render(value: object, levels: int, out: bytearray, rest: Callable[[], None]) -> None:
    """JSON, rendered in pieces: while one is made, no other thread runs."""
    if levels and isinstance(value, Struct):
        named = ((name, getattr(value, name)) for name in value.__struct_fields__)
        value = {name: item for name, item in named if item is not UNSET}
    if levels and isinstance(value, dict):
        for number, (key, item) in enumerate(value.items()):
            out += b"," if number else b"{"
            out += encode(key) + b":"
            _render(item, levels - 1, out, rest)
        out += b"}" if value else b"{}"
    elif levels and isinstance(value, (list, Iterator)):
        out += b"["
        for number, item in enumerate(value):
            out += b"," if number else b""
            _render(item, levels - 1, out, rest)
        out += b"]"
    else:
        out += encode(value)
        rest()

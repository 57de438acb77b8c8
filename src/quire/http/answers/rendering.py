"""From a value to the bytes of JSON, without a stop for everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from fastapi.responses import Response
from pydantic_core import to_json

_LEVELS = 5  # of an answer, down to the log-probabilities of one token


async def json_response(build: Callable[[], Any], *, large: bool) -> Response:
    """What ``build`` returns as JSON; made in a thread if it is large."""

    def render() -> bytes:
        out = bytearray()
        _render(build(), _LEVELS, out)
        return bytes(out)

    content = await asyncio.to_thread(render) if large else to_json(build(), inf_nan_mode="null")
    return Response(content, media_type="application/json")


def _render(value: object, levels: int, out: bytearray) -> None:
    """JSON, rendered in pieces: while one is made, no other thread runs.

    An iterator becomes a list of which one item is there at a time.
    """
    if levels and isinstance(value, dict):
        for number, (key, item) in enumerate(value.items()):
            out += b"," if number else b"{"
            out += to_json(key) + b":"
            _render(item, levels - 1, out)
        out += b"}" if value else b"{}"
    elif levels and isinstance(value, (list, Iterator)):
        out += b"["
        for number, item in enumerate(value):
            out += b"," if number else b""
            _render(item, levels - 1, out)
        out += b"]"
    else:
        out += to_json(value, inf_nan_mode="null")

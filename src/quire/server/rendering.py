"""From a value to the bytes of JSON, without a stop for everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi.responses import Response
from pydantic_core import to_json

_LEVELS = 6  # of an answer, down to the log-probabilities of one token


async def json_response(build: Callable[[], dict[str, Any]], *, large: bool) -> Response:
    """What ``build`` returns as JSON; made in a thread if it is large."""

    def render() -> bytes:
        return _pieces(build(), _LEVELS)

    content = await asyncio.to_thread(render) if large else to_json(build(), inf_nan_mode="null")
    return Response(content, media_type="application/json")


def _pieces(value: object, levels: int) -> bytes:
    """JSON, rendered in pieces: while one is made, no other thread runs."""
    if not levels or not value:
        return to_json(value, inf_nan_mode="null")
    if isinstance(value, dict):
        members = (to_json(key) + b":" + _pieces(item, levels - 1) for key, item in value.items())
        return b"{" + b",".join(members) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join([_pieces(item, levels - 1) for item in value]) + b"]"
    return to_json(value, inf_nan_mode="null")

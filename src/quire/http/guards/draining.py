"""The end of a server: what it has begun to answer is finished, nothing new is begun."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.http.answers.rendering import respond
from quire.http.error_shapes import SERVER, ErrorAnswer, Problem, ShapedError, shape_for

_RETRY_AFTER = "5"  # seconds: another server, or the next one here, may be there by then
_LOOK = 0.02  # seconds


@dataclass
class Drain:
    """Whether the end has begun, and how many requests are still to be answered."""

    begun: bool = False
    running: int = 0

    async def ended(self, seconds: float) -> None:
        """Begin the end, and wait until all is answered, for ``seconds`` at most."""
        self.begun, deadline = True, time.monotonic() + seconds
        while self.running and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK)

    def refusal(self, shape: type[ShapedError] = ErrorAnswer) -> Response:
        """What health checks and new requests get."""
        problem = Problem(503, "the server is shutting down", SERVER, code="shutting_down")
        headers = {"retry-after": _RETRY_AFTER, "connection": "close"}
        return respond(shape.of(problem), 503, headers)


class RefuseWhileDraining:
    """Counts requests for work, and refuses them once the end has begun. Reading is no work."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        if self._drain.begun:
            return await self._drain.refusal(shape_for(scope))(scope, receive, send)
        self._drain.running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._drain.running -= 1

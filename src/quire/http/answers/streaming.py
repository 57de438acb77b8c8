"""Streams of JSON: server-sent events, or one value a line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from quire.core.errors import QuireError
from quire.http.answers.rendering import Answer, encode
from quire.http.errors import (
    AnthropicErrorAnswer,
    ErrorBody,
    Problem,
    explain,
    route_path,
    shape_for,
)
from quire.http.guards.envelope import REQUEST_ID

Events = AsyncGenerator[Sequence[Answer | bytes], None]  # bytes are framed already

DIRECT = "direct_send"
"""Where the ASGI scope's state has the connection's own ``send``, without what is around it.

Whatever is around changes how an answer starts, or refusals: to pass each event of a stream
through all of it would cost more than to send it.
"""

logger = logging.getLogger(__name__)


class Framing(NamedTuple):
    """How an API writes down the values of a stream, and what ends one that went well.

    sign_of_life: what clients read over, and proxies take for a sign that somebody is there.
    """

    media_type: str
    frame: Callable[[Answer], bytes]
    sign_of_life: bytes
    end: bytes = b""


def event(content: bytes) -> bytes:
    """JSON as the data of an event."""
    return b"data: %b\n\n" % content


def _data(value: object) -> bytes:
    return event(encode(value))


def _named(value: Any) -> bytes:
    return b"event: %b\n%b" % (value.type.encode(), _data(value))


def _line(value: object) -> bytes:
    return encode(value) + b"\n"


_COMMENT = b": keep-alive\n\n"
_SPACE = b" "  # before the next line's JSON: clients take no line that is empty

DATA = Framing("text/event-stream", _data, _COMMENT)
DATA_TO_DONE = DATA._replace(end=b"data: [DONE]\n\n")
NAMED_EVENTS = Framing("text/event-stream", _named, _COMMENT)  # by the type that each value has
PINGED_EVENTS = NAMED_EVENTS._replace(sign_of_life=b'event: ping\ndata: {"type":"ping"}\n\n')
LINES = Framing("application/x-ndjson", _line, _SPACE)


class EventStream(Response):
    """Sends each value as an event, then the end.

    Values that come together are sent together: what is sent costs more than what is in it. The
    headers go out with the first ones, so that an error before them is an ordinary HTTP error; one
    after them is the last event.

    silence: seconds after which a sign of life is sent, headers first; None, or 0: none is.
    error: makes the event of an error; else it has the shape of its path.
    """

    def __init__(
        self,
        values: Events,
        framing: Framing = DATA_TO_DONE,
        silence: float | None = None,
        error: Callable[[Problem], Answer] | None = None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache"}, media_type=framing.media_type)
        del self.headers["content-length"]
        self._values = values
        self._framing = framing
        self._error = error
        self._silence = silence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A task of its own: to wake one that is in the app's middleware resumes every layer of it.
        await asyncio.create_task(self._send_all(scope, send))

    async def _send_all(self, scope: Scope, send: Send) -> None:
        state = scope.get("state", {})
        wire = _Wire(state, send, self.raw_headers)
        frame, last = self._framing.frame, self._framing.end
        async with aclosing(self._values) as batches, self._signs_of_life(wire):
            try:
                async for values in batches:
                    framed: list[bytes] = []
                    for value in values:
                        framed.append(value if isinstance(value, bytes) else frame(value))
                    await wire.say(b"".join(framed))
            except Exception as error:
                if not wire.begun:
                    raise
                bug = not isinstance(error, QuireError)
                request_id = state.get(REQUEST_ID, "")
                text = "the stream of request %s ended with an error: %s"
                logger.warning(text, request_id, error, exc_info=bug)
                last = frame((self._error or shape_for(scope).of)(explain(error, request_id)))
        await wire.say(last, more=False)

    @asynccontextmanager
    async def _signs_of_life(self, wire: _Wire) -> AsyncIterator[None]:
        """While there is nothing else to send, such as while a prompt waits or is read."""
        if not self._silence:
            yield
            return
        signs = asyncio.create_task(wire.fill(self._silence, self._framing.sign_of_life))
        try:
            yield
        finally:
            signs.cancel()
            with suppress(asyncio.CancelledError):
                await signs


class _Wire:
    """Sends an answer piece by piece, its headers before the first one."""

    def __init__(self, state: Mapping[str, Any], send: Send, headers: Any) -> None:
        self._state = state
        self._send = send
        self._start: Message = {"type": "http.response.start", "status": 200, "headers": headers}
        self._one_at_a_time = asyncio.Lock()
        self._said_at = asyncio.get_running_loop().time()
        self.begun = False

    async def say(self, content: bytes, *, more: bool = True) -> None:
        async with self._one_at_a_time:
            if not self.begun:
                self.begun = True
                await self._send(self._start)
                self._send = self._state.get(DIRECT, self._send)
            self._said_at = asyncio.get_running_loop().time()
            await self._send({"type": "http.response.body", "body": content, "more_body": more})

    async def fill(self, silence: float, sign: bytes) -> None:
        """Say ``sign`` whenever nothing has been said for ``silence`` seconds."""
        while True:
            left = self._said_at + silence - asyncio.get_running_loop().time()
            await (asyncio.sleep(left) if left > 0 else self.say(sign))


def last_words(scope: Scope, media_type: str, problem: Problem) -> bytes | None:
    """What ends an answer whose maker is gone, in the shape of its API; None: it is no stream."""
    error: Answer = shape_for(scope).of(problem)
    if media_type.startswith(LINES.media_type):
        return LINES.frame(error)
    if not media_type.startswith(DATA.media_type):
        return None
    if route_path(scope).startswith("/v1/responses"):  # whose events are flat
        error = ErrorBody(problem.message, "error", problem.param, problem.code)
    named = isinstance(error, (ErrorBody, AnthropicErrorAnswer))
    return (NAMED_EVENTS if named else DATA).frame(error)

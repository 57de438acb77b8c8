"""Streams of JSON: server-sent events, or one value a line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from quire.errors import QuireError
from quire.server.error_shapes import ErrorShape, in_openai_s_shape
from quire.server.errors import REQUEST_ID, explain

Json = dict[str, Any]
Events = AsyncGenerator[Sequence[Json | bytes], None]  # bytes are framed already

DIRECT = "direct_send"
"""Where the ASGI scope's state has the connection's own ``send``, without what is around it.

Whatever is around changes how an answer starts, or refusals: to pass each event of a stream
through all of it would cost more than to send it.
"""

logger = logging.getLogger(__name__)


class Framing(NamedTuple):
    """How an API writes down the values of a stream, and what ends one that went well."""

    media_type: str
    frame: Callable[[Json], bytes]
    end: bytes = b""


def _data(value: Json) -> bytes:
    return event(to_json(value, inf_nan_mode="null"))


def _named(value: Json) -> bytes:
    return b"event: %b\n%b" % (str(value["type"]).encode(), _data(value))


def _line(value: Json) -> bytes:
    return to_json(value, inf_nan_mode="null") + b"\n"


DATA = Framing("text/event-stream", _data)
DATA_TO_DONE = Framing("text/event-stream", _data, b"data: [DONE]\n\n")
NAMED_EVENTS = Framing("text/event-stream", _named)  # by the type that each value has
LINES = Framing("application/x-ndjson", _line)


class EventStream(Response):
    """Sends each value as an event, then the end.

    Values that come together are sent together: what is sent costs more than what is in it. The
    headers go out with the first ones, so that an error before them is an ordinary HTTP error; one
    after them is the last event.
    """

    def __init__(
        self,
        values: Events,
        framing: Framing = DATA_TO_DONE,
        shape: ErrorShape = in_openai_s_shape,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache"}, media_type=framing.media_type)
        del self.headers["content-length"]
        self._values = values
        self._framing = framing
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A task of its own: to wake one that is in the app's middleware resumes every layer of it.
        await asyncio.create_task(self._send_all(scope.get("state", {}), send))

    async def _send_all(self, state: Mapping[str, Any], send: Send) -> None:
        async with aclosing(self._values) as batches:
            first = await anext(batches)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            send = state.get(DIRECT, send)
            await send(_body(self._framed(first)))
            last = self._framing.end
            try:
                async for values in batches:
                    await send(_body(self._framed(values)))
            except Exception as error:
                bug = not isinstance(error, QuireError)
                request_id = state.get(REQUEST_ID, "")
                text = "the stream of request %s ended with an error: %s"
                logger.warning(text, request_id, error, exc_info=bug)
                last = self._framing.frame(self._shape(*explain(error, request_id)))
        await send(_body(last, more=False))

    def _framed(self, values: Sequence[Json | bytes]) -> bytes:
        frame = self._framing.frame
        return b"".join([value if isinstance(value, bytes) else frame(value) for value in values])


def last_words(path: str, media_type: str, error: Json) -> bytes | None:
    """What ends an answer whose maker is gone, in the shape of its API; None: it is no stream.

    path: what was asked. error: in that shape already.
    """
    if media_type.startswith(LINES.media_type):
        return LINES.frame(error)
    if not media_type.startswith(DATA.media_type):
        return None
    if path.startswith("/v1/responses"):  # whose events are flat
        error = {**error["error"], "type": "error"}
    return (NAMED_EVENTS if "type" in error else DATA).frame(error)


def event(content: bytes) -> bytes:
    """JSON as the data of an event."""
    return b"data: %b\n\n" % content


def _body(content: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}

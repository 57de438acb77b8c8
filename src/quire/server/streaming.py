"""Server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from quire.errors import QuireError
from quire.server.errors import REQUEST_ID, explain

Json = dict[str, Any]
Events = AsyncGenerator[Sequence[Json | bytes], None]  # bytes are events already: see ``event``

DIRECT = "direct_send"
"""Where the ASGI scope's state has the connection's own ``send``, without what is around it.

Whatever is around changes how an answer starts, or refusals: to pass each event of a stream
through all of it would cost more than to send it.
"""

logger = logging.getLogger(__name__)


class EventStream(Response):
    """Sends each value as an event, then ``[DONE]``.

    Values that come together are sent together: what is sent costs more than what is in it. The
    headers go out with the first ones, so that an error before them is an ordinary HTTP error; one
    after them is the last event.
    """

    media_type = "text/event-stream"

    def __init__(self, values: Events) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._values = values

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A task of its own: to wake one that is in the app's middleware resumes every layer of it.
        await asyncio.create_task(self._send_all(scope.get("state", {}), send))

    async def _send_all(self, state: Mapping[str, Any], send: Send) -> None:
        async with aclosing(self._values) as batches:
            first = await anext(batches)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            send = state.get(DIRECT, send)
            await send(_body(_events(first)))
            last = b"data: [DONE]\n\n"
            try:
                async for values in batches:
                    await send(_body(_events(values)))
            except Exception as error:
                bug = not isinstance(error, QuireError)
                request_id = state.get(REQUEST_ID, "")
                text = "the stream of request %s ended with an error: %s"
                logger.warning(text, request_id, error, exc_info=bug)
                last = _events([explain(error, request_id)[1]])
        await send(_body(last, more=False))


def event(content: bytes) -> bytes:
    return b"data: %b\n\n" % content


def _events(values: Sequence[Json | bytes]) -> bytes:
    return b"".join([value if type(value) is bytes else _rendered(value) for value in values])


def _rendered(value: Json | bytes) -> bytes:
    return event(to_json(value, inf_nan_mode="null"))


def _body(content: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}

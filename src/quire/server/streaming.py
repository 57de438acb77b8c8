"""Server-sent events."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.errors import QuireError
from quire.server.errors import explain

Json = dict[str, Any]
Events = AsyncGenerator[Json, None]

logger = logging.getLogger(__name__)


class EventStream(Response):
    """Sends each value as an event, then ``[DONE]``.

    The headers go out with the first value, so that an error before it is an ordinary HTTP
    error; one after it is the last event.
    """

    media_type = "text/event-stream"

    def __init__(self, values: Events) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._values = values

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_event(data: str) -> None:
            body = f"data: {data}\n\n".encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})

        async with aclosing(self._values) as values:
            value = await anext(values)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send_event(_encode(value))
            try:
                async for value in values:
                    await send_event(_encode(value))
                await send_event("[DONE]")
            except Exception as error:
                bug = not isinstance(error, QuireError)
                logger.warning("a stream ended with an error: %s", error, exc_info=bug)
                await send_event(_encode(explain(error)[1]))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _encode(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

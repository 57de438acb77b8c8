"""What stands between the network and the routes, besides keys: the size limit, the hang-up."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class CancelOnDisconnect:
    """Cancels the work on a request when its client hangs up, streaming or not.

    Cancelling is what closes the engine's iterators, which frees the request's blocks.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        body: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)

        async def listen() -> None:
            while (message := await receive())["type"] != "http.disconnect":
                await body.put(message)

        work = asyncio.ensure_future(self._app(scope, body.get, send))
        listener = asyncio.ensure_future(listen())
        try:
            await asyncio.wait({work, listener}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()  # does nothing to what is done
            listener.cancel()
            await asyncio.wait({work, listener})
        if not work.cancelled():
            work.result()


class LimitBody:
    """Answers 413 as soon as a body has grown too large, whatever its headers promised."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise HTTPException(413, f"the body is larger than {self._max_bytes} bytes")
            return message

        await self._app(scope, limited, send)

"""Clients that hang up, and bodies that nobody has read."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_BODY_HEADERS = (b"content-length", b"transfer-encoding")
_LINGER, _MOST_THROWN_AWAY = 2.0, 2**24  # seconds, bytes


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


class CloseUnread:
    """Closes the connection after a refusal that did not wait for the whole body.

    What is left of the body would have to be read before the next request could be. It is thrown
    away for a moment, since a client that is still sending may otherwise never see its answer: a
    socket that is closed with something unread drops what it had sent.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _announces_body(scope):
            return await self._app(scope, receive, send)
        unread, closing = True, False

        async def noting() -> Message:
            nonlocal unread
            message = await receive()
            unread = message.get("more_body", False)
            return message

        async def throw_away() -> None:
            thrown_away = 0
            while unread and thrown_away < _MOST_THROWN_AWAY:
                thrown_away += len((await noting()).get("body", b""))

        async def close_after(message: Message) -> None:
            nonlocal closing
            if message["type"] == "http.response.start" and message["status"] >= 400 and unread:
                closing = True
                others = [header for header in message["headers"] if header[0] != b"connection"]
                message["headers"] = [*others, (b"connection", b"close")]
            if not closing or message.get("more_body", message["type"] == "http.response.start"):
                return await send(message)
            await send({**message, "more_body": True})
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(throw_away(), _LINGER)
            await send({"type": "http.response.body"})

        await self._app(scope, noting, close_after)


def _announces_body(scope: Scope) -> bool:
    lengths = [value for name, value in scope["headers"] if name in _BODY_HEADERS]
    return bool(lengths) and lengths != [b"0"]

"""Clients that hang up, and bodies that nobody has read."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.http.guards.turns import Turnstile

_BODY_HEADERS = (b"content-length", b"transfer-encoding")
_LINGER, _MOST_THROWN_AWAY = 2.0, 2**24  # seconds, bytes


class CancelOnDisconnect:
    """Cancels the work on a request when its client hangs up, streaming or not.

    Cancelling is what closes the engine's iterators, which frees the request's blocks. What is only
    read is answered too soon for that.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._leaving = Turnstile()  # a thousand who hang up together keep nobody waiting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "GET":
            return await self._app(scope, receive, send)
        work, gone, done = asyncio.current_task(), False, False
        assert work is not None
        body: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)

        def cancel() -> None:
            nonlocal gone
            gone = not done
            if gone:
                work.cancel()

        async def listen() -> None:
            while (message := await receive())["type"] != "http.disconnect":
                await body.put(message)
            self._leaving.wait(None, cancel)

        listener = asyncio.ensure_future(listen())
        try:
            await self._app(scope, body.get, send)
        except asyncio.CancelledError:
            if not gone:
                raise
        finally:
            done = True
            listener.cancel()


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

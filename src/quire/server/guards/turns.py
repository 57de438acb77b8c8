"""Requests begin one after the other, clients in turn."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable

from starlette.types import ASGIApp, Receive, Scope, Send


class Turnstile:
    """Lets one through in each turn of the event loop; those who ask take turns.

    A thousand requests that come in the same instant would otherwise begin in the same turn, and
    nobody else, not even who asks for health, would be heard until all of them have.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._passed = False  # somebody has, in this turn of the loop

    async def wait(self, asker: Hashable) -> None:
        """Until it is this one's turn; not at all where nobody else comes."""
        loop = asyncio.get_running_loop()
        if not self._passed:
            self._passed = True
            loop.call_soon(self._turn)
            return
        turn = loop.create_future()
        self._waiting.setdefault(asker, deque()).append(turn)
        await turn

    def _turn(self) -> None:
        self._passed = self._let_one_through()
        if self._passed:
            asyncio.get_running_loop().call_soon(self._turn)

    def _let_one_through(self) -> bool:
        while self._waiting:
            asker, line = self._waiting.popitem(last=False)
            turn = line.popleft()
            if line:
                self._waiting[asker] = line  # behind the others
            if not turn.done():  # or it was cancelled
                turn.set_result(None)
                return True
        return False


class TakeTurns:
    """Holds requests back until it is their turn."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turnstile = Turnstile()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._turnstile.wait(_asker(scope))
        await self._app(scope, receive, send)


def _asker(scope: Scope) -> Hashable:
    """Each address is one, and another where it only reads: work is no reason to look dead."""
    client = scope.get("client")
    return client and client[0], scope["method"] == "GET"

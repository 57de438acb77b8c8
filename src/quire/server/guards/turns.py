"""What many ask for in the same instant, done one after the other."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable


class Turnstile:
    """Lets one through in each turn of the event loop; those who ask take turns.

    A thousand requests that come together would otherwise begin in the same turn, and nobody else,
    not even who asks for health, would be heard until all of them have.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, deque[Callable[[], None]]] = OrderedDict()
        self._passed = False  # somebody has, in this turn of the loop

    def wait(self, asker: Hashable, go: Callable[[], None]) -> None:
        """Call ``go`` when it is this one's turn: at once, where nobody else comes."""
        if self._passed:
            self._waiting.setdefault(asker, deque()).append(go)
        else:
            self._pass(go)

    def _pass(self, go: Callable[[], None]) -> None:
        self._passed = True
        asyncio.get_running_loop().call_soon(self._turn)
        go()

    def _turn(self) -> None:
        self._passed = False
        if self._waiting:
            asker, line = self._waiting.popitem(last=False)
            go = line.popleft()
            if line:
                self._waiting[asker] = line  # behind the others
            self._pass(go)

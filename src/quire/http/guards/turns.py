"""What many ask for in the same instant, done one after the other."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

_HASTE = 0.00005  # seconds
_MANY = 100  # who wait in one line


class Haste:
    """While a line is long, the event loop soon gets Python's lock when another thread has it.

    Each event of a connection asks for the lock anew, and the engine's thread would keep it each
    time for as long as the interpreter lets it: hundreds of events make seconds. At other times
    the engine is better off with longer turns.
    """

    def __init__(self) -> None:
        self._lines = 0
        self._usual = 0.0

    def begin(self) -> None:
        if not self._lines:
            self._usual = sys.getswitchinterval()
            sys.setswitchinterval(_HASTE)
        self._lines += 1

    def end(self) -> None:
        self._lines -= 1
        if not self._lines:
            sys.setswitchinterval(self._usual)


class Turnstile:
    """Lets one through in each turn of the event loop; those who ask take turns.

    A thousand requests that come together would otherwise begin in the same turn, and nobody else,
    not even who asks for health, would be heard until all of them have.
    """

    def __init__(self, haste: Haste | None = None) -> None:
        """haste: while many wait."""
        self._haste = haste
        self._hastens = False
        self._waiting: OrderedDict[Hashable, deque[Callable[[], None]]] = OrderedDict()
        self._num_waiting = 0
        self._passed = False  # somebody has, in this turn of the loop

    def wait(self, asker: Hashable, go: Callable[[], None]) -> None:
        """Call ``go`` when it is this one's turn: at once, where nobody else waits."""
        if self._passed:
            self._waiting.setdefault(asker, deque()).append(go)
            self._count(1)
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
            self._count(-1)
            self._pass(go)

    def _count(self, more: int) -> None:
        self._num_waiting += more
        if self._haste and not self._hastens and self._num_waiting > _MANY:
            self._hastens = True
            self._haste.begin()
        elif self._haste and self._hastens and not self._num_waiting:
            self._hastens = False
            self._haste.end()

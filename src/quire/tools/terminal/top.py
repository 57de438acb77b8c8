"""``quire top``: what servers hold and why requests wait, in a terminal, as it changes."""

from __future__ import annotations

import contextlib
import json
import select
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.live import Live

from quire.core.errors import QuireError
from quire.tools.terminal.address import Address
from quire.tools.terminal.top_text import SORTS, View, page

_PATIENCE = 5.0  # seconds for which a server may not answer
_KEYS = "q quits  s sorts by {next} (now {sort})  p {pause}"


class Servers:
    """The servers to look at, all at once."""

    def __init__(self, urls: Sequence[str], api_key: str | None, limit: int) -> None:
        self._addresses = [Address(url, api_key, _PATIENCE) for url in urls]
        self._path = f"/v1/quire/state?limit={limit}"

    def look(self) -> list[View]:
        with ThreadPoolExecutor(len(self._addresses)) as threads:
            return list(threads.map(self._one, self._addresses))

    def _one(self, address: Address) -> View:
        try:
            with address.send("GET", self._path) as reply:
                return View(address.url, json.load(reply))
        except (QuireError, ValueError) as error:
            return View(address.url, problem=str(error).removeprefix(f"{address.url} "))


class Top:
    """Shows the servers again and again, until a key ends it.

    interval: seconds between two updates.
    """

    def __init__(self, servers: Servers, sort: str, interval: float) -> None:
        self._servers = servers
        self._sort = sort
        self._interval = interval
        self._paused = False

    def run(self, console: Console) -> None:
        views, looked = self._servers.look(), time.monotonic()
        with _single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(
                    page(views, console.width, console.height, self._sort, self._keys()),
                    refresh=True,
                )
                key = _key(max(0.0, looked + self._interval - time.monotonic()))
                if key in ("q", "Q", "\x04"):
                    return
                self._press(key)
                if not self._paused and time.monotonic() - looked >= self._interval:
                    views, looked = self._servers.look(), time.monotonic()
                elif self._paused:
                    looked = time.monotonic()

    def _press(self, key: str) -> None:
        if key == "s":
            self._sort = self._next
        elif key in ("p", " "):
            self._paused = not self._paused

    @property
    def _next(self) -> str:
        names = list(SORTS)
        return names[(names.index(self._sort) + 1) % len(names)]

    def _keys(self) -> str:
        pause = "goes on (paused)" if self._paused else "pauses"
        return _KEYS.format(next=self._next, sort=self._sort, pause=pause)


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Keys come one by one, and are not shown."""
    try:
        import termios
        import tty
    except ImportError:  # not on this system: Ctrl-C ends it
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key(seconds: float) -> str:
    """The next key, or nothing within this many seconds."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return sys.stdin.read(1) or "q" if ready else ""

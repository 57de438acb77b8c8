"""Shutdown in a bounded time: whatever should answer may be unreachable."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

_LOOK = 0.1  # seconds between two checks of ``enough``


class TimedEnding:
    """Runs acts one after the other until one fails or time is up; then no more.

    left: the acts that were not done, and why, in words; None: all were.
    """

    def __init__(self) -> None:
        self.left: str | None = None
        self._deadline = math.inf

    def within(self, seconds: float) -> None:
        """Set a deadline, this many seconds from now."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def do(
        self, what: str, act: Callable[[], object], enough: threading.Event | None = None
    ) -> None:
        """Run an act in a thread of its own, which is abandoned if it does not return in time.

        enough: an event that ends the wait for the act.
        """
        if self.left is not None:
            return
        failure: list[BaseException] = []

        def run() -> None:
            try:
                act()
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=run, name=f"quire-end: {what}", daemon=True)
        thread.start()
        while thread.is_alive() and not (enough is not None and enough.is_set()):
            if time.monotonic() > self._deadline:
                self.left = f"{what} did not end in time"
                return
            thread.join(_LOOK)
        if failure:
            first_line = (str(failure[0]) or repr(failure[0])).splitlines()[0]
            self.left = f"{what} failed: {first_line}"

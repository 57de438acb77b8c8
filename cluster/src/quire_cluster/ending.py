"""What is done at the end, all of it within a time: who should answer may not be reachable."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

_LOOK = 0.1  # seconds between two looks whether it is to go on


class TimedEnding:
    """Does one thing after the other, until one fails or the time is over; then nothing more.

    left: what was not done then, and why, in words.
    """

    def __init__(self) -> None:
        self.left: str | None = None
        self._deadline = math.inf

    def within(self, seconds: float) -> None:
        """From now on there is no more time than that."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def do(
        self, what: str, act: Callable[[], object], enough: threading.Event | None = None
    ) -> None:
        """In a thread of its own, which is left behind if it does not come back.

        enough: once it is set, nobody waits for the act.
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

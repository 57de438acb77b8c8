"""Writing behind: blocks wait in memory, within bounds, for a thread that writes them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice

from quire.memory import BlockHash, Content

logger = logging.getLogger(__name__)

_TOGETHER = 0.5  # seconds in which blocks may come that are written with the first one

Write = Callable[[Sequence[tuple[Content, Sequence[bytes]]]], None]


class WriteBehind:
    """Keeps at most ``most`` blocks until they are written. If that fails, it goes quiet.

    begin: what the thread does first; together: blocks that ``write`` takes at once.
    """

    def __init__(
        self, begin: Callable[[], None], write: Write, most: int, together: int = 1
    ) -> None:
        self._begin = begin
        self._write = write
        self._most = most
        self._together = min(together, most)
        self._hurried = 0  # who wait until all is written
        self._waiting: dict[BlockHash, tuple[Content, Sequence[bytes]]] = {}  # in order
        self._changed = threading.Condition()
        self._ended = False
        self.failure: OSError | None = None  # why nothing is written any more
        self._thread = threading.Thread(target=self._run, name="quire-store", daemon=True)
        self._thread.start()

    def room(self) -> int:
        return 0 if self.failure or self._ended else self._most - len(self._waiting)

    def put(self, content: Content, parts: Sequence[bytes]) -> None:
        """To be written, if there is room."""
        if self.room() > 0:
            with self._changed:
                self._waiting[content.name] = content, parts
                if len(self._waiting) in (1, self._together):  # else the thread has no use for it
                    self._changed.notify_all()

    def find(self, name: BlockHash) -> tuple[Content, Sequence[bytes]] | None:
        """A block that is not written yet."""
        return self._waiting.get(name)

    def drop(self, name: BlockHash) -> None:
        """A block need not be written, if it is not just being written."""
        self._done([name])

    def flush(self, seconds: float) -> None:
        """Wait until nothing waits, for at most so long."""
        with self._changed:
            self._hurried += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting, seconds)
            self._hurried -= 1

    def close(self, seconds: float) -> None:
        """Write what waits, for at most so long, and no more after that."""
        deadline = time.monotonic() + seconds
        self.flush(seconds)
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        try:
            self._begin()
            while batch := self._next():
                self._write(batch)
                self._done([content.name for content, _ in batch])
        except OSError as error:
            logger.warning(
                "kv_store: nothing more is stored: %s. Serving goes on, and what is stored can "
                "be fetched",
                error.strerror or error,
            )
            with self._changed:
                self.failure = error
                self._waiting.clear()
                self._changed.notify_all()

    def _next(self) -> list[tuple[Content, Sequence[bytes]]]:
        """Waits for some; none: it is the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            self._changed.wait_for(self._is_due, _TOGETHER)
            return [] if self._ended else list(islice(self._waiting.values(), self._together))

    def _is_due(self) -> bool:
        return bool(self._hurried) or self._ended or len(self._waiting) >= self._together

    def _done(self, names: Sequence[BlockHash]) -> None:
        with self._changed:
            for name in names:
                self._waiting.pop(name, None)
            self._changed.notify_all()

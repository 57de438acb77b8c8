"""Writing behind: blocks wait in memory, within bounds, for a thread that writes them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from quire.memory import BlockHash, Content

logger = logging.getLogger(__name__)

Write = Callable[[Content, Sequence[bytes]], None]


class WriteBehind:
    """Keeps at most ``most`` blocks until they are written. If that fails, it goes quiet.

    begin: what the thread does first.
    """

    def __init__(self, begin: Callable[[], None], write: Write, most: int) -> None:
        self._begin = begin
        self._write = write
        self._most = most
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
                self._changed.notify_all()

    def find(self, name: BlockHash) -> tuple[Content, Sequence[bytes]] | None:
        """A block that is not written yet."""
        return self._waiting.get(name)

    def drop(self, name: BlockHash) -> None:
        """A block need not be written, if it is not just being written."""
        self._done(name)

    def flush(self, seconds: float) -> None:
        """Wait until nothing waits, for at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, seconds)

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
            while (first := self._first()) is not None:
                self._write(*first)
                self._done(first[0].name)
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

    def _first(self) -> tuple[Content, Sequence[bytes]] | None:
        """Waits for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            return None if self._ended else next(iter(self._waiting.values()))

    def _done(self, name: BlockHash) -> None:
        with self._changed:
            self._waiting.pop(name, None)
            self._changed.notify_all()

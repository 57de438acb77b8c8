"""Writes behind: blocks wait in bounded memory for a thread that writes them."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from quire.core.memory import BlockHash, Content

logger = logging.getLogger(__name__)

_TOGETHER = 0.5  # seconds to wait for blocks to be written with the first one

_USE_NOTED_AFTER = 5.0  # seconds until uses are noted without a write

Times = Mapping[BlockHash, int]
"""When blocks were used last, in nanoseconds; of a text, the beginning as if it were last."""

Write = Callable[[Sequence[tuple[Content, Sequence[bytes]]], Times], None]


class WriteBehind:
    """Keeps at most ``most`` blocks until they are written. If writing fails, it stops.

    begin: what the thread does first.
    together: blocks in one ``write``.
    note_use: notes when stored blocks were used.
    most_used: uses that are kept until then.
    """

    def __init__(
        self,
        begin: Callable[[], None],
        write: Write,
        note_use: Callable[[Times], None],
        most: int,
        together: int = 1,
        most_used: int = 1,
    ) -> None:
        self._begin = begin
        self._write = write
        self._note_use = note_use
        self._most = most
        self._together = min(together, most)
        self._most_used = most_used
        self._used: dict[BlockHash, int] = {}  # times of use that are not noted yet
        self._times: OrderedDict[BlockHash, int] = OrderedDict()  # of blocks that may be put
        self._hurried = 0  # callers that wait until all is written
        self._waiting: dict[BlockHash, tuple[Content, Sequence[bytes]]] = {}  # in order
        self._changed = threading.Condition()
        self._noting = False  # uses are being noted
        self._ended = False
        self.failure: OSError | None = None  # why writing has stopped
        self._thread = threading.Thread(target=self._run, name="quire-store", daemon=True)
        self._thread.start()

    def room(self) -> int:
        return 0 if self.failure or self._ended else self._most - len(self._waiting)

    def put(self, content: Content, parts: Sequence[bytes]) -> None:
        """Write a block, if there is room for it to wait."""
        if self.room() > 0:
            with self._changed:
                self._waiting[content.name] = content, parts
                if len(self._waiting) in (1, self._together):  # else the thread has no use for it
                    self._changed.notify_all()

    def used(self, names: Iterable[BlockHash]) -> None:
        """Note uses with the next write, or after a while."""
        if self.failure or self._ended:
            return
        with self._changed:
            if not self._used:
                self._changed.notify_all()
            for when, name in enumerate(names, time.time_ns()):
                self._used[name] = self._times[name] = when
                self._times.move_to_end(name)
            while len(self._times) > self._most_used:
                name, _ = self._times.popitem(last=False)
                self._used.pop(name, None)

    def find(self, name: BlockHash) -> tuple[Content, Sequence[bytes]] | None:
        """A block that is not written yet."""
        return self._waiting.get(name)

    def drop(self, name: BlockHash) -> None:
        """Do not write a block, unless it is being written."""
        with self._changed:
            self._waiting.pop(name, None)
            self._changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until all is written, for a bounded time."""
        with self._changed:
            self._hurried += 1
            self._changed.notify_all()
            self._changed.wait_for(self._is_idle, seconds)
            self._hurried -= 1

    def close(self, seconds: float) -> None:
        """Write what waits, for a bounded time, and nothing after that."""
        deadline = time.monotonic() + seconds
        self.flush(seconds)
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        try:
            self._begin()
            while (work := self._next()) is not None:
                batch, used, times = work
                self._note_use(used)  # before a write evicts files
                if batch:
                    self._write(batch, times)
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
                self._used.clear()
                self._noting = False
                self._changed.notify_all()

    def _next(self) -> tuple[list[tuple[Content, Sequence[bytes]]], Times, Times] | None:
        """Wait for blocks, or for uses to note; None: it is the end.

        The blocks, the uses, and when the blocks were used.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._used or self._ended)
            self._changed.wait_for(lambda: self._waiting or self._is_due(), _USE_NOTED_AFTER)
            self._changed.wait_for(self._is_due, _TOGETHER)
            if self._ended:
                return None
            names = list(islice(self._waiting, self._together))
            times: dict[BlockHash, int] = {}
            if self._times:  # evicted files are older than all others
                oldest = next(iter(self._times.values()))
                times = {name: self._times.get(name, oldest) for name in names}
            used, self._used, self._noting = self._used, {}, True
            return [self._waiting[name] for name in names], used, times

    def _is_idle(self) -> bool:
        return not (self._waiting or self._used or self._noting)

    def _is_due(self) -> bool:
        return bool(self._hurried) or self._ended or len(self._waiting) >= self._together

    def _done(self, names: Sequence[BlockHash]) -> None:
        with self._changed:
            for name in names:
                self._waiting.pop(name, None)
            self._noting = False
            self._changed.notify_all()

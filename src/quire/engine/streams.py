"""Standard output and error that nobody waits for: a thread writes them, and drops what is unread.

The reader of a server's log may stop for a while, be it a terminal, a collector or ``less``. The
pipe is full then, and a write to it lasts until the reader goes on.
"""

from __future__ import annotations

import io
import itertools
import logging
import os
import select
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TextIO, cast

logger = logging.getLogger(__name__)

_MOST = 8192  # writes that wait, mostly a line each
_TOGETHER = 1 << 16  # bytes in one go
_LAST_WORDS = 1.0  # seconds for what is left at the end
_FULL = 1.0  # seconds until a pipe that was full is tried again, be it told of or not
_NAMES = ("stdout", "stderr")


class Unwaited(io.RawIOBase):
    """A file that takes all that is written to it at once, and drops what it has no room for.

    It takes no lock, since a signal's handler or a destructor may write in the middle of a write.

    num_dropped: lines that nobody will read.
    """

    def __init__(self, number: int, name: str) -> None:
        """number: of the file that it is written to; it stays open."""
        self._number, self.name = number, name
        self._terminal = os.isatty(number)
        self._queue: SimpleQueue[bytes | threading.Event | None] = SimpleQueue()
        self._drops = itertools.count(1)
        self.num_dropped = self._told = 0
        threading.Thread(target=self._run, name=f"quire-{name}", daemon=True).start()

    def write(self, data: object) -> int:
        """Queue the data; never waits."""
        taken = bytes(cast(bytes, data))
        if self._queue.qsize() < _MOST:
            self._queue.put(taken)
        elif taken.endswith(b"\n"):
            self.num_dropped = next(self._drops)
        return len(taken)

    def drain(self, seconds: float) -> bool:
        """Wait until all is written, for at most so long; whether it is."""
        written = threading.Event()
        self._queue.put(written)
        return written.wait(seconds)

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Write what is left, and no more; the file is not closed."""
        if not self.closed:
            self._queue.put(None)
        super().close()

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return self._terminal

    # -- in a thread of its own ------------------------------------------------------------------

    def _run(self) -> None:
        going = True
        while going:
            pieces, reached, going = self._gather()
            self._write(b"".join(pieces))
            told = self._tell_of_drops()
            for event in reached:
                if told:  # that is to be written as well
                    self._queue.put(event)
                else:
                    event.set()

    def _tell_of_drops(self) -> bool:
        """Log how many lines were dropped, once there is room again."""
        lines = self.num_dropped - self._told
        if not lines or self._queue.qsize() > _MOST // 2:
            return False
        self._told += lines
        logger.warning("%d lines of %s were dropped: its reader had stopped", lines, self.name)
        return True

    def _gather(self) -> tuple[list[bytes], list[threading.Event], bool]:
        """What is there, as far as it is written in one go, and whether more may come.

        Waits for something.
        """
        pieces, reached, size = list[bytes](), list[threading.Event](), 0
        one = self._queue.get()
        while one is not None:
            if isinstance(one, threading.Event):
                reached.append(one)
            else:
                pieces.append(one)
                size += len(one)
            try:
                if size >= _TOGETHER:
                    break
                one = self._queue.get_nowait()
            except Empty:
                break
        return pieces, reached, one is not None

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._number, view) :]
            except BlockingIOError:  # another process that has the pipe wants it so
                select.select([], [self._number], [], _FULL)
            except OSError:  # nobody will read it, or there is no room on the disk
                return


@contextmanager
def nobody_waits() -> Iterator[None]:
    """From here on nothing in this process waits for who reads its output, Python's part of it.

    At the end what is left is written, if that can be done soon; otherwise all stays as it is,
    since the process would wait for it then.
    """
    taken = {name: stream for name in _NAMES if (stream := _taken(name)) is not None}
    before = {name: getattr(sys, name) for name in taken}
    _exchange(before, taken)
    try:
        yield
    finally:
        if last_words(taken.values()):
            _exchange(taken, before)


def last_words(streams: Iterable[TextIO] | None = None) -> bool:
    """Wait a little until what has been written is out, before the process ends; whether it is."""
    files = [_file(one) for one in streams or (sys.stdout, sys.stderr)]
    written = [one.drain(_LAST_WORDS) for one in files if one is not None]
    return all(written)


def num_dropped() -> int:
    """Lines of this process that nobody will read."""
    files = map(_file, (sys.stdout, sys.stderr))
    return sum(one.num_dropped for one in files if one is not None)


def _taken(name: str) -> TextIO | None:
    """A stream over ``Unwaited``; None where it is no file, or is replaced already."""
    stream: TextIO | None = getattr(sys, name)
    if stream is None or _file(stream) is not None:
        return None
    try:
        stream.flush()
        raw = Unwaited(stream.fileno(), name)
    except (OSError, ValueError):
        return None
    # It is what it looks like to a TextIOWrapper: nothing is buffered in between.
    buffer = cast("io.BufferedWriter", raw)
    return io.TextIOWrapper(buffer, stream.encoding, stream.errors, write_through=True)


def _file(stream: TextIO | None) -> Unwaited | None:
    raw = getattr(stream, "buffer", None)
    return raw if isinstance(raw, Unwaited) else None


def _exchange(old: dict[str, TextIO], new: dict[str, TextIO]) -> None:
    """Also for those who log, who keep the stream that there was when they began."""
    for name, stream in new.items():
        setattr(sys, name, stream)
    names = {id(stream): name for name, stream in old.items()}
    known = [logging.getLogger(), *logging.root.manager.loggerDict.values()]
    for one in known:
        for handler in one.handlers if isinstance(one, logging.Logger) else ():
            if isinstance(handler, logging.StreamHandler) and id(handler.stream) in names:
                handler.setStream(new[names[id(handler.stream)]])

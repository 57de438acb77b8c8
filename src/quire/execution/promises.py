"""Main memory that engines of one machine were promised and have not taken yet.

What the system calls free says nothing of weights that another engine is about to read, nor of a
pool whose memory nobody has touched. So each engine writes down what it was promised, in a file
that it holds a lock on for as long as it lives, and measures and promises while nobody else does.
The files are one user's, in a directory that is memory where there is such; what an engine that has
ended leaves behind counts for nothing, and the next that measures removes it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import tempfile
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from quire.kernels.cgroups import PROCESS, SYSTEM, directories

logger = logging.getLogger(__name__)

_MEMORY = Path("/dev/shm")  # for a directory that nobody else can write to
_FILES = "*.promise"
_PATIENCE = 5.0  # seconds for others that measure; they take milliseconds
_PAUSE = 0.01
_NOT_TOLD = (
    "other engines cannot be told what memory this one takes (%s): do not start several at the "
    "same time"
)


class Promise(NamedTuple):
    """What is in such a file. base: bytes that its process had when the engine measured."""

    process: int
    namespace: int  # that the process has its number in
    base: int
    num_bytes: int  # that the engine may take beside
    groups: list[str]  # cgroups that it is in

    @property
    def left(self) -> int:
        """Bytes that have not been taken yet, as far as can be seen."""
        has = _private_bytes(self.process) if self.namespace == _namespace() else None
        taken = 0 if has is None else has - self.base
        # A process that has less than it had let go of something else.
        return min(self.num_bytes, max(0, self.num_bytes - taken))


def promises_directory() -> Path:
    """The directory of this user's promises."""
    parent = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
    return parent / f"quire-{os.getuid()}"


def promises(directory: Path | None = None) -> list[Promise]:
    """One for each process with living engines, this one included."""
    directory = directory or promises_directory()
    if not _is_ours(directory):
        return []
    of_process = defaultdict[tuple[int, int], list[Promise]](list)
    for path in directory.glob(_FILES):
        found = _read(path)
        if found is not None:
            of_process[found.process, found.namespace].append(found)
    return [_together(engines) for engines in of_process.values()]


class Claim:
    """What one engine is promised."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or promises_directory()
        self._file: IO[str] | None = None
        self._base = 0

    @property
    def is_told(self) -> bool:
        """Whether others know of it."""
        return self._file is not None

    @contextmanager
    def settling(self) -> Iterator[None]:
        """While nobody else measures; this engine's promise is nothing when it begins."""
        with _measuring(self._directory) as can_tell:
            if can_tell and self._file is None:
                self._file = _new_file(self._directory)
                self._end = weakref.finalize(self, _remove, self._file)
            self._base = _private_bytes(os.getpid()) or 0
            self.promise(0)
            yield

    def promise(self, num_bytes: int) -> None:
        """Promise ``num_bytes`` in all, beside what the process had when it settled."""
        if self._file is None:
            return
        groups = [str(group) for group in directories("memory", SYSTEM, PROCESS)]
        text = json.dumps([os.getpid(), _namespace(), self._base, num_bytes, groups])
        # In one go, so that whoever reads meanwhile finds the one promise or the other.
        number = self._file.fileno()
        try:
            os.pwrite(number, text.ljust(os.fstat(number).st_size).encode(), 0)
        except OSError as error:  # the directory is full
            logger.warning(_NOT_TOLD, error)
            self.give_up()

    def give_up(self) -> None:
        """The engine has ended; or, what nobody refers to, was never made."""
        if self._file is not None:
            self._end()
            self._file = None


@contextmanager
def _measuring(directory: Path) -> Iterator[bool]:
    """Keep others from measuring meanwhile. False: that is impossible here, and so are promises."""
    try:
        lock = _locked(directory)
    except OSError as error:
        logger.warning(_NOT_TOLD, error)
        yield False
        return
    with lock:
        yield True


def _locked(directory: Path) -> IO[str]:
    directory.mkdir(mode=0o700, exist_ok=True)
    if not _is_ours(directory):
        raise PermissionError(f"{directory} is not this user's")
    lock = (directory / "lock").open("w")
    end = time.monotonic() + _PATIENCE
    while not _takes(lock, fcntl.LOCK_EX):
        if time.monotonic() > end:
            lock.close()
            raise TimeoutError(
                f"another engine has been measuring memory for more than {_PATIENCE:g} s"
            )
        time.sleep(_PAUSE)
    for path in directory.glob(_FILES):  # of those that have ended
        if _read(path) is None:
            path.unlink(missing_ok=True)
    return lock


def _new_file(directory: Path) -> IO[str]:
    number = 0
    while True:
        try:
            file = (directory / f"{os.getpid()}-{number}{_FILES[1:]}").open("x")
        except FileExistsError:
            number += 1
            continue
        fcntl.flock(file, fcntl.LOCK_EX)
        return file


def _remove(file: IO[str]) -> None:
    with suppress(OSError):
        Path(file.name).unlink()
    file.close()


def _takes(file: IO[str], lock: int) -> bool:
    try:
        fcntl.flock(file, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _together(engines: list[Promise]) -> Promise:
    """What one process was promised.

    A base has in it what earlier engines had taken by then. What they had not comes on top, for as
    long as they live.
    """
    target = total = 0
    for one in sorted(engines, key=lambda one: one.base, reverse=True):
        total += one.num_bytes
        target = max(target, one.base + total)
    return engines[0]._replace(base=target - total, num_bytes=total)


def _read(path: Path) -> Promise | None:
    """None: whoever wrote it has ended, or it is no promise."""
    try:
        with path.open() as file:
            return None if _takes(file, fcntl.LOCK_SH) else Promise(*json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def _is_ours(directory: Path) -> bool:
    """Whether nobody else can write there."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    return directory.is_dir() and found.st_uid == os.getuid() and not found.st_mode & 0o22


def _private_bytes(process: int) -> int | None:
    """Bytes that a process has taken, without files'; None: that cannot be seen."""
    try:
        taken = psutil.Process(process).memory_info()
    except psutil.Error:
        return None
    return int(taken.rss - getattr(taken, "shared", 0))


def _namespace() -> int:
    """The namespace of process numbers; 0 where there is but one."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0

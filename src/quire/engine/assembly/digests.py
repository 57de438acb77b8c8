"""What files hold, in a few bytes: all of it, remembered for the next start, or a sample."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import xxhash

from quire.core.errors import QuireError
from quire.models.files import read_object

_PIECE = 4 << 20  # of a file, read at once
_SETTLED = 10.0  # seconds; of a file that has changed since, another change may look the same
_MOST_KNOWN = 1024  # files; those that were read longest ago are forgotten first
_MOST_BYTES = 1 << 20  # of what is remembered
_SAMPLES, _FEWEST, _SAMPLE = 1024, 4, 4096  # pieces of all files, at least of each, and their bytes


class FileDigests:
    """Digests of whole files. What has been read is not read again while it is the same file.

    That is told by device, inode, size and both times: who writes to a file, or puts another in
    its place, changes its time of change, which no program can set. A file that has changed within
    the last seconds is read again the next time: clocks of file systems are coarse.
    """

    def __init__(self, memory: Path | None) -> None:
        """memory: the file in which they are remembered; what it holds amiss is not believed."""
        self._memory = memory
        self._known: dict[str, tuple[list[int], str]] = {}
        self._learned = False
        if memory is not None and memory.exists():
            self._recall(memory)

    def of(self, path: Path) -> str:
        """A file's digest, read from it unless it is remembered. OSError: it cannot be read."""
        name, before = str(path.resolve()), _state(path)
        known = self._known.get(name)
        if known is not None and known[0] == before:
            return known[1]
        total, now = xxhash.xxh3_128(), time.time_ns()
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                total.update(piece)
        if _state(path) == before and max(before[-2:]) < now - _SETTLED * 1e9:
            self._known.pop(name, None)
            self._known[name] = before, total.hexdigest()
            self._learned = True
        return total.hexdigest()

    def remember(self) -> None:
        """Write digests for the next start, which reads the files again if that fails."""
        if self._memory is None or not self._learned:
            return
        latest = dict(list(self._known.items())[-_MOST_KNOWN:])
        unfinished = self._memory.with_name(f"{self._memory.name}.{os.getpid()}.new")
        try:
            unfinished.write_text(json.dumps(latest))
            unfinished.replace(self._memory)
        except OSError:
            unfinished.unlink(missing_ok=True)

    def _recall(self, memory: Path) -> None:
        try:
            found = read_object(memory, _MOST_BYTES)
        except (OSError, QuireError):
            return
        for name, entry in found.items():
            match entry:
                case [[int(), int(), int(), int(), int()] as state, str(digest)]:
                    self._known[name] = state, digest


def _state(path: Path) -> list[int]:
    status = path.stat()
    return [
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    ]


def samples(paths: Sequence[Path]) -> dict[str, str]:
    """A digest of pieces of each file, spread evenly from its first bytes to its last, by name.

    So it costs no more for a large model than for a small one, and tells two models apart, but not
    two files that differ in a few numbers.
    """
    found = {}
    for path in paths:
        size, count = path.stat().st_size, max(_FEWEST, _SAMPLES // len(paths))
        total = xxhash.xxh3_128(size.to_bytes(8, "little"))
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for number in range(count):
                total.update(
                    os.pread(file, _SAMPLE, max(0, size - _SAMPLE) * number // (count - 1))
                )
        finally:
            os.close(file)
        found[path.name] = total.hexdigest()[:16]
    return found

"""A service that does what a client's worst would."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import time
from pathlib import Path

from quire.core.errors import RequestError


class Service:
    def __init__(self, word: str) -> None:
        self._word = word
        self._shared: mmap.mmap | None = None

    def share(self, shared: mmap.mmap) -> None:
        self._shared = shared

    def say(self, more: str) -> str:
        return self._word + more

    def refuse(self) -> None:
        raise RequestError("it is not to be had", "prompt")

    def fail(self) -> None:
        raise KeyError("oh")

    def crash(self) -> None:
        ctypes.string_at(0)

    def take(self, size: int) -> int:
        return len(bytearray(size))

    def loop(self) -> None:
        while True:
            pass

    def sleep(self, seconds: float) -> int:
        time.sleep(seconds)
        return os.getpid()

    def process(self) -> int:
        return os.getpid()

    def give(self, size: int) -> bytes:
        return bytes(size)

    def write(self, text: bytes) -> None:
        assert self._shared is not None
        self._shared[: len(text)] = text

    def files(self) -> list[str]:
        files = list(Path("/proc/self/fd").iterdir())
        return [str(file.readlink()) for file in files if file.is_symlink()]

    def cores(self) -> int:
        return resource.getrlimit(resource.RLIMIT_CORE)[0]


def refusing() -> Service:
    raise RequestError("no such vocabulary", "structured_outputs")

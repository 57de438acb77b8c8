"""Ranks: as threads of this process, and as processes that need no torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from quire.kernels.shared_ranks import SharedMemoryRanks

_Result = TypeVar("_Result")
_PROGRAM = str(Path(__file__).with_name("rank_process.py"))


def ranks_of(size: int, timeout: float = 20.0) -> list[SharedMemoryRanks]:
    """All in this process, each for a thread of its own."""
    first = SharedMemoryRanks.create(size, timeout)
    others = range(1, size)
    return [first, *(SharedMemoryRanks.join(first.name, i, size, timeout) for i in others)]


def together(
    ranks: list[SharedMemoryRanks], body: Callable[[SharedMemoryRanks], _Result]
) -> list[_Result]:
    """What each of them gives, done at one time."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(body, ranks))


class RankProcess:
    """A rank in a process of its own, that does one thing until it fails."""

    def __init__(self, name: str, rank: int, size: int, timeout: float, what: str) -> None:
        command = [sys.executable, _PROGRAM, name, *map(str, (rank, size, timeout)), what]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdin and self._process.stdout
        self._stdin = self._process.stdin
        self.name = self._process.stdout.readline().strip()  # once it is there

    def go(self) -> None:
        self._stdin.write("\n")
        self._stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def last_words(self) -> str:
        """The error with which it has ended."""
        return self._process.communicate(timeout=60)[0].strip()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def rank_processes(size: int, timeout: float, what: str) -> Iterator[list[RankProcess]]:
    """All of them, that ``add`` or ``hear`` without an end."""
    processes: list[RankProcess] = []
    try:
        for rank in range(size):
            name = processes[0].name if rank else ""
            processes.append(RankProcess(name, rank, size, timeout, what))
        for process in processes:
            process.go()
        yield processes
    finally:
        for process in processes:
            process.end()

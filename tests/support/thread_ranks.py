"""Ranks that are threads of this process, for tests of what they compute."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from quire.kernels.ranks import Ranks

_PATIENCE = 60.0  # seconds, for one that has raised never comes

T = TypeVar("T")


class _Meeting:
    """Where all ranks lay down what they bring."""

    def __init__(self, size: int) -> None:
        self.brought: list[Tensor] = [torch.empty(0)] * size
        self.barrier = threading.Barrier(size, timeout=_PATIENCE)


class ThreadRanks(Ranks):
    """See ``Ranks``."""

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        self.rank, self.size = rank, size
        self._meeting = meeting

    def add_up(self, x: Tensor) -> None:
        """In float32, in the order of ranks."""
        total = torch.zeros_like(x, dtype=torch.float32)
        for part in self._all(x):
            total += part
        x.copy_(total)

    def gather(self, x: Tensor) -> Tensor | None:
        every = self._all(x)
        return torch.stack(every) if self.rank == 0 else None

    def _all(self, x: Tensor) -> list[Tensor]:
        meeting = self._meeting
        meeting.brought[self.rank] = x.clone()
        meeting.barrier.wait()
        every = list(meeting.brought)
        meeting.barrier.wait()
        return every


def on_ranks(size: int, work: Callable[[Ranks], T]) -> list[T]:
    """What ``work`` gives on each of so many ranks."""
    meeting = _Meeting(size)

    def one(rank: int) -> T:
        torch.set_num_threads(1)
        try:
            return work(ThreadRanks(rank, size, meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        results = [pool.submit(one, rank) for rank in range(size)]
        errors = [result.exception() for result in results]
        for error in errors:
            if error is not None and not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [result.result() for result in results]

"""Block copies in as few launches as their order allows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from quire.kernels.gpu.programs import blocks

_WORDS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}
_STEP = 1024
_MOST_PAIRS = 65_535  # of one launch


class Route(NamedTuple):
    """A way from the blocks of one tensor to those of another. Addresses and sizes in bytes."""

    source: int
    target: int
    source_stride: int
    target_stride: int
    size: int  # of a block

    @classmethod
    def between(cls, source: Tensor, target: Tensor) -> Route:
        """A route between tensors whose first dimension counts blocks, the others being equal."""
        from_each, to_each = (one.stride(0) * one.itemsize for one in (source, target))
        return cls(
            source.data_ptr(), target.data_ptr(), from_each, to_each, source.nbytes // len(source)
        )


class BlockMover:
    """Copies blocks along all of its routes at once.

    Host memory that takes part must be pinned. The tensors must outlive the mover.
    """

    def __init__(self, routes: Sequence[Route], device: torch.device, same_pool: bool) -> None:
        """``same_pool``: sources and targets are the same blocks, so their order matters more."""
        self._routes = torch.tensor(routes, dtype=torch.int64).to(device)
        self._word = math.gcd(8, *(number for route in routes for number in route))
        self._same_pool = same_pool

    def move(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy block to block, (source, target), as if in the order given."""
        for wave in independent_waves(pairs, self._same_pool):
            for start in range(0, len(wave), _MOST_PAIRS):
                self._launch(wave[start : start + _MOST_PAIRS])

    def _launch(self, pairs: Sequence[tuple[int, int]]) -> None:
        device = self._routes.device
        on_host = torch.tensor(pairs, dtype=torch.int64, pin_memory=device.type == "cuda")
        blocks.copy_blocks[(len(pairs), len(self._routes))](
            self._routes,
            on_host.to(device, non_blocking=True),
            WORD=_WORDS[self._word],
            WORD_BYTES=self._word,
            STEP=_STEP,
        )


def independent_waves(
    pairs: Iterable[tuple[int, int]], same_pool: bool
) -> list[list[tuple[int, int]]]:
    """Cut a list of copies into waves of copies that can be done at once.

    A copy comes in a later wave than those before it that wrote what it reads or writes, or read
    what it writes.
    """
    written: dict[int, int] = {}  # the wave after which a block of the targets is as it should be
    read: dict[int, int] = {}
    waves: list[list[tuple[int, int]]] = []
    for source, target in pairs:
        number = written.get(target, 0)
        if same_pool:
            number = max(number, written.get(source, 0), read.get(target, 0))
        if number == len(waves):
            waves.append([])
        waves[number].append((source, target))
        written[target] = number + 1
        read[source] = max(read.get(source, 0), number + 1)
    return waves

"""Decode steps as recorded launches (CUDA graphs): the host says one word instead of hundreds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

_MOST_SEQS = 512  # larger batches keep the device busy for longer than it takes to launch


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes to record: close together, so that little is computed for padding."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, _MOST_SEQS + 1, 32)]
    most = min(max_num_seqs, _MOST_SEQS)
    return [size for size in sizes if size < most] + [most]


class LaunchRecorder(Protocol):
    """Remembers what was launched."""

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """What launches all of ``compute`` again, with the same tensors; its result."""
        ...


class NoRecorder:
    """Launches everything anew: the same padded batches, so the same numbers as when replayed."""

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """See ``LaunchRecorder.record``."""
        return compute


class CUDARecorder:
    """Records CUDA graphs that share their working memory, since only one runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None  # PyTorch's name for their memory

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """See ``LaunchRecorder``. ``compute`` runs once before, to compile what it launches."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            compute()
        main.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = compute()
        self._pool = graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


class RecordedDecodes:
    """The recorded launches of each batch size."""

    def __init__(
        self,
        sizes: Sequence[int],
        compute: Callable[[int], Callable[[], Tensor]],
        recorder: LaunchRecorder,
    ) -> None:
        """``compute(size)`` gives the forward pass over a padded batch of ``size`` sequences."""
        self._sizes = sorted(sizes)
        # The largest first: the others find room in its memory.
        self._replays = {size: recorder.record(compute(size)) for size in reversed(self._sizes)}

    def size_for(self, num_seqs: int) -> int | None:
        """The least size that so many sequences fit in; None: there is none."""
        place = bisect_left(self._sizes, num_seqs)
        return self._sizes[place] if place < len(self._sizes) else None

    def replay(self, size: int) -> Tensor:
        """Compute what is in the inputs now: [size, d], overwritten by the next replay."""
        return self._replays[size]()

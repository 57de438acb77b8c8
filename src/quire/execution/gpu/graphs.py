"""Steps as recorded launches (CUDA graphs): the host says one word instead of hundreds."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from quire.kernels.ops import MostWork

# Larger batches keep the device busy for longer than it takes to launch.
_MOST_SEQS, _MOST_TOKENS = 512, 2048
_SEQS = 1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, _MOST_SEQS, 32)
_TOKENS = 16, 32, *range(64, 512, 64), *range(512, 1024, 128), *range(1024, _MOST_TOKENS, 256)


class StepSize(NamedTuple):
    """A batch that others are padded to."""

    tokens: int
    seqs: int
    decodes: bool  # each sequence has one token

    @property
    def most(self) -> MostWork:
        """What attention has to be ready for."""
        several = 0 if self.decodes else min(self.seqs, self.tokens // 2 + 1)  # and one that pads
        return MostWork(self.seqs, min(self.seqs, self.tokens), several, self.tokens)


def step_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> list[StepSize]:
    """Batches to record: close together, so that little is computed for padding.

    One sequence more than there may be holds the tokens that pad a batch.
    """
    most = min(max_num_seqs, max_num_batched_tokens, _MOST_SEQS)
    sizes = [StepSize(size, size, True) for size in _up_to(most, _SEQS)]
    longest = min(max_num_batched_tokens, _MOST_TOKENS)
    return sizes + [
        StepSize(size, min(size, max_num_seqs) + 1, False) for size in _up_to(longest, _TOKENS)
    ]


def _up_to(most: int, sizes: Sequence[int]) -> list[int]:
    return [size for size in sizes if size < most] + [most]


class LaunchRecorder(Protocol):
    """Remembers what was launched."""

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """What launches all of ``compute`` again, with the same tensors; its result.

        It keeps ``compute``, and by it what is read there.
        """
        ...


class NoRecorder:
    """A ``LaunchRecorder`` that launches everything anew.

    Batches are padded as when they are replayed, so numbers are the same.
    """

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
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
        # Other threads may use the device meanwhile, those of another model's engine for one.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = compute()
        self._pool = graph.pool()

        def replay(_kept: object = compute) -> Tensor:
            graph.replay()
            return result

        return replay


class RecordedSteps:
    """The recorded launches of each size."""

    def __init__(
        self,
        sizes: Sequence[StepSize],
        compute: Callable[[StepSize], Callable[[], Tensor]],
        recorder: LaunchRecorder,
    ) -> None:
        """``compute(size)`` gives the forward pass over a padded batch of that size."""
        self._decodes = sorted(size for size in sizes if size.decodes)
        self._others = sorted(size for size in sizes if not size.decodes)
        # The largest first: the others find room in its memory.
        largest_first = sorted(sizes, reverse=True)
        with _nothing_collected():
            self._replays = {size: recorder.record(compute(size)) for size in largest_first}

    def size_for(self, num_tokens: int, num_seqs: int) -> StepSize | None:
        """The least size that a batch fits in; None: there is none."""
        sizes = self._decodes if num_tokens == num_seqs else []
        return _least(sizes, num_tokens) or _least(self._others, num_tokens)

    def replay(self, size: StepSize) -> Tensor:
        """Compute what is in the inputs now: [tokens, d], overwritten by the next replay."""
        return self._replays[size]()


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Collect no garbage until the end.

    An engine that nobody holds any more has graphs of its own. Where these are let go of while
    launches are recorded, CUDA gives up the recording.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _least(sizes: Sequence[StepSize], num_tokens: int) -> StepSize | None:
    place = bisect_left(sizes, num_tokens, key=lambda size: size.tokens)
    return sizes[place] if place < len(sizes) else None

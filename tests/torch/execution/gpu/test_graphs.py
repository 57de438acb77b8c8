"""Which batch sizes are recorded, and which of them serves a batch."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from quire.execution.gpu.graphs import RecordedSteps, StepSize, step_sizes

MOST = [1, 2, 3, 7, 8, 100, 256, 512, 5000]


@pytest.mark.parametrize("most", MOST)
def test_sizes_end_with_the_largest_batch_and_waste_little(most: int) -> None:
    found = step_sizes(most, 8192)
    decodes = [size.tokens for size in found if size.decodes]
    others = [size.tokens for size in found if not size.decodes]
    for sizes, last, step in ((decodes, min(most, 512), 8), (others, 2048, 64)):
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == last
        for count in range(step, last + 1):
            size = next(size for size in sizes if size >= count)
            assert size - count < max(step, count / 4 + 1)


@pytest.mark.parametrize(("max_seqs", "max_tokens"), list(product(MOST, MOST)))
def test_every_batch_that_fits_finds_room_for_its_sequences_and_their_tiles(
    max_seqs: int, max_tokens: int
) -> None:
    sizes = step_sizes(max_seqs, max_tokens)
    steps = RecordedSteps(sizes, lambda size: lambda: torch.zeros(size.tokens, 1), Recorder())
    for tokens in {1, 2, 3, 17, 100, max_tokens} & set(range(max_tokens + 1)):
        for seqs in {1, 2, 9, tokens // 2, tokens} & set(range(1, min(tokens, max_seqs) + 1)):
            size = steps.size_for(tokens, seqs)
            if size is None:
                assert tokens > 2048
                continue
            padding = size.tokens > tokens
            assert size.tokens >= tokens and size.seqs >= seqs + (padding and not size.decodes)
            several = min(seqs, tokens - seqs)  # as many as may have several tokens
            tile = 3
            # Of so many sequences the longest takes what is left; another one pads the batch.
            news = [2] * max(0, several - 1) + ([tokens - seqs + 2 - several] if several else [])
            news += [size.tokens - tokens] * (size.tokens - tokens > 1 and not size.decodes)
            tiles = sum(-(-new // tile) for new in news)
            assert size.most.singles >= seqs - several
            if news:
                assert size.most.tokens // tile + size.most.several >= tiles


class Recorder:
    def __init__(self) -> None:
        self.recorded: list[int] = []

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        assert not gc.isenabled(), "to let go of another engine's graphs ends a recording"
        self.recorded.append(len(compute()))
        return compute


def test_a_batch_is_computed_by_the_least_size_that_holds_it() -> None:
    recorder = Recorder()
    one, two, many = (StepSize(n, n, True) for n in (1, 2, 8))
    mixed, large = StepSize(4, 4, False), StepSize(16, 9, False)
    sizes = [one, two, many, mixed, large]
    steps = RecordedSteps(sizes, lambda size: lambda: torch.zeros(size.tokens, 3), recorder)
    assert recorder.recorded == [16, 8, 4, 2, 1]
    assert [steps.size_for(n, n) for n in (1, 2, 3, 8, 9)] == [one, two, many, many, large]
    assert [steps.size_for(n, 1) for n in (2, 4, 5, 16, 17)] == [mixed, mixed, large, large, None]
    assert len(steps.replay(many)) == 8
    assert gc.isenabled()

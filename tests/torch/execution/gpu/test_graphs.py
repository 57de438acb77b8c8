"""Which batch sizes are recorded, and which of them serves a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from quire.execution.gpu.graphs import RecordedDecodes, graph_sizes


@pytest.mark.parametrize("most", [1, 2, 3, 7, 8, 100, 256, 512, 5000])
def test_sizes_end_with_the_largest_batch_and_waste_little(most: int) -> None:
    sizes = graph_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == min(most, 512)
    for count in range(8, sizes[-1] + 1):
        size = next(size for size in sizes if size >= count)
        assert size - count < max(8, count / 4 + 1)


class Recorder:
    def __init__(self) -> None:
        self.recorded: list[int] = []

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.recorded.append(len(compute()))
        return compute


def test_a_batch_is_computed_by_the_least_size_that_holds_it() -> None:
    recorder = Recorder()
    decodes = RecordedDecodes([1, 2, 8], lambda size: lambda: torch.zeros(size, 3), recorder)
    assert recorder.recorded == [8, 2, 1]
    assert [decodes.size_for(n) for n in (1, 2, 3, 8, 9)] == [1, 2, 8, 8, None]
    assert len(decodes.replay(8)) == 8

"""The mean of a prompt's states is the same bits wherever the prompt is cut."""

from __future__ import annotations

from typing import cast

import torch

from quire.core.memory import BlockTable
from quire.core.protocol import Chunk, Opened, Readout, Request
from quire.execution.forward import Hidden, Worker
from quire.execution.pooling import Pools
from quire.text.params import Pooling, PoolingParams, SamplingParams

# Added from left to right the one is lost; by pieces it need not be.
STATES = torch.tensor([[1.0, 3.0], [1e17, -1e17], [-1e17, 1e17], [5.0, 7.0]])


def pooled(cuts: list[int]) -> bytes:
    pools, worker = Pools(), cast(Worker, None)
    params = PoolingParams(Pooling.MEAN, normalize=False)
    request = Request("r", (0,) * len(STATES), SamplingParams(), 0, 0, pooling=params)
    known = [Opened(1, request, 0, len(STATES))]
    vectors = []
    for start, end in zip([0, *cuts], [*cuts, len(STATES)], strict=True):
        readout = Readout(rows=0, pool=True) if end == len(STATES) else None
        chunk = Chunk(1, [0] * (end - start), start, BlockTable((), 16), len(STATES), readout)
        hidden = Hidden(STATES[start:end], STATES[:0])
        vectors += [one.vector for _, one in pools.outcomes([chunk], known, hidden, worker)]
    (vector,) = vectors
    assert vector is not None and not pools.kept
    return torch.tensor(vector).numpy().tobytes()


def test_a_sum_does_not_depend_on_where_it_is_cut() -> None:
    whole = pooled([])
    assert all(pooled(cuts) == whole for cuts in ([1], [2], [3], [1, 2], [1, 2, 3]))

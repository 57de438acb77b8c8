"""What each row of a batch of logits asks of the sampler, as values and as tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quire.core.protocol import Request
from quire.execution.sampling.past import Past
from quire.execution.sampling.randomness import uniform
from quire.execution.transfer import to_device

FLOAT32 = torch.finfo(torch.float32)


class SampleRow(NamedTuple):
    """One token to choose."""

    request: Request
    branch: int  # its place among the request's outputs
    num_output_tokens: int  # output tokens before this one
    past: Past | None  # which has those tokens; None: the params do not look at them


class Filters(NamedTuple):
    """Which tokens rows may draw, and each row's random number: float64 [N, 1] each."""

    temperature: Tensor  # positive, and finite in float32
    max_gap: Tensor  # min_p as the most a token may lie below the likeliest, in nats
    top_k: Tensor  # the vocabulary's size where all are kept
    top_p: Tensor
    uniform: Tensor  # in [0, 1)

    @classmethod
    def of(cls, rows: Sequence[SampleRow], vocab_size: int, device: torch.device) -> Filters:
        table = [_filters(row, vocab_size) for row in rows]
        columns = to_device(torch.tensor(table, dtype=torch.float64), device).unbind(1)
        return cls(*(column[:, None] for column in columns))

    def take(self, rows: Tensor) -> Filters:
        return Filters(*(column[rows] for column in self))


def _filters(row: SampleRow, vocab_size: int) -> tuple[float, ...]:
    params = row.request.params
    return (
        clamp_positive(params.temperature),
        -math.log(params.min_p) if params.min_p > 0 else math.inf,
        params.top_k if params.top_k > 0 else vocab_size,
        params.top_p,
        uniform(row.request.seed, row.branch, row.num_output_tokens),
    )


def clamp_positive(value: float) -> float:
    """A positive number as float32 can hold it, neither 0 nor infinite."""
    return min(max(value, FLOAT32.tiny), FLOAT32.max)

"""What each row of a batch of logits asks of the sampler, and its way to a device and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.protocol import Request
from quire.execution.sampling.past import Past
from quire.text.params import SamplingParams

FLOAT32 = torch.finfo(torch.float32)
Mask = NDArray[np.uint32]


class SampleRow(NamedTuple):
    """One token to choose."""

    request: Request
    params: SamplingParams  # the request's
    branch: int  # its place among the request's outputs
    num_output_tokens: int  # output tokens before this one
    past: Past | None  # which has those tokens; None: the params do not look at them


def guided(rows: Sequence[SampleRow]) -> dict[int, Mask]:
    """The masks of the rows' guides, for those that have one that is known."""
    masks = {}
    for i, row in enumerate(rows):
        guide = None if row.past is None else row.past.guide
        mask = None if guide is None else guide.mask(row.num_output_tokens)
        if mask is not None:
            masks[i] = mask
    return masks


class Filters(NamedTuple):
    """Which tokens rows may draw, and each row's random number: float64 [N, 1] each."""

    temperature: Tensor  # positive, and finite in float32
    max_gap: Tensor  # min_p as the most a token may lie below the likeliest, in nats
    top_k: Tensor  # the vocabulary's size where all are kept; 1 where the likeliest is taken
    top_p: Tensor
    uniform: Tensor  # in [0, 1)

    @classmethod
    def of(cls, rows: Sequence[SampleRow], vocab_size: int, device: torch.device) -> Filters:
        table = filter_table(rows, vocab_size, device)
        return cls(*table.split_with_sizes([1] * len(cls._fields), 1))

    def take(self, rows: Tensor) -> Filters:
        return Filters(*[column[rows] for column in self])


def filter_table(rows: Sequence[SampleRow], vocab_size: int, device: torch.device) -> Tensor:
    """The columns of ``Filters`` side by side, float64 [N, 5]."""
    table: list[tuple[float, ...]] = []
    for request, params, branch, position, _ in rows:
        greedy = params.temperature == 0
        table.append(
            (
                min(max(params.temperature, FLOAT32.tiny), FLOAT32.max),
                -math.log(params.min_p) if params.min_p > 0 else math.inf,
                1 if greedy else params.top_k if params.top_k > 0 else vocab_size,
                params.top_p,
                0.0 if greedy else uniform(request.seed, branch, position),
            )
        )
    return to_device(torch.tensor(table, dtype=torch.float64), device)


_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15


def splitmix64(seed: int, *indices: int) -> int:
    """Output number ``index`` (from 0) of the SplitMix64 stream that starts at ``seed``.

    With several indices, each stream starts at the output before. A bijective hash of a counter, 64
    bits in and out (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
    2014).
    """
    for index in indices:
        z = (seed + (index + 1) * _GAMMA) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        seed = z ^ (z >> 31)
    return seed


def uniform(seed: int, branch: int, position: int) -> float:
    """The number in [0, 1) that draws output token ``position`` of a request's ``branch``.

    It depends on what is sampled, never on when or beside what. The seed is hashed first, so that
    seeds 1, 2, 3, ... give unrelated streams; each branch's stream starts from an output of the
    request's.
    """
    return (splitmix64(seed, 0, branch, position) >> 11) * 2.0**-53


def clamp_positive(value: float) -> float:
    """A positive number as float32 can hold it, neither 0 nor infinite."""
    return min(max(value, FLOAT32.tiny), FLOAT32.max)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """``values``, which are in main memory, where ``device`` will see them when it gets there."""
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)


class Readback:
    """The values of tensors, on their way to main memory in one transfer."""

    def __init__(self, *tensors: Tensor) -> None:
        """Begin the transfer. On a GPU larger types come first, so that all are aligned."""
        self._tensors: Sequence[Tensor] = tensors
        self._bytes, self._arrived = None, None
        if tensors[0].is_cuda:
            together = torch.cat([tensor.flatten().view(torch.uint8) for tensor in tensors])
            self._bytes = together.to("cpu", non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def tolist(self) -> list[list[Any]]:
        """A list for each tensor. Waits for the transfer."""
        return [tensor.tolist() for tensor in self.tensors()]

    def tensors(self) -> Sequence[Tensor]:
        """The tensors in main memory. Waits for the transfer."""
        if self._bytes is None or self._arrived is None:
            return self._tensors
        self._arrived.synchronize()
        return unpacked(self._bytes, self._tensors)


def unpacked(together: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of the types and shapes of ``like`` whose bytes, uint8, are one after the other."""
    parts = torch.split(together, [tensor.nbytes for tensor in like])
    return [
        part.view(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, like, strict=True)
    ]

"""Weights of eight-bit floats, and their scales: read as floats of the model's dtype.

A weight is its number times its scale, rounded once: to bfloat16 that changes it by 1/512 at most,
where eight bits had changed it by up to 1/16. Activations are not rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.linear.checkpoints.base import RoundedCheckpoint
from quire.models.parts import Rows, TensorPart, numbers_of
from quire.models.stored import Stored
from quire.models.weights import Weights

SCALES = (torch.float32, torch.bfloat16, torch.float16)
"""What scales are stored in."""

# Of activations, keys and values: those are not rounded by what is stored.
_LEFT = ("input_scale", "activation_scale", "output_scale")
_LEFT_OF_ATTENTION = ("q_scale", "k_scale", "v_scale", "kv_scale")
_FLOATS_OF_8_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class FP8(RoundedCheckpoint):
    """DeepSeek's and Qwen's, with a scale for each block; those of vLLM, FBGEMM and ModelOpt, with
    one for a tensor or a row.

    weight [out, in], weight_scale_inv or weight_scale; what activations were rounded by is not
    needed.
    """

    def holds(self, name: str) -> bool:
        return self._scale(name) in self.weights

    def unit(self, name: str, inputs: int) -> int:
        block = self.stored.scheme.block
        return 1 if block is None else block[1]

    def read_part(self, name: str, inputs: int, outputs: int, rows: Rows, columns: slice) -> Stored:
        block = self.stored.scheme.block
        outer = name.rpartition(".")[0]
        self.weights.leave(tuple(f"{name}.{part}" for part in (*_LEFT, *_LEFT_OF_ATTENTION)))
        self.weights.leave(tuple(f"{outer}.{part}" for part in _LEFT_OF_ATTENTION))
        shape, part = (outputs, inputs), TensorPart(rows, columns)
        return read_scaled(self.weights, name, self._scale(name), shape, block, part)

    def _scale(self, name: str) -> str:
        inverse = f"{name}.weight_scale_inv"
        return inverse if inverse in self.weights else f"{name}.weight_scale"


def read_scaled(
    weights: Weights,
    name: str,
    scale_name: str,
    shape: tuple[int, int],
    block: tuple[int, int] | None,
    part: TensorPart,
) -> Tensor:
    """A part of a projection's weight [out, in], whose columns are whole blocks.

    Without blocks, a scale is an output's, or the whole weight's.
    """
    weight = weights.read_typed(f"{name}.weight", _FLOATS_OF_8_BITS, *shape, part=part)
    if block is None:
        scales = read_outputs_scales(weights, scale_name, shape[0])[part.rows, None]
        return (weight.float() * scales).to(weights.dtype)
    counts = [-(-size // length) for size, length in zip(shape, block, strict=True)]
    scales = weights.read(scale_name, *counts, dtype=torch.float32)
    result = torch.empty(weight.shape, dtype=weights.dtype)
    across = TensorPart(columns=part.columns).of(
        scales.repeat_interleave(block[1], dim=1)[:, : shape[1]]
    )
    block_of = numbers_of(part.rows, shape[0]) // block[0]
    for first in range(0, len(weight), block[0]):  # so many at a time: less memory at once
        some = slice(first, first + block[0])
        result[some] = (weight[some].float() * across[block_of[some]]).to(weights.dtype)
    return result


def read_outputs_scales(weights: Weights, name: str, outputs: int) -> Tensor:
    """[out] float32, of scales by output ([out, 1] or [out]) or a single one ([1] or [])."""
    shapes = ((outputs, 1), (outputs,), (1,), (), (1, 1))
    scales = weights.read_shaped(name, SCALES, *shapes).flatten()
    return scales.float().expand(outputs).contiguous()

"""MXFP4, as gpt-oss is published: weights of experts, by 32 inputs to a power of two.

name_blocks [many, out, in / 32, 16] uint8, two codes in a byte, the first below; name_scales
[many, out, in / 32] uint8, exponents plus 127. A code is a float of four bits, E2M1 (OCP
Microscaling Formats, 1.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.kernels.packing import Format, Groups
from quire.models.linear.checkpoints.base import RoundedCheckpoint, unpacked
from quire.models.parts import ALL, Rows, TensorPart, bounds
from quire.models.stored import ByGroups, Stored, powers_of_two

_GROUP = 32
_BLOCK_BYTES = _GROUP // 2


@dataclass(frozen=True)
class MXFP4(RoundedCheckpoint):
    """Reads experts in MXFP4. One of a stack is called ``name.number``."""

    def holds(self, name: str) -> bool:
        return f"{name.rpartition('.')[0]}_blocks" in self.weights

    @property
    def code_bytes(self) -> Mapping[str, float]:
        """A block's scale becomes a float16."""
        return {"U8": (_BLOCK_BYTES + 2) / (_BLOCK_BYTES + 1)}

    def unit(self, name: str, inputs: int) -> int:
        return _GROUP

    def read_part(self, name: str, inputs: int, outputs: int, rows: Rows, columns: slice) -> Stored:
        stack, _, number = name.rpartition(".")
        blocks, scales = f"{stack}_blocks", f"{stack}_scales"
        many = (self.weights.shape(blocks) or (0,))[0]
        first, end = (bound // _GROUP for bound in bounds(columns, inputs))
        part = TensorPart(rows, ALL if columns is ALL else slice(first, end), int(number))
        shape = (many, outputs, inputs // _GROUP)
        exponents = self._bytes(scales, part, *shape).int() - 128  # codes stand for twice as much
        packed = self._bytes(blocks, part, *shape, _BLOCK_BYTES)
        codes = unpacked(packed.contiguous().flatten(1).view(torch.int32), 4)
        weight = ByGroups(Format.float4, codes, Groups(powers_of_two(exponents)))
        return weight if weight.in_float16 else weight.floats(self.weights.dtype)

    def _bytes(self, name: str, part: TensorPart, *shape: int) -> Tensor:
        return self.weights.read_typed(name, (torch.uint8,), *shape, part=part)

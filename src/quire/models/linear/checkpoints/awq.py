"""AWQ (Lin et al., 2023), as AutoAWQ's "gemm" version writes it.

qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out]. The eight outputs of an
int32 are, from the low end, 0, 2, 4, 6, 1, 3, 5 and 7.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.linear.checkpoints.base import RoundedCheckpoint, unpacked
from quire.models.parts import Rows, TensorPart, as_rows, bounds, numbers_of
from quire.models.stored import Stored


@dataclass(frozen=True)
class AWQ(RoundedCheckpoint):
    """Reads what AutoAWQ has written."""

    def holds(self, name: str) -> bool:
        return f"{name}.qweight" in self.weights

    def unit(self, name: str, inputs: int) -> int:
        return self.group(name, inputs, self.stored.scheme)

    def read_part(self, name: str, inputs: int, outputs: int, rows: Rows, columns: slice) -> Stored:
        size = self.group(name, inputs, self.stored.scheme)
        groups = inputs // size
        if outputs % 8:
            raise self.fault(name, f"has {outputs} outputs, not a multiple of 8")
        numbers = numbers_of(rows, outputs)
        words, place = torch.unique(numbers // 8, return_inverse=True)
        chosen = TensorPart(columns, as_rows(words))
        packed = self.weights.read_codes(f"{name}.qweight", inputs, outputs // 8, part=chosen)
        codes = self._in_order(packed)[:, as_rows(place * 8 + numbers % 8)]
        zeros = self._in_order(self.weights.read_codes(f"{name}.qzeros", groups, outputs // 8))
        scales = self.weights.read(f"{name}.scales", groups, outputs, dtype=torch.float32)
        first, end = bounds(columns, inputs)
        part = TensorPart(rows, slice(first // size, end // size))
        return self.grouped(4, codes.T.contiguous(), scales.T, zeros.T.contiguous(), part=part)

    @staticmethod
    def _in_order(packed: Tensor) -> Tensor:
        codes = unpacked(packed, 4).view(len(packed), -1, 2, 4)
        return codes.transpose(2, 3).reshape(len(packed), -1)

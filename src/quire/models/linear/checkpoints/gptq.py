"""GPTQ (Frantar et al., 2022), as AutoGPTQ and GPTQModel write it.

Codes of 2, 4 or 8 bits in int32, from the low end: qweight [in * bits / 32, out], qzeros [groups,
out * bits / 32], scales [groups, out], and g_idx [in], which group an input is of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.linear.checkpoints.base import RoundedCheckpoint, in_order, unpacked
from quire.models.parts import Rows, TensorPart, bounds
from quire.models.stored import Stored


@dataclass(frozen=True)
class GPTQ(RoundedCheckpoint):
    """Reads what AutoGPTQ and GPTQModel have written."""

    def holds(self, name: str) -> bool:
        return f"{name}.qweight" in self.weights

    def unit(self, name: str, inputs: int) -> int:
        scheme = self.stored.scheme
        size = self.group(name, inputs, scheme)
        ordered = self._order(name, inputs, size) is not None
        return inputs if ordered else math.lcm(size, 32 // scheme.bits)

    def read_part(self, name: str, inputs: int, outputs: int, rows: Rows, columns: slice) -> Stored:
        weights, scheme = self.weights, self.stored.scheme
        bits, size = scheme.bits, self.group(name, inputs, scheme)
        per_word, groups = 32 // bits, inputs // size
        first, end = bounds(columns, inputs)
        words = TensorPart(slice(first // per_word, end // per_word), rows)
        if inputs % per_word:
            raise self.fault(name, f"has {inputs} inputs, not a multiple of {per_word}")
        order = self._order(name, inputs, size)
        shape = inputs // per_word, outputs
        packed = weights.read_codes(f"{name}.qweight", *shape, part=words)
        codes = unpacked(packed.T, bits)
        packed = weights.read_codes(f"{name}.qzeros", groups, -(-outputs // per_word))
        zeros = unpacked(packed, bits)[:, :outputs]
        scales = weights.read(f"{name}.scales", groups, outputs, dtype=torch.float32)
        zeros = (zeros + self.stored.zero_offset) & (1 << bits) - 1
        codes = codes if order is None else codes[:, order]
        part = TensorPart(rows, slice(first // size, end // size))
        return self.grouped(bits, codes, scales.T, zeros.T.contiguous(), order, part)

    def _order(self, name: str, inputs: int, size: int) -> Tensor | None:
        """The order of inputs by groups, if they were taken by their activations (desc_act)."""
        if f"{name}.g_idx" not in self.weights:
            if self.stored.ordered:
                raise self.fault(name, "has no g_idx, which tells its order (desc_act)")
            return None
        try:
            return in_order(self.weights.read_codes(f"{name}.g_idx", inputs), size)
        except ValueError as error:
            raise self.fault(f"{name}.g_idx", str(error)) from error

"""GPTQ (Frantar et al., 2022), as AutoGPTQ and GPTQModel write it.

Codes of 2, 4 or 8 bits in int32, from the low end: qweight [in * bits / 32, out], qzeros [groups,
out * bits / 32], scales [groups, out], and g_idx [in], which group an input is of.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.model.linear.checkpoints.base import RoundedCheckpoint, in_order, unpacked
from quire.model.stored import Stored


@dataclass(frozen=True)
class GPTQ(RoundedCheckpoint):
    """See ``Checkpoint``."""

    def holds(self, name: str) -> bool:
        """See ``Checkpoint.holds``."""
        return f"{name}.qweight" in self.weights

    def read(self, name: str, inputs: int, outputs: int) -> Stored:
        """See ``Checkpoint.read``."""
        weights, scheme = self.weights, self.stored.scheme
        bits, size = scheme.bits, self.group(name, inputs, scheme)
        per_word, groups = 32 // bits, inputs // size
        if inputs % per_word:
            raise self.fault(name, f"has {inputs} inputs, not a multiple of {per_word}")
        order = self._order(name, inputs, size)
        codes = unpacked(weights.read_codes(f"{name}.qweight", inputs // per_word, outputs).T, bits)
        packed = weights.read_codes(f"{name}.qzeros", groups, -(-outputs // per_word))
        zeros = unpacked(packed, bits)[:, :outputs]
        scales = weights.read(f"{name}.scales", groups, outputs, dtype=torch.float32)
        zeros = (zeros + self.stored.zero_offset) & (1 << bits) - 1
        codes = codes if order is None else codes[:, order]
        return self.grouped(bits, codes, scales.T, zeros.T.contiguous(), order)

    def _order(self, name: str, inputs: int, size: int) -> Tensor | None:
        """By groups, where inputs were taken by their activations (desc_act)."""
        if f"{name}.g_idx" not in self.weights:
            return None
        try:
            return in_order(self.weights.read_codes(f"{name}.g_idx", inputs), size)
        except ValueError as error:
            raise self.fault(f"{name}.g_idx", str(error)) from error

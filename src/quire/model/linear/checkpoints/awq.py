"""AWQ (Lin et al., 2023), as AutoAWQ's "gemm" version writes it.

qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out]. The eight outputs of an
int32 are, from the low end, 0, 2, 4, 6, 1, 3, 5 and 7.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.model.linear.checkpoints.base import RoundedCheckpoint, unpacked
from quire.model.stored import Stored


@dataclass(frozen=True)
class AWQ(RoundedCheckpoint):
    """See ``Checkpoint``."""

    def holds(self, name: str) -> bool:
        """See ``Checkpoint.holds``."""
        return f"{name}.qweight" in self.weights

    def read(self, name: str, inputs: int, outputs: int) -> Stored:
        """See ``Checkpoint.read``."""
        groups = inputs // self.group(name, inputs, self.stored.scheme)
        if outputs % 8:
            raise self.fault(name, f"has {outputs} outputs, not a multiple of 8")
        codes, zeros = (
            self._in_order(self.weights.read_codes(f"{name}.{part}", rows, outputs // 8))
            for part, rows in (("qweight", inputs), ("qzeros", groups))
        )
        scales = self.weights.read(f"{name}.scales", groups, outputs, dtype=torch.float32)
        return self.grouped(4, codes.T.contiguous(), scales.T, zeros.T.contiguous())

    @staticmethod
    def _in_order(packed: Tensor) -> Tensor:
        codes = unpacked(packed, 4).view(len(packed), -1, 2, 4)
        return codes.transpose(2, 3).reshape(len(packed), -1)

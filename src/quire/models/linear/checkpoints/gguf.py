"""GGUF files: each tensor is rounded in a way of its own, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.models.gguf import ROUNDED_BYTES
from quire.models.linear.checkpoints.base import PartReader
from quire.models.parts import Rows, TensorPart
from quire.models.stored import Stored


@dataclass(frozen=True)
class GGUF(PartReader):
    """Reads what is rounded as it is."""

    @property
    def code_bytes(self) -> Mapping[str, float]:
        return ROUNDED_BYTES

    def holds(self, name: str) -> bool:
        return self.weights.is_rounded(f"{name}.weight")

    def unit(self, name: str, inputs: int) -> int:
        return self.weights.block(f"{name}.weight")

    def read_part(self, name: str, inputs: int, outputs: int, rows: Rows, columns: slice) -> Stored:
        part = TensorPart(rows, columns)
        found = self.weights.read_rounded(f"{name}.weight", outputs, inputs, part=part)
        return found if found.in_float16 else found.floats(self.weights.dtype)

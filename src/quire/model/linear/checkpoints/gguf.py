"""GGUF files: each tensor is rounded in a way of its own, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.gguf import ROUNDED_BYTES
from quire.model.stored import Stored
from quire.model.weights import Weights


@dataclass(frozen=True)
class GGUF:
    """Reads what is rounded as it is."""

    weights: Weights

    @property
    def code_bytes(self) -> Mapping[str, float]:
        """See ``Checkpoint.code_bytes``."""
        return ROUNDED_BYTES

    def holds(self, name: str) -> bool:
        """See ``Checkpoint.holds``."""
        return self.weights.is_rounded(f"{name}.weight")

    def read(self, name: str, inputs: int, outputs: int) -> Stored:
        """See ``Checkpoint.read``."""
        return self.weights.read_rounded(f"{name}.weight", outputs, inputs)

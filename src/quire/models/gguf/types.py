"""How tensors are stored in GGUF files."""

from __future__ import annotations

from typing import NamedTuple


class TensorType(NamedTuple):
    """Blocks of ``weights`` numbers in ``num_bytes`` each.

    kept: what a block takes in memory, where that is more: its codes get more bits there.
    """

    name: str
    weights: int
    num_bytes: int
    kept: int | None = None

    @property
    def kept_bytes(self) -> float:
        """Bytes of a weight in memory."""
        return (self.kept or self.num_bytes) / self.weights

    @property
    def is_rounded(self) -> bool:
        """Whether several numbers share a scale."""
        return self.weights > 1


TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84, kept=164),
    11: TensorType("Q3_K", 256, 110, kept=146),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    16: TensorType("IQ2_XXS", 256, 66, kept=274),
    17: TensorType("IQ2_XS", 256, 74, kept=274),
    18: TensorType("IQ3_XXS", 256, 98, kept=210),
    19: TensorType("IQ1_S", 256, 50, kept=210),
    20: TensorType("IQ4_NL", 32, 18, kept=34),
    21: TensorType("IQ3_S", 256, 110, kept=210),
    22: TensorType("IQ2_S", 256, 82, kept=274),
    23: TensorType("IQ4_XS", 256, 136, kept=274),
    29: TensorType("IQ1_M", 256, 56, kept=210),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54, kept=130),
    35: TensorType("TQ2_0", 256, 66, kept=130),
    39: TensorType("MXFP4", 32, 17, kept=18),
}
"""Those that are read, by their numbers."""

OTHERS = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 40: "NVFP4",
}  # fmt: skip
"""Those that are not."""

BLOCKS = {kind.name: kind.weights for kind in TYPES.values() if kind.is_rounded}
"""Weights of a block, by the names of the rounded types."""

ROUNDED_BYTES = {kind.name: kind.kept_bytes for kind in TYPES.values() if kind.is_rounded}
"""Of a weight in memory, by the names of the rounded types."""

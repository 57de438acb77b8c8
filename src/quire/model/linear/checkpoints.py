"""Checkpoints whose weights are rounded to int4 already: GPTQ and AWQ.

Both store eight codes in an int32, from the low end, and by groups of inputs a scale and a zero
for each output; a weight is (code - zero) * scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quire.errors import ModelError
from quire.model.config import Fields
from quire.model.linear.rounding import Grouped
from quire.model.weights import Weights


class GroupedCheckpoint(Protocol):
    """Reads the projections of such a checkpoint."""

    def holds(self, name: str) -> bool:
        """Whether this one is rounded; some are left as they were."""
        ...

    def read(self, name: str, inputs: int, outputs: int) -> Grouped:
        """The projection called ``name``."""
        ...


@dataclass(frozen=True)
class _Layout:
    """What the config says of all projections."""

    weights: Weights
    group_size: int  # -1: all inputs

    def holds(self, name: str) -> bool:
        """See ``GroupedCheckpoint.holds``."""
        return f"{name}.qweight" in self.weights

    def group(self, name: str, inputs: int) -> int:
        """Inputs of a group.

        Raises:
            ModelError: they do not divide the inputs, or cut through our lines of weights.
        """
        size = inputs if self.group_size == -1 else self.group_size
        if inputs % size or size % 8:
            raise ModelError(
                f"{self.weights.directory}: {name} has {inputs} inputs, which groups of {size} do "
                f"not divide, or {size} is not a multiple of 8"
            )
        return size


@dataclass(frozen=True)
class GPTQ(_Layout):
    """GPTQ (Frantar et al., 2022), as AutoGPTQ and GPTQModel write it.

    qweight [in / 8, out], qzeros [groups, out / 8], scales [groups, out], g_idx [in].
    """

    zero_offset: int = 1  # the first format stores zeros less 1

    def read(self, name: str, inputs: int, outputs: int) -> Grouped:
        """See ``GroupedCheckpoint.read``."""
        weights, size = self.weights, self.group(name, inputs)
        if f"{name}.g_idx" in weights:
            order = weights.read_codes(f"{name}.g_idx", inputs)
            if not torch.equal(order.long(), torch.arange(inputs) // size):
                raise ModelError(
                    f"{weights.directory}: {name} has its inputs in the order of their "
                    "activations (desc_act), which is not supported"
                )
        codes = _unpacked(weights.read_codes(f"{name}.qweight", inputs // 8, outputs).T)
        zeros = _unpacked(weights.read_codes(f"{name}.qzeros", inputs // size, -(-outputs // 8)))[
            :, :outputs
        ]
        scales = weights.read(f"{name}.scales", inputs // size, outputs, dtype=torch.float16)
        zeros = (zeros + self.zero_offset) & 15 if self.zero_offset else zeros
        return Grouped(codes, scales.T, zeros.T.contiguous())


@dataclass(frozen=True)
class AWQ(_Layout):
    """AWQ (Lin et al., 2023), as AutoAWQ's "gemm" version writes it.

    qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out]. The eight outputs of an
    int32 are, from the low end, 0, 2, 4, 6, 1, 3, 5 and 7.
    """

    def read(self, name: str, inputs: int, outputs: int) -> Grouped:
        """See ``GroupedCheckpoint.read``."""
        weights, size = self.weights, self.group(name, inputs)
        if outputs % 8:
            raise ModelError(
                f"{weights.directory}: {name} has {outputs} outputs, not a multiple of 8"
            )
        codes, zeros = (
            self._in_order(weights.read_codes(f"{name}.{part}", rows, outputs // 8))
            for part, rows in (("qweight", inputs), ("qzeros", inputs // size))
        )
        scales = weights.read(f"{name}.scales", inputs // size, outputs, dtype=torch.float16)
        return Grouped(codes.T.contiguous(), scales.T, zeros.T.contiguous())

    @staticmethod
    def _in_order(packed: Tensor) -> Tensor:
        codes = _unpacked(packed).view(len(packed), -1, 2, 4)
        return codes.transpose(2, 3).reshape(len(packed), -1)


def _unpacked(packed: Tensor) -> Tensor:
    """[n, m] int32 -> [n, 8 m] uint8: the bytes of an int32, from the low end, two codes each."""
    pairs = packed.contiguous().view(torch.uint8)
    return torch.stack([pairs & 15, pairs >> 4], dim=2).flatten(1)


def read_checkpoint(section: Fields, weights: Weights) -> GroupedCheckpoint:
    """By config.json's ``quantization_config``.

    Raises:
        ModelError: the method, or a variant of it, is not supported.
    """
    method = section.get("quant_method", str, "unnamed")
    bits = section.get("bits", int, section.get("w_bit", int, 4))
    group_size = section.get("group_size", int, section.get("q_group_size", int, 128))
    refused = None
    if method not in ("gptq", "awq"):
        refused = f"quant_method {method}; supported: awq, gptq"
    elif bits != 4:
        refused = f"{bits} bits; supported: 4"
    elif group_size != -1 and group_size < 1:
        refused = f"group_size {group_size}"
    elif method == "awq" and section.get("version", str, "gemm").lower() != "gemm":
        refused = f"version {section.get('version', str)}; supported: gemm"
    if refused is not None:
        raise ModelError(f"{section.source} has {refused}")
    if method == "awq":
        return AWQ(weights, group_size)
    v2 = section.get("checkpoint_format", str, "gptq") == "gptq_v2"
    return GPTQ(weights, group_size, 0 if v2 else 1)

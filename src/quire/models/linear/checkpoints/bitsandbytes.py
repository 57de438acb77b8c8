"""bitsandbytes, of 4 bits (nf4, fp4) and of 8 (LLM.int8; Dettmers et al., 2022 and 2023).

Of 4 bits: weight, two codes in a byte, the first above; of each block the largest number (absmax),
which a code chooses a part of (quant_map). The numbers may be rounded in turn, by codes of 8 bits
(nested_absmax, nested_quant_map and an offset). A JSON object in the bytes of a tensor tells sizes.
They are read as floats, the ones that bitsandbytes computes with.

Of 8 bits: weight int8 and SCB [out], 127 times the scales. Its rounding of activations is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.linear.checkpoints.base import RoundedCheckpoint
from quire.models.parts import Rows, TensorPart, bounds
from quire.models.shape import ConfigFields
from quire.models.stored import ByOutputs, Stored

_STORAGE = (torch.uint8, torch.int8, torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class BitsAndBytes(RoundedCheckpoint):
    """Reads what bitsandbytes has written."""

    def holds(self, name: str) -> bool:
        return f"{name}.SCB" in self.weights or self._state_name(name) in self.weights

    @property
    def code_bytes(self) -> Mapping[str, int]:
        """Two numbers are in a byte."""
        return {"I8": 1, "U8": 2 * self.weights.dtype.itemsize}

    def _state_name(self, name: str) -> str:
        names = [f"{name}.weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")]
        return names[1] if names[1] in self.weights else names[0]

    def unit(self, name: str, inputs: int) -> int:
        if f"{name}.SCB" in self.weights:
            return 1
        block = self._state(name).positive("blocksize")
        return inputs if inputs % block or block % 2 else block

    def read_part(self, name: str, inputs: int, outputs: int, rows: Rows, columns: slice) -> Stored:
        weights = self.weights
        if f"{name}.SCB" in weights:
            weights.leave((f"{name}.weight_format",))
            part = TensorPart(rows, columns)
            weight = weights.read_typed(f"{name}.weight", (torch.int8,), outputs, inputs, part=part)
            scales = weights.read(f"{name}.SCB", outputs, dtype=torch.float32)[rows] / 127
            return ByOutputs((weight.to(torch.int16) + 128).to(torch.uint8), scales)
        state = self._state(name)
        if state.get("shape", list) != [outputs, inputs]:
            raise state.wrong("shape", f"{[outputs, inputs]}")
        block, count = state.positive("blocksize"), outputs * inputs
        sizes = -(-count // block)
        packed = self._bytes(f"{name}.weight", (count + 1) // 2)
        table = weights.read(f"{name}.weight.quant_map", 16, dtype=torch.float32)
        largest = self._largest(name, sizes, state)
        if not (inputs % block or block % 2):  # an output has whole blocks, and so has the part
            first, end = bounds(columns, inputs)
            packed = TensorPart(rows, slice(first // 2, end // 2)).of(packed.view(outputs, -1))
            blocks = TensorPart(rows, slice(first // block, end // block))
            largest = blocks.of(largest.view(outputs, -1))
            return _values(packed, table, largest, block).view(len(packed), -1).to(weights.dtype)
        padded = torch.nn.functional.pad(packed, (0, -(-sizes * block // 2) - len(packed)))
        values = _values(padded, table, largest, block)[:count].view(outputs, inputs)
        return values[rows].to(weights.dtype)

    def _largest(self, name: str, count: int, state: ConfigFields) -> Tensor:
        """[blocks] float32."""
        weights, prefix = self.weights, f"{name}.weight."
        if f"{prefix}nested_absmax" not in weights:
            return weights.read(f"{prefix}absmax", count, dtype=torch.float32)
        block = state.positive("nested_blocksize")
        codes = weights.read_typed(f"{prefix}absmax", (torch.uint8,), count).long()
        table = weights.read(f"{prefix}nested_quant_map", 256, dtype=torch.float32)
        outer = weights.read(f"{prefix}nested_absmax", -(-count // block), dtype=torch.float32)
        scales = outer.repeat_interleave(block)[:count]
        return table[codes] * scales + state.get("nested_offset", float)

    def _bytes(self, name: str, count: int) -> Tensor:
        """[count] uint8, of a tensor [..., 1] of any type."""
        found = self.weights.shape(name) or (count, 1)
        tensor = self.weights.read_typed(name, _STORAGE, *found).contiguous().view(torch.uint8)
        if tensor.numel() != count:
            raise self.fault(name, f"has {tensor.numel()} bytes, but the config asks for {count}")
        return tensor.flatten()

    def _state(self, name: str) -> ConfigFields:
        full = self._state_name(name)
        found = self.weights.shape(full) or (1,)
        raw = bytes(self.weights.read_typed(full, (torch.uint8,), *found).tolist())
        try:
            values = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise self.fault(full, "holds no JSON object") from error
        if not isinstance(values, dict):
            raise self.fault(full, "holds no JSON object")
        return ConfigFields(values, f"{self.weights.directory}: {full}")


def _values(packed: Tensor, table: Tensor, largest: Tensor, block: int) -> Tensor:
    """The numbers of whole blocks of codes, two in a byte, one after the other."""
    codes = torch.stack([packed >> 4, packed & 15], dim=-1).flatten()
    values = table[codes[: largest.numel() * block].long()]
    return (values.view(-1, block) * largest.reshape(-1, 1)).flatten()

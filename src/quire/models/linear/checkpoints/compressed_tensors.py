"""compressed-tensors, as llm-compressor writes it.

int-quantized: weight int8 [out, in], weight_scale and perhaps weight_zero_point [out, 1], [1] or
[out, groups]. pack-quantized: weight_packed [out, in * bits / 32] int32, its codes from the low
end, each plus half of all codes; zeros are packed so along the outputs; weight_g_idx [in] says
which group an input is of. float-quantized: as FP8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.linear.checkpoints.base import RoundedCheckpoint, in_order, unpacked
from quire.models.linear.checkpoints.fp8 import read_outputs_scales, read_scaled
from quire.models.parts import Rows, TensorPart, bounds
from quire.models.shape import Scheme
from quire.models.stored import ByOutputs, Stored

# Of activations, keys and values: those are rounded here as they come, or not at all.
_LEFT = ("input_scale", "input_zero_point", "output_scale", "output_zero_point")
_LEFT_OF_ATTENTION = ("q_scale", "k_scale", "v_scale", "kv_scale")
_EMBEDDINGS = ("embed_tokens", "embed_in", "wte", "word_embeddings")


@dataclass(frozen=True)
class CompressedTensors(RoundedCheckpoint):
    """Reads what llm-compressor has written."""

    def holds(self, name: str) -> bool:
        return self._scheme(name) is not None

    def _scheme(self, name: str) -> Scheme | None:
        """A decoder that was saved by itself may be named with what is outside of it or without."""
        kind = "Embedding" if name.endswith(_EMBEDDINGS) else "Linear"
        return self.stored.scheme_of(name, name.removeprefix(self.weights.prefix), kind=kind)

    def unit(self, name: str, inputs: int) -> int:
        scheme = self._scheme(name)
        assert scheme is not None
        if scheme.kind == "float":
            return 1 if scheme.block is None else scheme.block[1]
        size = self.group(name, inputs, scheme)
        if scheme.kind == "packed":
            ordered = self._order(name, inputs, size) is not None
            return inputs if ordered else math.lcm(size, 32 // scheme.bits)
        return 1 if scheme.group is None and scheme.symmetric and scheme.bits > 4 else size

    def read_part(self, name: str, inputs: int, outputs: int, rows: Rows, columns: slice) -> Stored:
        scheme, weights, part = self._scheme(name), self.weights, TensorPart(rows, columns)
        assert scheme is not None
        outer = name.rpartition(".")[0]
        weights.leave(tuple(f"{name}.{part}" for part in _LEFT))
        weights.leave(tuple(f"{outer}.{part}" for part in _LEFT_OF_ATTENTION))
        if scheme.kind == "float" and scheme.group is None:
            shape = (outputs, inputs)
            return read_scaled(weights, name, f"{name}.weight_scale", shape, scheme.block, part)
        if scheme.kind == "float" or scheme.block is not None:
            raise self.fault(
                name, "has float weights in groups or int in blocks, which is not read"
            )
        if scheme.kind == "packed":
            return self._packed(name, inputs, outputs, scheme, rows, columns)
        return self._integers(name, inputs, outputs, scheme, rows, columns)

    def _integers(
        self, name: str, inputs: int, outputs: int, scheme: Scheme, rows: Rows, columns: slice
    ) -> Stored:
        """A code in each byte."""
        part = TensorPart(rows, columns)
        weight = self.weights.read_typed(
            f"{name}.weight", (torch.int8,), outputs, inputs, part=part
        )
        half = 8 if scheme.bits <= 4 else 128
        codes = (weight.to(torch.int16) + half).to(torch.uint8)
        if scheme.bits <= 4 and int(codes.max()) > 15:
            raise self.fault(f"{name}.weight", f"has more than {scheme.bits} bits (num_bits)")
        zeros = None
        size = self.group(name, inputs, scheme)
        groups = inputs // size
        if not scheme.symmetric:
            zeros = self._zeros(name, outputs, groups, half)
        if scheme.group is None and zeros is None and half == 128:
            scales = read_outputs_scales(self.weights, f"{name}.weight_scale", outputs)
            return ByOutputs(codes, scales[rows], scheme.rounds_rows)
        bits, scales = 4 if half == 8 else 8, self._scales(name, outputs, groups, scheme)
        first, end = bounds(columns, inputs)
        part = TensorPart(rows, slice(first // size, end // size))
        return self.grouped(bits, codes, scales, zeros, part=part)

    def _scales(self, name: str, outputs: int, groups: int, scheme: Scheme) -> Tensor:
        if scheme.group is None:
            return read_outputs_scales(self.weights, f"{name}.weight_scale", outputs)[:, None]
        return self.weights.read(f"{name}.weight_scale", outputs, groups, dtype=torch.float32)

    def _zeros(self, name: str, outputs: int, groups: int, half: int) -> Tensor:
        """[out, groups] uint8, of a zero for each group, output or tensor."""
        full = f"{name}.weight_zero_point"
        shapes = ((outputs, groups), (outputs,), (1,), (), (1, 1))
        zeros = self.weights.read_shaped(full, (torch.int8,), *shapes)
        zeros = zeros.view(-1, zeros.shape[-1] if zeros.ndim == 2 else 1)
        return (zeros.to(torch.int16) + half).to(torch.uint8).expand(outputs, groups).contiguous()

    def _packed(
        self, name: str, inputs: int, outputs: int, scheme: Scheme, rows: Rows, columns: slice
    ) -> Stored:
        """Codes of 2, 4 or 8 bits in int32."""
        weights, bits, size = self.weights, scheme.bits, self.group(name, inputs, scheme)
        per_word, groups = 32 // bits, inputs // size
        self._check_shape(name, inputs, outputs)
        order = self._order(name, inputs, size)
        words, (first, end) = -(-inputs // per_word), bounds(columns, inputs)
        part = TensorPart(rows, slice(first // per_word, -(-end // per_word)))
        packed = weights.read_codes(f"{name}.weight_packed", outputs, words, part=part)
        codes = unpacked(packed, bits)[:, : end - first]
        codes = codes.contiguous() if order is None else codes[:, order]
        zeros = None
        if not scheme.symmetric:
            words = -(-outputs // per_word)
            packed = weights.read_codes(f"{name}.weight_zero_point", words, groups)
            zeros = unpacked(packed.T, bits)[:, :outputs].T.contiguous()
        scales = self._scales(name, outputs, groups, scheme)
        part = TensorPart(rows, slice(first // size, end // size))
        return self.grouped(bits, codes, scales, zeros, order, part)

    def _check_shape(self, name: str, inputs: int, outputs: int) -> None:
        full = f"{name}.weight_shape"
        shape = self.weights.read_typed(full, (torch.int64, torch.int32), 2).tolist()
        if shape != [outputs, inputs]:
            raise self.fault(full, f"is {shape}, but the config asks for {[outputs, inputs]}")

    def _order(self, name: str, inputs: int, size: int) -> Tensor | None:
        if f"{name}.weight_g_idx" not in self.weights:
            return None
        try:
            codes = self.weights.read_codes(f"{name}.weight_g_idx", inputs)
            return None if bool((codes == -1).all()) else in_order(codes, size)
        except ValueError as error:
            raise self.fault(f"{name}.weight_g_idx", str(error)) from error

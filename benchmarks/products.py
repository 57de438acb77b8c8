"""How fast weights are read and multiplied, by form of the weight and number of rows.

    python benchmarks/products.py                     # the shapes of SmolLM-135M
    python benchmarks/products.py --model qwen2-0.5b --rows 1 16 --paths bfloat16 library

Each product goes through more weights than caches hold, in turn, as the layers of a model do.
Paths take turns, and the fastest of several turns counts, since other work on the machine only
ever makes it slower. Beside them stand what the machine reads from memory, with as many threads,
and what plain PyTorch and oneDNN's packed weights do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.packing import Format
from quire.kernels.products import PackedWeight, Products
from quire.models.linear.packed import pack
from quire.models.linear.rounding import (
    GROUP,
    Quantization,
    round_groups,
    round_weight,
)

_SHAPES = {  # (inputs, outputs) of a layer's products, then of the head
    "smollm-135m": ((576, 960), (576, 576), (576, 3072), (1536, 576), (576, 49152)),
    "qwen2-0.5b": ((896, 1152), (896, 896), (896, 9728), (4864, 896), (896, 151936)),
    "opt-125m": ((768, 2304), (768, 768), (768, 3072), (3072, 768), (768, 50272)),
}
_CACHE_BYTES = 96 << 20  # more than caches hold
_MOST_WEIGHTS = 64


class Form(NamedTuple):
    """A way to multiply: a function of x, the bytes of its weight, and x's dtype."""

    multiply: Callable[[Tensor], Tensor]
    nbytes: int
    dtype: torch.dtype


_FLOATS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def own(products: Products, path: str, weight: Tensor) -> Form:
    """By Quire's products."""
    dtype = _FLOATS.get(path, torch.bfloat16)
    stored = weight.to(dtype) if path in _FLOATS else round_weight(weight, Quantization(path))
    packed = pack(products, stored, None)
    assert isinstance(packed, PackedWeight)
    return Form(packed, packed.nbytes, dtype)


def library(path: str, weight: Tensor) -> Form:
    """By what PyTorch brings."""
    half = weight.bfloat16()
    if path == "linear":
        return Form(partial(F.linear, weight=half), half.nbytes, half.dtype)
    if path == "onednn":
        packed = torch.ops.mkldnn._reorder_linear_weight(half, 1)
        multiply = torch.ops.mkldnn._linear_pointwise.default
        return Form(lambda x: multiply(x, packed, None, "none", [], ""), half.nbytes, half.dtype)
    if path == "int8pack":
        scales = weight.abs().amax(dim=1) / 127
        signed, scales = (weight / scales[:, None]).round().to(torch.int8), scales.bfloat16()
        return Form(
            lambda x: torch._weight_int8pack_mm(x, signed, scales), signed.nbytes, half.dtype
        )
    grouped = round_groups(weight, Format.int4)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(grouped.codes.int(), 1)
    scales = grouped.groups.scales.T
    both = torch.stack([scales, torch.zeros_like(scales)], dim=2).bfloat16().contiguous()
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu.default
    nbytes = packed.nbytes + both.nbytes
    return Form(lambda x: multiply(x, packed, GROUP, both), nbytes, half.dtype)


OWN = (*_FLOATS, *(one.value for one in Quantization))
LIBRARY = ("linear", "onednn", "int8pack", "int4pack")


def fastest(forms: dict[str, list[Form]], inputs: int, rows: int, turns: int) -> dict[str, float]:
    """Seconds a product by path, the least of several turns."""
    best = dict.fromkeys(forms, float("inf"))
    for _ in range(turns):
        for path, weights in forms.items():
            x = torch.randn(rows, inputs).to(weights[0].dtype)
            started = time.perf_counter()
            for form in weights:
                form.multiply(x)
            seconds = (time.perf_counter() - started) / len(weights)
            best[path] = min(best[path], seconds)
    return best


def make(products: Products, path: str, shape: tuple[int, int]) -> list[Form]:
    """So many weights that caches do not hold them."""
    forms: list[Form] = []
    while not forms or (len(forms) < _MOST_WEIGHTS and forms[0].nbytes * len(forms) < _CACHE_BYTES):
        weight = torch.randn(shape) / 50
        forms.append(own(products, path, weight) if path in OWN else library(path, weight))
    return forms


def read_bandwidth() -> float:
    """Bytes a second of a long sum."""
    memory, best = torch.ones(32 << 20, dtype=torch.int64), 0.0
    for _ in range(8):
        started = time.perf_counter()
        memory.sum()
        best = max(best, memory.nbytes / (time.perf_counter() - started))
    return best


def main() -> None:
    """Print a table: GB/s of weights and GFLOP/s, by shape, path and rows."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description="GB/s and GFLOP/s of products with packed weights"
    )
    parser.add_argument("--model", choices=_SHAPES, default="smollm-135m")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 16, 64, 256])
    parser.add_argument("--paths", choices=[*OWN, *LIBRARY], nargs="+", default=[*OWN, *LIBRARY])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--instructions", default="", help="an instruction set, not the best")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--no-head", action="store_true", help="only the products of layers")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    products = Products(args.instructions)
    print(f"{products.native.name}, {args.threads} threads; a sum reads", end=" ")
    print(f"{read_bandwidth() / 1e9:.0f} GB/s. GB/s of weights and GFLOP/s by rows:")
    print(" " * 27 + "".join(f"{rows:>15}" for rows in args.rows))
    for inputs, outputs in _SHAPES[args.model][: -1 if args.no_head else None]:
        forms = {path: make(products, path, (outputs, inputs)) for path in args.paths}
        with torch.inference_mode():
            times = [fastest(forms, inputs, rows, args.turns) for rows in args.rows]
        for path, weights in forms.items():
            cells = [
                f"{weights[0].nbytes / best[path] / 1e9:8.1f}"
                f"{2 * inputs * outputs * rows / best[path] / 1e9:7.0f}"
                for rows, best in zip(args.rows, times, strict=True)
            ]
            print(f"{inputs:>6} -> {outputs:<6} {path:<10}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()

"""A program: products and attention by AMX equal those by its portable form, bit by bit.

It is run where there is AMX, or under ``amx_emulator.c``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels.cpu import CPUKernels
from quire.kernels.ops import AttentionSpec
from quire.kernels.products import Products
from support.attention_cases import make_case
from support.kv_tiles import to_tiles
from support.packed_weights import FORMS, fits

SHAPES = ((48, 64), (37, 96), (70, 40), (33, 80), (16, 77))  # outputs, inputs
ROWS = (1, 2, 16, 17, 33, 70)


def hard(rows: int, inputs: int) -> Tensor:
    """Numbers of all sizes, some too small for a leading bit, or for their products to have one."""
    x = torch.randn(rows, inputs) * 2.0 ** torch.randint(-80, 20, (rows, inputs))
    x[::3] = torch.randn(x[::3].shape)
    x[1::7, ::5] = 1e-39
    return x.bfloat16()


# Contexts and new tokens, block size, heads, dimensions of keys and values.
ATTENDED = (
    (((70, 1), (33, 5), (290, 2)), 16, (6, 2), (64, 64)),
    (((100, 40), (16, 1)), 16, (9, 3), (64, 64)),
    (((90, 30),), 32, (4, 4), (40, 24)),
    (((50, 21), (1, 1)), 8, (2, 1), (128, 16)),
)


def compare_attention() -> int:
    """How many batches were attended to."""
    for ragged, block_size, heads, dims in ATTENDED:
        case = make_case(torch.bfloat16, heads, dims, block_size, ragged)
        found = []
        for name in ("amx", "amx_portable"):
            kernels = CPUKernels(name)
            keys, values = case.new(case.keys), case.new(case.values)
            plan, kv = kernels.plan(case.batch), to_tiles(kernels, case.kv)
            spec = AttentionSpec(0.2, window=60)
            found.append(kernels.attend(case.query, keys, values, kv, spec, plan))
        assert torch.equal(found[0].view(torch.int16), found[1].view(torch.int16)), ragged
    return len(ATTENDED)


def compare() -> int:
    """How many products were compared; AssertionError if two differ."""
    compared = 0
    for form, make in FORMS.items():
        for shape in SHAPES:
            if not fits(form, shape[1]):
                continue
            torch.manual_seed(compared)
            weights = []
            for name in ("amx", "amx_portable"):
                torch.manual_seed(1)
                weights.append(make(Products(name), shape))
            for rows in ROWS:
                x = hard(rows, shape[1])
                found, expected = (weight.floats(x).view(torch.int32) for weight in weights)
                assert torch.equal(found, expected), (form, shape, rows)
                compared += 1
    return compared


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(compare(), "products are the same,", compare_attention(), "batches as well")

"""A whole decoder in one call equals the same in float64, operation by operation."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from quire.kernels.cpu import CPUKernels, instruction_sets
from quire.kernels.ops import (
    AttentionSpec,
    Decoder,
    DecoderLayer,
    LayerKV,
    Norm,
    Projection,
    Rotation,
)
from quire.kernels.products import PackedWeight, Products
from quire.kernels.reference import ReferenceKernels
from support.paged_batches import make_batch

HEADS, KV_HEADS, DIM, HIDDEN, INNER = 6, 2, 16, 72, 104
RAGGED = [(1, 1), (9, 9), (30, 1), (40, 5), (3, 3)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 5e-3}

pytestmark = pytest.mark.usefixtures("poisoned_memory")


class Wide:
    """A projection in float64."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight.double(), None if bias is None else bias.double()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def make_decoders(
    dtype: torch.dtype, gated: bool, centred: bool, final: bool, instructions: str
) -> tuple[Decoder, Decoder]:
    """Two layers in ``dtype``, and the same in float64."""
    products = Products(instructions)

    def norm(width: int, layer_norm: bool = False) -> tuple[Norm, Norm]:
        weight = (normal(width) / 4 + 1).to(dtype)
        bias = normal(width).to(dtype) if layer_norm else None
        wide_bias = None if bias is None else bias.double()
        return (
            Norm(width, weight, 1e-5, bias, layer_norm),
            Norm(width, weight.double(), 1e-5, wide_bias, layer_norm),
        )

    def projection(inputs: int, outputs: int) -> tuple[Projection, Projection]:
        weight = (normal(outputs, inputs) / inputs**0.5).to(dtype)
        bias = normal(outputs).to(dtype) if centred else None
        return PackedWeight.from_floats(products, weight, bias), Wide(weight, bias)

    def layer(window: int | None) -> tuple[DecoderLayer, DecoderLayer]:
        query_norms, key_norms = norm(DIM), norm(DIM)
        attention_norm, mlp_norm = norm(HIDDEN, centred), norm(HIDDEN, centred)
        qkv = projection(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM)
        output = projection(HEADS * DIM, HIDDEN)
        up, down = projection(HIDDEN, INNER * (1 + gated)), projection(INNER, HIDDEN)
        narrow, wide = (
            DecoderLayer(
                attention_norm=attention_norm[i],
                qkv=qkv[i],
                num_heads=HEADS,
                spec=AttentionSpec(DIM**-0.5, window, 0, None, query_norms[i], key_norms[i]),
                output=output[i],
                mlp_norm=mlp_norm[i],
                up=up[i],
                down=down[i],
                activation="silu" if gated else "relu",
                gated=gated,
            )
            for i in range(2)
        )
        return narrow, wide

    layers = [layer(None), layer(7)]
    final_norm = norm(HIDDEN, centred) if final else (None, None)
    narrow, wide = (Decoder(tuple(pair[i] for pair in layers), final_norm[i]) for i in range(2))
    return narrow, wide


@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("gated", "centred", "final"), [(True, False, True), (False, True, True), (True, False, False)]
)
def test_a_decoder_of_packed_weights(
    instructions: str, dtype: torch.dtype, gated: bool, centred: bool, final: bool
) -> None:
    torch.manual_seed(0)
    decoder, wide = make_decoders(dtype, gated, centred, final, instructions)
    batch, num_blocks = make_batch(RAGGED)
    pools = [normal(2, num_blocks, KV_HEADS, batch.block_size, DIM).to(dtype) for _ in range(2)]
    kv = [LayerKV(*(part.clone() for part in pool)) for pool in pools]
    wide_kv = [LayerKV(*(part.double() for part in pool)) for pool in pools]
    angles = torch.rand(batch.query_starts[-1], DIM // 2, dtype=torch.float64) * 6
    rotation = Rotation(angles.cos().float(), angles.sin().float())
    kernels, judge = CPUKernels(instructions), ReferenceKernels()
    for _ in range(2):  # the second time into memory that was used before
        x = normal(batch.query_starts[-1], HIDDEN).to(dtype)
        expected = judge.run(
            wide, x.double(), wide_kv, judge.plan(batch), Rotation(angles.cos(), angles.sin())
        )
        found = kernels.run(decoder, x, kv, kernels.plan(batch), rotation)
        assert found.dtype == dtype
        error = (found.double() - expected).abs().max() / expected.abs().max()
        assert error < TOLERANCE[dtype]
        for own, other in zip(kv, wide_kv, strict=True):
            assert torch.allclose(own.keys.double(), other.keys, atol=TOLERANCE[dtype] * 5)


def test_one_weight_that_is_not_packed_makes_no_difference() -> None:
    torch.manual_seed(0)
    decoder, _ = make_decoders(torch.float32, True, False, True, "")
    first, second = decoder.layers
    weight = torch.randn(HIDDEN, INNER) / 10
    mixed, packed = (
        Decoder((first, replace(second, down=down)), decoder.final_norm)
        for down in (
            lambda x: x @ weight.T,
            PackedWeight.from_floats(Products(), weight, None),
        )
    )
    batch, num_blocks = make_batch(RAGGED)
    pool = torch.randn(num_blocks, KV_HEADS, batch.block_size, DIM)
    x = torch.randn(batch.query_starts[-1], HIDDEN)
    kernels = CPUKernels()
    found = [
        kernels.run(
            one,
            x.clone(),
            [LayerKV(pool.clone(), pool.clone()) for _ in range(2)],
            kernels.plan(batch),
        )
        for one in (mixed, packed)
    ]
    assert torch.allclose(*found, atol=1e-5)


def test_decoders_are_told_apart() -> None:
    """Kernels remember decoders and caches, not their addresses."""
    torch.manual_seed(0)
    kernels, results = CPUKernels(), []
    batch, num_blocks = make_batch(RAGGED)
    x = torch.randn(batch.query_starts[-1], HIDDEN)
    for _ in range(3):
        decoder, _ = make_decoders(torch.float32, True, False, True, "")
        pool = torch.zeros(num_blocks, KV_HEADS, batch.block_size, DIM)
        kv = [LayerKV(pool.clone(), pool.clone()) for _ in range(2)]
        results.append(kernels.run(decoder, x.clone(), kv, kernels.plan(batch)))
        assert kv[1].keys.any()
    assert all(not torch.equal(a, b) for a, b in pairwise(results))

"""A whole decoder in one call equals the same in float64, operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from quire.kernels.cpu import CPUKernels
from quire.kernels.layer_memory import KVShape, LayerKV
from quire.kernels.mlps import Activation
from quire.kernels.ops import AttentionSpec, DecoderStack, Fused, Norm, Norms, Rotation
from quire.kernels.products import PackedWeight, Products
from quire.kernels.reference import ReferenceKernels
from quire.models.layers import MLP, Attention, Layer, run_layers
from quire.models.linear import Joined, Linear, PlainLinear
from support.instruction_sets import TESTED
from support.kv_tiles import to_rows, to_tiles
from support.paged_batches import make_batch

HEADS, KV_HEADS, DIM, HIDDEN, INNER = 6, 2, 16, 72, 104
RAGGED = [(1, 1), (9, 9), (30, 1), (40, 5), (3, 3)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 5e-3}

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


BOTH_BEFORE = (True, False, False), (True, False, False)
# Norms around attention and MLP, parallel, scale, norms of all heads together.
FORMS = {
    "before and of what parts give": (((True, True, False),) * 2, False, 1.0, False),
    "of what parts give": (((False, True, False),) * 2, False, 0.3, True),
    "after": (((False, False, True),) * 2, False, 1.0, False),
    "everywhere": (((True, True, True), (False, True, True)), False, 0.3, True),
    "nowhere": (((False, False, False),) * 2, False, 0.3, False),
    "parallel": (((True, False, False), (False, False, False)), True, 1.0, False),
    "parallel with a norm each": (BOTH_BEFORE, True, 0.3, False),
}


def make_layers(
    dtype: torch.dtype,
    gated: bool,
    centred: bool,
    instructions: str,
    around: tuple[tuple[bool, ...], tuple[bool, ...]] = BOTH_BEFORE,
    parallel: bool = False,
    scale: float = 1.0,
    joint: bool = False,
    ropes: tuple[int | None, int | None] = (0, 0),
) -> tuple[list[Layer], list[Layer]]:
    """Two layers in ``dtype``, and the same in float64."""
    products = Products(instructions)

    def projection(inputs: int, outputs: int) -> tuple[Linear, Linear]:
        weight = (normal(outputs, inputs) / inputs**0.5).to(dtype)
        bias = normal(outputs).to(dtype) if centred else None
        wide_bias = None if bias is None else bias.double()
        return (
            PackedWeight.from_floats(products, weight, bias),
            PlainLinear(weight.double(), wide_bias),
        )

    def norms(used: tuple[bool, ...]) -> list[Norms]:
        pairs = [norm(dtype, HIDDEN, centred) if each else (None, None) for each in used]
        return [Norms(*each) for each in zip(*pairs, strict=True)]

    def layer(window: int | None, rope: int | None) -> tuple[Layer, Layer]:
        query_norms, key_norms = norm(dtype, DIM), norm(dtype, DIM)
        widths = (HEADS * DIM, KV_HEADS * DIM)
        all_heads = [norm(dtype, width) if joint else (None, None) for width in widths]
        attention_norms, mlp_norms = map(norms, around)
        heads = {"q": HEADS * DIM, "k": KV_HEADS * DIM, "v": KV_HEADS * DIM}
        parts = {"gate": INNER, "up": INNER} if gated else {"up": INNER}
        qkv, output = projection(HIDDEN, sum(heads.values())), projection(HEADS * DIM, HIDDEN)
        up, down = projection(HIDDEN, sum(parts.values())), projection(INNER, HIDDEN)
        narrow, wide = (
            Layer(
                Attention(
                    Joined(qkv[i], heads),
                    output[i],
                    KVShape(KV_HEADS, DIM, DIM),
                    AttentionSpec(DIM**-0.5, window, 0, None, query_norms[i], key_norms[i]),
                    rope,
                    *(pair[i] for pair in all_heads),
                ),
                attention_norms[i]._replace(scale=scale),
                MLP(Joined(up[i], parts), down[i], Activation("silu" if gated else "relu", gated)),
                mlp_norms[i]._replace(scale=scale),
                parallel,
            )
            for i in range(2)
        )
        return narrow, wide

    layers = [layer(None, ropes[0]), layer(7, ropes[1])]
    narrow, wide = ([pair[i] for pair in layers] for i in range(2))
    return narrow, wide


def norm(dtype: torch.dtype, width: int, layer_norm: bool = False) -> tuple[Norm, Norm]:
    weight = (normal(width) / 4 + 1).to(dtype)
    bias = normal(width).to(dtype) if layer_norm else None
    wide_bias = None if bias is None else bias.double()
    return (
        Norm(width, weight, 1e-5, bias, layer_norm),
        Norm(width, weight.double(), 1e-5, wide_bias, layer_norm),
    )


def as_one(layers: Sequence[Layer], final_norm: Norm | None, dtype: torch.dtype) -> DecoderStack:
    return DecoderStack(tuple(layer.fusable() for layer in layers), final_norm, dtype)


def fused_by(kernels: CPUKernels, decoder: DecoderStack, kv: Sequence[LayerKV]) -> Fused:
    fused = kernels.fuse(decoder, kv)
    assert fused is not None
    return fused


@pytest.mark.parametrize("instructions", TESTED)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("gated", "centred", "final"), [(True, False, True), (False, True, True), (True, False, False)]
)
def test_a_decoder_of_packed_weights(
    instructions: str, dtype: torch.dtype, gated: bool, centred: bool, final: bool
) -> None:
    torch.manual_seed(0)
    layers, wide_layers = make_layers(dtype, gated, centred, instructions)
    final_norm, wide_norm = norm(dtype, HIDDEN, centred) if final else (None, None)
    check(layers, wide_layers, (final_norm, wide_norm), dtype, CPUKernels(instructions))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_norms_and_rotations_that_layers_may_have(form: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for final, centred, ropes in ((True, True, (1, 0)), (False, False, (None, 1))):
        layers, wide_layers = make_layers(dtype, True, centred, "", *FORMS[form], ropes)
        final_norms = norm(dtype, HIDDEN, centred) if final else (None, None)
        check(layers, wide_layers, final_norms, dtype, CPUKernels())


def check(
    layers: Sequence[Layer],
    wide_layers: Sequence[Layer],
    final_norms: tuple[Norm | None, Norm | None],
    dtype: torch.dtype,
    kernels: CPUKernels,
) -> None:
    """That layers in one call give what the same in float64 give operation by operation."""
    decoder, judge = as_one(layers, final_norms[0], dtype), ReferenceKernels()
    batch, num_blocks = make_batch(RAGGED)
    pools = [normal(2, num_blocks, KV_HEADS, batch.block_size, DIM).to(dtype) for _ in range(2)]
    wide_kv = [LayerKV(*(part.double() for part in pool)) for pool in pools]
    angles = torch.rand(2, batch.query_starts[-1], DIM // 2, dtype=torch.float64) * 6
    wide_rotations = [Rotation(each.cos(), each.sin()) for each in angles]
    rotations = [Rotation(each.cos().float(), each.sin().float()) for each in angles]
    kv = [to_tiles(kernels, LayerKV(*pool)) for pool in pools]
    for _ in range(2):  # the second time into memory that was used before
        x = normal(batch.query_starts[-1], HIDDEN).to(dtype)
        expected = run_layers(
            wide_layers,
            final_norms[1],
            x.double(),
            wide_kv,
            judge,
            judge.plan(batch),
            wide_rotations,
        )
        found = fused_by(kernels, decoder, kv)(x, kernels.plan(batch), rotations, None)
        assert found.dtype == dtype
        error = (found.double() - expected).abs().max() / expected.abs().max()
        assert error < TOLERANCE[dtype]
        for own, other in zip(kv, wide_kv, strict=True):
            keys = to_rows(kernels, own).keys
            assert torch.allclose(keys.double(), other.keys, atol=TOLERANCE[dtype] * 5)


def test_one_weight_that_is_not_packed_makes_no_difference() -> None:
    torch.manual_seed(0)
    layers, _ = make_layers(torch.float32, True, False, "", ropes=(None, None))
    final_norm, _ = norm(torch.float32, HIDDEN)
    weight = torch.randn(HIDDEN, INNER) / 10
    mixed, packed = (
        [layers[0], replace(layers[1], mlp=replace(layers[1].mlp, down=down))]
        for down in (PlainLinear(weight), PackedWeight.from_floats(Products(), weight, None))
    )
    batch, num_blocks = make_batch(RAGGED)
    pool = torch.randn(num_blocks, KV_HEADS, batch.block_size, DIM)
    kv, other_kv = ([LayerKV(pool.clone(), pool.clone()) for _ in range(2)] for _ in range(2))
    x = torch.randn(batch.query_starts[-1], HIDDEN)
    kernels = CPUKernels()
    plan = kernels.plan(batch)
    assert kernels.fuse(as_one(mixed, final_norm, x.dtype), kv) is None
    found = run_layers(mixed, final_norm, x.clone(), kv, kernels, plan, [])
    fused = fused_by(kernels, as_one(packed, final_norm, x.dtype), other_kv)
    assert torch.allclose(found, fused(x.clone(), plan, [], None), atol=1e-5)


def test_decoders_are_told_apart() -> None:
    """Kernels remember decoders and caches, not their addresses."""
    torch.manual_seed(0)
    kernels, results = CPUKernels(), []
    batch, num_blocks = make_batch(RAGGED)
    x = torch.randn(batch.query_starts[-1], HIDDEN)
    for _ in range(3):
        layers, _ = make_layers(torch.float32, True, False, "", ropes=(None, None))
        decoder = as_one(layers, norm(torch.float32, HIDDEN)[0], torch.float32)
        for _ in range(2):
            pool = torch.zeros(num_blocks, KV_HEADS, batch.block_size, DIM)
            kv = [LayerKV(pool.clone(), pool.clone()) for _ in range(2)]
            fused = fused_by(kernels, decoder, kv)
            results.append(fused(x.clone(), kernels.plan(batch), [], None))
            assert kv[1].keys.any()
            assert kernels.fuse(decoder, kv) is fused, "made anew each step"
    firsts, seconds = results[::2], results[1::2]
    assert all(torch.equal(a, b) for a, b in zip(firsts, seconds, strict=True))
    assert all(not torch.equal(a, b) for a, b in pairwise(firsts))

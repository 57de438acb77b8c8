"""Keys of 4 bits are rounded as differences from what they have in common."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from quire.kernels.cpu import CPUKernels
from quire.kernels.layer_memory import LayerKV
from quire.kernels.ops import (
    CENTRED_TOGETHER,
    AttentionBatch,
    AttentionSpec,
    Centring,
    KVGroupTables,
    Rotation,
)
from quire.kernels.reference import ReferenceKernels
from support.instruction_sets import TESTED

CONTEXT, BLOCK = 300, 16
BLOCKS = -(-CONTEXT // BLOCK)
HEADS = [((6, 2), 64, 32), ((13, 1), 40, 12), ((4, 2), 24, 0)]  # and how many pairs are turned
SPECS = {
    "all": AttentionSpec(0.2),
    "window": AttentionSpec(0.2, window=150),
    "capped": AttentionSpec(0.2, softcap=20.0),
    "sink": AttentionSpec(0.2, sink_logits=torch.linspace(-1, 9, 16)),
}


def fitting(spec: AttentionSpec, heads: int) -> AttentionSpec:
    logits = spec.sink_logits
    return spec if logits is None else replace(spec, sink_logits=logits[:heads])


class Text:
    """One sequence whose keys have much in common before they are turned; the first has not."""

    def __init__(self, heads: tuple[int, int], dim: int, half: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        frequencies = torch.logspace(-2.5, -5, half)
        common, first = 9 * normal(heads[1], dim), 9 * normal(heads[1], dim)
        keys = common + 0.2 * normal(CONTEXT, heads[1], dim)
        keys[0] = first
        self.keys, self.query = keys.to(dtype), normal(CONTEXT, heads[0], dim).to(dtype)
        self.values = normal(CONTEXT, heads[1], dim).to(dtype)
        angles = torch.arange(CONTEXT)[:, None] * frequencies
        self.turns = (angles.cos(), angles.sin()) if half else None
        middles = torch.arange(BLOCKS) * CENTRED_TOGETHER + CENTRED_TOGETHER // 2
        table = middles[:, None] * frequencies
        factors = 0.5 + torch.rand(common.shape, generator=generator)
        turned = (table.cos(), table.sin()) if half else (None, None)
        self.centring = Centring(factors, 1 / factors, common, first, *turned)

    def attended(
        self,
        kernels: CPUKernels | ReferenceKernels,
        spec: AttentionSpec,
        kv: LayerKV,
        start: int,
        stop: int,
    ) -> Tensor:
        where, blocks = torch.arange(start, stop), torch.arange(BLOCKS).flip(0)
        slots = blocks[where // BLOCK] * BLOCK + where % BLOCK
        batch = AttentionBatch(
            where,
            (0, stop - start),
            torch.tensor([stop]),
            torch.tensor([stop]),
            (KVGroupTables(slots, blocks[None], torch.zeros(1, dtype=torch.long)),),
            BLOCK,
        )
        rotation = self.turns and Rotation(*(part[start:stop] for part in self.turns))
        new = (part[start:stop] for part in (self.query, self.keys, self.values))
        return kernels.attend(*new, kv, spec, kernels.plan(batch), rotation)

    def pool(self, four: bool) -> LayerKV:
        _, heads, dim = self.keys.shape
        rows = BLOCKS, heads, BLOCK
        if not four:
            return LayerKV(*(torch.zeros(*rows, dim) for _ in range(2)))
        codes = (torch.zeros(*rows, dim // 2, dtype=torch.uint8) for _ in range(2))
        return LayerKV(*codes, 0, torch.zeros(rows), torch.zeros(rows))


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("instructions", TESTED)
def test_what_keys_have_in_common_costs_no_digits(
    instructions: str, heads: tuple[tuple[int, int], int, int], spec: AttentionSpec
) -> None:
    text, kernels = Text(*heads, torch.float32), CPUKernels(instructions)
    spec = fitting(spec, heads[0][0])
    exact = text.attended(ReferenceKernels(), spec, text.pool(False), 0, CONTEXT)
    errors = []
    for own in (spec, replace(spec, centring=text.centring)):
        found = text.attended(kernels, own, text.pool(True), 0, CONTEXT)
        errors.append(float((found - exact).norm() / exact.norm()))
    assert errors[1] < 0.2
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("instructions", TESTED)
def test_a_row_has_the_same_bits_however_a_text_is_cut(
    instructions: str,
    heads: tuple[tuple[int, int], int, int],
    dtype: torch.dtype,
    spec: AttentionSpec,
) -> None:
    text, kernels = Text(*heads, dtype), CPUKernels(instructions)
    spec = replace(fitting(spec, heads[0][0]), centring=text.centring)
    whole = text.attended(kernels, spec, text.pool(True), 0, CONTEXT)
    kv, cuts = text.pool(True), (0, 1, 2, 70, 73, CONTEXT - 20, CONTEXT - 1, CONTEXT)
    for start, stop in pairwise(cuts):
        found = text.attended(kernels, spec, kv, start, stop)
        assert torch.equal(found, whole[start:stop]), (start, stop)

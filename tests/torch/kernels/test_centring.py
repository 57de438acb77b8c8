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
from quire.kernels.rounded_cache import FINE, key_codes, levels_of, spread, value_codes
from quire.models.centring import shares_of
from support.instruction_sets import TESTED

CONTEXT, BLOCK = 300, 16
BLOCKS = -(-CONTEXT // BLOCK)
HEADS = [((6, 2), 64, 32), ((13, 1), 40, 12), ((4, 2), 24, 0)]  # and how many pairs are turned
FINE_LEVELS = (3, 8, 13, 18, 23, 28, 34, 40, 46, 53, 60, 68, 77, 88, 102, 124)
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
        shares = 0.05 * normal(heads[1], dim, dim).tril(-1)
        shares = torch.nn.functional.pad(shares, (0, -dim % 16))
        order = torch.stack([torch.randperm(dim, generator=generator) for _ in range(heads[1])])
        self.centring = Centring(
            factors, 1 / factors, common, first, shares, order.int().contiguous(), *turned
        )

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


class Plain:
    """One text that is not turned, of keys without a centre; queries have some numbers only."""

    def __init__(self, energy: Tensor, order: Tensor, *, sharing: bool = False) -> None:
        """energy, order: [D], of queries' numbers."""
        dim = len(energy)
        generator = torch.Generator().manual_seed(1)
        self.query = torch.randn(CONTEXT, 4, dim, generator=generator) * energy.sqrt()
        self.keys = torch.randn(CONTEXT, 2, dim, generator=generator)
        self.values = torch.randn(CONTEXT, 2, dim, generator=generator)
        ones, nothing = torch.ones(2, dim), torch.zeros(2, dim)
        met = energy[order].double().expand(2, -1)
        shares = shares_of(met, min(dim & -dim, FINE)).float().contiguous()
        self.centring = Centring(
            ones, ones, nothing, nothing + 99, shares if sharing else torch.zeros_like(shares),
            order.int().expand(2, -1).contiguous(), None, None,
        )  # fmt: skip

    def run(self, instructions: str, block: int) -> tuple[Tensor, LayerKV]:
        count, dim = -(-CONTEXT // block), self.keys.shape[2]
        rows = count, 2, block
        codes = (torch.zeros(*rows, dim // 2, dtype=torch.uint8) for _ in range(2))
        kv = LayerKV(*codes, 0, torch.zeros(rows), torch.zeros(rows))
        batch = AttentionBatch(
            torch.arange(CONTEXT),
            (0, CONTEXT),
            torch.tensor([CONTEXT]),
            torch.tensor([CONTEXT]),
            (
                KVGroupTables(
                    torch.arange(CONTEXT),
                    torch.arange(count)[None],
                    torch.zeros(1, dtype=torch.long),
                ),
            ),
            block,
        )
        kernels, spec = CPUKernels(instructions), AttentionSpec(0.1, centring=self.centring)
        given = self.query, self.keys, self.values
        return kernels.attend(*given, kv, spec, kernels.plan(batch)), kv

    def attended(self, keys: Tensor, values: Tensor) -> Tensor:
        query, keys, values = (x.double().movedim(1, 0) for x in (self.query, keys, values))
        keys, values = (x.repeat_interleave(2, 0) for x in (keys, values))
        scores = (0.1 * query @ keys.mT).masked_fill(
            torch.ones(CONTEXT, CONTEXT).triu(1).bool(), -torch.inf
        )
        return (scores.softmax(-1) @ values).movedim(0, 1).float()

    def lost(self, instructions: str) -> float:
        """Of scores."""
        _, kv = self.run(instructions, 8)
        keys, _ = self.kept(kv)
        lost = (keys - self.keys).repeat_interleave(2, 1)
        return float(torch.einsum("qhd,khd->hqk", self.query, lost).square().mean())

    def kept(self, kv: LayerKV) -> tuple[Tensor, Tensor]:
        """Keys and values that a pool of rows stands for, by the definition in interface.hpp."""
        assert kv.key_scales is not None
        assert kv.value_scales is not None
        words = [scales.view(torch.int32) for scales in (kv.key_scales, kv.value_scales)]
        scales = [(part & -65536).view(torch.float32).abs()[..., None] for part in words]
        codes, dim = key_codes(kv.keys).int(), self.keys.shape[2]
        fine = min(dim, FINE)
        number = torch.arange(fine)
        bit = number % 8 // 2 * 4 + number // 8
        halves = torch.stack(words, -1)[..., number % 2] >> bit & 1
        place = codes[..., :fine] & 7 | halves << 3
        upper = torch.tensor(FINE_LEVELS)[place] * (1 - (codes[..., :fine] >> 3) * 2)
        levels = torch.cat((upper.float(), levels_of(codes[..., fine:])), -1)
        order = self.centring.order[0].long()
        keys = torch.empty_like(levels)
        keys[..., order] = spread(levels * scales[0], min(dim & -dim, FINE))
        values = spread(levels_of(value_codes(kv.values)) * scales[1])
        keys, values = (x.transpose(1, 2).flatten(0, 1)[:CONTEXT] for x in (keys, values))
        return keys, values


@pytest.mark.parametrize("dim", [64, 40, 24, 128], ids=str)
@pytest.mark.parametrize("instructions", TESTED)
def test_scores_are_those_of_keys_as_the_pool_has_them(instructions: str, dim: int) -> None:
    generator = torch.Generator().manual_seed(2)
    text = Plain(torch.ones(dim), torch.randperm(dim, generator=generator), sharing=True)
    found, kv = text.run(instructions, 8)
    keys, values = text.kept(kv)
    assert (keys - text.keys).square().mean() < 0.013
    assert torch.allclose(found, text.attended(keys, values), atol=2e-5)
    in_panels, _ = text.run(instructions, 16)
    assert torch.equal(found, in_panels)


@pytest.mark.parametrize("instructions", TESTED)
def test_numbers_that_queries_have_most_of_have_a_bit_more(instructions: str) -> None:
    energy = torch.cat((torch.ones(32), torch.zeros(32)))
    order = torch.arange(64)
    first, last = (Plain(energy, one).lost(instructions) for one in (order, order.flip(0)))
    assert first < 0.45 * last


@pytest.mark.parametrize("instructions", TESTED)
def test_what_is_lost_of_a_number_others_make_up_for(instructions: str) -> None:
    energy = torch.logspace(0, -2, 64)
    alone, together = (
        Plain(energy, torch.arange(64), sharing=sharing).lost(instructions)
        for sharing in (False, True)
    )
    assert together < 0.85 * alone

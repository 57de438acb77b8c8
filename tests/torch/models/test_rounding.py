"""Scales of groups lose less than the largest weights would have them lose, on every matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.kernels.packing import Format
from quire.kernels.products import Products
from quire.models.linear import Multiplied, Quantization
from quire.models.linear.packed import pack
from quire.models.linear.rounding import bits_for, round_groups, round_weight
from quire.models.stored import ByGroups, ByOutputs, in_columns


def by_largest(weight: Tensor) -> Tensor:
    """The largest of 32 weights becomes -8."""
    rows = []
    for row in weight.view(-1, 32):
        step = (row[row.abs().argmax()] / -8).half().float()
        rows.append((row / step).round().clamp(-8, 7) * step)
    return torch.stack(rows).view(weight.shape)


def by_search(weight: Tensor) -> Tensor:
    """The best of 400 scales for each 32 weights."""
    groups = weight.view(-1, 32)
    best, least = torch.zeros_like(groups), torch.full((len(groups), 1), torch.inf)
    largest = groups.abs().amax(dim=1, keepdim=True)
    for part in torch.linspace(0.5, 1.1, 200).tolist():
        for sign in (-1, 1):
            step = sign * part * largest / 8
            found = (groups / step).round().clamp(-8, 7) * step
            error = (found - groups).square().sum(dim=1, keepdim=True)
            best, least = torch.where(error < least, found, best), torch.minimum(error, least)
    return best.view(weight.shape)


def loss(found: Tensor, weight: Tensor) -> float:
    return float((found - weight).square().sum() / weight.square().sum())


MATRICES = {
    "normal": torch.randn(64, 256, generator=torch.Generator().manual_seed(0)),
    "heavy tails": torch.randn(64, 256, generator=torch.Generator().manual_seed(1)).pow(3),
    "an outlier": torch.randn(64, 256, generator=torch.Generator().manual_seed(2))
    + 20 * (torch.arange(256) % 37 == 0),
}


@pytest.mark.parametrize("name", MATRICES)
def test_scales_lose_less_than_the_largest_weights_would(name: str) -> None:
    weight = MATRICES[name]
    found = loss(round_groups(weight, Format.int4).floats(torch.float32), weight)
    assert found < 0.99 * loss(by_largest(weight), weight)
    assert found < 1.04 * loss(by_search(weight), weight)


@pytest.mark.parametrize("name", MATRICES)
def test_what_large_inputs_multiply_loses_less(name: str) -> None:
    """And no group another's importance: inputs are as important in each row."""
    weight, generator = MATRICES[name], torch.Generator().manual_seed(9)
    importance = torch.exp2(-torch.randint(9, (256,), generator=generator).float())

    def counted(found: ByGroups) -> float:
        errors = (found.floats(torch.float32) - weight).square() * importance
        return float(errors.sum())

    plain = round_groups(weight, Format.int4)
    assert counted(round_groups(weight, Format.int4, importance=importance)) < 0.9 * counted(plain)
    alike = round_groups(weight, Format.int4, importance=torch.ones(256))
    assert torch.equal(alike.codes, plain.codes)


def test_large_inputs_do_not_make_others_of_their_group_coarse() -> None:
    """Nor do an input's large weights; and the weights are read back as they were."""
    generator = torch.Generator().manual_seed(3)
    sizes = torch.exp2(torch.randint(-3, 4, (2, 256), generator=generator).float())
    x = torch.randn(200, 256, generator=generator) * sizes[0]
    weight = torch.randn(64, 256, generator=generator) * sizes[1]
    multiplied = Multiplied.of(x.square().mean(dim=0), weight.square().mean(dim=0))
    found = round_weight(weight, Quantization.w8a8, multiplied=multiplied)
    plain = round_weight(weight, Quantization.w8a8)
    assert isinstance(found, ByGroups) and isinstance(plain, ByGroups)
    exact, products = x @ weight.T, Products()

    def lost(rounded: ByGroups) -> float:
        return loss(pack(products, rounded, None).floats(x), exact)

    assert lost(found) < 0.6 * lost(plain)
    rows = pack(products, found, None).rows(torch.arange(64), torch.float32)
    assert torch.equal(rows, found.floats(torch.float32))
    half = in_columns(found, slice(64, 192), torch.float32)
    assert isinstance(half, ByGroups)
    assert torch.equal(half.floats(torch.float32), found.floats(torch.float32)[:, 64:192])


def test_a_large_number_is_spread_before_it_makes_others_coarse() -> None:
    """As no smoothing can, where it is another input with each token."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(200, 256, generator=generator)
    x[torch.arange(200), torch.randint(256, (200,), generator=generator)] *= 50
    weight = torch.randn(64, 256, generator=generator)
    found, exact = round_weight(weight, Quantization.w8a8), x @ weight.T
    assert isinstance(found, ByGroups) and found.spreads_rows
    plain = round_groups(weight, Format.grouped_int8, rounds_rows=True)
    lost = [loss(pack(Products(), one, None).floats(x), exact) for one in (found, plain)]
    assert lost[0] < 0.4 * lost[1]
    assert loss(found.floats(torch.float32), weight) < 1e-4


def test_parts_that_no_runs_divide_are_floats() -> None:
    found = round_weight(MATRICES["normal"], Quantization.w8a8)
    for columns, kind in ((slice(16, 48), ByGroups), (slice(8, 72), Tensor)):
        part = in_columns(found, columns, torch.float32)
        assert isinstance(part, kind)
        values = part if isinstance(part, Tensor) else part.floats(torch.float32)
        assert torch.equal(values, found.floats(torch.float32)[:, columns])


def test_more_bits_lose_less_and_odd_inputs_have_int8() -> None:
    weight = MATRICES["normal"]
    forms = [round_weight(weight, Quantization.int4, bits) for bits in (4, 5, 6)]
    assert [form.form for form in forms if isinstance(form, ByGroups)] == [
        Format.int4,
        Format.int5,
        Format.int6,
    ]
    losses = [loss(form.floats(torch.float32), weight) for form in forms]
    assert 3 * losses[1] < losses[0] and 3 * losses[2] < losses[1]
    assert isinstance(round_weight(weight[:, :48], Quantization.int4), ByOutputs)


@pytest.mark.parametrize(
    ("name", "large", "small"),
    [
        ("model.layers.0.self_attn.q_proj", 4, 5),
        ("model.layers.0.self_attn.k_proj", 5, 6),
        ("model.layers.0.self_attn.v_proj", 6, 6),
        ("model.layers.0.self_attn.o_proj", 4, 5),
        ("model.layers.0.self_attn.qkv_proj", 6, 6),
        ("transformer.h.0.self_attention.dense", 4, 5),
        ("model.layers.0.linear_attn.out_proj", 6, 6),
        ("model.layers.0.mlp.gate_up_proj", 4, 5),
        ("model.layers.0.mlp.experts.down_proj.3", 5, 6),
        ("model.layers.0.feed_forward.w2", 5, 6),
        ("model.layers.0.feed_forward.w3", 4, 5),
    ],
)
def test_what_loses_most_has_more_bits(name: str, large: int, small: int) -> None:
    """And all weights of models whose sizes are no multiples of 256, on either side."""
    assert bits_for(name, (2048, 768)) == large
    assert bits_for(name, (2048, 576)) == bits_for(name, (576, 2048)) == small


@pytest.mark.parametrize("name", MATRICES)
def test_eight_bits_are_by_the_largest_of_64(name: str) -> None:
    weight = MATRICES[name]
    found = round_weight(weight, Quantization.int8)
    assert isinstance(found, ByGroups) and (found.group, found.rounds_rows) == (64, False)
    steps = (weight.view(64, -1, 64).abs().amax(dim=2) / 127).half().double()
    steps = steps.repeat_interleave(64, dim=1)
    expected = (weight.double() / steps).round() * steps
    off = (found.floats(torch.float32).double() - expected).abs()
    assert bool((off <= 1.001 * steps * (off > 1e-6)).all()) and (off > 1e-6).sum() < 9, "ties"
    assert isinstance(round_weight(weight[:, :96], Quantization.int8), ByOutputs)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_is_rounded_alike_wherever_it_stands(rows: int) -> None:
    """Sums of another order give another scale for one group in some thousands."""
    weight = torch.randn(2000, 256, generator=torch.Generator().manual_seed(8))
    whole = round_groups(weight, Format.int4)
    parts = [round_groups(part, Format.int4) for part in weight.split(rows)]
    assert torch.equal(torch.cat([part.codes for part in parts]), whole.codes)
    assert torch.equal(torch.cat([part.groups.scales for part in parts]), whole.groups.scales)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_zeros_and_numbers_that_float16_hardly_holds(dtype: torch.dtype) -> None:
    weight = torch.zeros(4, 64)
    weight[1] = 1e-7
    weight[2] = 30_000 * torch.linspace(-1, 1, 64)
    weight[3, 5] = 1
    found = round_groups(weight.to(dtype), Format.int4).floats(torch.float32)
    assert torch.equal(found[0], weight[0]) and found[3].count_nonzero() == 1
    assert (found[1] - 1e-7).abs().max() < 1e-7
    assert loss(found[2], weight[2]) < 0.01

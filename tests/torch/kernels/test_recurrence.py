"""Layers with a state: what they compute, whatever runs beside them, however texts are cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.kernels.recurrence import GatedConvolution, Recurrence
from quire.kernels.reference import ReferenceKernels
from support.every_kernel import make_kernels
from support.instruction_sets import TESTED
from support.recurrences import (
    SLOTS,
    SPECS,
    TOLERANCE,
    batch_of,
    poisoned,
    run,
    run_drafted,
    run_leaving,
    texts_of,
)

with_specs = pytest.mark.parametrize("name", SPECS)


def by_definition(spec: Recurrence, x: Tensor) -> Tensor:
    """One text in float64, as the papers write it: head by head, token by token."""
    x, heads = x.double(), spec.num_heads
    weight = spec.convolution.weight.double()
    kernel, channels = weight.shape
    padded = torch.cat([torch.zeros(kernel - 1, channels).double(), x[:, :channels]])
    mixed = sum(weight[i] * padded[i : i + len(x)] for i in range(kernel))
    if spec.convolution.bias is not None:
        mixed = mixed + spec.convolution.bias.double()
    mixed = mixed * mixed.sigmoid()
    gates, rest = x[:, channels : channels + spec.outputs], x[:, channels + spec.outputs :]
    outputs = []
    for head in range(heads):
        group = heads // spec.num_key_heads
        own = (head % spec.num_key_heads if spec.tiled else head // group) * spec.key_dim
        state = torch.zeros(spec.key_dim, spec.value_dim).double()
        rows = []
        for token in range(len(x)):
            q = mixed[token, own : own + spec.key_dim]
            k = mixed[token, spec.num_key_heads * spec.key_dim + own :][: spec.key_dim]
            v = mixed[token, 2 * spec.num_key_heads * spec.key_dim + head * spec.value_dim :]
            v = v[: spec.value_dim]
            steps = rest[token, heads:] if spec.delta else rest[token]
            at = slice(head * spec.key_dim, (head + 1) * spec.key_dim)
            at = at if spec.by_channel else slice(head, head + 1)
            step = (1 + (spec.steps.factor * steps[at] + spec.bias[at].double()).exp()).log()
            step = step.clamp(spec.steps.least, spec.steps.most)
            state = state * (spec.decay[head].double() * step).exp()[:, None]
            if spec.delta:
                k = k / (k.square().sum() + 1e-6).sqrt()
                q = q / (q.square().sum() + 1e-6).sqrt() / spec.key_dim**0.5
                state = state + torch.outer(k, rest[token, head].sigmoid() * (v - k @ state))
            else:
                state = state + torch.outer(k, step * v)
            skip = 0 if spec.skip is None else spec.skip[head].double()
            rows.append(q @ state + skip * v)
        outputs.append(torch.stack(rows))
    out = torch.cat(outputs, dim=1)
    gate = spec.gate.factor * gates
    gate = gate.sigmoid() * (1 if spec.gate.sigmoid else gate)
    if spec.gate.norm is None:
        return out * gate
    out = out * gate if spec.gate.first else out
    grouped = out.view(len(x), -1, spec.gate.width)
    normed = grouped / (grouped.square().mean(2, keepdim=True) + spec.gate.eps).sqrt()
    normed = normed.flatten(1) * spec.gate.norm.double()
    return normed if spec.gate.first else normed * gate


@with_specs
def test_the_reference_computes_the_definition(name: str) -> None:
    spec = SPECS[name]
    texts = texts_of(spec, torch.float64, 23)
    found = run(ReferenceKernels(), spec, texts, [{5: 23}])[5]
    if isinstance(spec, GatedConvolution):
        before, after, values = texts[5].chunk(3, dim=1)
        padded = torch.cat([torch.zeros(2, 300).double(), before * values])
        weight, bias = spec.convolution
        assert bias is not None
        expected = after * (sum(weight[i] * padded[i : i + 23] for i in range(3)) + bias)
    else:
        expected = by_definition(spec, texts[5])
    assert (found - expected).abs().max() < 1e-9


@with_specs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("isa", TESTED)
def test_results(isa: str, dtype: torch.dtype, name: str) -> None:
    spec = SPECS[name]
    texts = texts_of(spec, dtype, 40, 1, 17)
    steps = [{5: 40, 4: 1, 3: 17}]
    found = run(make_kernels(isa), spec, texts, steps)
    wide = {slot: text.double() for slot, text in texts.items()}
    expected = run(ReferenceKernels(), spec, wide, steps)
    for slot, out in found.items():
        error = (out.double() - expected[slot]).abs() / (1 + expected[slot].abs())
        assert error.max() < TOLERANCE[dtype]


@with_specs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("isa", TESTED)
def test_bits_do_not_depend_on_how_texts_are_cut(isa: str, dtype: torch.dtype, name: str) -> None:
    """Nor on what else is in a step, on slots, or on threads."""
    spec, kernels = SPECS[name], make_kernels(isa)
    texts = texts_of(spec, dtype, 300, 30, 9)
    alone = {}
    for slot, text in texts.items():
        alone.update(run(kernels, spec, {slot: text}, [{slot: len(text)}]))
    ways: list[list[dict[int, int]]] = [
        [{5: 300, 4: 30, 3: 9}],
        [{3: 9}, {4: 7, 5: 1}, *[{5: 1, 4: 1}] * 23, {5: 276}],
        [{5: 1}, {5: 2}, {5: 253, 4: 3, 3: 2}, {3: 7, 5: 44, 4: 27}],
    ]
    for steps in ways:
        found = run(kernels, spec, texts, steps)
        for slot, out in found.items():
            assert torch.equal(out, alone[slot])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        found = run(kernels, spec, texts, ways[2])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(out, alone[slot]) for slot, out in found.items())


@with_specs
def test_other_slots_are_left_alone(name: str) -> None:
    spec = SPECS[name]
    state = poisoned(spec)
    run(make_kernels(TESTED[0]), spec, texts_of(spec, torch.float32, 5), [{5: 3}, {5: 2}], state)
    for part in state[:2]:
        others = part[[slot for slot in range(SLOTS) if slot != 5]]
        assert others.isnan().all()
        assert not part[5].isnan().any()


@with_specs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("isa", [None, *TESTED])
def test_drafts_leave_the_bits_of_what_is_confirmed(
    isa: str | None, dtype: torch.dtype, name: str
) -> None:
    """Two texts of which drafts are right up to somewhere, and one that has none."""
    spec = SPECS[name]
    kernels = ReferenceKernels() if isa is None else make_kernels(isa)
    texts = texts_of(spec, dtype, 300, 30, 9)
    whole = [{slot: len(text)} for slot, text in texts.items()]
    alone: dict[int, Tensor] = {}
    for step in whole:
        alone.update(run(kernels, spec, {slot: texts[slot] for slot in step}, [step]))
    # By slot, new tokens, drafts, and how many of these are right.
    steps: list[dict[int, tuple[int, int, int]]] = [
        {5: (254, 5, 2), 4: (1, 0, 0), 3: (3, 3, 0)},  # a draft is the 256th row
        {4: (2, 3, 3), 5: (1, 5, 5), 3: (1, 0, 0)},
        {5: (2, 1, 0), 3: (2, 2, 1)},
        {4: (6, 5, 1), 5: (20, 0, 0)},
        {3: (2, 0, 0), 4: (17, 0, 0), 5: (16, 0, 0)},
    ]
    for slot, found in run_drafted(kernels, spec, texts, steps).items():
        assert len(found) == len(alone[slot])
        error = (found - alone[slot]).abs() / (1 + alone[slot].abs())
        assert error.max() <= (TOLERANCE[dtype] if isa is None else 0.0)


@with_specs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("isa", [None, *TESTED])
def test_what_is_left_on_the_way_is_what_a_chunk_leaves_that_ends_there(
    isa: str | None, dtype: torch.dtype, name: str
) -> None:
    """To the bit, and nothing else changes; at the first token, and where windows of rows end."""
    spec = SPECS[name]
    kernels = ReferenceKernels() if isa is None else make_kernels(isa)
    text, beside = texts_of(spec, dtype, 300, 30).values()

    def assert_same(one: Tensor, other: Tensor) -> None:
        """Of the reference nearly: its products of matrices depend on how many rows there are."""
        near = TOLERANCE[dtype] if isa is None else 0.0
        assert ((one - other).abs() <= near * (1 + other.abs())).all()

    for cuts in ((), (7, 40)):
        left = {1: 0, 39: 1, 226: 2, 256: 3} if not cuts else {2: 0, 9: 1, 256: 2, 299: 3}
        state, plain = poisoned(spec), poisoned(spec)
        found = run_leaving(kernels, spec, text, left, beside, state, cuts)
        assert_same(found, run_leaving(kernels, spec, text, {}, beside, plain, cuts))
        for part, other in zip(state[:2], plain[:2], strict=True):
            assert_same(part[4:6], other[4:6])
        for place, slot in left.items():
            ended = poisoned(spec)
            ends = [cut for cut in cuts if cut < place]
            run_leaving(kernels, spec, text[:place], {}, beside, ended, ends)
            for part, other in zip(state[:2], ended[:2], strict=True):
                assert_same(part[slot], other[5])


def test_x_may_be_a_part_of_wider_rows() -> None:
    spec = SPECS["gated-delta"]
    text = texts_of(spec, torch.float32, 8)[5]
    wider = torch.full((8, spec.columns + 9), torch.nan)
    wider[:, 4 : 4 + spec.columns] = text
    kernels = make_kernels(TESTED[0])
    found = run(kernels, spec, {5: wider[:, 4 : 4 + spec.columns]}, [{5: 8}])[5]
    # ``run`` joins what it takes; so once more without.
    x = wider[:, 4 : 4 + spec.columns]
    out = kernels.recur(x, poisoned(spec), spec, kernels.plan(batch_of({5: (0, 8)})))
    assert torch.equal(out, found)

"""Layers with a state on GPUs: what they compute, and what they leave alone."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quire.kernels.layer_memory import LayerState
from quire.kernels.ops import StateSlots
from quire.kernels.recurrence import RecurrentSpec
from quire.kernels.reference import ReferenceKernels
from support.gpu_kernels import INTERPRETED, TRITON, triton_kernels
from support.memory_watch import watch_interpreter
from support.recurrences import (
    DRAFTS,
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

pytestmark = pytest.mark.skipif(not TRITON, reason="Triton, or its interpreter, is not here")


def with_specs(*few: str) -> pytest.MarkDecorator:
    """Each of them; in the interpreter, which is slow, a few."""
    whole = not INTERPRETED or os.environ.get("QUIRE_ALL_CASES")
    return pytest.mark.parametrize("name", [*SPECS] if whole else few)


TYPES = [torch.bfloat16] if INTERPRETED else [torch.float32, torch.bfloat16, torch.float16]
# Chunks shorter than what a convolution sees, decodes, and a prompt beside them.
STEPS = [{5: 4, 4: 1}, {4: 2, 5: 1, 3: 3}, {5: 1, 4: 1, 3: 1}]
LENGTHS = 6, 4, 4  # all of them


def on_pages(spec: RecurrentSpec) -> LayerState:
    """States whose slots begin further apart than they are long, as on pages that others share."""
    parts = poisoned(spec)
    wider = (torch.full((SLOTS, part[0].numel() + 12), torch.nan) for part in parts)
    return LayerState(
        *(
            wide[:, 4 : 4 + part[0].numel()].view(part.shape)
            if part.numel()
            else wide[:, :0].view(part.shape)
            for wide, part in zip(wider, parts, strict=True)
        )
    )


@with_specs("tiled", "state-space-plain", "gated-convolution")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_results(dtype: torch.dtype, name: str) -> None:
    spec = SPECS[name]
    texts = texts_of(spec, dtype, *LENGTHS)
    found = run(triton_kernels(), spec, texts, STEPS, on_pages(spec))
    wide = {slot: text.double() for slot, text in texts.items()}
    expected = run(ReferenceKernels(), spec, wide, STEPS)
    for slot, out in found.items():
        assert out.dtype == dtype
        error = (out.double() - expected[slot]).abs() / (1 + expected[slot].abs())
        assert error.max() < TOLERANCE[dtype]


@with_specs("odd-sizes")
def test_bits_do_not_depend_on_how_texts_are_cut_nor_on_drafts(name: str) -> None:
    spec, kernels = SPECS[name], triton_kernels()
    texts = texts_of(spec, torch.float32, *LENGTHS)
    alone: dict[int, Tensor] = {}
    for slot, text in texts.items():
        alone.update(run(kernels, spec, {slot: text}, [{slot: len(text)}]))
    found = run(kernels, spec, texts, STEPS)
    # By slot, new tokens, drafts, and how many of these are right.
    drafted = run_drafted(
        kernels,
        spec,
        texts,
        [
            {5: (1, 2, 1), 4: (1, 0, 0), 3: (1, 2, 0)},
            {4: (1, 1, 1), 5: (1, DRAFTS, 2), 3: (2, 0, 0)},
            {5: (1, 0, 0), 3: (1, 1, 0), 4: (1, 1, 0)},
        ],
        on_pages(spec),
    )
    for slot, out in found.items():
        assert torch.equal(out, alone[slot])
        assert torch.equal(drafted[slot], alone[slot])


@with_specs("without-rows")
@pytest.mark.parametrize("decodes", [True, False])
@pytest.mark.parametrize("drafts", [True, False])
def test_sequences_that_pad_a_batch_change_nothing(drafts: bool, decodes: bool, name: str) -> None:
    """Of decodes each has a token; of others the first has all that pads, and the last nothing."""
    spec, kernels = SPECS[name], triton_kernels()
    texts, state = texts_of(spec, torch.float32, *LENGTHS), on_pages(spec)
    run(kernels, spec, texts, STEPS[:2], state)
    before = LayerState(*(part.clone() for part in state))
    chunks = {5: (5, 1), 4: (3, 1), 3: (3, 1)} if decodes else {5: (3, 3), 3: (2, 2)}
    batch = batch_of(chunks, {5: (0, int(drafts))} if drafts else {})
    x = torch.cat([texts[slot][at : at + new] for slot, (at, new) in chunks.items()])
    expected = kernels.recur(x, before, spec, kernels.plan(batch))
    seqs, tokens = len(chunks), len(x)
    ends = (tokens + 1, tokens + 2) if decodes else (tokens + 2, tokens + 2)

    def pad(values: Tensor, value: int) -> Tensor:
        return torch.cat((values, values.new_full((2, *values.shape[1:]), value)))

    assert batch.states is not None
    slots, *counts = batch.states
    padded = replace(
        batch,
        positions=pad(batch.positions, 0),
        query_starts=(*batch.query_starts, *ends),
        context_lens=pad(batch.context_lens, 0),
        states=StateSlots(
            pad(slots, -1), *(None if one is None else pad(one, 0) for one in counts)
        ),
    )
    found = kernels.recur(pad(x, 1), state, spec, kernels.plan(padded))
    assert len(padded.context_lens) == seqs + 2
    assert torch.equal(found[:tokens], expected)
    assert not found[tokens:].any()
    for mine, theirs in zip(state, before, strict=True):
        assert torch.equal(mine.nan_to_num(7), theirs.nan_to_num(7))


@with_specs("odd-sizes", "gated-convolution")
def test_what_is_left_on_the_way_is_what_a_chunk_leaves_that_ends_there(name: str) -> None:
    spec, kernels = SPECS[name], triton_kernels()
    text, beside = texts_of(spec, torch.float32, 9, 2).values()
    left, state, plain = {1: 0, 4: 1, 8: 2}, on_pages(spec), on_pages(spec)
    found = run_leaving(kernels, spec, text, left, beside, state, (2,))
    assert torch.equal(found, run_leaving(kernels, spec, text, {}, beside, plain, (2,)))
    for place, slot in left.items():
        ended = on_pages(spec)
        run_leaving(kernels, spec, text[:place], {}, beside, ended)
        for part, other in zip(state[:2], ended[:2], strict=True):
            assert torch.equal(part[slot], other[5])
    for part, other in zip(state[:2], plain[:2], strict=True):
        assert torch.equal(part[4:6], other[4:6]) and part[3].isnan().all()


@with_specs("by-channel")
def test_other_slots_are_left_alone(name: str) -> None:
    spec = SPECS[name]
    state = poisoned(spec)
    run(triton_kernels(), spec, texts_of(spec, torch.float32, 5), [{5: 3}, {5: 2}], state)
    for part in state[:2]:
        others = part[[slot for slot in range(SLOTS) if slot != 5]]
        assert others.isnan().all()
        assert not part[5].isnan().any()


@pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter")
@with_specs("without-rows", "gated-convolution")
def test_memory_is_touched_by_whose_it_is_and_read_when_it_was_written(name: str) -> None:
    spec, kernels = SPECS[name], triton_kernels()
    texts = texts_of(spec, torch.float32, 5, 3)
    with watch_interpreter().blank_tensors():
        steps = [{5: (2, 2, 1), 4: (1, 0, 0)}, {5: (1, 0, 0), 4: (1, 1, 0)}]
        found = run_drafted(kernels, spec, texts, steps)
        assert all(out.isfinite().all() for out in found.values())
        run(kernels, spec, texts, [{5: 4}, {5: 1, 4: 3}])

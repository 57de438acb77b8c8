"""Layers with a state of every kind, and steps that take their texts on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quire.kernels.layer_memory import LayerState
from quire.kernels.ops import AttentionBatch, Kernels, StateSlots
from quire.kernels.recurrence import (
    Convolution,
    GatedConvolution,
    OutputGate,
    Recurrence,
    RecurrentSpec,
    StepRange,
)

SLOTS, DRAFTS = 7, 5
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def rand(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def convolution(channels: int, kernel: int = 4, bias: bool = False) -> Convolution:
    return Convolution(
        rand(kernel, channels, seed=1, scale=0.6), rand(channels, seed=2) if bias else None
    )


def recurrence(heads: int, key_heads: int, key_dim: int, value_dim: int, **more: Any) -> Recurrence:
    delta, by_channel = more.get("delta", True), more.get("by_channel", False)
    outputs = heads * value_dim
    steps = heads * key_dim if by_channel else heads
    gate = OutputGate(rand(outputs, seed=5) + 1, value_dim, 1e-6, first=False)
    told = {
        "convolution": convolution(2 * key_heads * key_dim + outputs),
        "decay": -rand(heads, seed=3).exp(),
        "bias": rand(steps, seed=4),
        "gate": gate,
        "delta": delta,
    }
    return Recurrence(heads, key_heads, key_dim, value_dim, **{**told, **more})


def state_space(heads: int, groups: int, key_dim: int, value_dim: int, **more: Any) -> Recurrence:
    channels = 2 * groups * key_dim + heads * value_dim
    width = heads * value_dim // groups
    gate = OutputGate(rand(heads * value_dim, seed=5) + 1, width, 1e-5, first=True)
    told = {
        "delta": False,
        "convolution": convolution(channels, bias=True),
        "skip": rand(heads, seed=6),
        "steps": StepRange(0.7, 0.05, 1.5),
        "gate": gate,
    }
    return recurrence(heads, groups, key_dim, value_dim, **{**told, **more})


SPECS: Mapping[str, RecurrentSpec] = {
    "gated-delta": recurrence(4, 2, 16, 32),
    "gated-delta-128": recurrence(2, 2, 128, 128),
    "tiled": recurrence(6, 2, 16, 32, tiled=True),
    "odd-sizes": recurrence(3, 1, 13, 37),
    "by-channel": recurrence(
        3, 3, 21, 19, by_channel=True,
        gate=OutputGate(rand(57, seed=5) + 1, 19, 1e-6, first=False, sigmoid=True),
    ),
    "state-space": state_space(6, 2, 24, 20),
    "state-space-plain": state_space(
        4, 1, 16, 64, skip=None, gate=OutputGate(None, 64, 0.0, first=False, factor=0.4)
    ),
    "gated-convolution": GatedConvolution(convolution(300, kernel=3, bias=True)),
    "without-rows": recurrence(2, 1, 8, 8, convolution=convolution(32, kernel=1)),
}  # fmt: skip
NO_DRAFTS: Mapping[int, tuple[int, int]] = {}


def poisoned(spec: RecurrentSpec) -> LayerState:
    """States that nobody may read before they are written."""
    channels, kept = spec.convolution.kept
    return LayerState(
        torch.full((SLOTS, channels, kept), torch.nan),
        torch.full((SLOTS, *(spec.state or (0,))), torch.nan),
        torch.full((SLOTS, DRAFTS, spec.columns), torch.nan),
    )


def batch_of(
    chunks: Mapping[int, tuple[int, int]], drafted: Mapping[int, tuple[int, int]] = NO_DRAFTS
) -> AttentionBatch:
    """chunks: by slot, the tokens that are known before, and the new ones. drafted: by slot, drafts
    of the step before that were right, and those at the end of the new ones.
    """
    starts = (0, *itertools.accumulate(new for _, new in chunks.values()))
    contexts = torch.tensor([known + new for known, new in chunks.values()])
    positions = torch.cat([torch.arange(known, known + new) for known, new in chunks.values()])
    slots = torch.tensor(list(chunks), dtype=torch.int64)
    states = StateSlots(slots)
    if drafted:
        counts = torch.tensor([drafted.get(slot, (0, 0)) for slot in chunks])
        states = StateSlots(slots, *counts.T.contiguous())
    return AttentionBatch(positions, starts, contexts, contexts, (), 4, states=states)


def run_leaving(
    kernels: Kernels,
    spec: RecurrentSpec,
    text: Tensor,
    left: Mapping[int, int],
    beside: Tensor,
    state: LayerState,
    cuts: Sequence[int] = (),
) -> Tensor:
    """A text in slot 5, in as many steps as ``cuts`` make; beside its last step another in slot 4.

    left: slots in which its state is left after so many tokens -> its outputs.
    """
    parts, ends = [], [*cuts, len(text)]
    for start, end in itertools.pairwise([0, *ends]):
        x, chunks = text[start:end], {5: (start, end - start)}
        slots = [left.get(place, -1) for place in range(start + 1, end + 1)]
        if end == len(text):
            x, chunks = torch.cat([beside, x]), {4: (0, len(beside)), **chunks}
            slots = [-1] * len(beside) + slots
        batch = batch_of(chunks)
        assert batch.states is not None
        states = batch.states._replace(left=torch.tensor(slots, dtype=torch.int64))
        plan = kernels.plan(replace(batch, states=states))
        parts.append(kernels.recur(x, state, spec, plan)[start - end :])
    return torch.cat(parts)


def run(
    kernels: Kernels,
    spec: RecurrentSpec,
    texts: Mapping[int, Tensor],
    steps: list[dict[int, int]],
    state: LayerState | None = None,
) -> dict[int, Tensor]:
    """texts: x by slot. steps: new tokens by slot -> outputs by slot."""
    state = poisoned(spec) if state is None else state
    known = dict.fromkeys(texts, 0)
    found: dict[int, list[Tensor]] = {slot: [] for slot in texts}
    for step in steps:
        batch = batch_of({slot: (known[slot], new) for slot, new in step.items()})
        x = torch.cat([texts[slot][known[slot] : known[slot] + new] for slot, new in step.items()])
        out = kernels.recur(x, state, spec, kernels.plan(batch))
        for (slot, new), part in zip(step.items(), out.split(list(step.values())), strict=True):
            known[slot] += new
            found[slot].append(part)
    return {slot: torch.cat(parts) for slot, parts in found.items()}


def texts_of(spec: RecurrentSpec, dtype: torch.dtype, *lengths: int) -> dict[int, Tensor]:
    return {
        5 - slot: rand(length, spec.columns, seed=10 + slot).to(dtype)
        for slot, length in enumerate(lengths)
    }


def run_drafted(
    kernels: Kernels,
    spec: RecurrentSpec,
    texts: Mapping[int, Tensor],
    steps: list[dict[int, tuple[int, int, int]]],
    state: LayerState | None = None,
) -> dict[int, Tensor]:
    """steps: by slot, new tokens, drafts, and how many of these are right -> outputs by slot."""
    state = poisoned(spec) if state is None else state
    known, right = dict.fromkeys(texts, 0), dict.fromkeys(texts, 0)
    kept: dict[int, list[Tensor]] = {slot: [] for slot in texts}
    for step in steps:
        drafted = {slot: (right[slot], drafts) for slot, (_, drafts, _) in step.items()}
        chunks, parts = {}, []
        for slot, (new, drafts, good) in step.items():
            start, text = known[slot], texts[slot]
            chunks[slot] = start, new + drafts
            wrong = rand(drafts - good, spec.columns, seed=start).to(text)
            parts.append(torch.cat([text[start : start + new + good], wrong]))
        plan = kernels.plan(batch_of(chunks, drafted))
        out = kernels.recur(torch.cat(parts), state, spec, plan)
        rows = out.split([len(part) for part in parts])
        for (slot, (new, _, good)), found in zip(step.items(), rows, strict=True):
            kept[slot].append(found[: new + good])
            known[slot], right[slot] = known[slot] + new + good, good
    return {slot: torch.cat(parts) for slot, parts in kept.items()}

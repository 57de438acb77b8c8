"""Recurrences in plain torch, token by token: the reference for faster kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.layer_memory import LayerState
from quire.kernels.ops import AttentionBatch
from quire.kernels.recurrence import Convolution, GatedConvolution, Recurrence, RecurrentSpec


@dataclass(frozen=True)
class Run:
    """The new tokens of one sequence, and where its states are."""

    known: slice  # rows of the batch
    drafts: slice  # and those after them
    slot: int
    begins: bool  # at position 0
    confirmed: int  # drafts whose inputs the slot keeps
    left: tuple[
        tuple[int, int], ...
    ] = ()  # (row, slot): up to it, what the state is goes there too


def plan_runs(batch: AttentionBatch, contexts: list[int]) -> list[Run]:
    """The runs of a step; reads ``states`` on the host. None of them is empty."""
    if batch.states is None:
        return []
    bounds = zip(batch.query_starts, batch.query_starts[1:], strict=False)
    found = zip(bounds, batch.states.of_sequences, contexts, strict=True)
    left = [] if batch.states.left is None else batch.states.left.tolist()
    return [
        Run(
            slice(start, stop - drafts),
            slice(stop - drafts, stop),
            slot,
            stop - start == context,
            confirmed,
            tuple(
                (row, other) for row, other in enumerate(left[start:stop], start + 1) if other >= 0
            ),
        )
        for (start, stop), (slot, confirmed, drafts), context in found
        if stop > start
    ]


def recur(x: Tensor, state: LayerState, spec: RecurrentSpec, runs: list[Run]) -> Tensor:
    """See ``Kernels.recur``. In float32, or in x's type where that is wider."""
    out = x.new_empty(len(x), spec.outputs)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    for run in runs:
        slot = run.slot
        if run.begins:
            state.rows[slot] = 0
            state.state[slot] = 0
        if run.confirmed:
            _go_on(state.inputs[slot, : run.confirmed].to(wide), state, slot, spec)
        row = run.known.start
        for end, left in (*run.left, (run.known.stop, slot)):
            if end > row:
                out[row:end] = _go_on(wide[row:end], state, slot, spec).to(x.dtype)
            if left != slot:
                state.rows[left], state.state[left] = state.rows[slot], state.state[slot]
            row = end
        drafts = wide[run.drafts]
        if len(drafts):
            before = state.rows[slot].clone(), state.state[slot].clone()
            out[run.drafts] = _go_on(drafts, state, slot, spec).to(x.dtype)
            state.rows[slot], state.state[slot] = before
            if state.inputs.numel():
                state.inputs[slot, : len(drafts)] = drafts
    return out


def _go_on(x: Tensor, state: LayerState, slot: int, spec: RecurrentSpec) -> Tensor:
    if not isinstance(spec, GatedConvolution):
        return _run(x, state, slot, spec)
    before, after, values = x.chunk(3, dim=1)
    return after * _convolved(before * values, state, slot, spec.convolution)


def _convolved(x: Tensor, state: LayerState, slot: int, convolution: Convolution) -> Tensor:
    """x [n, C] -> [n, C]; the rows of the slot become the last inputs, by input."""
    channels, kept = convolution.kept
    rows = state.rows[slot].view(kept, channels)
    seen = torch.cat([rows.to(x.dtype), x])
    rows.copy_(seen[len(seen) - kept :])
    out = torch.zeros_like(x) if convolution.bias is None else convolution.bias.to(x).expand_as(x)
    for number, weight in enumerate(convolution.weight.to(x.dtype)):
        out = out + weight * seen[number : number + len(x)]
    return out


def _run(x: Tensor, state: LayerState, slot: int, spec: Recurrence) -> Tensor:
    """x [n, columns] -> [n, H Dv]."""
    heads, key_heads = spec.num_heads, spec.num_key_heads
    channels, outputs = spec.convolution.kept[0], spec.outputs
    sizes = [channels, outputs, heads if spec.delta else 0]
    mixed, gate, strengths, steps = torch.split(x, [*sizes, x.shape[1] - sum(sizes)], dim=1)
    mixed = F.silu(_convolved(mixed, state, slot, spec.convolution))
    keys = key_heads * spec.key_dim
    query, key, value = torch.split(mixed, [keys, keys, outputs], dim=1)
    keys_of = torch.arange(heads, device=x.device)
    keys_of = keys_of % key_heads if spec.tiled else keys_of // (heads // key_heads)
    query, key = (part.view(-1, key_heads, spec.key_dim)[:, keys_of] for part in (query, key))
    value = value.view(-1, heads, spec.value_dim)
    factor, least, most = spec.steps
    step = F.softplus(factor * steps + spec.bias.to(x)).clamp(least, most).view(len(x), heads, -1)
    decay = (spec.decay.to(x)[:, None] * step).exp()[..., None]  # [n, H, 1 or Dk, 1]
    if spec.delta:
        query, key = (
            part * (part.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for part in (query, key)
        )
        query = query * spec.key_dim**-0.5
    kept = state.state[slot].to(x.dtype)  # [H, Dk, Dv]
    out = torch.empty_like(value)
    for token, (q, k, v) in enumerate(zip(query, key, value, strict=True)):
        kept = kept * decay[token]
        if spec.delta:
            found = (k[:, None] @ kept)[:, 0]
            added = (v - found) * strengths[token].sigmoid()[:, None]
        else:
            added = v * step[token]
        kept = kept + k[:, :, None] * added[:, None]
        out[token] = (q[:, None] @ kept)[:, 0]
        if spec.skip is not None:
            out[token] += spec.skip.to(x)[:, None] * v
    state.state[slot] = kept.to(state.state.dtype)
    return _gated(out.flatten(1), gate, spec)


def _gated(out: Tensor, gate: Tensor, spec: Recurrence) -> Tensor:
    how = spec.gate
    gate = how.factor * gate
    gate = gate.sigmoid() if how.sigmoid else F.silu(gate)
    if how.first or how.norm is None:
        out = out * gate
    if how.norm is not None:
        grouped = out.view(len(out), -1, how.width)
        out = F.rms_norm(grouped, (how.width,), eps=how.eps).flatten(1) * how.norm.to(out)
    return out if how.first or how.norm is None else out * gate

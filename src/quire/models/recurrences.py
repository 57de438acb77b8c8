"""Layers with a state, out of a checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from quire.kernels.recurrence import (
    Convolution,
    GatedConvolution,
    OutputGate,
    Recurrence,
    StepRange,
)
from quire.models.layers import Recurrent
from quire.models.linear import Linear, LinearReader
from quire.models.shape import RecurrenceShape
from quire.models.shard import DividedStates, Shard
from quire.models.weights import Weights


@dataclass(frozen=True)
class RecurrentNames:
    """A family's names of a state layer's tensors, below the layer, without ``.weight``."""

    inputs: tuple[str, ...]
    output: str
    convolution: tuple[str, ...]  # queries', keys' and values', where they are apart
    bias: str = ""  # these are whole
    decay: str = ""
    skip: str = ""
    norm: str | None = None
    gates: str = ""  # what makes them, and steps, of fewer numbers that come in
    steps: str = ""


@dataclass(frozen=True)
class RecurrentPlan:
    """The layers with a state, as a config describes them."""

    shape: RecurrenceShape
    names: RecurrentNames
    eps: float
    # Which inputs are stored key head by key head.
    by_key_head: Literal["none", "strengths", "all"] = "none"
    tiled: bool = False  # heads are in the order of GGUF files
    biased: bool = False  # what is projected into the layer
    biased_output: bool = False  # and out of it
    biased_convolution: bool = False
    gate_first: bool = False
    norm_width: int = 0  # of outputs that are normalised together
    steps: StepRange = field(default_factory=StepRange)
    gate_factor: float = 1.0
    taps: tuple[float, float, float] = (1.0, 1.0, 1.0)  # times queries, keys, values that come in

    def divided(self, hidden: int) -> DividedStates:
        """What ranks divide among them."""
        shape, together = self.shape, self.norm_width > 0 and self.names.norm is not None
        return DividedStates(shape.heads or hidden, shape.key_heads, together, self.tiled)


def read_recurrent(
    plan: RecurrentPlan, hidden: int, weights: Weights, linears: LinearReader, prefix: str
) -> Recurrent:
    """The mixer of the layer ``prefix``."""
    shape, names, shard = plan.shape, plan.names, linears.shard
    rows, sizes = _stored_inputs(plan, hidden)
    held = _held(shape, hidden, shard)
    if rows is not None:
        held = {part: rows[own] for part, own in held.items()}
    joined = linears.joined(
        [f"{prefix}.{name}" for name in names.inputs],
        hidden,
        dict(zip(names.inputs, sizes, strict=True)),
        plan.biased,
        None if rows is None and shard.is_whole and not shape.by_channel else held,
    )
    channels = _held_channels(shape, hidden, shard)
    convolution = _read_convolution(plan, shape.channels(hidden), channels, weights, prefix)
    width, count = (shape.value_dim, shape.heads) if shape.heads else (1, hidden)
    output = linears.linear(
        f"{prefix}.{names.output}",
        width * count,
        hidden,
        plan.biased_output,
        shard.columns(count, width),
    )
    if not shape.heads:
        return Recurrent(joined, output, GatedConvolution(convolution))
    heads = shard.run(shape.heads)
    own = slice(heads.start, heads.stop)
    bias = _numbers(weights, _bias_name(weights, f"{prefix}.{names.bias}"), shape.decays)
    skip = _numbers(weights, f"{prefix}.{names.skip}", shape.heads) if names.skip else None
    spec = Recurrence(
        len(heads),
        len(shard.kv_heads(shape.key_heads)),
        shape.key_dim,
        shape.value_dim,
        convolution,
        decay=_read_decay(weights, f"{prefix}.{names.decay}", shape.heads)[own],
        bias=bias.view(shape.heads, -1)[own].flatten(),
        gate=_read_gate(plan, heads, weights, prefix),
        delta=shape.delta,
        by_channel=shape.by_channel,
        tiled=plan.tiled,
        skip=None if skip is None else skip[own],
        steps=plan.steps,
    )
    widened = _read_widened(plan, linears, prefix) if shape.by_channel else None
    return Recurrent(joined, output, spec, widened)


def _read_widened(plan: RecurrentPlan, linears: LinearReader, prefix: str) -> tuple[Linear, Linear]:
    """What makes gates, and steps, of fewer numbers that come in."""
    shape, run = plan.shape, linears.shard.run(plan.shape.heads)

    def read(name: str, width: int) -> Linear:
        rows = torch.arange(run.start * width, run.stop * width)
        whole = {"out": shape.heads * width}
        return linears.joined([f"{prefix}.{name}"], width, whole, False, {"out": rows}).product

    return read(plan.names.gates, shape.value_dim), read(plan.names.steps, shape.key_dim)


def _held(shape: RecurrenceShape, hidden: int, shard: Shard) -> dict[str, Tensor]:
    """Of what comes in for a token, as kernels take it, what a rank holds; where gates and steps
    are made of fewer numbers, as they are joined.
    """
    heads = shard.run(shape.heads)
    mixed = _held_channels(shape, hidden, shard)
    if not shape.heads:
        first = torch.arange(3)[:, None] * hidden
        return {"inputs": (first + mixed).flatten()}
    count = shape.channels(hidden)
    each = torch.arange(heads.start, heads.stop)  # of strengths, and of steps
    if shape.by_channel:
        steps, gates = (torch.arange(width) for width in (shape.key_dim, shape.value_dim))
        after = count + shape.heads
        return {
            "mixed": mixed,
            "strengths": count + each,
            "steps": after + steps,
            "gates": after + len(steps) + gates,
        }
    width = shape.value_dim
    held = [mixed, count + torch.arange(heads.start * width, heads.stop * width)]
    for number in range(2 if shape.delta else 1):
        held.append(count + shape.outputs + number * shape.heads + each)
    return {"inputs": torch.cat(held)}


def _held_channels(shape: RecurrenceShape, hidden: int, shard: Shard) -> Tensor:
    """The convolution's channels that a rank holds."""
    if not shape.heads:
        own = shard.run(hidden)
        return torch.arange(own.start, own.stop)
    keys, heads = shard.kv_heads(shape.key_heads), shard.run(shape.heads)
    first, held = 0, list[Tensor]()
    for count, width, own in (
        (shape.key_heads, shape.key_dim, keys),
        (shape.key_heads, shape.key_dim, keys),
        (shape.heads, shape.value_dim, heads),
    ):
        held.append(torch.arange(first + own.start * width, first + own.stop * width))
        first += count * width
    return torch.cat(held)


def _stored_inputs(plan: RecurrentPlan, hidden: int) -> tuple[Tensor | None, list[int]]:
    """The stored row of each column that kernels take; None: they are stored so. And the outputs
    of each projection.
    """
    shape = plan.shape
    if shape.kind == "convolution":
        return None, [3 * hidden]
    keys, heads, outputs = shape.key_heads * shape.key_dim, shape.heads, shape.outputs
    if shape.by_channel:
        return None, [keys, keys, outputs, heads, shape.key_dim, shape.value_dim]
    if shape.kind == "state space":  # gates, values, keys, queries, steps
        sizes = [outputs, outputs, keys, keys, heads]
        parts = torch.split(torch.arange(sum(sizes)), sizes)
        return torch.cat([parts[number] for number in (3, 2, 1, 0, 4)]), [sum(map(len, parts))]
    if plan.by_key_head == "none":
        return None, [2 * keys + outputs, outputs, heads, heads]
    each = heads // shape.key_heads
    wide = torch.arange(2 * keys + 2 * outputs)
    narrow = (torch.arange(2 * heads) + wide.numel()).view(shape.key_heads, -1)
    strengths = [part.flatten() for part in torch.split(narrow, each, dim=1)]
    if plan.by_key_head == "strengths":
        return torch.cat([wide, *strengths]), [2 * keys + outputs, outputs, narrow.numel()]
    sizes = [shape.key_dim] * 2 + [each * shape.value_dim] * 2
    parts = torch.split(wide.view(shape.key_heads, -1), sizes, dim=1)
    rows = torch.cat([*(part.flatten() for part in parts), *strengths])
    return rows, [wide.numel(), narrow.numel()]


def _read_convolution(
    plan: RecurrentPlan, channels: int, held: Tensor, weights: Weights, prefix: str
) -> Convolution:
    """The convolution of those of ``channels`` that are ``held``."""
    shape, names = plan.shape, [f"{prefix}.{name}" for name in plan.names.convolution]
    sizes = [channels]
    if len(names) > 1:
        sizes = [shape.key_heads * shape.key_dim] * 2 + [shape.outputs]
    taps = torch.cat(
        [
            _numbers(weights, f"{name}.weight", size, 1, shape.kernel)[:, 0]
            for name, size in zip(names, sizes, strict=True)
        ]
    )
    bias = _numbers(weights, f"{names[0]}.bias", channels) if plan.biased_convolution else None
    if shape.kind == "state space":  # values, keys, queries
        keys = shape.key_heads * shape.key_dim
        sizes = [shape.outputs, keys, keys]
        values, key, query = torch.split(torch.arange(channels), sizes)
        order = torch.cat([query, key, values])
        taps, bias = taps[order], None if bias is None else bias[order]
        factors = torch.tensor(plan.taps).repeat_interleave(
            torch.tensor([keys, keys, shape.outputs])
        )
        taps = taps * factors.to(taps.device)[:, None]
    return Convolution(taps[held].T.contiguous(), None if bias is None else bias[held])


def _read_gate(plan: RecurrentPlan, heads: range, weights: Weights, prefix: str) -> OutputGate:
    shape, norm = plan.shape, None
    width = plan.norm_width or shape.value_dim
    if plan.names.norm is not None:
        stored = width if shape.delta else shape.outputs
        norm = _numbers(weights, f"{prefix}.{plan.names.norm}.weight", stored)
        norm = norm.repeat(shape.outputs // stored)
        norm = norm[heads.start * shape.value_dim : heads.stop * shape.value_dim]
    return OutputGate(
        norm, width, plan.eps, plan.gate_first, plan.gate_factor, sigmoid=shape.by_channel
    )


def _read_decay(weights: Weights, name: str, heads: int) -> Tensor:
    """The decays of heads: stored as the logarithm of the negative; in GGUF files as they are."""
    if name in weights:
        return -_numbers(weights, name, heads).exp()
    return _numbers(weights, name.removesuffix("_log"), heads)


def _bias_name(weights: Weights, name: str) -> str:
    return name if name in weights else f"{name.removesuffix('bias')}proj.bias"


def _numbers(weights: Weights, name: str, *shape: int) -> Tensor:
    """Numbers of this shape in float32, with whatever dimensions of 1 they are stored."""
    stored = weights.shape(name) or shape
    if math.prod(stored) != math.prod(shape):
        stored = shape  # which is then refused
    return weights.take_floats(name, *stored).view(shape)

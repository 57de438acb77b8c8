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
from quire.models.linear import LinearReader
from quire.models.shape import RecurrenceShape
from quire.models.shard import DividedStates, Shard
from quire.models.weights import Weights


@dataclass(frozen=True)
class RecurrentNames:
    """A family's names of a state layer's tensors, below the layer, without ``.weight``."""

    inputs: tuple[str, ...]
    output: str
    convolution: str
    bias: str = ""  # these are whole
    decay: str = ""
    skip: str = ""
    norm: str | None = None


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
    inputs, channels = _held(shape, hidden, shard)
    if not shard.is_whole:
        rows = inputs if rows is None else rows[inputs]
    joined = linears.joined(
        [f"{prefix}.{name}" for name in names.inputs],
        hidden,
        dict(zip(names.inputs, sizes, strict=True)),
        plan.biased,
        None if rows is None else {"inputs": rows},
    )
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
    bias = _bias_name(weights, f"{prefix}.{names.bias}")
    skip = _numbers(weights, f"{prefix}.{names.skip}", shape.heads) if names.skip else None
    spec = Recurrence(
        len(heads),
        len(shard.kv_heads(shape.key_heads)),
        shape.key_dim,
        shape.value_dim,
        convolution,
        decay=_read_decay(weights, f"{prefix}.{names.decay}", shape.heads)[own],
        bias=_numbers(weights, bias, shape.heads)[own],
        gate=_read_gate(plan, heads, weights, prefix),
        delta=shape.kind == "delta rule",
        tiled=plan.tiled,
        skip=None if skip is None else skip[own],
        steps=plan.steps,
    )
    return Recurrent(joined, output, spec)


def _held(shape: RecurrenceShape, hidden: int, shard: Shard) -> tuple[Tensor, Tensor]:
    """Of what comes in for a token, as kernels take it, what a rank holds; and of the channels of
    the convolution.
    """
    heads, keys = shard.run(shape.heads), shard.kv_heads(shape.key_heads or shard.size)
    key, value = (shape.key_heads, shape.key_dim, keys), (shape.heads, shape.value_dim, heads)
    each = (shape.heads, 1, heads)  # of strengths, and of steps
    parts = [key, key, value, value, *[each] * (2 if shape.kind == "delta rule" else 1)]
    channels = 3
    if not shape.heads:
        parts, channels = [(hidden, 1, shard.run(hidden))] * 3, 1
    first, held = 0, list[Tensor]()
    for count, width, own in parts:
        held.append(torch.arange(first + own.start * width, first + own.stop * width))
        first += count * width
    return torch.cat(held), torch.cat(held[:channels])


def _stored_inputs(plan: RecurrentPlan, hidden: int) -> tuple[Tensor | None, list[int]]:
    """The stored row of each column that kernels take; None: they are stored so. And the outputs
    of each projection.
    """
    shape = plan.shape
    if shape.kind == "convolution":
        return None, [3 * hidden]
    keys, heads, outputs = shape.key_heads * shape.key_dim, shape.heads, shape.outputs
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
    """Of all ``channels``, those that are ``held``."""
    name = f"{prefix}.{plan.names.convolution}"
    taps = _numbers(weights, f"{name}.weight", channels, 1, plan.shape.kernel)[:, 0]
    bias = _numbers(weights, f"{name}.bias", channels) if plan.biased_convolution else None
    if plan.shape.kind == "state space":  # values, keys, queries
        keys = plan.shape.key_heads * plan.shape.key_dim
        sizes = [plan.shape.outputs, keys, keys]
        values, key, query = torch.split(torch.arange(channels), sizes)
        order = torch.cat([query, key, values])
        taps, bias = taps[order], None if bias is None else bias[order]
        factors = torch.tensor(plan.taps).repeat_interleave(
            torch.tensor([keys, keys, plan.shape.outputs])
        )
        taps = taps * factors[:, None]
    return Convolution(taps[held].T.contiguous(), None if bias is None else bias[held])


def _read_gate(plan: RecurrentPlan, heads: range, weights: Weights, prefix: str) -> OutputGate:
    shape, norm = plan.shape, None
    width = plan.norm_width or shape.value_dim
    if plan.names.norm is not None:
        stored = width if shape.kind == "delta rule" else shape.outputs
        norm = _numbers(weights, f"{prefix}.{plan.names.norm}.weight", stored)
        norm = norm.repeat(shape.outputs // stored)
        norm = norm[heads.start * shape.value_dim : heads.stop * shape.value_dim]
    return OutputGate(norm, width, plan.eps, plan.gate_first, plan.gate_factor)


def _read_decay(weights: Weights, name: str, heads: int) -> Tensor:
    """Stored as its logarithm without the sign; in GGUF files as it is."""
    if name in weights:
        return -_numbers(weights, name, heads).exp()
    return _numbers(weights, name.removesuffix("_log"), heads)


def _bias_name(weights: Weights, name: str) -> str:
    return name if name in weights else f"{name.removesuffix('bias')}proj.bias"


def _numbers(weights: Weights, name: str, *shape: int) -> Tensor:
    """In float32, whichever dimensions of 1 they are stored with, or in one row for all groups."""
    stored = weights.shape(name) or shape
    if math.prod(stored) != math.prod(shape):
        stored = shape  # which is then refused
    return weights.take_floats(name, *stored, exact=True).view(shape)

"""Layers with a state, out of a checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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
    by_key_head: bool = False  # inputs are stored key head by key head
    tiled: bool = False  # heads are in the order of GGUF files
    biased: bool = False  # what is projected into the layer
    biased_output: bool = False  # and out of it
    biased_convolution: bool = False
    gate_first: bool = False
    norm_width: int = 0  # of outputs that are normalised together
    steps: StepRange = field(default_factory=StepRange)
    gate_factor: float = 1.0
    taps: tuple[float, float, float] = (1.0, 1.0, 1.0)  # times queries, keys, values that come in


def read_recurrent(
    plan: RecurrentPlan, hidden: int, weights: Weights, linears: LinearReader, prefix: str
) -> Recurrent:
    """The mixer of the layer ``prefix``."""
    shape, names = plan.shape, plan.names
    channels = shape.channels(hidden)
    rows, sizes = _stored_inputs(plan, hidden)
    inputs = linears.joined(
        [f"{prefix}.{name}" for name in names.inputs],
        hidden,
        dict(zip(names.inputs, sizes, strict=True)),
        plan.biased,
        None if rows is None else {"inputs": rows},
    )
    convolution = _read_convolution(plan, channels, weights, prefix)
    width = shape.outputs or hidden
    output = linears.linear(f"{prefix}.{names.output}", width, hidden, plan.biased_output)
    if not shape.heads:
        return Recurrent(inputs, output, GatedConvolution(convolution))
    spec = Recurrence(
        shape.heads,
        shape.key_heads,
        shape.key_dim,
        shape.value_dim,
        convolution,
        decay=_read_decay(weights, f"{prefix}.{names.decay}", shape.heads),
        bias=_numbers(weights, _bias_name(weights, f"{prefix}.{names.bias}"), shape.heads),
        gate=_read_gate(plan, weights, prefix),
        delta=shape.kind == "delta rule",
        tiled=plan.tiled,
        skip=_numbers(weights, f"{prefix}.{names.skip}", shape.heads) if names.skip else None,
        steps=plan.steps,
    )
    return Recurrent(inputs, output, spec)


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
    if not plan.by_key_head:
        return None, [2 * keys + outputs, outputs, heads, heads]
    each = heads // shape.key_heads
    wide = torch.arange(2 * keys + 2 * outputs).view(shape.key_heads, -1)
    narrow = (torch.arange(2 * heads) + wide.numel()).view(shape.key_heads, -1)
    sizes = [shape.key_dim] * 2 + [each * shape.value_dim] * 2
    parts = (*torch.split(wide, sizes, dim=1), *torch.split(narrow, each, dim=1))
    return torch.cat([part.flatten() for part in parts]), [wide.numel(), narrow.numel()]


def _read_convolution(
    plan: RecurrentPlan, channels: int, weights: Weights, prefix: str
) -> Convolution:
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
    return Convolution(taps.T.contiguous(), bias)


def _read_gate(plan: RecurrentPlan, weights: Weights, prefix: str) -> OutputGate:
    shape, norm = plan.shape, None
    width = plan.norm_width or shape.value_dim
    if plan.names.norm is not None:
        stored = width if shape.kind == "delta rule" else shape.outputs
        norm = _numbers(weights, f"{prefix}.{plan.names.norm}.weight", stored)
        norm = norm.repeat(shape.outputs // stored)
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

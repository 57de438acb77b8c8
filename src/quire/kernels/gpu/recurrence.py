"""Layers with a state on a GPU: a few launches for each, over any batch of chunks and decodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from quire.kernels.gpu.programs import recurrence as programs
from quire.kernels.gpu.work import GPUPlan
from quire.kernels.layer_memory import LayerState
from quire.kernels.ops import StateSlots
from quire.kernels.recurrence import GatedConvolution, Recurrence, RecurrentSpec

_HEADS_AT_ONCE = 4  # of the program that prepares
_CHANNELS_AT_ONCE = 1024
_NUMBERS_AT_ONCE = 4096  # of a state, for one warp: the fastest on an H200, of 512 to 16,384


class _Drafts(NamedTuple):
    """What a step knows of drafts; nothing where slots keep no inputs of any."""

    most: int  # of a sequence
    inputs: Tensor | None
    confirmed: Tensor | None
    new: Tensor | None

    @classmethod
    def of(cls, states: StateSlots, state: LayerState) -> _Drafts:
        if states.confirmed is None or states.drafts is None or not state.inputs.numel():
            return cls(0, None, None, None)
        return cls(state.inputs.shape[1], state.inputs, states.confirmed, states.drafts)


def recur(x: Tensor, state: LayerState, spec: RecurrentSpec, plan: GPUPlan) -> Tensor:
    """See ``Kernels.recur``. Sequences whose slot is -1 pad the batch, and give zeros."""
    states = plan.batch.states
    assert states is not None, "a model with states has slots in each batch"
    x = x if x.stride(1) == 1 else x.contiguous()
    drafts = _Drafts.of(states, state)
    channels, kept = spec.convolution.kept
    inputs = 0 if drafts.inputs is None else drafts.inputs.stride(0)
    given = {
        "x": x,
        "x_stride": x.stride(0),
        "inputs": drafts.inputs,
        "inputs_stride": inputs,
        "rows": state.rows,
        "rows_stride": state.rows.stride(0),
        "starts": plan.starts,
        "contexts": plan.batch.context_lens,
        "slots": states.slots,
        "counts": drafts.confirmed,
        "CHANNELS": channels,
        "COLUMNS": spec.columns,
        "KERNEL": kept + 1,
        "MOST_DRAFTS": drafts.most,
    }
    if isinstance(spec, GatedConvolution):
        out = _convolve(given, spec, plan)
    else:
        out = _run(given, state, drafts, spec, plan, states.left)
    if states.left is not None:
        programs.keep_left[triton.cdiv(channels, _CHANNELS_AT_ONCE), len(x)](
            **given,
            owners=plan.owners,
            left=states.left,
            GATED=isinstance(spec, GatedConvolution),
            STEP=_CHANNELS_AT_ONCE,
        )
    parts = triton.cdiv(channels, _CHANNELS_AT_ONCE), len(states.slots)
    programs.keep[parts](
        **given,
        drafts=drafts.new,
        GATED=isinstance(spec, GatedConvolution),
        STEP=_CHANNELS_AT_ONCE,
    )
    if drafts.new is not None:
        parts = triton.cdiv(spec.columns, _CHANNELS_AT_ONCE), len(states.slots)
        programs.keep_drafts[parts](
            x,
            x.stride(0),
            drafts.inputs,
            inputs,
            plan.starts,
            states.slots,
            drafts.new,
            COLUMNS=spec.columns,
            STEP=_CHANNELS_AT_ONCE,
        )
    return out


def _convolve(given: dict[str, Any], spec: GatedConvolution, plan: GPUPlan) -> Tensor:
    x = given["x"]
    out: Tensor = x.new_empty(len(x), spec.outputs)
    programs.convolve[len(x), triton.cdiv(spec.outputs, _CHANNELS_AT_ONCE)](
        **given,
        out=out,
        owners=plan.owners,
        weight=spec.convolution.weight,
        bias=spec.convolution.bias,
        STEP=_CHANNELS_AT_ONCE,
    )
    return out


def _run(
    given: dict[str, Any],
    state: LayerState,
    drafts: _Drafts,
    spec: Recurrence,
    plan: GPUPlan,
    left: Tensor | None,
) -> Tensor:
    x, slots = given["x"], given["slots"]
    before = drafts.most * len(slots)
    heads, count = spec.num_heads, len(x) + before
    decays = heads * (spec.key_dim if spec.by_channel else 1)

    def blank(rows: int, width: int) -> Tensor:
        made: Tensor = x.new_empty((rows, width), dtype=torch.float32)
        return made

    between = {
        "mixed": blank(count, given["CHANNELS"]),
        "decays": blank(count, decays),
        "strengths": blank(count, heads),
    }
    shape = {
        "HEADS": heads,
        "KEY_HEADS": spec.num_key_heads,
        "DK": spec.key_dim,
        "DV": spec.value_dim,
        "DK_PAD": triton.next_power_of_2(spec.key_dim),
        "DELTA": spec.delta,
        "BY_CHANNEL": spec.by_channel,
    }
    _prepare({**given, **between, **shape}, before, spec, plan)
    read = blank(len(x), spec.outputs)
    most = max(_NUMBERS_AT_ONCE // triton.next_power_of_2(spec.key_dim), 1)
    columns = min(most, triton.next_power_of_2(spec.value_dim))
    programs.recur[heads * triton.cdiv(spec.value_dim, columns), len(slots)](
        **between,
        **shape,
        **{name: given[name] for name in ("starts", "contexts", "slots", "counts")},
        state=state.state,
        state_stride=state.state.stride(0),
        read=read,
        drafts=drafts.new,
        left=left,
        most_before=before,
        skip=spec.skip,
        CHANNELS=given["CHANNELS"],
        MOST_DRAFTS=drafts.most,
        TILED=spec.tiled,
        COLUMNS=columns,
        num_warps=1,
    )
    return _gated(read, x[:, given["CHANNELS"] :], slots, spec, plan)


def _prepare(given: dict[str, Any], before: int, spec: Recurrence, plan: GPUPlan) -> None:
    """Convolve what came in, and make of it what the recurrence takes."""
    parts = sum(triton.cdiv(one, _HEADS_AT_ONCE) for one in (spec.num_key_heads, spec.num_heads))
    factor, least, largest = spec.steps
    programs.prepare[len(given["mixed"]), parts](
        **given,
        owners=plan.owners,
        most_before=before,
        weight=spec.convolution.weight,
        bias=spec.convolution.bias,
        rate=spec.decay,
        step_bias=spec.bias,
        factor=factor,
        least=least,
        most=largest,
        DV_PAD=triton.next_power_of_2(spec.value_dim),
        STEP=_HEADS_AT_ONCE,
        num_warps=1,
    )


def _gated(read: Tensor, gates: Tensor, slots: Tensor, spec: Recurrence, plan: GPUPlan) -> Tensor:
    how, out = spec.gate, gates.new_empty(len(gates), spec.outputs)
    padded = triton.next_power_of_2(how.width)
    programs.gate[len(gates), spec.outputs // how.width](
        read,
        gates,
        gates.stride(0),
        out,
        how.norm,
        how.eps,
        how.factor,
        plan.owners,
        slots,
        OUTPUTS=spec.outputs,
        WIDTH=how.width,
        WIDTH_PAD=padded,
        FIRST=how.first,
        SIGMOID=how.sigmoid,
        num_warps=min(max(padded // 512, 1), 16),
    )
    return out

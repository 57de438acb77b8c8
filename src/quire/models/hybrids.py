"""Families in which layers with a state stand beside attention: each turns the common plan into its
own.
"""

from __future__ import annotations

from dataclasses import replace

from quire.kernels.recurrence import StepRange
from quire.models import mixtures, variants
from quire.models.blueprint import Blueprint
from quire.models.config import ConfigFields
from quire.models.recurrences import RecurrentNames, RecurrentPlan
from quire.models.shape import recurrence_of

_QWEN = RecurrentNames(
    inputs=tuple(f"linear_attn.in_proj_{part}" for part in ("qkv", "z", "b", "a")),
    output="linear_attn.out_proj",
    convolution="linear_attn.conv1d",
    bias="linear_attn.dt_bias",
    decay="linear_attn.A_log",
    norm="linear_attn.norm",
)
_QWEN_NEXT = replace(_QWEN, inputs=tuple(f"linear_attn.in_proj_{part}" for part in ("qkvz", "ba")))


_MAMBA = RecurrentNames(
    inputs=("mamba.in_proj",),
    output="mamba.out_proj",
    convolution="mamba.conv1d",
    bias="mamba.dt_bias",
    decay="mamba.A_log",
    skip="mamba.D",
    norm="mamba.norm",
)
_LFM2 = RecurrentNames(("conv.in_proj",), "conv.out_proj", "conv.conv")


def qwen3_5(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Three of four layers follow the gated delta rule; the others' attention is gated."""
    shape = recurrence_of(fields, "delta rule", len(plan.windows), alone=False)
    recurrent = RecurrentPlan(shape, _QWEN, plan.norm.eps)
    return replace(plan, recurrent=recurrent, gated_attention=True)


def qwen3_5_moe(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The same with mixtures, whose experts' weights always add up to 1."""
    renormalised = fields.holding({**fields.values, "norm_topk_prob": True})
    return mixtures.qwen(renormalised, qwen3_5(fields, plan))


def qwen3_next(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The same, but projections are stored by heads of keys."""
    plan = mixtures.qwen(fields, qwen3_5(fields, plan))
    assert plan.recurrent is not None
    by_head = replace(plan.recurrent, names=_QWEN_NEXT, by_key_head=True)
    return replace(plan, recurrent=by_head)


def lfm2(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Most layers are short convolutions between two gates."""
    shape = recurrence_of(fields, "convolution", len(plan.windows), alone=False)
    bias = fields.get("conv_bias", bool, False)
    recurrent = RecurrentPlan(shape, _LFM2, plan.norm.eps, biased=bias, biased_convolution=bias)
    return replace(plan, recurrent=recurrent)


def granite(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Most layers are Mamba's; the others may know no positions. Experts are optional."""
    if fields.get("num_local_experts", int, 0):
        plan = mixtures.granite(fields, plan)
    else:
        plan = variants.granite(fields, plan)
    positions = fields.get("position_embedding_type", str, "nope")
    if positions not in ("nope", "rope"):
        raise fields.wrong("position_embedding_type", "rope, nope or null")
    if positions == "nope":
        plan = replace(plan, ropes=(), rope_of=(None,) * len(plan.windows))
    return bamba(fields, plan)


def bamba(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Most layers are Mamba's."""
    return _with_mamba(fields, plan, _MAMBA, "mamba_conv_bias", "mamba_proj_bias")


def mamba2(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """All layers are Mamba's, and nothing else."""
    names = replace(
        _MAMBA,
        inputs=("mixer.in_proj",),
        **{
            part: getattr(_MAMBA, part).replace("mamba.", "mixer.")
            for part in ("output", "convolution", "bias", "decay", "skip", "norm")
        },
    )
    plan = replace(plan, ropes=(), rope_of=(None,) * len(plan.windows))
    return _with_mamba(fields, plan, names, "use_conv_bias", "use_bias", alone=True)


def _with_mamba(
    fields: ConfigFields,
    plan: Blueprint,
    names: RecurrentNames,
    conv_bias: str,
    proj_bias: str,
    *,
    alone: bool = False,
) -> Blueprint:
    shape = recurrence_of(fields, "state space", len(plan.windows), alone)
    recurrent = RecurrentPlan(
        shape,
        names,
        plan.norm.eps,
        biased=fields.get(proj_bias, bool, False),
        biased_convolution=fields.get(conv_bias, bool, True),
        gate_first=True,
        norm_width=shape.outputs // shape.key_heads,
        steps=_step_range(fields),
    )
    return replace(plan, recurrent=recurrent)


def _step_range(fields: ConfigFields) -> StepRange:
    limits = fields.get("time_step_limit", list, [])
    if not limits:
        return StepRange()
    # JSON has no infinity, and transformers writes one in its own way.
    told = [one.get("__float__") if isinstance(one, dict) else one for one in limits]
    try:
        least, most = map(float, told)
    except (TypeError, ValueError):
        raise fields.wrong("time_step_limit", "two numbers") from None
    if not 0 <= least <= most:
        raise fields.wrong("time_step_limit", "two numbers, the first at least 0 and no larger")
    return StepRange(1.0, least, most)

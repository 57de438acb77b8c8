"""Families in which layers with a state stand beside attention: each turns the common plan into its
own.
"""

from __future__ import annotations

from dataclasses import replace

from quire.models import mixtures
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
_QWEN_NEXT = replace(
    _QWEN, inputs=tuple(f"linear_attn.in_proj_{part}" for part in ("qkvz", "ba"))
)


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

"""Families whose MLPs are mixtures of experts: each turns the common plan into its own."""

from __future__ import annotations

from dataclasses import replace

from quire.kernels.ops import CLAMPED_SWIGLU
from quire.models import variants
from quire.models.blueprint import Blueprint, ExpertNames, Mixture
from quire.models.config import ConfigFields
from quire.models.shape import experts_of

_EACH = ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj")
_QWEN = ExpertNames(
    routers=("mlp.gate",),
    up=_EACH,
    down="mlp.experts.{}.down_proj",
    stacks=(("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),),
    shared_up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared_down="mlp.shared_expert.down_proj",
    shared_gate="mlp.shared_expert_gate",
)
_MIXTRAL = ExpertNames(
    routers=("block_sparse_moe.gate", "mlp.gate"),
    up=("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3"),
    down="block_sparse_moe.experts.{}.w2",
    stacks=_QWEN.stacks,
)
_GRANITE = ExpertNames(
    routers=("block_sparse_moe.router.layer", "block_sparse_moe.router"),
    up=_EACH,  # as GGUF files have them
    down=_QWEN.down,
    stacks=(
        ("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"),
        ("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"),
    ),
    shared_up=("shared_mlp.input_linear",),
    shared_down="shared_mlp.output_linear",
)


_GPT_OSS = ExpertNames(
    routers=("mlp.router",),
    up=_EACH,  # as GGUF files have them
    down=_QWEN.down,
    stacks=(("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),),
    turned=True,
    paired=True,
    biased=True,
)


def mixtral(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The weights of the chosen experts add up to 1."""
    return replace(plan, mixture=Mixture(experts_of(fields), _MIXTRAL, renormalise=True))


def qwen(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Weights are renormalised if ``norm_topk_prob`` says so."""
    renormalise = fields.get("norm_topk_prob", bool, False)
    return replace(plan, mixture=Mixture(experts_of(fields), _QWEN, renormalise))


def granite(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Like Mixtral's, with multipliers like other Granites'."""
    plan = variants.granite(fields, plan)
    return replace(plan, mixture=Mixture(experts_of(fields), _GRANITE, renormalise=True))


def gpt_oss(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Like Mixtral's, with biases, and an activation of their own."""
    for name, only in (("hidden_act", "silu"), ("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
        if fields.values.get(name, only) != only:
            raise fields.wrong(name, str(only))
    return replace(
        plan,
        mixture=Mixture(experts_of(fields), _GPT_OSS, renormalise=True),
        activation=CLAMPED_SWIGLU,
    )

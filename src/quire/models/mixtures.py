"""Families whose MLPs are mixtures of experts: each turns the common plan into its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.kernels.mlps import CLAMPED_SWIGLU, Routing
from quire.models import variants
from quire.models.blueprint import Blueprint, ExpertNames, Mixture, NormKind, PartFactors
from quire.models.config import ConfigFields
from quire.models.rope import UNTURNED
from quire.models.shape import experts_of, sizes_by_kind

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
    routers=("block_sparse_moe.gate", "mlp.gate", "mlp.router"),
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

_GRANITE_SWA = replace(_GRANITE, up=("mlp.experts.{}.gate_up_proj",))  # as GGUF files have them
_GEMMA = ExpertNames(
    routers=("router.proj",),
    up=("experts.{}.gate_up_proj",),  # as GGUF files have them
    down="experts.{}.down_proj",
    stacks=(("experts.gate_up_proj", "experts.down_proj"),),
    factors=("router.per_expert_scale",),
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


def by_both(name: str) -> tuple[str, str]:
    """The names of a bias in checkpoints and in GGUF files."""
    return f"{name}_bias", f"{name}.bias"


_SHARED = replace(
    _QWEN,
    shared_up=("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    shared_down="mlp.shared_experts.down_proj",
    shared_gate=None,
)
_DEEPSEEK = replace(_SHARED, choice_biases=by_both("mlp.gate.e_score_correction"))
_BAILING = replace(_DEEPSEEK, choice_biases=("mlp.gate.expert_bias", *_DEEPSEEK.choice_biases))
_ERNIE = replace(
    _SHARED,
    choice_biases=(
        "mlp.moe_statics.e_score_correction_bias",
        *by_both("mlp.gate.moe_statics.e_score_correction"),
    ),
)
_MINIMAX = replace(
    _MIXTRAL,
    choice_biases=(
        "block_sparse_moe.e_score_correction_bias",
        *by_both("mlp.e_score_correction"),
    ),
)
_HUNYUAN = replace(
    _QWEN,
    routers=("mlp.gate.wg",),
    shared_up=("mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"),
    shared_down="mlp.shared_mlp.down_proj",
    shared_gate=None,
)
_EXAONE = replace(
    _SHARED,
    choice_biases=(
        *by_both("mlp.e_score_correction"),
        *by_both("mlp.gate.e_score_correction"),
    ),
)
_AFMOE = replace(
    _SHARED,
    routers=("mlp.router.gate",),
    choice_biases=("mlp.expert_bias", "mlp.expert_bias.bias"),
)
_HY = replace(_AFMOE, shared_up=_HUNYUAN.shared_up, shared_down=_HUNYUAN.shared_down)
_LLAMA4 = ExpertNames(
    routers=("feed_forward.router",),
    up=("feed_forward.experts.{}.gate_proj", "feed_forward.experts.{}.up_proj"),
    down="feed_forward.experts.{}.down_proj",
    stacks=(("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"),),
    turned=True,
    shared_up=("feed_forward.shared_expert.gate_proj", "feed_forward.shared_expert.up_proj"),
    shared_down="feed_forward.shared_expert.down_proj",
)
_KIMI = replace(
    _MIXTRAL,
    shared_up=tuple(f"block_sparse_moe.shared_experts.{part}_proj" for part in ("gate", "up")),
    shared_down="block_sparse_moe.shared_experts.down_proj",
    choice_biases=by_both("block_sparse_moe.gate.e_score_correction"),
)
_MOST_GROUPS = 64


def mixtral(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The weights of the chosen experts add up to 1."""
    return replace(plan, mixture=_mixture(fields, _MIXTRAL))


def qwen(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Weights are renormalised if ``norm_topk_prob`` says so."""
    renormalise = fields.get("norm_topk_prob", bool, False)
    return replace(plan, mixture=_mixture(fields, _QWEN, renormalise))


def granite(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Like Mixtral's, with multipliers like other Granites'."""
    names = _GRANITE
    if fields.get("shared_gate_apart", bool, False):
        names = replace(names, shared_up=_SHARED.shared_up, shared_down=_SHARED.shared_down)
    return replace(variants.granite(fields, plan), mixture=_mixture(fields, names))


def gpt_oss(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Like Mixtral's, with biases, and an activation of their own."""
    _only(fields, hidden_act="silu", swiglu_limit=7.0, swiglu_alpha=1.702)
    return replace(plan, mixture=_mixture(fields, _GPT_OSS), activation=CLAMPED_SWIGLU)


def gemma4(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Some have a mixture beside each MLP; the weights of the chosen add up to 1, then each expert
    has a factor.
    """
    plan = variants.gemma4(fields, plan)
    if not fields.get("enable_moe_block", bool, False):
        return plan
    return replace(plan, mixture=_mixture(fields, _GEMMA))


def deepseek(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Scores are sigmoids, the choice is among some groups and has biases of its own."""
    _only(fields, scoring_func="sigmoid", topk_method="noaux_tc")
    return grouped(fields, plan, _DEEPSEEK)


def deepseek_v2(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Scores are a softmax, the choice may be among the groups of the best experts."""
    _only(fields, scoring_func="softmax", norm_topk_prob=False)
    mixture = _mixture(fields, _SHARED, renormalise=False)
    method = fields.choice("topk_method", ("greedy", "group_limited_greedy"), "greedy")
    groups, chosen = (1, 1) if method == "greedy" else _groups(fields, mixture)
    scale = fields.get("routed_scaling_factor", float, 1.0)
    plan = _routed(plan, mixture, scale=scale, groups=groups, groups_chosen=chosen, best=1)
    return variants.latent(fields, plan)


def deepseek_v3(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Like others of its routing, with latents."""
    return variants.latent(fields, deepseek(fields, plan))


def deepseek_v32(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The same with an index, whose numbers that are turned together are half of these apart."""
    return variants.indexed(fields, deepseek_v3(fields, plan), interleaved=False)


def glm_dsa(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The same; they are side by side."""
    return variants.indexed(fields, deepseek_v3(fields, plan), interleaved=True)


def mimo(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Routed as DeepSeek's; layers with a window have a rotation, a number of heads and sinks of
    their own, and what attention gives is scaled.
    """
    _only(fields, add_full_attention_sink_bias=False, use_qk_norm=False)
    theta = fields.get("swa_rope_theta", float, 10_000.0)
    plan = variants.two_rotations(fields, deepseek(fields, plan), 5_000_000.0, theta)
    if not fields.get("add_swa_attention_sink_bias", bool, True):
        plan = replace(plan, names=replace(plan.names, sink_logits=()))
    return replace(
        plan,
        by_layer=sizes_by_kind(fields, plan.windows),
        sinks_in_windows=True,
        factors=PartFactors(attention=_value_scale(fields)),
    )


def _value_scale(fields: ConfigFields) -> float:
    name = "attention_value_scale"
    return 1.0 if fields.values.get(name, 1.0) is None else fields.get(name, float, 0.707)


def kimi(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The same, by other names."""
    _only(fields, moe_router_activation_func="sigmoid", use_grouped_topk=True)
    return variants.latent_in_halves(fields, grouped(fields, plan, _KIMI))


def grouped(fields: ConfigFields, plan: Blueprint, names: ExpertNames) -> Blueprint:
    """Scores are sigmoids, and the choice is among some groups of experts."""
    mixture = _mixture(fields, names, fields.get("norm_topk_prob", bool, False))
    groups, chosen = _groups(fields, mixture)
    scale = fields.get("routed_scaling_factor", float, 1.0)
    return _routed(plan, mixture, sigmoid=True, scale=scale, groups=groups, groups_chosen=chosen)


def _groups(fields: ConfigFields, mixture: Mixture) -> tuple[int, int]:
    """Groups of experts, and those among which a row's are chosen."""
    count, groups = mixture.shape.count, fields.positive("n_group", 1)
    chosen = fields.positive("topk_group", 1)
    if groups > _MOST_GROUPS or count % groups or chosen > groups:
        raise fields.wrong("n_group", f"a divisor of {count}, topk_group to {_MOST_GROUPS}")
    if mixture.shape.chosen > count // groups * chosen:
        raise fields.wrong("topk_group", "at least what the chosen experts are in")
    return groups, chosen


def glm(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Like DeepSeek's, with norms of heads if the config says so."""
    plan = replace(deepseek(fields, plan), head_norms=None)
    return replace(plan, head_norms="each") if fields.get("use_qk_norm", bool, False) else plan


def bailing(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Like GLM's."""
    _only(fields, score_function="sigmoid", moe_router_enable_expert_bias=True)
    plan = grouped(fields, plan, _BAILING)
    return replace(plan, head_norms="each") if fields.get("use_qk_norm", bool, True) else plan


def sarvam_mla(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """DeepSeek's layers."""
    _only(fields, score_function="sigmoid", moe_router_enable_expert_bias=True)
    return variants.latent(fields, grouped(fields, plan, _BAILING))


def minimax(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Scores are sigmoids, and the choice has biases of its own."""
    _only(fields, scoring_func="sigmoid", use_routing_bias=True, qk_norm_type="per_layer")
    return _routed(plan, _mixture(fields, _MINIMAX), sigmoid=True)


def exaone(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Like DeepSeek's; where some layers have a window, only they have positions."""
    _only(fields, scoring_func="sigmoid", topk_method="noaux_tc")
    return variants.exaone4(fields, grouped(fields, plan, _EXAONE))


def afmoe(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Scores are sigmoids; only layers with a window have positions, and attention is gated."""
    _only(fields, score_func="sigmoid", route_norm=True, n_group=1, topk_group=1)
    _only(fields, num_expert_groups=1, num_limited_groups=1)
    scale = fields.get("route_scale", float, 1.0)
    return replace(
        _routed(plan, _mixture(fields, _AFMOE), sigmoid=True, scale=scale),
        gated_attention=True,
        rope_of=tuple(None if window is None else 0 for window in plan.windows),
        embedding_scale=plan.hidden_size**0.5 if fields.get("mup_enabled", bool, False) else 1.0,
    )


def mellum(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Like Qwen's, with a rotation of their own for layers with a window."""
    return variants.two_rotations(fields, qwen(fields, plan), 500_000.0, 10_000.0)


def hy_v3(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Scores are sigmoids, and the choice has biases of its own."""
    scale = fields.get("router_scaling_factor", float, 2.826)
    return _routed(plan, _mixture(fields, _HY), sigmoid=True, scale=scale)


def granite_swa(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Like other Granites with experts, with rotations by layer."""
    plan = variants.granite_swa(fields, plan)
    return replace(plan, mixture=_mixture(fields, _GRANITE_SWA))


def by_sigmoid(fields: ConfigFields, plan: Blueprint, names: ExpertNames) -> Blueprint:
    """Scores are sigmoids."""
    mixture = _mixture(fields, names, fields.get("norm_topk_prob", bool, True))
    scale = fields.get("routed_scaling_factor", float, 1.0)
    return _routed(plan, mixture, sigmoid=True, scale=scale)


def mistral4(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Scores are a softmax, the choice is among some groups, and all else is DeepSeek's."""
    mixture = _mixture(fields, _SHARED, fields.get("norm_topk_prob", bool, True))
    groups, chosen = _groups(fields, mixture)
    scale = fields.get("routed_scaling_factor", float, 1.0)
    plan = _routed(plan, mixture, scale=scale, groups=groups, groups_chosen=chosen)
    plan = variants.latent(fields, plan)
    assert plan.latent is not None
    rope = replace(plan.ropes[0], rotated=plan.latent.shape.rope)  # all of what positions turn
    return replace(plan, ropes=(rope,))


def phimoe(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Like Mixtral's, but each expert of two is weighed among those that are near it."""
    _only(fields, num_experts_per_tok=2)
    mixture, noise = _mixture(fields, _MIXTRAL), fields.get("router_jitter_noise", float, 0.01)
    if not 0 < noise < 1:
        raise fields.wrong("router_jitter_noise", "above 0 and below 1", noise)
    return replace(
        _routed(plan, mixture, nearness=noise),
        biases=replace(plan.biases, head=fields.get("lm_head_bias", bool, False)),
    )


def hunyuan(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Like Mixtral's, with an expert for all rows."""
    _only(fields, use_mixed_mlp_moe=True, moe_layer_num_skipped=0)
    mixture = _mixture(fields, _HUNYUAN, shared=1)
    if mixture.shape.inner != plan.intermediate_size:
        raise fields.wrong("moe_intermediate_size", "the intermediate_size")
    return replace(variants.hunyuan(fields, plan), mixture=mixture)


def llama4(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Experts are given rows times their scores; layers without positions look at all of the text,
    and their queries grow with where they are.
    """
    mixture = _mixture(fields, _LLAMA4, renormalise=False, shared=1)
    plan = replace(
        _routed(variants.smollm3(fields, plan), mixture, sigmoid=True, before=True),
        intermediate_size=fields.positive("intermediate_size_mlp", 16_384),
        head_norms="bare" if fields.get("use_qk_norm", bool, True) else None,
    )
    if not fields.values.get("attn_temperature_tuning", True):
        return plan
    growing = replace(plan.ropes[0], kind=UNTURNED, rotated=0, fields=fields)
    rope_of = tuple(1 if each is None else each for each in plan.rope_of)
    return replace(plan, ropes=(*plan.ropes, growing), rope_of=rope_of)


def cohere2(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Weights are shares among the chosen or sigmoids, and an expert for all rows may count as much
    as the others together. Layers without experts may know positions though they see everything.
    """
    method = fields.choice("expert_selection_fn", ("softmax", "sigmoid"), "softmax")
    renormalise = method == "softmax" or fields.get("norm_topk_prob", bool, True)
    mixture = _mixture(fields, _SHARED, renormalise)
    ways = ("average", "sum")
    halved = fields.choice("shared_expert_combination_strategy", ways, "average") == "average"
    plan = variants.cohere2(fields, _routed(plan, mixture, sigmoid=method == "sigmoid"))
    assert plan.mixture is not None
    has_experts, rope_of = mixture.shape.layers, plan.rope_of
    if fields.positive("prefix_dense_sliding_window_pattern", 1) == 1:
        rope_of = tuple(own if has else 0 for own, has in zip(rope_of, has_experts, strict=True))
    eps = fields.get("rms_norm_eps", float) if "rms_norm_eps" in fields else None
    factor = 0.5 if halved and mixture.shape.shared_inner else 1.0
    return replace(
        plan,
        mixture=replace(plan.mixture, factor=factor),
        norm=plan.norm if eps is None else NormKind(eps),
        intermediate_size=fields.positive("prefix_dense_intermediate_size", plan.intermediate_size),
        rope_of=rope_of,
    )


def ernie(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Like Mixtral's, with biases of the choice."""
    return replace(plan, mixture=_mixture(fields, _ERNIE))


def _only(fields: ConfigFields, **values: str | float | bool) -> None:
    """ModelError if a field says something else than what is computed."""
    for name, only in values.items():
        if fields.values.get(name, only) != only:
            raise fields.wrong(name, str(only))


def _mixture(
    fields: ConfigFields, names: ExpertNames, renormalise: bool = True, shared: int = 0
) -> Mixture:
    shape = experts_of(fields, shared)
    return Mixture(shape, names, Routing(shape.chosen, renormalise))


def _routed(plan: Blueprint, mixture: Mixture, **routing: Any) -> Blueprint:
    """The plan with a mixture whose routing has these fields."""
    return replace(plan, mixture=replace(mixture, routing=mixture.routing._replace(**routing)))

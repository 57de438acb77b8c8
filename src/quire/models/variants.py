"""What single families of Llama's kind do otherwise: each takes the common plan to its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from quire.core.errors import ModelError
from quire.models.blueprint import Blueprint, IndexPlan, LatentPlan, StreamPlan
from quire.models.config import ConfigFields
from quire.models.rope import RopeConfig
from quire.models.shape import (
    index_of,
    latent_of,
    layer_sizes_of,
    layers_that_turn,
    stream_sizes_of,
)

_DEVIATIONS = "activation_sparsity_scale"
_MOST_WEIGHT = 1e3  # of a logarithm; published models have 1 at most
_MOST_ROTATIONS = 8
_STEADY = ("default", "linear", "llama3", "yarn")  # rotations that do not hang on a text's length


def gemma(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Embeddings times sqrt(d); "gelu" meant its approximation."""
    tanh = "gelu_pytorch_tanh" if plan.activation == "gelu" else plan.activation
    return replace(
        plan,
        activation=tanh,
        embedding_scale=plan.hidden_size**0.5,
        embedding_scale_in_dtype=True,
    )


def gemma2(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Scores and logits are capped, and queries scaled by a number of their own."""
    return replace(
        _gemma_scaled(fields, plan),
        softcap=_cap(fields, "attn_logit_softcapping", 50.0),
        logits_softcap=_cap(fields, "final_logit_softcapping", 30.0),
    )


def gemma3(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Layers with a window have a rotation of their own."""
    local = fields.get("rope_local_base_freq", float, 10_000.0)
    plan = replace(plan, logits_softcap=_cap(fields, "final_logit_softcapping", None))
    return two_rotations(fields, _gemma_scaled(fields, plan), 1_000_000.0, local)


def gemma3n(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Gemma 3's rotations; layers see one of several streams, and of some MLPs only what is large
    goes on.
    """
    local = fields.get("rope_local_base_freq", float, 10_000.0)
    plan = two_rotations(fields, gemma(fields, plan), 1_000_000.0, local)
    sizes = stream_sizes_of(fields, plan.windows)
    active = fields.get("altup_active_idx", int, 0)
    if not 0 <= active < sizes.streams:
        raise fields.wrong("altup_active_idx", f"at least 0 and less than {sizes.streams}")
    scaled = fields.get("altup_correct_scale", bool, True)
    return replace(
        plan,
        by_layer=sizes,
        extended=True,
        streams=StreamPlan(sizes.streams, active, scaled, _cuts(fields, len(plan.windows))),
        attention_scale=1.0,
        value_norms=True,
        logits_softcap=_cap(fields, "final_logit_softcapping", 30.0),
    )


def _cuts(fields: ConfigFields, count: int) -> tuple[float | None, ...]:
    """By layer, above how many standard deviations a share of normal numbers lies that is 1 less
    the field's. GGUF files say the former.
    """
    if _DEVIATIONS in fields:
        told = fields.get(_DEVIATIONS, list)
        if len(told) != count or not all(isinstance(one, float) and one < math.inf for one in told):
            raise fields.wrong(_DEVIATIONS, f"a number for each of {count} layers")
        return tuple(None if one == -math.inf else one for one in told)
    name, sparse = "activation_sparsity_pattern", 10 if count > 10 else 0
    shares = fields.get(name, list, [0.95] * sparse + [0.0] * (count - sparse))
    known = all(type(one) in (int, float) and 0 <= one < 1 for one in shares)
    if len(shares) != count or not known:
        raise fields.wrong(name, f"at least 0 and less than 1 for each of {count} layers")
    # The inverse of the normal distribution in float32, as its authors have it.
    inverses = torch.erfinv(2 * torch.tensor(shares, dtype=torch.float32) - 1) * math.sqrt(2)
    return tuple(each if one else None for one, each in zip(shares, inverses.tolist(), strict=True))


def gemma4(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Heads are of two sizes and two rotations, values are normalised, scores are not scaled."""
    _check_window(fields)
    sizes = layer_sizes_of(fields, plan.windows)
    kinds = {
        "full_attention": {
            "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }  # fmt: skip
    turning = (
        fields
        if "rope_parameters" in fields
        else fields.holding({**fields.values, "rope_parameters": kinds})
    )
    rope_of = tuple(0 if window is None else 1 for window in plan.windows)
    ropes = []
    for kind, layers in enumerate(kinds):
        each = zip(sizes.head_sizes, rope_of, strict=True)
        widths = {width for width, own in each if own == kind} or {2}
        if len(widths) > 1:
            raise fields.wrong("per_layer_config", f"of one head_dim in layers of {layers}")
        ropes.append(RopeConfig.read(turning, widths.pop(), layers=layers))
    _check_steady(ropes, (*_STEADY, "proportional", "divided"))
    return replace(
        gemma(fields, plan),
        by_layer=sizes,
        extended=True,
        ropes=tuple(ropes),
        rope_of=rope_of,
        attention_scale=1.0,
        value_norms=True,
        logits_softcap=_cap(fields, "final_logit_softcapping", None),
    )


def thetas_by_layer(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The base of the rotation may differ from layer to layer; 0: a layer knows no positions."""
    name, count = "layer_rope_theta", len(plan.windows)
    told = fields.get(name, list, [])
    if not told:
        return plan
    known = all(type(one) in (int, float) and 0 <= one < math.inf for one in told)
    thetas = sorted({float(one) for one in told if one}) if known else []
    if len(told) != count or not known or len(thetas) > _MOST_ROTATIONS:
        raise fields.wrong(name, f"at least 0 for each of {count} layers, few of them different")
    (rope,) = plan.ropes
    return replace(
        plan,
        ropes=tuple(replace(rope, theta=theta) for theta in thetas),
        rope_of=tuple(thetas.index(float(one)) if one else None for one in told),
    )


def granite_swa(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Granite's multipliers, and rotations by layer."""
    return thetas_by_layer(fields, granite(fields, plan))


def hyperclovax(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Granite's, but logits are multiplied, and norms may follow the parts of layers."""
    usual = {"attention_multiplier": plan.attention_scale}
    if "attention_multiplier" not in fields:
        fields = fields.holding({**fields.values, **usual})
    plan = replace(granite(fields, plan), logits_scale=fields.get("logits_scaling", float, 1.0))
    if fields.get("use_post_norm", bool, True):
        return plan
    return replace(plan, names=replace(plan.names, attention_output=None, mlp_output=None))


def cohere(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Logits are scaled."""
    return replace(plan, logits_scale=fields.get("logit_scale", float, 0.0625))


def cohere2(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Only layers with a window have positions."""
    _check_window(fields)
    rope_of = tuple(None if window is None else 0 for window in plan.windows)
    return replace(cohere(fields, plan), rope_of=rope_of)


def olmo3(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Only layers without a window may be stretched."""
    return two_rotations(fields, plan, 500_000.0, 500_000.0)


def exaone4(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Where some layers have a window, only they have positions."""
    if all(window is None for window in plan.windows):
        return plan
    return replace(plan, rope_of=tuple(None if each is None else 0 for each in plan.windows))


def smollm3(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Some layers have no positions, by default every fourth."""
    turned = layers_that_turn(fields, 4)
    return replace(plan, rope_of=tuple(0 if each else None for each in turned))


def apertus(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Its rotation is stretched, if no field says how."""
    if "rope_parameters" in fields or "rope_scaling" in fields:
        return plan
    (rope,) = plan.ropes
    stretched = rope.fields.holding(
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    )
    return replace(
        plan, ropes=(replace(rope, kind="llama3", original_positions=8192, fields=stretched),)
    )


def hunyuan(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The base of the rotation may be raised once and for all."""
    for name, only in (("use_qk_norm", True), ("use_cla", False)):
        if fields.get(name, bool, only) != only:
            raise fields.wrong(name, str(only).lower())
    (rope,) = plan.ropes
    if rope.kind != "dynamic" or "alpha" not in rope.fields:
        return plan
    alpha = rope.fields.get("alpha", float)
    if alpha <= 0 or rope.rotated <= 2:
        raise ModelError(f"{rope.fields.source}: alpha must be above 0, but is {alpha}")
    theta = rope.theta * alpha ** (rope.rotated / (rope.rotated - 2))
    return replace(plan, ropes=(replace(rope, kind="default", theta=theta),))


def nanochat(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Heads are turned the other way, and what comes into the layers is normalised."""
    (rope,) = plan.ropes
    return replace(
        plan,
        ropes=(replace(rope, backwards=True),),
        embedding_norm=True,
        logits_softcap=_cap(fields, "final_logit_softcapping", 15.0),
    )


def muse(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """What comes into the layers and all heads are normalised; layers that see everything know no
    positions, and attention is gated.
    """
    rope_of = tuple(None if window is None else 0 for window in plan.windows)
    eps = fields.epsilon("post_norm_eps", 1e-8)
    scale = fields.get("qk_scale_factor", float, 3.87)
    alike = fields.get("norms_alike", bool, False)  # as GGUF files have them, the scale in one
    return replace(
        thetas_by_layer(fields, replace(plan, rope_of=rope_of)),
        attention_scale=plan.attention_scale if alike else plan.attention_scale * scale,
        head_norms="each" if alike else "all bare",
        gated_attention=True,
        embedding_norm=True,
        output_norm=replace(plan.norm, eps=eps),
        final_norm=replace(plan.norm, around_one=alike),
        logits_scale=fields.get("output_multiplier", float, 256**0.5 / 6656**0.5),
        logits_softcap=_cap(fields, "final_logit_softcapping", 20.0),
    )


def granite(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Four multipliers."""
    scaling = fields.get("logits_scaling", float, 1.0)
    scale = fields.get("attention_multiplier", float, 1.0)
    if scaling <= 0 or scale <= 0:
        raise ModelError(
            f"{fields.source}: logits_scaling and attention_multiplier must be above 0"
        )
    return replace(
        plan,
        embedding_scale=fields.get("embedding_multiplier", float, 1.0),
        residual_scale=fields.get("residual_multiplier", float, 1.0),
        attention_scale=scale,
        logits_scale=1.0 / scaling,
    )


def latent(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Keys and values of all heads are made of one vector."""
    return _latent(fields, plan, fields.get("rope_interleave", bool, True))


def latent_in_halves(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The same; numbers that are turned together are half of these apart, if any are turned."""
    return _latent(fields, plan, interleaved=False)


def indexed(fields: ConfigFields, plan: Blueprint, interleaved: bool) -> Blueprint:
    """A plan with latents, of which an index chooses. interleaved: where no field says so."""
    assert plan.latent is not None, "an index is beside latents"
    interleaved = fields.get("indexer_rope_interleave", bool, interleaved)
    index = IndexPlan(index_of(fields, len(plan.windows)), interleaved)
    return replace(plan, latent=replace(plan.latent, index=index))


def minicpm3(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The same, with multipliers."""
    return _latent(fields, minicpm(fields, plan), interleaved=False)


def minicpm(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Multipliers of embeddings, layers and logits."""
    of_layers, hidden = len(plan.windows) ** 0.5, plan.hidden_size
    depth = 1.4 if "scale_depth" not in fields.values else of_layers  # null: none
    base = 256 if "dim_model_base" not in fields.values else hidden
    return replace(
        plan,
        embedding_scale=fields.get("scale_emb", float, 12.0),
        embedding_scale_in_dtype=True,
        residual_scale=fields.get("scale_depth", float, depth) / of_layers,
        logits_scale=fields.positive("dim_model_base", base) / hidden,
    )


def _latent(fields: ConfigFields, plan: Blueprint, interleaved: bool) -> Blueprint:
    shape, biased = latent_of(fields), plan.biases.qkv
    if biased and shape.query_rank is None:
        raise fields.wrong("attention_bias", "false without q_lora_rank")
    latent = LatentPlan(shape, plan.heads.num, interleaved, biased)
    rope, scale = plan.ropes[0], (shape.nope + shape.rope) ** -0.5
    weight = rope.fields.get("mscale_all_dim", float, 0.0)
    if abs(weight) > _MOST_WEIGHT:
        raise rope.fields.wrong("mscale_all_dim", f"at most {_MOST_WEIGHT:g}", weight)
    if rope.kind != "default" and weight:  # scores grow with how far positions are stretched
        factor = rope.fields.get("factor", float)
        scale *= (0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0) ** 2
    return replace(plan, latent=latent, attention_scale=scale)


def _gemma_scaled(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    _check_window(fields)
    scalar = fields.get("query_pre_attn_scalar", float, 256.0)
    if scalar <= 0:
        raise fields.wrong("query_pre_attn_scalar", "above 0")
    return replace(gemma(fields, plan), attention_scale=scalar**-0.5)


def two_rotations(
    fields: ConfigFields,
    plan: Blueprint,
    theta: float,
    local: float,
    kinds: Sequence[str] = _STEADY,
) -> Blueprint:
    """The first for layers that see everything, the second for those with a window."""
    _check_window(fields)
    # What stands beside ``rope_parameters``, in the older spelling, is the first one's.
    own = ("rope_theta", "rope_scaling")
    near = fields.holding({k: v for k, v in fields.values.items() if k not in own})
    ropes = (
        RopeConfig.read(fields, plan.heads.dim, theta, layers="full_attention"),
        RopeConfig.read(near, plan.heads.dim, local, layers="sliding_attention"),
    )
    _check_steady(ropes, kinds)
    rope_of = tuple(0 if window is None else 1 for window in plan.windows)
    return replace(plan, ropes=ropes, rope_of=rope_of)


def _check_steady(ropes: Sequence[RopeConfig], kinds: Sequence[str]) -> None:
    for rope in ropes:
        if rope.kind not in kinds:
            names = ", ".join(kinds)
            raise ModelError(f"{rope.fields.source}: rope_type is {rope.kind}; supported: {names}")


def _check_window(fields: ConfigFields) -> None:
    """ModelError without a window, on which it depends what such layers do."""
    fields.positive("sliding_window")


def _cap(fields: ConfigFields, name: str, default: float | None) -> float | None:
    """The cap of scores; None: the field is null."""
    if name in fields.values and fields.values[name] is None:
        return None
    if default is None and name not in fields:
        return None
    cap = fields.get(name, float, default)
    if cap <= 0:
        raise fields.wrong(name, "above 0")
    return cap

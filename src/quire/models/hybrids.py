"""Families in which layers with a state stand beside attention: each turns the common plan into its
own.
"""

from __future__ import annotations

from dataclasses import replace

from quire.core.errors import ModelError
from quire.kernels.mlps import ACTIVATIONS
from quire.kernels.recurrence import StepRange
from quire.models import mixtures, variants
from quire.models.blueprint import Blueprint, ExpertNames, PartFactors, TensorNames
from quire.models.config import ConfigFields
from quire.models.recurrences import RecurrentNames, RecurrentPlan
from quire.models.shape import RecurrenceShape, find_family, recurrence_of

_QWEN = RecurrentNames(
    inputs=tuple(f"linear_attn.in_proj_{part}" for part in ("qkv", "z", "b", "a")),
    output="linear_attn.out_proj",
    convolution=("linear_attn.conv1d",),
    bias="linear_attn.dt_bias",
    decay="linear_attn.A_log",
    norm="linear_attn.norm",
)
_QWEN_NEXT = replace(_QWEN, inputs=tuple(f"linear_attn.in_proj_{part}" for part in ("qkvz", "ba")))
_QWEN_APART = replace(_QWEN, inputs=(*_QWEN.inputs[:2], _QWEN_NEXT.inputs[1]))


def _names_of_mamba(root: str) -> RecurrentNames:
    return RecurrentNames(
        inputs=(f"{root}.in_proj",),
        output=f"{root}.out_proj",
        convolution=(f"{root}.conv1d",),
        bias=f"{root}.dt_bias",
        decay=f"{root}.A_log",
        skip=f"{root}.D",
        norm=f"{root}.norm",
    )


_PLAIN = TensorNames()
_MAMBA = _names_of_mamba("mamba")
_LFM2 = RecurrentNames(("conv.in_proj",), "conv.out_proj", ("conv.conv",))
_KIMI = RecurrentNames(
    inputs=tuple(f"self_attn.{part}_proj" for part in ("q", "k", "v", "b", "f_a", "g_a")),
    output="self_attn.o_proj",
    convolution=tuple(f"self_attn.{part}_conv1d" for part in "qkv"),
    bias="self_attn.dt_bias",
    decay="self_attn.A_log",
    norm="self_attn.o_norm",
    gates="self_attn.g_b_proj",
    steps="self_attn.f_b_proj",
)

_SILU = ("silu",)  # what follows convolutions

_LFM3_ROTATIONS = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default"},
}

_LFM2_EXPERTS = ExpertNames(
    routers=("feed_forward.gate",),
    up=("feed_forward.experts.{}.w1", "feed_forward.experts.{}.w3"),
    down="feed_forward.experts.{}.w2",
    stacks=(("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"),),
    choice_biases=("feed_forward.expert_bias", "feed_forward.expert_bias.bias"),
)
_NEMOTRON_EXPERTS = ExpertNames(
    routers=("mixer.gate",),
    up=("mixer.experts.{}.up_proj",),
    down="mixer.experts.{}.down_proj",
    stacks=(("mixer.experts.up_proj", "mixer.experts.down_proj"),),
    shared_up=("mixer.shared_experts.up_proj",),
    shared_down="mixer.shared_experts.down_proj",
    choice_biases=mixtures.by_both("mixer.gate.e_score_correction"),
)


def qwen3_5(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Three of four layers follow the gated delta rule; the others' attention is gated."""
    shape = _shape(fields, plan, "qwen3_5_text")
    if not fields.get("attn_output_gate", bool, True):
        raise fields.wrong("attn_output_gate", "true")
    tiled = fields.get("linear_heads_tiled", bool, False)
    recurrent = RecurrentPlan(shape, _QWEN, plan.norm.eps, tiled=tiled)
    return replace(plan, recurrent=recurrent, gated_attention=True)


def qwen3_5_moe(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The same with mixtures, whose experts' weights always add up to 1."""
    renormalised = fields.holding({**fields.values, "norm_topk_prob": True})
    return mixtures.qwen(renormalised, qwen3_5(fields, plan))


def qwen3_next(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The same, but projections are stored by heads of keys; of GGUF files the last one alone."""
    plan = mixtures.qwen(fields, qwen3_5(fields, plan))
    assert plan.recurrent is not None
    apart = fields.get("linear_heads_apart", bool, False)
    by_head = replace(plan.recurrent, names=_QWEN_NEXT, by_key_head="all")
    if apart:
        by_head = replace(plan.recurrent, names=_QWEN_APART, by_key_head="strengths")
    return replace(plan, recurrent=by_head)


def kimi(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Most layers follow the delta rule, with a decay for each channel of keys; the others attend
    to latents and know no positions.
    """
    if not fields.get("mla_use_nope", bool, True):
        raise fields.wrong("mla_use_nope", "true")
    plan = mixtures.kimi(fields, plan)
    return replace(
        plan,
        ropes=(),
        rope_of=(None,) * len(plan.windows),
        recurrent=RecurrentPlan(_shape(fields, plan, "kimi_linear"), _KIMI, plan.norm.eps),
    )


def lfm2(fields: ConfigFields, plan: Blueprint, family: str = "lfm2") -> Blueprint:
    """Most layers are short convolutions between two gates."""
    shape = _shape(fields, plan, family)
    bias = fields.get("conv_bias", bool, False)
    recurrent = RecurrentPlan(
        shape, _LFM2, plan.norm.eps, biased=bias, biased_output=bias, biased_convolution=bias
    )
    return replace(plan, recurrent=recurrent)


def lfm3(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The same, with a window in some of the others; gates of heads and norms are optional."""
    if not fields.get("use_sandwich_norm", bool, True):
        plan = replace(plan, names=replace(plan.names, attention_output=None, mlp_output=None))
    gated = fields.get("use_attention_gate", bool, True)
    plan = variants.two_rotations(
        fields.holding({"rope_parameters": _LFM3_ROTATIONS, **fields.values}),
        replace(plan, gated_attention=gated, gates_by_head=gated),
        1e6,
        1e4,
        ("default", "proportional"),
    )
    return lfm2(fields, plan, "lfm3")


def lfm2_moe(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """The same with mixtures after the first layers."""
    names = _LFM2_EXPERTS
    if not fields.get("use_expert_bias", bool, True):
        names = replace(names, choice_biases=())
    return lfm2(fields, mixtures.by_sigmoid(fields, plan, names))


def granite(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Most layers are Mamba's; the others may know no positions. Experts are optional."""
    if fields.get("num_local_experts", int, 0):
        plan = mixtures.granite(fields, plan)
    else:
        plan = variants.granite(fields, plan)
    if fields.get("shared_gate_apart", bool, False):
        plan = replace(plan, names=replace(plan.names, up=_PLAIN.up, down=_PLAIN.down))
    positions = fields.get("position_embedding_type", str, "nope")
    if positions not in ("nope", "rope"):
        raise fields.wrong("position_embedding_type", "rope, nope or null")
    if positions == "nope":
        plan = replace(plan, ropes=(), rope_of=(None,) * len(plan.windows))
    return bamba(fields, plan)


def bamba(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """Most layers are Mamba's."""
    return _with_mamba(fields, plan, _MAMBA, "bamba", "mamba_conv_bias", "mamba_proj_bias")


def mamba2(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """All layers are Mamba's, and nothing else."""
    return _backbone(fields, plan, "mamba2")


def nemotron(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """A layer is Mamba's, attention without positions, or an MLP without gates."""
    plan = replace(
        plan,
        gated=False,
        activation=fields.choice("mlp_hidden_act", ACTIVATIONS, "relu2"),
        biases=replace(plan.biases, qkv=False, output=False),
    )
    if "moe_layers" in fields:
        if "moe_latent_size" in fields:
            raise fields.wrong("moe_latent_size", "null: experts of another width are not computed")
        plan = mixtures.grouped(fields, plan, _NEMOTRON_EXPERTS)
    return _backbone(fields, plan, "nemotron_h")


def falcon(fields: ConfigFields, plan: Blueprint) -> Blueprint:
    """All layers have attention and Mamba beside it, with a multiplier for everything."""
    plan = _with_mamba(fields, plan, _MAMBA, "falcon_h1", "mamba_conv_bias", "mamba_proj_bias")
    recurrent = plan.recurrent
    assert recurrent is not None

    def factor(name: str) -> float:
        return fields.get(name, float, 1.0)

    into = factor("attention_in_multiplier")
    into_state = factor("ssm_in_multiplier")
    gate, values, keys, queries, steps = _factors(fields, "ssm_multipliers", 5)
    if (recurrent.biased and into_state != 1) or (plan.biases.qkv and into != 1):
        raise ModelError(f"{fields.source}: projections with biases may have no input multipliers")
    mlp_gate, mlp = _factors(fields, "mlp_multipliers", 2)
    if not fields.get("mamba_rms_norm", bool, False):
        recurrent = replace(recurrent, names=replace(recurrent.names, norm=None), norm_width=0)
    recurrent = replace(
        recurrent,
        gate_first=not fields.get("mamba_norm_before_gate", bool, True),
        gate_factor=gate * into_state,
        taps=(queries * into_state, keys * into_state, values * into_state),
        steps=recurrent.steps._replace(factor=steps * into_state),
        biased_output=fields.get("projectors_bias", bool, False),
    )
    return replace(
        plan,
        recurrent=recurrent,
        attention_scale=plan.attention_scale * into**2 * factor("key_multiplier"),
        embedding_scale=factor("embedding_multiplier"),
        logits_scale=factor("lm_head_multiplier"),
        factors=PartFactors(
            factor("ssm_out_multiplier"), into * factor("attention_out_multiplier"), mlp, mlp_gate
        ),
    )


def _shape(fields: ConfigFields, plan: Blueprint, family: str) -> RecurrenceShape:
    facts = find_family(None, family)
    assert facts is not None
    fields.choice(
        "mamba_hidden_act" if "mamba_hidden_act" in fields else "hidden_act", _SILU, "silu"
    )
    return recurrence_of(fields, facts, len(plan.windows))


def _factors(fields: ConfigFields, name: str, count: int) -> list[float]:
    told = fields.get(name, list, [1.0] * count)
    if len(told) != count or not all(isinstance(one, float | int) for one in told):
        raise fields.wrong(name, f"{count} numbers")
    return [float(one) for one in told]


def _backbone(fields: ConfigFields, plan: Blueprint, family: str) -> Blueprint:
    """Mamba's own names, and no rotations."""
    names = _names_of_mamba("mixer")
    plan = replace(plan, ropes=(), rope_of=(None,) * len(plan.windows))
    return _with_mamba(fields, plan, names, family, "use_conv_bias", "use_bias")


def _with_mamba(
    fields: ConfigFields,
    plan: Blueprint,
    names: RecurrentNames,
    family: str,
    conv_bias: str,
    proj_bias: str,
) -> Blueprint:
    shape, bias = _shape(fields, plan, family), fields.get(proj_bias, bool, False)
    recurrent = RecurrentPlan(
        shape,
        names,
        plan.norm.eps,
        biased=bias,
        biased_output=bias,
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
        least, most = (float(str(one)) for one in told)
    except (TypeError, ValueError):
        raise fields.wrong("time_step_limit", "two numbers") from None
    if not 0 <= least <= most:
        raise fields.wrong("time_step_limit", "two numbers, the first at least 0 and no larger")
    return StepRange(1.0, least, most)

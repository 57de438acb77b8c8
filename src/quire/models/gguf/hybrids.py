"""Models that GGUF files hold whose layers keep states, one record for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.models.gguf.architecture import (
    DEEPSEEK_EXPERTS,
    EXPERTS,
    GRANITE,
    LATENT,
    LATENT_FIELDS,
    LAYER_NORM,
    MIXTRAL,
    QWEN_EXPERTS,
    RMS,
    SHARED,
    SHARED_ONE,
    W_PARTS,
    Architecture,
    mlp,
)

_DELTA = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_a": "linear_attn.A",
    "ssm_dt": "linear_attn.dt_proj",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "post_attention_norm": "post_attention_layernorm",
}
_DELTA_FIELDS = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.inner_size": "linear_inner_size",
    "full_attention_interval": "full_attention_interval",
    "nextn_predict_layers": "num_nextn_predict_layers",
}
_STATE_SPACE = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
    "ssm.inner_size": "mamba_inner_size",
}


def _mamba(root: str) -> dict[str, str]:
    return {
        "ssm_in": f"{root}.in_proj",
        "ssm_conv1d": f"{root}.conv1d",
        "ssm_dt": f"{root}.dt_proj",
        "ssm_a": f"{root}.A",
        "ssm_d": f"{root}.D",
        "ssm_norm": f"{root}.norm",
        "ssm_out": f"{root}.out_proj",
    }


_GRANITE_HYBRID: Mapping[str, Any] = {
    "interleaved": True, "states": "mamba",
    "fields": {
        **GRANITE, **_STATE_SPACE, **SHARED_ONE, EXPERTS: "num_local_experts",
        "rope.scaling.finetuned": "position_embedding_type",
    },
    "told_by_tensors": {"ssm_conv1d.bias": "mamba_conv_bias"},
}  # fmt: skip
_FALCON_H1 = {
    **_mamba("mamba"),
    "output_norm": "model.final_layernorm",
    "ffn_norm": "pre_ff_layernorm.weight",  # its name there ends before that
    **mlp("feed_forward"),
}
_BACKBONE = {
    **_mamba("mixer"),
    "token_embd": "model.embeddings",
    "output_norm": "model.norm_f",
    "attn_norm": "norm",
    "attn_q": "mixer.q_proj",
    "attn_k": "mixer.k_proj",
    "attn_v": "mixer.v_proj",
    "attn_output": "mixer.o_proj",
    "ffn_up": "mixer.up_proj",
    "ffn_down": "mixer.down_proj",
    "ffn_gate_inp": "mixer.gate",
    "exp_probs_b": "mixer.gate.e_score_correction",
    "ffn_up_exps": "mixer.experts.{}.up_proj",
    "ffn_down_exps": "mixer.experts.{}.down_proj",
    "ffn_up_shexp": "mixer.shared_experts.up_proj",
    "ffn_down_shexp": "mixer.shared_experts.down_proj",
}
_NEMOTRON_H: Mapping[str, Any] = {
    "names": _BACKBONE, "states": "mamba", "alone": True,
    "eps": (LAYER_NORM[0], "layer_norm_epsilon"),
    "told_by_tensors": {"ssm_conv1d.bias": "use_conv_bias"},
}  # fmt: skip
_LFM2 = {
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_norm": "ffn_norm",
    **mlp("feed_forward", parts=W_PARTS),
    "token_embd_norm": "model.embedding_norm",
    "output_norm": "model.embedding_norm",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
}
_LFM2_EXPERTS = {
    **_LFM2,
    "ffn_gate_inp": "feed_forward.gate",
    "exp_probs_b": "feed_forward.expert_bias",
    **mlp("feed_forward.experts.{}", "_exps", W_PARTS),
}

_KIMI = {
    **LATENT,
    "ssm_conv1d_q": "self_attn.q_conv1d",
    "ssm_conv1d_k": "self_attn.k_conv1d",
    "ssm_conv1d_v": "self_attn.v_conv1d",
    "ssm_f_a": "self_attn.f_a_proj",
    "ssm_f_b": "self_attn.f_b_proj",
    "ssm_g_a": "self_attn.g_a_proj",
    "ssm_g_b": "self_attn.g_b_proj",
    "ssm_beta": "self_attn.b_proj",
    "ssm_a": "self_attn.A",
    "ssm_dt": "self_attn.dt_proj",
    "ssm_norm": "self_attn.o_norm",
    **MIXTRAL,
    "ffn_gate_inp": "block_sparse_moe.gate",
    "exp_probs_b": "block_sparse_moe.gate.e_score_correction",
    **mlp("block_sparse_moe.shared_experts", "_shexp"),
}

HYBRIDS = (
    Architecture(
        "qwen3next", "qwen3_next", "Qwen3NextForCausalLM", EXPERTS, norms_with_one=True,
        names=_DELTA, fields={**QWEN_EXPERTS, **_DELTA_FIELDS}, fixed={"norm_topk_prob": True},
        states="linear_attention", told_by_tensors={"attn_gate.weight": "linear_heads_apart"},
    ),
    Architecture(
        "qwen35", "qwen3_5_text", "Qwen3_5ForCausalLM", norms_with_one=True, names=_DELTA,
        fields=_DELTA_FIELDS, fixed={"linear_heads_tiled": True}, states="linear_attention",
    ),
    Architecture(
        "qwen35moe", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", EXPERTS, norms_with_one=True,
        names=_DELTA, fields={**QWEN_EXPERTS, **_DELTA_FIELDS},
        fixed={"linear_heads_tiled": True}, states="linear_attention",
    ),
    Architecture(
        "lfm2", "lfm2", "Lfm2ForCausalLM", names=_LFM2, eps=(RMS[0], "norm_eps"),
        fields={"shortconv.l_cache": "conv_L_cache"}, states="conv",
    ),
    Architecture(
        "lfm2moe", "lfm2_moe", "Lfm2MoeForCausalLM", EXPERTS, names=_LFM2_EXPERTS, sigmoid=True,
        eps=(RMS[0], "norm_eps"), states="conv",
        fields={
            "shortconv.l_cache": "conv_L_cache",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_weights_scale": "routed_scaling_factor",
            "leading_dense_block_count": "num_dense_layers",
        },
        told_by_tensors={"exp_probs_b.bias": "use_expert_bias"},
    ),
    Architecture(
        "granitehybrid", "granitemoehybrid", "GraniteMoeHybridForCausalLM", EXPERTS,
        names={
            **_mamba("mamba"), **SHARED, "ffn_gate_inp": "block_sparse_moe.router.layer",
        },
        fixed={"shared_gate_apart": True}, **_GRANITE_HYBRID,
    ),
    Architecture(
        "granitehybrid", "granitemoehybrid", "GraniteMoeHybridForCausalLM",
        names=_mamba("mamba"), fixed={"shared_gate_apart": True, "num_local_experts": 0},
        **_GRANITE_HYBRID,
    ),
    Architecture(
        "falcon-h1", "falcon_h1", "FalconH1ForCausalLM", names=_FALCON_H1, fields=_STATE_SPACE,
        fixed={"mamba_norm_before_gate": False}, states="mamba",
        told_by_tensors={
            "ssm_conv1d.bias": "mamba_conv_bias", "ssm_norm.weight": "mamba_rms_norm",
        },
    ),
    Architecture(
        "nemotron_h", "nemotron_h", "NemotronHForCausalLM", fields=_STATE_SPACE,
        fixed={"num_local_experts": 0}, **_NEMOTRON_H,
    ),
    Architecture(
        "nemotron_h_moe", "nemotron_h", "NemotronHForCausalLM", EXPERTS, sigmoid=True,
        fields={
            **_STATE_SPACE, **DEEPSEEK_EXPERTS,
            "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
        },
        **_NEMOTRON_H,
    ),
    Architecture(
        "mamba2", "mamba2", "Mamba2ForCausalLM", names=_BACKBONE, alone=True, states="mamba",
        fields=_STATE_SPACE, eps=(RMS[0], "layer_norm_epsilon"),
        told_by_tensors={"ssm_conv1d.bias": "use_conv_bias"},
    ),
    Architecture(
        "kimi-linear", "kimi_linear", "KimiLinearForCausalLM", EXPERTS, names=_KIMI, latent=True,
        states="linear_attention", sigmoid=True, fixed={"norm_topk_prob": True},
        fields={
            **DEEPSEEK_EXPERTS, **LATENT_FIELDS, "kda.head_dim": "linear_head_dim",
            "ssm.conv_kernel": "linear_conv_kernel_dim",
        },
    ),
)  # fmt: skip

"""Models that GGUF files hold, one record for each, and how their tensors differ there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.models.gguf.architecture import EXPERTS, LAYER_NORM, RMS, Architecture

_PROJECTIONS, _W = ("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")


def _mlp(root: str, kind: str = "", parts: Sequence[str] = _PROJECTIONS) -> dict[str, str]:
    """Names of gate, up and down below ``root``. kind: what their names in GGUF files end with."""
    each = zip(("gate", "up", "down"), parts, strict=True)
    return {f"ffn_{name}{kind}": f"{root}.{part}" for name, part in each}


_AROUND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_QWEN_EXPERTS = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_MIXTRAL = _mlp("block_sparse_moe.experts.{}", "_exps", _W)
_LOGITS = {"logit_scale": "logit_scale"}
_SECTIONS = ("rope.dimension_sections",)  # of positions, which are one where there are no images
_WINDOW = {"attention.sliding_window": "sliding_window"}
_GPT_OSS = {
    "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}

_SHARED = _mlp("mlp.shared_experts", "_shexp")
_SHARED_ONE = {"expert_shared_feed_forward_length": "shared_intermediate_size"}
_SHARED_MLP = _mlp("mlp.shared_mlp", "_shexp")
_CHOSEN_BY_BIAS = {**_SHARED, "exp_probs_b": "mlp.gate.e_score_correction"}
_DEEPSEEK_EXPERTS = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "nextn_predict_layers": "num_nextn_predict_layers",
}
_QUERIES_BIASED = {"attn_q.bias": "attention_bias"}

_LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.kv_b_proj.keys.{}",
    "attn_v_b": "self_attn.kv_b_proj.values.{}",
}
_LATENT_FIELDS = {
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
}
_LATENT_EXPERTS: Mapping[str, Any] = {
    "told_by": EXPERTS, "latent": True, "yarn_weight": 10.0,
    "names": {**_LATENT, **_CHOSEN_BY_BIAS},
    "fields": {**_DEEPSEEK_EXPERTS, **_LATENT_FIELDS},
}  # fmt: skip

_GIVEN_NAMES = {
    **_AROUND,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_GEMMA_3N_NAMES = {
    **_GIVEN_NAMES,
    "altup_proj": "model.altup_projections.{}",
    "altup_unembd_proj": "model.altup_unembed_projections.{}",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_correct_coef": "altup.correction_coefs",
    "altup_correct_scale": "altup.correct_output_scale",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}
_GEMMA_4_NAMES = {
    **_GIVEN_NAMES,
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps": "experts.{}.gate_up_proj",
    "ffn_down_exps": "experts.{}.down_proj",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
}
_GIVEN_FIELDS = {
    **_WINDOW,
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
}
_GEMMA_3N_FIELDS = {
    **_GIVEN_FIELDS,
    "altup.num_inputs": "altup_num_inputs",
    "altup.active_idx": "altup_active_idx",
}
_GEMMA_4_FIELDS = {
    **_GIVEN_FIELDS,
    "attention.key_length": "global_head_dim",
    "attention.key_length_swa": "head_dim",
}
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
        **_GRANITE, **_STATE_SPACE, **_SHARED_ONE, EXPERTS: "num_local_experts",
        "rope.scaling.finetuned": "position_embedding_type",
    },
    "told_by_tensors": {"ssm_conv1d.bias": "mamba_conv_bias"},
}  # fmt: skip
_FALCON_H1 = {
    **_mamba("mamba"),
    "output_norm": "model.final_layernorm",
    "ffn_norm": "pre_ff_layernorm.weight",  # its name there ends before that
    **_mlp("feed_forward"),
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
    **_mlp("feed_forward", parts=_W),
    "token_embd_norm": "model.embedding_norm",
    "output_norm": "model.embedding_norm",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
}
_KIMI = {
    **_LATENT,
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
    **_MIXTRAL,
    "ffn_gate_inp": "block_sparse_moe.gate",
    "exp_probs_b": "block_sparse_moe.gate.e_score_correction",
    **_mlp("block_sparse_moe.shared_experts", "_shexp"),
}
_HUNYUAN = {
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}
_LLAMA_4 = {
    **_mlp("feed_forward"),
    "ffn_gate_inp": "feed_forward.router",
    **_mlp("feed_forward.experts.{}", "_exps"),
    **_mlp("feed_forward.shared_expert", "_shexp"),
}
_LLAMA_4_FIELDS = {
    "feed_forward_length": "intermediate_size_mlp",
    "expert_feed_forward_length": "intermediate_size",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
}
_LFM2_EXPERTS = {
    **_LFM2,
    "ffn_gate_inp": "feed_forward.gate",
    "exp_probs_b": "feed_forward.expert_bias",
    **_mlp("feed_forward.experts.{}", "_exps", _W),
}

ARCHITECTURES = (
    Architecture("llama", "llama", "LlamaForCausalLM", interleaved=True),
    Architecture(
        "llama", "mixtral", "MixtralForCausalLM", EXPERTS, interleaved=True, names=_MIXTRAL
    ),
    Architecture("qwen2", "qwen2", "Qwen2ForCausalLM"),
    Architecture("qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM", EXPERTS, fields=_QWEN_EXPERTS),
    Architecture("qwen2vl", "qwen2", "Qwen2ForCausalLM", aside=_SECTIONS),
    Architecture("qwen3", "qwen3", "Qwen3ForCausalLM"),
    Architecture(
        "qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", EXPERTS, fields=_QWEN_EXPERTS,
        fixed={"norm_topk_prob": True},
    ),
    Architecture(
        "qwen3next", "qwen3_next", "Qwen3NextForCausalLM", EXPERTS, norms_with_one=True,
        names=_DELTA, fields={**_QWEN_EXPERTS, **_DELTA_FIELDS}, fixed={"norm_topk_prob": True},
        states="linear_attention", told_by_tensors={"attn_gate.weight": "linear_heads_apart"},
    ),
    Architecture(
        "qwen35", "qwen3_5_text", "Qwen3_5ForCausalLM", norms_with_one=True, names=_DELTA,
        fields=_DELTA_FIELDS, fixed={"linear_heads_tiled": True}, states="linear_attention",
    ),
    Architecture(
        "qwen35moe", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", EXPERTS, norms_with_one=True,
        names=_DELTA, fields={**_QWEN_EXPERTS, **_DELTA_FIELDS},
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
            **_mamba("mamba"), **_SHARED, "ffn_gate_inp": "block_sparse_moe.router.layer",
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
            **_STATE_SPACE, **_DEEPSEEK_EXPERTS,
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
        "deepseek2", "deepseek_v3", "DeepseekV3ForCausalLM", sigmoid=True, **_LATENT_EXPERTS
    ),
    Architecture(
        "deepseek2", "deepseek_v2", "DeepseekV2ForCausalLM",
        fixed={"topk_method": "group_limited_greedy"}, **_LATENT_EXPERTS,
    ),
    Architecture(
        "deepseek2", "youtu", "YoutuForCausalLM", names=_LATENT, fields=_LATENT_FIELDS,
        latent=True, yarn_weight=10.0, aside=("leading_dense_block_count", "expert_weights_scale"),
    ),
    Architecture(
        "mistral4", "mistral4", "Mistral4ForCausalLM", growth=0.1, **_LATENT_EXPERTS
    ),
    Architecture(
        "kimi-linear", "kimi_linear", "KimiLinearForCausalLM", EXPERTS, names=_KIMI, latent=True,
        states="linear_attention", sigmoid=True, fixed={"norm_topk_prob": True},
        fields={
            **_DEEPSEEK_EXPERTS, **_LATENT_FIELDS, "kda.head_dim": "linear_head_dim",
            "ssm.conv_kernel": "linear_conv_kernel_dim",
        },
    ),
    Architecture(
        "minicpm3", "minicpm3", "MiniCPM3ForCausalLM", names=_LATENT, fields=_LATENT_FIELDS,
        latent=True,
    ),
    Architecture(
        "mistral3", "ministral3", "Ministral3ForCausalLM", interleaved=True, yarn_weight=1.0,
    ),
    Architecture(
        "phi2", "phi", "PhiForCausalLM", eps=LAYER_NORM,
        names={"output_norm": "model.final_layernorm", "attn_output": "self_attn.dense",
               "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
    ),
    Architecture(
        "phi3", "phi3", "Phi3ForCausalLM", names={"ffn_up": "mlp.gate_up_proj"}, fields=_WINDOW,
    ),
    Architecture(
        "phimoe", "phimoe", "PhimoeForCausalLM", EXPERTS, names=_MIXTRAL, fields=_WINDOW,
        longrope_factor=1.243163121016122, told_by_tensors={"output.bias": "lm_head_bias"},
    ),
    Architecture("gemma", "gemma", "GemmaForCausalLM", norms_with_one=True),
    Architecture(
        "gemma2", "gemma2", "Gemma2ForCausalLM", norms_with_one=True, names=_AROUND,
        fields={**_CAPS, **_WINDOW},
        fixed={"sliding_window": 4096}, scaled_by_share=46,
    ),
    Architecture(
        "gemma3", "gemma3_text", "Gemma3ForCausalLM", norms_with_one=True, names=_AROUND,
        fields={"final_logit_softcapping": "final_logit_softcapping", **_WINDOW},
        scaled_by_share=62, local_theta=10_000.0,
    ),
    Architecture(
        "gemma3n", "gemma3n_text", "Gemma3nForCausalLM", names=_GEMMA_3N_NAMES,
        fields=_GEMMA_3N_FIELDS, local_theta=10_000.0, streams=True,
    ),
    Architecture(
        "gemma4", "gemma4_text", "Gemma4ForCausalLM", names=_GEMMA_4_NAMES,
        fields=_GEMMA_4_FIELDS, fixed={"hidden_size_per_layer_input": 0}, local_theta=10_000.0,
        by_layer=True,
    ),
    Architecture(
        "gemma4", "gemma4_text", "Gemma4ForCausalLM", EXPERTS, names=_GEMMA_4_NAMES,
        fields={**_GEMMA_4_FIELDS, "expert_feed_forward_length": "moe_intermediate_size"},
        fixed={"hidden_size_per_layer_input": 0, "enable_moe_block": True}, local_theta=10_000.0,
        by_layer=True,
    ),
    Architecture("olmo2", "olmo2", "Olmo2ForCausalLM", names=_AROUND),
    Architecture(
        "olmo2", "olmo3", "Olmo3ForCausalLM", "attention.sliding_window", names=_AROUND,
        fields=_WINDOW, alike_theta=True,
    ),
    Architecture("olmoe", "olmoe", "OlmoeForCausalLM", EXPERTS),
    Architecture(
        "gpt-oss", "gpt_oss", "GptOssForCausalLM", EXPERTS, names=_GPT_OSS, fields=_WINDOW,
        whole_yarn=False,
    ),
    Architecture("granite", "granite", "GraniteForCausalLM", interleaved=True, fields=_GRANITE),
    Architecture(
        "granitemoe", "granitemoeshared", "GraniteMoeSharedForCausalLM",
        "expert_shared_feed_forward_length", interleaved=True,
        names={**_SHARED, "ffn_gate_inp": "block_sparse_moe.router.layer"},
        fields={**_GRANITE, **_SHARED_ONE}, fixed={"shared_gate_apart": True},
    ),
    Architecture(
        "granitemoe", "granitemoe", "GraniteMoeForCausalLM", EXPERTS, interleaved=True,
        names={"ffn_gate_inp": "block_sparse_moe.router.layer"}, fields=_GRANITE,
    ),
    Architecture("smollm3", "smollm3", "SmolLM3ForCausalLM", interleaved=True),
    Architecture(
        "starcoder2", "starcoder2", "Starcoder2ForCausalLM", eps=(LAYER_NORM[0], "norm_epsilon"),
        names={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    ),
    Architecture(
        "stablelm", "stablelm", "StableLmForCausalLM", eps=LAYER_NORM,
        fields={"use_parallel_residual": "use_parallel_residual"},
    ),
    Architecture("command-r", "cohere", "CohereForCausalLM", eps=LAYER_NORM, fields=_LOGITS),
    Architecture(
        "cohere2", "cohere2", "Cohere2ForCausalLM", eps=LAYER_NORM, fields={**_LOGITS, **_WINDOW},
    ),
    Architecture(
        "cohere2moe", "cohere2_moe", "Cohere2MoeForCausalLM", EXPERTS, sigmoid=True,
        eps=LAYER_NORM, names=_SHARED, fixed={"expert_selection_fn": "sigmoid"},
        fields={
            **_LOGITS, **_WINDOW, RMS[0]: RMS[1],
            "feed_forward_length": "prefix_dense_intermediate_size",
            "expert_feed_forward_length": "intermediate_size",
            "expert_shared_count": "num_shared_experts",
            "expert_weights_norm": "norm_topk_prob",
            "leading_dense_block_count": "first_k_dense_replace",
            "nextn_predict_layers": "num_nextn_predict_layers",
        },
        aside=("expert_shared_feed_forward_length",),
    ),
    Architecture("arcee", "arcee", "ArceeForCausalLM", interleaved=True),
    Architecture(
        "nemotron", "nemotron", "NemotronForCausalLM", norms_with_one=True,
        eps=(LAYER_NORM[0], "norm_eps"),
    ),
    Architecture(
        "seed_oss", "seed_oss", "SeedOssForCausalLM",
        names={"post_attention_norm": "post_attention_layernorm"},
        told_by_tensors={**_QUERIES_BIASED, "attn_output.bias": "attention_out_bias"},
    ),
    Architecture(
        "apertus", "apertus", "ApertusForCausalLM",
        names={"attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"},
        fixed={"rope_scaling": {"rope_type": "default"}},  # it is stretched where nothing is said
        numbers={
            f"xielu.{name}": f"mlp.act_fn.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")
        },
    ),
    Architecture("hunyuan-dense", "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", names=_HUNYUAN),
    Architecture(
        "hunyuan-moe", "hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", EXPERTS,
        names={
            **_HUNYUAN, **_SHARED_MLP, "ffn_gate_inp": "mlp.gate.wg",
        },
        fields={
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_count": "n_shared_experts", **_SHARED_ONE,
        },
    ),
    Architecture(
        "llama4", "llama4_text", "Llama4ForCausalLM", EXPERTS, names=_LLAMA_4, sigmoid=True,
        fields=_LLAMA_4_FIELDS,
        fixed={  # its files say nothing of it
            "attention_chunk_size": 8192, "no_rope_layer_interval": 4, "use_qk_norm": True,
            "attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1,
        },
        told_by_count=(EXPERTS, 128, {"use_qk_norm": False}),
    ),
    Architecture("exaone4", "exaone4", "Exaone4ForCausalLM", names=_AROUND, fields=_WINDOW),
    Architecture(
        "glm4", "glm4", "Glm4ForCausalLM", told_by_tensors=_QUERIES_BIASED,
        names={
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_up": "mlp.gate_up_proj",
        },
    ),
    Architecture("ernie4_5", "ernie4_5", "Ernie4_5ForCausalLM"),
    Architecture(
        "ernie4_5-moe", "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", EXPERTS,
        names={**_SHARED, "exp_probs_b": "mlp.gate.moe_statics.e_score_correction"},
        fields={
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_count": "moe_num_shared_experts",
            "leading_dense_block_count": "moe_layer_start_index",
            "interleave_moe_layer_step": "moe_layer_interval",
        },
        aside=("expert_shared_feed_forward_length",),
    ),
    Architecture(
        "dots1", "dots1", "Dots1ForCausalLM", EXPERTS, names=_CHOSEN_BY_BIAS,
        fields=_DEEPSEEK_EXPERTS, sigmoid=True,
    ),
    Architecture(
        "glm4moe", "glm4_moe", "Glm4MoeForCausalLM", EXPERTS, fields=_DEEPSEEK_EXPERTS,
        sigmoid=True,
        names={**_CHOSEN_BY_BIAS, "post_attention_norm": "post_attention_layernorm"},
        told_by_tensors={**_QUERIES_BIASED, "attn_q_norm.weight": "use_qk_norm"},
    ),
    Architecture(
        "minimax-m2", "minimax_m2", "MiniMaxM2ForCausalLM", EXPERTS,
        names={**_MIXTRAL, "exp_probs_b": "mlp.e_score_correction"},
        fields={"expert_feed_forward_length": "moe_intermediate_size"}, sigmoid=True,
    ),
    Architecture(
        "afmoe", "afmoe", "AfmoeForCausalLM", EXPERTS, sigmoid=True,
        names={
            **_SHARED,
            "attn_gate": "self_attn.gate_proj",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_mlp_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_gate_inp": "mlp.router.gate",
            "exp_probs_b": "mlp.expert_bias",
        },
        fields={
            **_WINDOW,
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_count": "num_shared_experts",
            "leading_dense_block_count": "num_dense_layers",
            "expert_weights_norm": "route_norm",
            "expert_weights_scale": "route_scale",
        },
        fixed={"mup_enabled": True, "global_attn_every_n_layers": 4},  # its files say nothing of it
    ),
    Architecture(
        "exaone-moe", "exaone_moe", "ExaoneMoeForCausalLM", EXPERTS, sigmoid=True,
        names={**_SHARED, "exp_probs_b": "mlp.e_score_correction"},
        fields={**_DEEPSEEK_EXPERTS, **_WINDOW, "expert_shared_count": "num_shared_experts"},
        aside=("expert_shared_feed_forward_length",),
    ),
    Architecture(
        "hy_v3", "hy_v3", "HYV3ForCausalLM", EXPERTS, sigmoid=True,
        names={
            **_SHARED_MLP,
            "ffn_gate_inp": "mlp.router.gate",
            "exp_probs_b": "mlp.expert_bias",
        },
        fields={
            **_SHARED_ONE,
            "expert_feed_forward_length": "moe_intermediate_size",
            "leading_dense_block_count": "first_k_dense_replace",
            "expert_weights_scale": "router_scaling_factor",
            "nextn_predict_layers": "num_nextn_predict_layers",
        },
    ),
    Architecture(
        "mellum", "mellum", "MellumForCausalLM", EXPERTS, alike_theta=True,
        fixed={"norm_topk_prob": True},
        fields={**_WINDOW, "expert_feed_forward_length": "moe_intermediate_size"},
    ),
    Architecture("jais2", "jais2", "Jais2ForCausalLM", eps=LAYER_NORM),
    Architecture(
        "granite_swa", "granite_swa", "GraniteSWAForCausalLM", interleaved=True,
        names={"attn_sinks": "self_attn.sinks"}, fields={**_GRANITE, **_WINDOW},
    ),
    Architecture(
        "granite_swa", "granitemoe_swa", "GraniteMoeSWAForCausalLM", EXPERTS, interleaved=True,
        names={
            "attn_sinks": "self_attn.sinks",
            "ffn_gate_inp": "block_sparse_moe.router.layer",
            "ffn_gate_up_exps": "mlp.experts.{}.gate_up_proj",
            "ffn_up_shexp": "shared_mlp.input_linear",
            "ffn_down_shexp": "shared_mlp.output_linear",
        },
        fields={**_GRANITE, **_WINDOW, **_SHARED_ONE},
    ),
)  # fmt: skip

"""Models that GGUF files hold, one record for each, and how their tensors differ there."""

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
    Architecture,
    mlp,
)
from quire.models.gguf.hybrids import HYBRIDS

_AROUND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_LOGITS = {"logit_scale": "logit_scale"}
_SECTIONS = ("rope.dimension_sections",)  # of positions, which are one where there are no images
_DEEP = ("n_deepstack_layers",)  # which images are added to
_FALCON = {
    "token_embd": "transformer.word_embeddings",
    "output_norm": "transformer.ln_f",
    "attn_norm_2": "ln_attn",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_WINDOW = {"attention.sliding_window": "sliding_window"}
_GPT_OSS = {
    "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}

_SHARED_MLP = mlp("mlp.shared_mlp", "_shexp")
_CHOSEN_BY_BIAS = {**SHARED, "exp_probs_b": "mlp.gate.e_score_correction"}
_QUERIES_BIASED = {"attn_q.bias": "attention_bias"}

_LATENT_EXPERTS: Mapping[str, Any] = {
    "told_by": EXPERTS, "latent": True, "yarn_weight": 10.0,
    "names": {**LATENT, **_CHOSEN_BY_BIAS},
    "fields": {**DEEPSEEK_EXPERTS, **LATENT_FIELDS},
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
_HUNYUAN = {
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}
_LLAMA_4 = {
    **mlp("feed_forward"),
    "ffn_gate_inp": "feed_forward.router",
    **mlp("feed_forward.experts.{}", "_exps"),
    **mlp("feed_forward.shared_expert", "_shexp"),
}
_LLAMA_4_FIELDS = {
    "feed_forward_length": "intermediate_size_mlp",
    "expert_feed_forward_length": "intermediate_size",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
}
_INDEX_NAMES = {
    "indexer.attn_q_b": "self_attn.indexer.wq_b",
    "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.k_norm": "self_attn.indexer.k_norm",
    "indexer.proj": "self_attn.indexer.weights_proj",
}
_INDEX_FIELDS = {
    "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim",
    "attention.indexer.top_k": "index_topk",
}
_INDEXED: Mapping[str, Any] = {
    **_LATENT_EXPERTS, "sigmoid": True,
    "names": {**_LATENT_EXPERTS["names"], **_INDEX_NAMES},
    "fields": {**_LATENT_EXPERTS["fields"], **_INDEX_FIELDS},
}  # fmt: skip

ARCHITECTURES = (
    Architecture("llama", "llama", "LlamaForCausalLM", interleaved=True),
    Architecture(
        "llama", "mixtral", "MixtralForCausalLM", EXPERTS, interleaved=True, names=MIXTRAL
    ),
    Architecture("qwen2", "qwen2", "Qwen2ForCausalLM"),
    Architecture("qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM", EXPERTS, fields=QWEN_EXPERTS),
    Architecture("qwen2vl", "qwen2", "Qwen2ForCausalLM", aside=_SECTIONS),
    Architecture("qwen3", "qwen3", "Qwen3ForCausalLM"),
    Architecture("qwen3vl", "qwen3", "Qwen3ForCausalLM", aside=(*_SECTIONS, *_DEEP)),
    Architecture(
        "qwen3vlmoe", "qwen3_moe", "Qwen3MoeForCausalLM", EXPERTS, fields=QWEN_EXPERTS,
        fixed={"norm_topk_prob": True}, aside=(*_SECTIONS, *_DEEP),
    ),
    Architecture("exaone", "llama", "LlamaForCausalLM"),
    Architecture("internlm2", "llama", "LlamaForCausalLM", interleaved=True),
    # Older files do not say the multipliers, nor does any config of this family.
    Architecture(
        "minicpm", "granite", "GraniteForCausalLM", "embedding_scale", interleaved=True,
        fields=GRANITE,
    ),
    Architecture(
        "chatglm", "glm", "GlmForCausalLM", names={"ffn_up": "mlp.gate_up_proj"}, parted=True,
        told_by_tensors=_QUERIES_BIASED,
    ),
    Architecture(
        "falcon", "falcon", "FalconForCausalLM", layers="transformer.h",
        eps=(LAYER_NORM[0], "layer_norm_epsilon"), names=_FALCON,
        fields={
            "attention.head_count_kv": "num_kv_heads", "feed_forward_length": "ffn_hidden_size",
        },
        fixed={"heads_in_order": True, "multi_query": False},
        told_by_tensors={"attn_norm_2.weight": "new_decoder_architecture"},
    ),
    Architecture(
        "bailingmoe2", "bailing_moe", "BailingMoeV2ForCausalLM", EXPERTS, sigmoid=True,
        names={
            **_CHOSEN_BY_BIAS,
            "token_embd": "model.word_embeddings",
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "attn_q_norm": "attention.query_layernorm",
            "attn_k_norm": "attention.key_layernorm",
        },
        fields=DEEPSEEK_EXPERTS, aside=("expert_shared_feed_forward_length",),
        told_by_tensors={"attn_q_norm.weight": "use_qk_norm", "attn_qkv.bias": "use_qkv_bias"},
    ),
    Architecture(
        "mimo2", "mimo_v2_flash", "MiMoV2FlashForCausalLM", EXPERTS, sigmoid=True, parted=True,
        other_heads=True, local_theta=10_000.0,
        names={"exp_probs_b": "mlp.gate.e_score_correction", "attn_sinks": "self_attn.sinks"},
        fields={
            "expert_feed_forward_length": "moe_intermediate_size",
            "attention.sliding_window": "sliding_window_size",  # of tokens before one
            "attention.value_length": "v_head_dim",
            "attention.value_scale": "attention_value_scale",
            "expert_weights_norm": "norm_topk_prob",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_group_count": "n_group",
            "expert_group_used_count": "topk_group",
            "nextn_predict_layers": "num_nextn_predict_layers",
        },
        told_by_tensors={**_QUERIES_BIASED, "attn_sinks.weight": "add_swa_attention_sink_bias"},
    ),
    Architecture("deepseek32", "deepseek_v32", "DeepseekV32ForCausalLM", **_INDEXED),
    Architecture("glm-dsa", "glm_moe_dsa", "GlmMoeDsaForCausalLM", **_INDEXED),
    Architecture(
        "qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", EXPERTS, fields=QWEN_EXPERTS,
        fixed={"norm_topk_prob": True},
    ),
    Architecture(
        "deepseek2", "deepseek_v3", "DeepseekV3ForCausalLM", sigmoid=True, **_LATENT_EXPERTS
    ),
    Architecture(
        "deepseek2", "deepseek_v2", "DeepseekV2ForCausalLM",
        fixed={"topk_method": "group_limited_greedy"}, **_LATENT_EXPERTS,
    ),
    Architecture(
        "deepseek2", "youtu", "YoutuForCausalLM", names=LATENT, fields=LATENT_FIELDS,
        latent=True, yarn_weight=10.0, aside=("leading_dense_block_count", "expert_weights_scale"),
    ),
    Architecture(
        "mistral4", "mistral4", "Mistral4ForCausalLM", growth=0.1, **_LATENT_EXPERTS
    ),
    Architecture(
        "minicpm3", "minicpm3", "MiniCPM3ForCausalLM", names=LATENT, fields=LATENT_FIELDS,
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
        "phimoe", "phimoe", "PhimoeForCausalLM", EXPERTS, names=MIXTRAL, fields=_WINDOW,
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
    Architecture("granite", "granite", "GraniteForCausalLM", interleaved=True, fields=GRANITE),
    Architecture(
        "granitemoe", "granitemoeshared", "GraniteMoeSharedForCausalLM",
        "expert_shared_feed_forward_length", interleaved=True,
        names={**SHARED, "ffn_gate_inp": "block_sparse_moe.router.layer"},
        fields={**GRANITE, **SHARED_ONE}, fixed={"shared_gate_apart": True},
    ),
    Architecture(
        "granitemoe", "granitemoe", "GraniteMoeForCausalLM", EXPERTS, interleaved=True,
        names={"ffn_gate_inp": "block_sparse_moe.router.layer"}, fields=GRANITE,
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
        eps=LAYER_NORM, names=SHARED, fixed={"expert_selection_fn": "sigmoid"},
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
            "expert_shared_count": "n_shared_experts", **SHARED_ONE,
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
        names={**SHARED, "exp_probs_b": "mlp.gate.moe_statics.e_score_correction"},
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
        fields=DEEPSEEK_EXPERTS, sigmoid=True,
    ),
    Architecture(
        "glm4moe", "glm4_moe", "Glm4MoeForCausalLM", EXPERTS, fields=DEEPSEEK_EXPERTS,
        sigmoid=True,
        names={**_CHOSEN_BY_BIAS, "post_attention_norm": "post_attention_layernorm"},
        told_by_tensors={**_QUERIES_BIASED, "attn_q_norm.weight": "use_qk_norm"},
    ),
    Architecture(
        "minimax-m2", "minimax_m2", "MiniMaxM2ForCausalLM", EXPERTS,
        names={**MIXTRAL, "exp_probs_b": "mlp.e_score_correction"},
        fields={"expert_feed_forward_length": "moe_intermediate_size"}, sigmoid=True,
    ),
    Architecture(
        "afmoe", "afmoe", "AfmoeForCausalLM", EXPERTS, sigmoid=True,
        names={
            **SHARED,
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
        names={**SHARED, "exp_probs_b": "mlp.e_score_correction"},
        fields={**DEEPSEEK_EXPERTS, **_WINDOW, "expert_shared_count": "num_shared_experts"},
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
            **SHARED_ONE,
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
    Architecture(
        "muse-glimmer", "muse_glimmer_text", "MuseGlimmerForCausalLM", interleaved=True,
        norms_with_one=True, names={**_AROUND, "attn_gate": "self_attn.gate_proj"},
        fields={
            **_WINDOW, "final_logit_softcapping": "final_logit_softcapping",
            "logit_scale": "output_multiplier",
        },
        fixed={"norms_alike": True},
    ),
    Architecture("jais2", "jais2", "Jais2ForCausalLM", eps=LAYER_NORM),
    Architecture(
        "granite_swa", "granite_swa", "GraniteSWAForCausalLM", interleaved=True,
        names={"attn_sinks": "self_attn.sinks"}, fields={**GRANITE, **_WINDOW},
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
        fields={**GRANITE, **_WINDOW, **SHARED_ONE},
    ),
    *HYBRIDS,
)  # fmt: skip

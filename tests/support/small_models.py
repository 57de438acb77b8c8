"""Small random models of every family, and a tokenizer for them, made by ``transformers``.

Weights are larger than an initialiser would have them, and norms and biases are not ones and
zeros, so that greedy tokens vary and a forgotten tensor shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

VOCAB_SIZE = 300
EOS_TOKEN_ID = 1

HYBRIDS = (
    "qwen3_next", "qwen3_5", "qwen3_5_moe", "lfm2", "lfm2_moe", "granite_hybrid",
    "granite_hybrid_dense", "bamba", "falcon_h1", "nemotron_h", "nemotron_h_moe", "mamba2",
    "kimi_linear",
)  # fmt: skip
INDEXED = ("deepseek_v32", "glm_moe_dsa")
LATENTS = ("deepseek_v2", "deepseek_v2-lite", "deepseek_v3", "minicpm3")

_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": EOS_TOKEN_ID,
    "pad_token_id": None,
}
SMALL_LLAMA = {**_SIZES, "intermediate_size": 96, "num_key_value_heads": 2}
_EXPERTS = {"num_experts_per_tok": 3, "intermediate_size": 48}
_QWEN_HYBRID = {
    **SMALL_LLAMA,
    "head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 20,
    "linear_value_head_dim": 12,
    "layer_types": ["linear_attention", "full_attention"],
}
_QWEN_EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
}
_MAMBA = {
    "mamba_n_heads": 6,
    "mamba_d_head": 32,
    "mamba_expand": 3,
    "mamba_n_groups": 2,
    "mamba_d_state": 20,
}
_OPT = {
    **{name: value for name, value in _SIZES.items() if name != "initializer_range"},
    "ffn_dim": 96,
    "init_std": 0.2,
    "pad_token_id": 2,
}

_UNTIED = {"tie_word_embeddings": False}  # a random model repeats its last token else
_FALCON = {**_SIZES, **_UNTIED, "ffn_hidden_size": 96, "activation": "gelu"}


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **parameters}}


def _longrope(original: int) -> dict[str, Any]:
    factors = {
        "short_factor": [1.0 + i / 16 for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
    }
    scaling = _rope("longrope", original_max_position_embeddings=original, **factors)
    return {**scaling, "original_max_position_embeddings": original}


_ROUTED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 32,
}
_INDEXED = {
    **_LATENT,
    "first_k_dense_replace": 1,
    "index_topk": 12,
    "index_head_dim": 24,
    "index_n_heads": 10,
}
_COHERE_MOE: dict[str, Any] = {
    **SMALL_LLAMA,
    **_UNTIED,
    "head_dim": 20,
    "logit_scale": 0.5,
    "num_hidden_layers": 4,
    "intermediate_size": 32,
    "prefix_dense_intermediate_size": 72,
    "first_k_dense_replace": 1,
    "sliding_window": 12,
    "sliding_window_pattern": 3,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 2,
}
_STRETCHED = {"factor": 8.0, "original_max_position_embeddings": 32}

# Family: (name of the config class in transformers, its fields).
_CONFIGS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**SMALL_LLAMA, "num_key_value_heads": 4}),
    "llama3": (
        "LlamaConfig",
        {
            **SMALL_LLAMA,
            **_rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        },
    ),
    "linear": ("LlamaConfig", {**SMALL_LLAMA, **_rope("linear", factor=4.0)}),
    "dynamic": (
        "LlamaConfig",
        {**SMALL_LLAMA, "max_position_embeddings": 32, **_rope("dynamic", factor=4.0)},
    ),
    "yarn": (
        "LlamaConfig",
        {**SMALL_LLAMA, **_rope("yarn", factor=8.0, original_max_position_embeddings=32)},
    ),
    "biases": ("LlamaConfig", {**SMALL_LLAMA, "attention_bias": True, "mlp_bias": True}),
    "head_dim": ("LlamaConfig", {**SMALL_LLAMA, "head_dim": 24}),
    "smollm": ("LlamaConfig", {**SMALL_LLAMA, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", {**SMALL_LLAMA, "sliding_window": 12}),
    "phi3": ("Phi3Config", {**SMALL_LLAMA, **_rope("default", partial_rotary_factor=0.5)}),
    "longrope": ("Phi3Config", {**SMALL_LLAMA, **_longrope(32)}),
    "qwen2": ("Qwen2Config", {**SMALL_LLAMA, "sliding_window": 12, "use_sliding_window": False}),
    "qwen2_window": (
        "Qwen2Config",
        {**SMALL_LLAMA, "sliding_window": 12, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen2.5": ("Qwen2Config", {**SMALL_LLAMA, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {**SMALL_LLAMA, "head_dim": 24}),
    "gpt_oss": (
        "GptOssConfig",
        {
            **SMALL_LLAMA,
            **_EXPERTS,
            "intermediate_size": 64,
            "num_local_experts": 6,
            "head_dim": 16,
            "sliding_window": 9,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "truncate": False,
            },
            "tie_word_embeddings": False,
        },
    ),
    "mixtral": ("MixtralConfig", {**SMALL_LLAMA, **_EXPERTS, "num_local_experts": 6}),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {
            **SMALL_LLAMA,
            **_EXPERTS,
            "num_experts": 6,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 80,
        },
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {
            **SMALL_LLAMA,
            "head_dim": 24,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "olmoe": ("OlmoeConfig", {**SMALL_LLAMA, **_EXPERTS, "num_experts": 6}),
    "granite_moe": (
        "GraniteMoeSharedConfig",
        {
            **SMALL_LLAMA,
            **_EXPERTS,
            "num_local_experts": 6,
            "shared_intermediate_size": 64,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.7,
            "logits_scaling": 2.0,
        },
    ),
    "opt": ("OPTConfig", _OPT),
    "opt-350m": (
        "OPTConfig",
        {**_OPT, "init_std": 0.4, "do_layer_norm_before": False, "word_embed_proj_dim": 48},
    ),
    "gpt2": ("GPT2Config", {**_SIZES, "scale_attn_by_inverse_layer_idx": True}),
    "gpt_neox": ("GPTNeoXConfig", {**_SIZES, "intermediate_size": 96, "rotary_pct": 0.5}),
    "gemma2": (
        "Gemma2Config",
        {
            **SMALL_LLAMA,
            "head_dim": 24,
            **_UNTIED,
            "sliding_window": 12,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 8.0,
        },
    ),
}

# Families beyond those whose every property is tested: what a record alone has to get right.
_CAPS = {"attn_logit_softcapping": None, "final_logit_softcapping": 8.0}
_RECORDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    # A layer without experts that sees everything, and knows positions.
    "cohere2_moe": ("Cohere2MoeConfig", _COHERE_MOE),
    "cohere2_moe-sigmoid": (
        "Cohere2MoeConfig",
        {
            **_COHERE_MOE,
            "expert_selection_fn": "sigmoid",
            "norm_topk_prob": False,
            "shared_expert_combination_strategy": "sum",
            "prefix_dense_sliding_window_pattern": 2,
            "rms_norm_eps": 1e-5,
            "attention_bias": True,
        },
    ),
    "gemma": ("GemmaConfig", {**SMALL_LLAMA, "head_dim": 24, **_UNTIED}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            **SMALL_LLAMA,
            **_UNTIED,
            **_CAPS,
            "head_dim": 24,
            "sliding_window": 12,
            "query_pre_attn_scalar": 20,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            },
        },
    ),
    "cohere": ("CohereConfig", {**SMALL_LLAMA, **_UNTIED, "logit_scale": 0.3}),
    "cohere2": (
        "Cohere2Config",
        {**SMALL_LLAMA, **_UNTIED, "sliding_window": 12, "sliding_window_pattern": 2},
    ),
    "olmo": ("OlmoConfig", SMALL_LLAMA),
    "olmo2": ("Olmo2Config", {**SMALL_LLAMA, "attention_bias": True}),
    "olmo3": (
        "Olmo3Config",
        {
            **SMALL_LLAMA,
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "smollm3": ("SmolLM3Config", {**SMALL_LLAMA, "no_rope_layer_interval": 2}),
    "granite": (
        "GraniteConfig",
        {
            **SMALL_LLAMA,
            "embedding_multiplier": 1.5,
            "logits_scaling": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.3,
        },
    ),
    # Queries grow with every 8 tokens.
    "ministral3": (
        "Ministral3Config",
        {
            **SMALL_LLAMA,
            "head_dim": 24,
            **_rope(
                "yarn",
                factor=8.0,
                original_max_position_embeddings=8,
                llama_4_scaling_beta=0.5,
                mscale=1.0,
                mscale_all_dim=1.0,
            ),
        },
    ),
    "ministral": (
        "MinistralConfig",
        {
            **SMALL_LLAMA,
            "head_dim": 24,
            "sliding_window": 12,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    "jais2": ("Jais2Config", SMALL_LLAMA),
    "hyperclovax": (
        "HyperCLOVAXConfig",
        {
            **SMALL_LLAMA,
            "head_dim": 24,
            "embedding_multiplier": 1.5,
            "logits_scaling": 0.4,
            "residual_multiplier": 0.5,
        },
    ),
    "hyperclovax-plain": (
        "HyperCLOVAXConfig",
        {**SMALL_LLAMA, "use_post_norm": False, "attention_multiplier": 0.3},
    ),
    "granite_swa": (
        "GraniteSWAConfig",
        {
            **SMALL_LLAMA,
            **_UNTIED,
            "num_hidden_layers": 3,
            "sliding_window": 9,
            "layer_rope_theta": [0, 1e3, 5e4],
            "embedding_multiplier": 1.5,
            "logits_scaling": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.3,
        },
    ),
    "granitemoe_swa": (
        "GraniteMoeSWAConfig",
        {
            **SMALL_LLAMA,
            **_EXPERTS,
            "num_local_experts": 6,
            "shared_intermediate_size": 64,
            "sliding_window": 9,
            "attention_multiplier": 0.2,
        },
    ),
    "flex_olmo": ("FlexOlmoConfig", {**SMALL_LLAMA, **_EXPERTS, "num_experts": 6}),
    "hy_v3": (
        "HYV3Config",
        {
            **SMALL_LLAMA,
            "head_dim": 24,
            "num_hidden_layers": 3,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_shared_experts": 2,
            "moe_intermediate_size": 32,
            "attention_bias": True,
        },
    ),
    "exaone_moe": (
        "ExaoneMoeConfig",
        {
            **SMALL_LLAMA,
            "num_hidden_layers": 3,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 32,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "afmoe": (
        "AfmoeConfig",
        {
            **SMALL_LLAMA,
            "head_dim": 24,
            "num_hidden_layers": 3,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_dense_layers": 1,
            "moe_intermediate_size": 32,
            "sliding_window": 9,
            "global_attn_every_n_layers": 2,
            "route_scale": 1.3,
            "mup_enabled": True,
        },
    ),
    "mimo_v2_flash": (
        "MiMoV2FlashConfig",
        {
            **SMALL_LLAMA,
            **{name: value for name, value in _ROUTED.items() if name != "n_shared_experts"},
            "num_hidden_layers": 3,
            "head_dim": 48,
            "v_head_dim": 32,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "sliding_window": 9,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "attention_value_scale": 0.6,
        },
    ),
    "mellum": (
        "MellumConfig",
        {
            **SMALL_LLAMA,
            "head_dim": 24,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"],
            "mlp_layer_types": ["sparse", "dense"],
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 5e4,
                    "factor": 8.0,
                    "original_max_position_embeddings": 32,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            },
        },
    ),
    "exaone": ("ExaoneConfig", SMALL_LLAMA),
    "internlm3": (
        "InternLM3Config",
        {**SMALL_LLAMA, "head_dim": 24, "attention_bias": True, "mlp_bias": True},
    ),
    "iquestcoder": ("IQuestCoderConfig", {**SMALL_LLAMA, "head_dim": 24}),
    "sarvam_moe": (
        "SarvamMoEConfig",
        {**SMALL_LLAMA, **_ROUTED, "head_dim": 24, "num_hidden_layers": 3},
    ),
    "sarvam_mla": (
        "SarvamMLAConfig",
        {
            **SMALL_LLAMA,
            **_ROUTED,
            **_LATENT,
            "q_lora_rank": None,
            "num_hidden_layers": 3,
            "n_group": 4,
            "topk_group": 2,
            **_rope(
                "yarn",
                factor=8.0,
                original_max_position_embeddings=32,
                mscale=1.0,
                mscale_all_dim=1.0,
            ),
        },
    ),
    "arcee": ("ArceeConfig", {**SMALL_LLAMA, "mlp_bias": True}),
    "nemotron": ("NemotronConfig", SMALL_LLAMA),
    "seed_oss": (
        "SeedOssConfig",
        {**SMALL_LLAMA, "head_dim": 24, "attention_bias": True, "attention_out_bias": True},
    ),
    "cwm": (
        "CwmConfig",
        {
            **SMALL_LLAMA,
            "head_dim": 16,
            "sliding_window": 12,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    "helium": ("HeliumConfig", {**SMALL_LLAMA, "head_dim": 16}),
    "ernie4_5": ("Ernie4_5Config", {**SMALL_LLAMA, "head_dim": 24, "use_bias": True}),
    "glm": ("GlmConfig", {**SMALL_LLAMA, "head_dim": 24, "partial_rotary_factor": 0.5}),
    "glm4": ("Glm4Config", {**SMALL_LLAMA, "head_dim": 24, "partial_rotary_factor": 0.5}),
    "exaone4": (
        "Exaone4Config",
        {
            **SMALL_LLAMA,
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "exaone4-full": (
        "Exaone4Config",
        {**SMALL_LLAMA, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "vaultgemma": (
        "VaultGemmaConfig",
        {**SMALL_LLAMA, "head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 12},
    ),
    "glm4_moe": (
        "Glm4MoeConfig",
        {
            **SMALL_LLAMA,
            **_ROUTED,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "attention_bias": True,
            "routed_scaling_factor": 1.5,
        },
    ),
    "deepseek_v2": (
        "DeepseekV2Config",
        {
            **SMALL_LLAMA,
            **_ROUTED,
            **_LATENT,
            "first_k_dense_replace": 1,
            "norm_topk_prob": False,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            **_rope("yarn", **_STRETCHED, mscale=0.7, mscale_all_dim=1.2),
        },
    ),
    "deepseek_v2-lite": (
        "DeepseekV2Config",
        {
            **SMALL_LLAMA,
            **_ROUTED,
            **_LATENT,
            "q_lora_rank": None,
            "first_k_dense_replace": 1,
            "norm_topk_prob": False,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            **SMALL_LLAMA,
            **_ROUTED,
            **_LATENT,
            "first_k_dense_replace": 1,
            "n_group": 4,
            "topk_group": 2,
            "attention_bias": True,
            **_rope("yarn", **_STRETCHED, mscale=1.0, mscale_all_dim=1.0),
        },
    ),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", {**SMALL_LLAMA, **_ROUTED, **_LATENT}),
    # Queries grow with every 8 tokens.
    "mistral4": (
        "Mistral4Config",
        {
            **SMALL_LLAMA,
            **_ROUTED,
            **_LATENT,
            "first_k_dense_replace": 1,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 8.0,
                "original_max_position_embeddings": 8,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
    ),
    "deepseek_v32": (
        "DeepseekV32Config",
        {
            **SMALL_LLAMA,
            **_ROUTED,
            **_INDEXED,
            "num_hidden_layers": 3,
            "n_group": 4,
            "topk_group": 2,
            **_rope("yarn", **_STRETCHED, mscale=1.0, mscale_all_dim=1.0),
        },
    ),
    # The second and the third layer attend to what the first has chosen.
    "glm_moe_dsa": (
        "GlmMoeDsaConfig",
        {
            **SMALL_LLAMA,
            **_ROUTED,
            **_INDEXED,
            "num_hidden_layers": 4,
            "indexer_types": ["full", "shared", "shared", "full"],
        },
    ),
    "minicpm3": ("MiniCPM3Config", {**SMALL_LLAMA, **_LATENT, **_UNTIED, "dim_model_base": 32}),
    "youtu": ("YoutuConfig", {**SMALL_LLAMA, **_LATENT, **_UNTIED, "rope_interleave": False}),
    "glm4_moe-groups": (
        "Glm4MoeConfig",
        {**SMALL_LLAMA, **_ROUTED, "first_k_dense_replace": 0, "n_group": 4, "topk_group": 2},
    ),
    "solar_open": ("SolarOpenConfig", {**SMALL_LLAMA, **_ROUTED, "head_dim": 16}),
    "dots1": (
        "Dots1Config",
        {
            **SMALL_LLAMA,
            **_ROUTED,
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "minimax_m2": (
        "MiniMaxM2Config",
        {
            **SMALL_LLAMA,
            "head_dim": 16,
            "rotary_dim": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
        },
    ),
    "ernie4_5_moe": (
        "Ernie4_5_MoeConfig",
        {
            **SMALL_LLAMA,
            "num_hidden_layers": 3,
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
        },
    ),
    "phimoe": (
        "PhimoeConfig",
        {
            **SMALL_LLAMA,
            **_EXPERTS,
            "num_experts_per_tok": 2,
            "num_local_experts": 6,
            "router_jitter_noise": 0.3,
            "attention_bias": True,
            "lm_head_bias": True,
        },
    ),
    "hunyuan": (
        "HunYuanDenseV1Config",
        {
            **SMALL_LLAMA,
            "head_dim": 24,
            **_rope("dynamic", alpha=50.0, factor=1.0),
            "attention_bias": True,
        },
    ),
    "hunyuan_moe": (
        "HunYuanMoEV1Config",
        {
            **SMALL_LLAMA,
            "head_dim": 16,
            "intermediate_size": 48,
            "num_experts": 6,
            "moe_topk": 3,
        },
    ),
    "apertus": ("ApertusConfig", {**SMALL_LLAMA, "attention_bias": True}),
    "nanochat": ("NanoChatConfig", {**SMALL_LLAMA, "final_logit_softcapping": 3.0}),
    # A chunk ends within the shortest of the texts, and queries grow with every 5 tokens.
    "llama4": (
        "Llama4TextConfig",
        {
            **SMALL_LLAMA,
            "head_dim": 24,
            "intermediate_size": 48,
            "intermediate_size_mlp": 80,
            "num_hidden_layers": 4,
            "num_local_experts": 6,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "no_rope_layer_interval": 2,
            "attention_chunk_size": 4,
            "floor_scale": 5,
            "attn_scale": 0.7,
        },
    ),
    "llama4-dense": (
        "Llama4TextConfig",
        {
            **SMALL_LLAMA,
            "head_dim": 24,
            "intermediate_size_mlp": 80,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "moe_layers": [1],
            "no_rope_layers": [0, 1],
            "attention_chunk_size": 10,
            "attn_temperature_tuning": False,
            "use_qk_norm": False,
            "attention_bias": True,
        },
    ),
    "stablelm": ("StableLmConfig", {**SMALL_LLAMA, "use_qkv_bias": True}),
    "stablelm-parallel": ("StableLmConfig", {**SMALL_LLAMA, "use_parallel_residual": True}),
    "starcoder2": ("Starcoder2Config", {**SMALL_LLAMA, **_UNTIED, "sliding_window": 12}),
    "phi": ("PhiConfig", {**SMALL_LLAMA, "partial_rotary_factor": 0.5, "qk_layernorm": True}),
    "gpt_neox-sequential": (
        "GPTNeoXConfig",
        {
            **_SIZES,
            "intermediate_size": 96,
            "use_parallel_residual": False,
            "attention_bias": False,
        },
    ),
    "gptj": (
        "GPTJConfig",
        {
            "vocab_size": VOCAB_SIZE,
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 256,
            "rotary_dim": 8,
            "n_inner": 96,
            "initializer_range": 0.2,
            "bos_token_id": 0,
            "eos_token_id": EOS_TOKEN_ID,
        },
    ),
    "falcon": ("FalconConfig", {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-single": ("FalconConfig", {**_FALCON, "bias": True}),
    "falcon-sequential": (
        "FalconConfig",
        {**_FALCON, "multi_query": False, "parallel_attn": False},
    ),
}

# Layers keep states.
_HYBRIDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3NextConfig", {**_QWEN_HYBRID, **_QWEN_EXPERTS, "mlp_only_layers": [1]}),
    "qwen3_5": ("Qwen3_5TextConfig", _QWEN_HYBRID),
    "qwen3_5_moe": (
        "Qwen3_5MoeTextConfig",
        {**_QWEN_HYBRID, **_QWEN_EXPERTS, "linear_num_value_heads": 4},
    ),
    "lfm2": (
        "Lfm2Config",
        {
            **SMALL_LLAMA,
            "layer_types": ["conv", "full_attention"],
            "block_multiple_of": 40,
            "conv_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "lfm2_plain": (
        "Lfm2Config",
        {
            **SMALL_LLAMA,
            "layer_types": ["conv", "full_attention"],
            "block_multiple_of": 40,
            "tie_word_embeddings": False,
        },
    ),
    "lfm3": (
        "Lfm3Config",
        {
            **SMALL_LLAMA,
            **_UNTIED,
            "head_dim": 24,
            "intermediate_size": 160,
            "layer_types": ["conv", "sliding_attention"],
            "sliding_window": 9,
            "conv_bias": True,
        },
    ),
    "lfm3-mixed": (
        "Lfm3Config",
        {
            **SMALL_LLAMA,
            **_UNTIED,
            "head_dim": 16,
            "num_hidden_layers": 4,
            "layer_types": ["conv", "sliding_attention", "conv", "full_attention"],
            "sliding_window": 9,
            "use_sandwich_norm": False,
            "use_attention_gate": False,
        },
    ),
    "lfm2_moe": (
        "Lfm2MoeConfig",
        {
            **SMALL_LLAMA,
            **_EXPERTS,
            "intermediate_size": 80,
            "moe_intermediate_size": 48,
            "num_experts": 6,
            "num_dense_layers": 1,
            "routed_scaling_factor": 1.3,
            "layer_types": ["full_attention", "conv"],
            "tie_word_embeddings": False,
        },
    ),
    "granite_hybrid": (
        "GraniteMoeHybridConfig",
        {
            **SMALL_LLAMA,
            **_MAMBA,
            **_EXPERTS,
            "num_local_experts": 6,
            "layer_types": ["linear_attention", "full_attention"],
            "shared_intermediate_size": 64,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.7,
            "logits_scaling": 2.0,
        },
    ),
    "granite_hybrid_dense": (
        "GraniteMoeHybridConfig",
        {
            **SMALL_LLAMA,
            **_MAMBA,
            "num_local_experts": 0,
            "layer_types": ["linear_attention", "full_attention"],
            "shared_intermediate_size": 80,
            "position_embedding_type": "rope",
            "mamba_proj_bias": True,
        },
    ),
    "bamba": ("BambaConfig", {**SMALL_LLAMA, **_MAMBA, "attn_layer_indices": [1]}),
    "kimi_linear": (
        "KimiLinearConfig",
        {
            **_SIZES,
            **_LATENT,
            "intermediate_size": 96,
            "num_key_value_heads": 4,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_group": 4,
            "topk_group": 2,
            "linear_num_heads": 6,
            "linear_head_dim": 20,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "falcon_h1": (
        "FalconH1Config",
        {
            **SMALL_LLAMA,
            **{name: value for name, value in _MAMBA.items() if name != "mamba_expand"},
            "num_hidden_layers": 1,
            "mamba_d_ssm": 192,
            "attention_in_multiplier": 0.9,
            "attention_out_multiplier": 1.2,
            "embedding_multiplier": 2.0,
            "key_multiplier": 0.7,
            "lm_head_multiplier": 0.6,
            "mlp_multipliers": [0.8, 1.1],
            "ssm_in_multiplier": 1.3,
            "ssm_multipliers": [0.5, 0.9, 0.7, 1.1, 0.6],
            "ssm_out_multiplier": 0.8,
        },
    ),
    "nemotron_h": (
        "NemotronHConfig",
        {
            **SMALL_LLAMA,
            "head_dim": 24,
            "layers_block_type": ["linear_attention", "mlp", "full_attention"],
            "mamba_num_heads": 6,
            "mamba_head_dim": 32,
            "n_groups": 2,
            "ssm_state_size": 20,
            "time_step_min": 1e-6,  # transformers lifts shorter steps, in prompts alone
        },
    ),
    "nemotron_h_moe": (
        "NemotronHConfig",
        {
            **SMALL_LLAMA,
            "head_dim": 24,
            "layers_block_type": ["full_attention", "moe", "linear_attention"],
            "mamba_num_heads": 6,
            "mamba_head_dim": 32,
            "n_groups": 2,
            "ssm_state_size": 20,
            "time_step_min": 1e-6,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 64,
            "routed_scaling_factor": 1.4,
        },
    ),
    "mamba2": (
        "Mamba2Config",
        {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "initializer_range": 0.2,
            "num_heads": 6,
            "head_dim": 32,
            "expand": 3,
            "state_size": 20,
            "max_position_embeddings": 256,
            "n_groups": 2,
            "bos_token_id": 0,
            "eos_token_id": EOS_TOKEN_ID,
            "pad_token_id": None,
        },
    ),
    "falcon_h1-normed": (
        "FalconH1Config",
        {
            **SMALL_LLAMA,
            **_MAMBA,
            "mamba_d_ssm": None,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "projectors_bias": True,
        },
    ),
    "bamba-limits": (
        "BambaConfig",
        {**SMALL_LLAMA, **_MAMBA, "attn_layer_indices": [1], "time_step_limit": [0.2, 1.5]},
    ),
}

# AltUp, with a residual of low rank beside attention; half of the layers keep the largest gates
# alone, and the last three attend to what others keep.
_GEMMA_3N = {
    **SMALL_LLAMA,
    "num_hidden_layers": 6,
    "head_dim": 24,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "sliding_window": 9,
    "rms_norm_eps": 1e-5,
    "final_logit_softcapping": 20.0,
    "hidden_size_per_layer_input": 20,
    "vocab_size_per_layer_input": 280,
    "num_kv_shared_layers": 3,
    "laurel_rank": 20,
    "altup_num_inputs": 3,
    "altup_active_idx": 1,
    "intermediate_size": [96, 96, 160, 160, 96, 96],
    "activation_sparsity_pattern": [0.8, 0.3, 0.0, 0.5, 0.0, 0.0],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
    },
    **_UNTIED,
}

_GEMMA_4 = {
    **SMALL_LLAMA,
    "num_hidden_layers": 4,
    "head_dim": 24,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 9,
    "rms_norm_eps": 1e-5,
    "final_logit_softcapping": 20.0,
    "attention_bias": True,
    "hidden_size_per_layer_input": 0,
    "tie_word_embeddings": False,
}

# Sizes differ from layer to layer: those that are given numbers of each token, with keys that
# layers share; with keys for values; and with experts beside each MLP.
_GEMMAS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "gemma3n": ("Gemma3nTextConfig", _GEMMA_3N),
    "gemma4": (
        "Gemma4TextConfig",
        {
            **_GEMMA_4,
            "global_head_dim": 40,
            "num_key_value_heads": 1,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "hidden_size_per_layer_input": 20,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4-dense": (
        "Gemma4TextConfig",
        {
            **_GEMMA_4,
            "global_head_dim": 48,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
        },
    ),
    "gemma4_unified": (
        "Gemma4UnifiedTextConfig",
        {
            **{name: value for name, value in _GEMMA_4.items() if "per_layer" not in name},
            "global_head_dim": 40,
            "num_kv_shared_layers": 1,
        },
    ),
    "gemma4-experts": (
        "Gemma4TextConfig",
        {
            **_GEMMA_4,
            "global_head_dim": 32,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 3,
            "moe_intermediate_size": 48,
        },
    ),
}

FAMILIES = tuple(_CONFIGS)
GEMMAS = tuple(_GEMMAS)
HYBRIDS = tuple(_HYBRIDS)
RECORDS = tuple(_RECORDS)
CONFIGS = {**_CONFIGS, **_HYBRIDS, **_RECORDS, **_GEMMAS}
"""The class of each family's config, and what it is given."""


def make_model(family: str, directory: Path, **more: Any) -> Path:
    """Save the model of ``family``, and a tokenizer, into ``directory``; the same every time.

    more: fields of its config.
    """
    import transformers

    class_name, fields = CONFIGS[family]
    return save_model(getattr(transformers, class_name)(**{**fields, **more}), directory)


def register_decoders() -> None:
    """Have transformers make decoders by themselves that it knows in models that see images."""
    import transformers

    if hasattr(transformers, "Mistral4ForCausalLM"):
        transformers.AutoModelForCausalLM.register(
            transformers.Mistral4Config, transformers.Mistral4ForCausalLM, exist_ok=True
        )


def save_model(config: Any, directory: Path) -> Path:
    """Save a random model with ``config``, and a tokenizer, into ``directory``."""
    from transformers import AutoModelForCausalLM

    register_decoders()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
        for name, parameter in model.named_parameters():
            if name.endswith("modality_router.weight"):
                parameter.mul_(16)  # or streams would hardly be mixed
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "layer_scalar")):
                buffer.add_(0.2 * torch.randn(buffer.shape))
    model.save_pretrained(directory)
    if config.model_type == "kimi_linear":
        _name_as_published(directory / "model.safetensors")
    save_tokenizer(directory)
    return directory


def _name_as_published(file: Path) -> None:
    """The MLP of the first layer, which transformers saves by the name of mixtures."""
    tensors = load_file(file)
    dense = "layers.0.block_sparse_moe."
    save_file(
        {name.replace(dense, "layers.0.mlp."): tensor for name, tensor in tensors.items()},
        file,
        {"format": "pt"},
    )


def save_whole(model: Any, directory: Path) -> None:
    """Save a model that sees images, and a tokenizer, as such models are published: layers of some
    decoders are called otherwise where transformers saves them.
    """
    model.save_pretrained(directory)
    file = directory / "model.safetensors"
    own = re.compile(r"^(language_model\.model\.)(blocks|encoder\.layers)\.")
    save_file({own.sub(r"\1layers.", k): v for k, v in load_file(file).items()}, file)
    save_tokenizer(directory)


def save_tokenizer(directory: Path) -> None:
    """Save a byte-level BPE tokenizer of VOCAB_SIZE ids: specials, bytes, common pairs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    specials = ["<s>", "</s>", "<pad>", "<unk>"]
    pieces = specials + sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = "etaoinsh"
    merges = [(a, b) for a in letters for b in letters][: VOCAB_SIZE - len(pieces)]
    pieces += [a + b for a, b in merges]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")

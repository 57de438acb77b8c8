"""A config.json is understood whole, or refused with all that speaks against it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import ConfigError, ModelError
from quire.models.shape import read_shape
from quire.tools.cli import main
from quire_lab.simulation import MACHINES, MODELS, Deployment, find_model

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3", "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
    "intermediate_size": 18944, "max_position_embeddings": 32768, "max_window_layers": 28,
    "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 152064,
}  # fmt: skip
MISTRAL = {
    "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.42.0",
    "use_cache": True, "vocab_size": 32768,
}  # fmt: skip
PHI = {
    "_name_or_path": "Phi-3-mini-128k-instruct", "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False, "attention_dropout": 0.0, "auto_map": {
        "AutoConfig": "configuration_phi3.Phi3Config"}, "bos_token_id": 1, "embd_pdrop": 0.0,
    "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
    "intermediate_size": 8192, "max_position_embeddings": 131072, "model_type": "phi3",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05, "rope_scaling": {"long_factor": [1.1] * 48, "short_factor": [1.0] * 48,
                                            "type": "longrope"},
    "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.40.2", "use_cache": True,
    "vocab_size": 32064,
}  # fmt: skip
OPT = {
    "_name_or_path": "./opt-13b", "_remove_final_layer_norm": False, "activation_dropout": 0.0,
    "activation_function": "relu", "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 2, "do_layer_norm_before": True, "dropout": 0.1, "eos_token_id": 2,
    "ffn_dim": 20480, "hidden_size": 5120, "init_std": 0.02, "layerdrop": 0.0,
    "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 40,
    "num_hidden_layers": 40, "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16",
    "transformers_version": "4.21.0.dev0", "use_cache": True, "vocab_size": 50272,
    "word_embed_proj_dim": 5120,
}  # fmt: skip
GPT2 = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
    "summary_use_proj": True, "task_specific_params": {
        "text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257,
}  # fmt: skip
SMOLLM = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 8192,
    "mlp_bias": False, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 24,
    "num_key_value_heads": 32, "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 130000, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "transformers.js_config": None, "transformers_version": "4.42.3",
    "use_cache": True, "vocab_size": 49152, "is_llama_config": True, "rope_interleaved": False,
}  # fmt: skip
GEMMA = {
    "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 2, "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu",
    "hidden_activation": None, "hidden_size": 3072, "initializer_range": 0.02,
    "intermediate_size": 24576, "max_position_embeddings": 8192, "model_type": "gemma",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 16,
    "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0,
    "torch_dtype": "bfloat16", "transformers_version": "4.38.0.dev0", "use_cache": True,
    "vocab_size": 256000,
}  # fmt: skip
# deepseek-ai/DeepSeek-V3
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "aux_loss_alpha": 0.001,
    "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3,
    "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "pretraining_tp": 1,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
        "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06, "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True,
    "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": True,
    "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip


MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
    "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": False,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.36.0.dev0", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip


def write(directory: Path, config: dict[str, Any], **changes: Any) -> Path:
    path = directory / "config.json"
    path.write_text(json.dumps({**config, **changes}))
    return path


@pytest.mark.parametrize(
    ("config", "billions", "kv_bytes"),
    [
        (LLAMA, 8.03, 128 * 1024),
        (QWEN, 7.62, 56 * 1024),
        (MISTRAL, 7.25, 128 * 1024),
        (PHI, 3.82, 384 * 1024),
        (OPT, 12.85, 800 * 1024),
        (GPT2, 0.124, 36 * 1024),
        (SMOLLM, 1.71, 192 * 1024),
        (GEMMA, 8.54, 448 * 1024),
        (MIXTRAL, 46.7, 128 * 1024),
        (QWEN3_MOE, 30.53, 96 * 1024),
    ],
    ids=[
        "llama",
        "qwen",
        "mistral",
        "phi",
        "opt",
        "gpt2",
        "smollm",
        "gemma",
        "mixtral",
        "qwen3_moe",
    ],
)
def test_ordinary_models_are_understood(
    config: dict[str, Any], billions: float, kv_bytes: int, tmp_path: Path
) -> None:
    shape = read_shape(write(tmp_path, config))
    assert shape.num_params == pytest.approx(billions * 1e9, rel=5e-3)
    assert shape.kv_bytes_per_token == kv_bytes


@pytest.mark.parametrize(
    ("config", "billions", "share_of_32"), [(MIXTRAL, 12.88, 1.0), (QWEN3_MOE, 3.35, 0.88)]
)
def test_a_token_reads_and_costs_the_experts_that_it_goes_through(
    config: dict[str, Any], billions: float, share_of_32: float, tmp_path: Path
) -> None:
    shape = read_shape(write(tmp_path, config))
    assert shape.active_params == pytest.approx(billions * 1e9, rel=5e-3)
    table, embeddings = (n * shape.vocab_size * shape.hidden_size for n in (1, 2))
    read = 2 * (shape.active_params - table + shape.hidden_size)  # of the table one row
    assert shape.weight_bytes_read(1) == pytest.approx(read)
    weights = shape.weight_bytes - 2 * table
    assert shape.weight_bytes_read(32) / weights == pytest.approx(share_of_32, abs=0.01)
    assert shape.flops_per_token == 2 * (shape.active_params - embeddings)


@pytest.mark.parametrize(
    "changes",
    [
        {"index_n_heads": 64, "index_topk": 2048},
        {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4"},
        {"moe_brand_new": 7},
    ],
    ids=str,
)
def test_deepseek_is_planned_and_what_is_more_is_refused(
    changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = ["--machine", "h200", "--tensor-parallel-size", "8", "--requests", "20"]
    path = str(write(tmp_path, DEEPSEEK))
    assert main(["simulate", path, "--dataset", "sharegpt", *machine]) == 0
    out = capsys.readouterr().out
    assert "626.8 GiB of weights in fp8" in out and "68.62 KiB of KV cache a token" in out
    assert "no code of its own" not in out
    path = str(write(tmp_path, DEEPSEEK, **changes))
    assert main(["simulate", path, "--dataset", "sharegpt", *machine]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"quire: error: {path}: not simulated yet: ")
    known = "model_type" not in changes
    assert ("copy of the file" in line) == known
    assert ("may be served all the same, through transformers" in line) != known


def test_of_a_family_that_is_not_known_what_no_family_has_is_named(tmp_path: Path) -> None:
    """Its experts, its latents and its index are as others', its compression is not."""
    fields = {"index_topk": 512, "compress_ratios": [0, 4], "indexer_brand_new": 1}
    named = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4"}
    with pytest.raises(ModelError) as raised:
        read_shape(write(tmp_path, DEEPSEEK, **named, **fields))
    told = str(raised.value)
    assert "compress_ratios" in told and "indexer_brand_new" in told and "index_topk" not in told
    assert "attention over compressed texts (compress_ratios)" in told
    assert "the layers of model_type 'deepseek_v4'. It may be served all the same" in told


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_local_experts": 8}, "mixtures of experts (num_local_experts)"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "architecture 'LlamaForCausalLMEagle3'"),
        ({"moe_intermediate_size": 768}, "mixtures of experts (moe_intermediate_size)"),
        ({"kv_lora_rank": 512}, "latent attention (kv_lora_rank)"),
        ({"quantization_config": {"bits": 4}}, "quantization_config has quant_method unnamed"),
        ({"compression_config": {"a": 1}}, "compression_config has quant_method unnamed"),
        (
            {"sliding_window": 4096, "model_type": "llama", "architectures": None},
            "windows (sliding_window: 4096)",
        ),
        ({"sliding_window": -1}, "sliding_window must be at least 1"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types: linear_attention"),
        ({"attention_chunk_size": 8192}, "windows (attention_chunk_size)"),
        ({"index_topk_blocks": 8}, "an index that chooses what is attended to (index_topk_blocks)"),
        ({"hc_mult": 4}, "streams beside the residual one (hc_mult)"),
        ({"heads_per_ngram": 4}, "tables of n-grams (heads_per_ngram)"),
        ({"o_lora_rank": 4}, "latent attention (o_lora_rank)"),
        ({"num_sliding_attention_heads": 4}, "heads (num_sliding_attention_heads)"),
        ({"mamba_d_state": 16}, "with another one (mamba_d_state)"),
        ({"num_kv_shared_layers": 10}, "share keys and values (num_kv_shared_layers)"),
        ({"is_encoder_decoder": True}, "encoders (is_encoder_decoder)"),
        ({"add_cross_attention": True}, "encoders (add_cross_attention)"),
        ({"vision_config": {"depth": 2}}, "images and sounds (vision_config)"),
        ({"audio_config": {"depth": 2}}, "images and sounds (audio_config)"),
        ({"multi_query": True}, "other numbers of heads (multi_query)"),
        ({"num_nextn_predict_layers": 1}, "guess further tokens (num_nextn_predict_layers)"),
        ({"brand_new_thing": 7}, "fields that are not known (brand_new_thing)"),
        ({"model_type": "rwkv"}, "the layers of model_type 'rwkv'"),
        ({"model_type": "opt", "word_embed_proj_dim": 512}, "word_embed_proj_dim"),
        ({"num_key_value_heads": [8, 4]}, "num_key_value_heads must be int"),
        ({"hidden_size": 10**30}, "hidden_size must be at most"),
        ({"num_hidden_layers": 1 << 24}, "num_hidden_layers is 16,777,216, above 10,000"),
        ({"num_attention_heads": 8192}, "8192 heads are more than the hidden_size"),
    ],
    ids=str,
)
def test_what_is_not_modelled_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = {**MISTRAL, **changes}
    with pytest.raises(ModelError, match=re.escape(message)):
        read_shape(write(tmp_path, config))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_local_experts": 1, "num_experts": 0, "n_routed_experts": None},
        {"quantization_config": None, "vision_config": {}, "mlp_only_layers": []},
        {"is_encoder_decoder": False, "brand_new_thing": False, "another": 0, "third": ""},
        {"sliding_window": 32768},
        {"text_config": {"hidden_act": "silu"}},
    ],
    ids=str,
)
def test_what_is_not_there_is_no_matter(changes: dict[str, Any], tmp_path: Path) -> None:
    plain = read_shape(write(tmp_path, MISTRAL))
    assert read_shape(write(tmp_path, MISTRAL, **changes)) == plain


# google/gemma-2-9b
GEMMA_2 = {
    **GEMMA, "architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid", "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 3584, "intermediate_size": 14336,
    "model_type": "gemma2", "num_hidden_layers": 42, "num_key_value_heads": 8,
    "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_size": 4096,
}  # fmt: skip
# CohereForAI/c4ai-command-r7b-12-2024
COHERE_2 = {
    "architectures": ["Cohere2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 5, "cache_implementation": "hybrid", "eos_token_id": 255001, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "layer_norm_eps": 1e-05, "layer_switch": 4, "logit_scale": 0.25,
    "max_position_embeddings": 132096, "model_type": "cohere2", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8,
    "order_of_interleaved_layers": "local_attn_first", "pad_token_id": 0,
    "position_embedding_type": "rope_gptj", "rope_scaling": None, "rope_theta": 50000,
    "rotary_pct": 1.0, "sliding_window": 4096, "torch_dtype": "bfloat16",
    "transformers_version": "4.48.0.dev0", "use_cache": True, "use_embedding_sharing": True,
    "use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": False,
    "use_qk_norm": False, "vocab_size": 256000,
}  # fmt: skip
# MiniMaxAI/MiniMax-M2, whose type is that of other layers
MINIMAX = {
    "architectures": ["MiniMaxM2ForCausalLM"], "attention_dropout": 0.0,
    "attn_type_list": [1] * 62, "bos_token_id": None, "eos_token_id": None, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
    "intermediate_size": 1536, "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_beta": 1.0, "layernorm_mlp_beta": 1.0,
    "max_position_embeddings": 196608, "mlp_intermediate_size": 8192, "model_type": "minimax",
    "mtp_transformer_layers": 1, "num_attention_heads": 48, "num_experts_per_tok": 8,
    "num_hidden_layers": 62, "num_key_value_heads": 8, "num_local_experts": 256,
    "num_mtp_modules": 3, "output_router_logits": False, "qk_norm_type": "per_layer",
    "rms_norm_eps": 1e-06, "rope_theta": 5000000, "rotary_dim": 64, "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0, "scoring_func": "sigmoid", "shared_intermediate_size": 0,
    "shared_moe_mode": "sigmoid", "sliding_window": None, "tie_word_embeddings": False,
    "transformers_version": "4.45.2", "use_cache": True, "use_mtp": True, "use_qk_norm": True,
    "use_routing_bias": True, "vocab_size": 200064, "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "float8_e4m3fn", "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]},
}  # fmt: skip
# Qwen/Qwen3-VL-30B-A3B-Instruct
QWEN3_VL = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"], "image_token_id": 151655,
    "model_type": "qwen3_vl_moe", "text_config": {
        **QWEN3_MOE, "architectures": None, "dtype": "bfloat16", "model_type": "qwen3_vl_moe_text",
        "max_position_embeddings": 262144, "tie_word_embeddings": None, "torch_dtype": None},
    "tie_word_embeddings": False, "video_token_id": 151656, "vision_config": {
        "deepstack_visual_indexes": [8, 16, 24], "depth": 27, "model_type": "qwen3_vl_moe"},
    "vision_end_token_id": 151653, "vision_start_token_id": 151652,
}  # fmt: skip
# mistralai/Mistral-Small-3.1-24B-Instruct-2503
MISTRAL_3 = {
    "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10,
    "model_type": "mistral3", "multimodal_projector_bias": False, "projector_hidden_act": "gelu",
    "spatial_merge_size": 2, "text_config": {
        "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
        "initializer_range": 0.02, "intermediate_size": 32768, "max_position_embeddings": 131072,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0,
        "sliding_window": None, "use_cache": True, "vocab_size": 131072},
    "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
    "vision_config": {"hidden_size": 1024, "model_type": "pixtral"}, "vision_feature_layer": -1,
}  # fmt: skip
# moonshotai/Kimi-K2.5
HUNYUAN = {
    "architectures": ["HunYuanMoEV1ForCausalLM"], "attention_bias": False,
    "attention_head_dim": 128, "cla_share_factor": 2, "dtype": "bfloat16", "eod_token_id": 127967,
    "eos_token_id": 127960, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 3072,
    "max_position_embeddings": 32768, "mlp_bias": False, "model_type": "hunyuan_v1_moe",
    "moe_drop_tokens": False, "moe_intermediate_size": [3072] * 32, "moe_layer_num_skipped": 0,
    "moe_random_routing_dropped_token": False, "moe_topk": [8] * 32, "norm_type": "rms",
    "num_attention_heads": 32, "num_experts": 64, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_shared_expert": [1] * 32, "pad_id": 127961, "pool_type": "last",
    "rms_norm_eps": 1e-05, "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
    "rope_theta": 10000.0, "routed_scaling_factor": 1.0, "sep_token_id": 127962,
    "tie_word_embeddings": True, "use_cla": False, "use_mixed_mlp_moe": True, "use_qk_norm": True,
    "vocab_size": 128167,
}  # fmt: skip
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"], "bos_token_id": 163584,
    "dtype": "bfloat16", "eos_token_id": 163585, "ignore_index": -100,
    "media_placeholder_token_id": 163605, "model_type": "kimi_k25", "pad_token_id": 163839,
    "text_config": {
        **DEEPSEEK, "architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 1,
        "max_position_embeddings": 262144, "model_type": "kimi_k2", "n_group": 1,
        "n_routed_experts": 384, "num_attention_heads": 64, "num_key_value_heads": 64,
        "num_nextn_predict_layers": 0, "quantization_config": None, "topk_group": 1,
        "vocab_size": 163840},
    "tie_word_embeddings": False, "use_unified_vision_chunk": True,
    "video_placeholder": "<|kimi_k25_video_placeholder|>", "vision_config": {"depth": 27},
}  # fmt: skip

MUSE = {
    "architectures": ["MuseGlimmerForConditionalGeneration"], "image_token_id": 200092,
    "model_type": "muse_glimmer", "out_hidden_size": 6144, "projector_hidden_act": "gelu",
    "projector_hidden_size": 4096, "text_config": {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 200000,
        "dtype": "bfloat16", "eos_token_id": 200001, "final_logit_softcapping": 20.0,
        "head_dim": 128, "hidden_activation": "silu", "hidden_size": 6656,
        "initializer_range": 0.02, "intermediate_size": 19968,
        "layer_rope_theta": [10000.0, 10000.0, 10000.0, 0] * 13,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 13,
        "max_position_embeddings": 131072, "model_type": "muse_glimmer_text",
        "num_attention_heads": 32, "num_hidden_layers": 52, "num_key_value_heads": 2,
        "output_multiplier": 0.19611613513818404, "post_norm_eps": 1e-08,
        "qk_scale_factor": 3.87, "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": 2048, "tie_word_embeddings": False, "use_cache": True,
        "vocab_size": 202048},
    "video_token_id": 200091, "vision_config": {"depth": 50},
}  # fmt: skip
LING = {
    "architectures": ["BailingMoeV2ForCausalLM"], "attention_dropout": 0.0, "auto_map": {},
    "embedding_dropout": 0.0, "eos_token_id": 156892, "first_k_dense_replace": 1,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 5120, "max_position_embeddings": 32768, "max_window_layers": 20,
    "model_type": "bailing_moe", "moe_intermediate_size": 512,
    "moe_router_enable_expert_bias": True, "moe_shared_expert_intermediate_size": 512,
    "mtp_loss_scaling_factor": 0, "n_group": 8, "norm_head": False, "norm_topk_prob": True,
    "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8,
    "num_hidden_layers": 20, "num_key_value_heads": 4, "num_nextn_predict_layers": 0,
    "num_shared_experts": 1, "output_dropout": 0.0, "output_router_logits": False,
    "pad_token_id": 156892, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 600000, "routed_scaling_factor": 2.5,
    "router_dtype": "fp32", "score_function": "sigmoid", "tie_word_embeddings": False,
    "topk_group": 4, "torch_dtype": "bfloat16", "use_bias": False, "use_cache": True,
    "use_qk_norm": True, "use_qkv_bias": False, "use_rmsnorm": True,
    "use_sliding_window": False, "vocab_size": 157184,
}  # fmt: skip
SARVAM = {
    "architectures": ["SarvamMoEForCausalLM"], "auto_map": {}, "first_k_dense_replace": 1,
    "head_dim": 64, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "model_type": "sarvam_moe",
    "moe_intermediate_size": 1024, "moe_router_enable_expert_bias": True,
    "norm_topk_prob": True, "num_attention_heads": 64, "num_experts": 128,
    "num_experts_per_tok": 6, "num_hidden_layers": 19, "num_key_value_heads": 4,
    "num_shared_experts": 1, "rms_norm_eps": 1e-06, "rope_theta": 8000000,
    "routed_scaling_factor": 2.5, "score_function": "sigmoid", "torch_dtype": "bfloat16",
    "use_qk_norm": True, "vocab_size": 262144,
}  # fmt: skip
EXAONE_3 = {
    "activation_function": "silu", "architectures": ["ExaoneForCausalLM"],
    "attention_dropout": 0.0, "auto_map": {}, "bos_token_id": 1, "embed_dropout": 0.0,
    "eos_token_id": 361, "head_dim": 128, "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "layer_norm_epsilon": 1e-05,
    "max_position_embeddings": 32768, "model_type": "exaone", "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_layers": 32, "pad_token_id": 0,
    "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 1000000.0, "tie_word_embeddings": False, "torch_dtype": "float32",
    "use_cache": True, "vocab_size": 102400,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "billions", "kv_bytes", "windowed"),
    [
        (GEMMA_2, 9.24, 336 * 1024, 21),
        (COHERE_2, 8.03, 128 * 1024, 24),
        (MINIMAX, 228.7, 248 * 1024, 0),
        (QWEN3_VL, 30.53, 96 * 1024, 0),
        (MISTRAL_3, 23.57, 160 * 1024, 0),
        (KIMI, 1026.4, 70272, 0),
        (HUNYUAN, 80.39, 128 * 1024, 0),
        (MUSE, 27.85, 52 * 1024, 39),
        (LING, 16.26, 40 * 1024, 0),
        (SARVAM, 32.15, 19 * 1024, 0),
        (EXAONE_3, 7.82, 256 * 1024, 0),
    ],
    ids=[
        "gemma-2-9b",
        "command-r7b",
        "minimax-m2",
        "qwen3-vl",
        "mistral-small-3.1",
        "kimi-k2.5",
        "hunyuan-a13b",
        "muse-glimmer-30b",
        "ling-mini-2.0",
        "sarvam-30b",
        "exaone-3.5-7.8b",
    ],
)
def test_files_as_they_are_published_are_read_whole(
    config: dict[str, Any], billions: float, kv_bytes: int, windowed: int, tmp_path: Path
) -> None:
    shape = read_shape(write(tmp_path, config))
    assert shape.num_params == pytest.approx(billions * 1e9, rel=5e-3)
    assert shape.kv_bytes_per_token == kv_bytes
    assert sum(window is not None for window in shape.windows) == windowed
    notes = " ".join(shape.notes)
    assert ("texts only" in notes) == ("text_config" in config)
    assert not shape.planned_only and "no code of its own" not in notes


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (GEMMA_2, {"sliding_window_size": 512}, "windows (sliding_window_size)"),
        (COHERE_2, {"order_of_interleaved_layers": "global_first"}, "order_of_interleaved_layers"),
        (COHERE_2, {"use_gated_activation": False}, "use_gated_activation"),
        (MINIMAX, {"attn_type_list": [0, 1] * 31}, "attn_type_list"),
        (MINIMAX, {"architectures": ["MiniMaxForCausalLM"]}, "architecture 'MiniMaxForCausalLM'"),
        (MISTRAL_3, {"brand_new_thing": 7}, "fields that are not known (brand_new_thing)"),
        (MISTRAL_3, {"model_type": "mllama", "text_config": {"model_type": "mllama_text_model"}},
         "the layers of model_type 'mllama_text_model'"),
    ],
    ids=str,
)  # fmt: skip
def test_what_they_may_say_else_is_refused(
    config: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        read_shape(write(tmp_path, config, **changes))


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("changes", "windowed"),
    [
        ({"use_sliding_window": True}, 0),  # as long as the longest text
        ({"use_sliding_window": True, "sliding_window": 4096}, 0),  # from layer 28 of 28 on
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 21}, 7),
        ({"use_sliding_window": None, "sliding_window": 4096, "max_window_layers": 21}, 0),
        ({"sliding_window": 4096, "layer_types": [FULL, SLIDING] * 14}, 0),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 4096,
                "layer_types": [FULL, SLIDING] * 14,
            },
            14,
        ),
    ],
    ids=str,
)
def test_a_window_of_qwen_counts_where_it_is_used(
    changes: dict[str, Any], windowed: int, tmp_path: Path
) -> None:
    config = {k: v for k, v in {**QWEN, **changes}.items() if v is not None}
    shape = read_shape(write(tmp_path, config))
    assert shape.num_layers == 28
    assert sum(window is not None for window in shape.windows) == windowed


@pytest.mark.parametrize(
    "changes", [{}, {"use_sliding_window": False}, {"layer_types": [FULL] * 32}], ids=str
)
def test_a_window_of_mistral_counts_in_every_layer(changes: dict[str, Any], tmp_path: Path) -> None:
    """Its code looks at no other field."""
    shape = read_shape(write(tmp_path, {**MISTRAL, "sliding_window": 4096, **changes}))
    assert shape.windows == (4096,) * 32


def test_windows_of_gemma_leave_out_every_so_many_layers(tmp_path: Path) -> None:
    gemma = {**GEMMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"}
    shape = read_shape(write(tmp_path, {**gemma, "num_hidden_layers": 4, "sliding_window": 4096}))
    assert shape.windows == (4096, None) * 2
    gemma = {**gemma, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
    gemma |= {"num_hidden_layers": 7, "sliding_window": 512}
    assert read_shape(write(tmp_path, gemma)).windows == (*[512] * 5, None, 512)
    gemma |= {"sliding_window_pattern": 2}
    assert read_shape(write(tmp_path, gemma)).windows == (*[512, None] * 3, 512)


@pytest.mark.parametrize(
    ("content", "message"),
    [("[]", "JSON object"), ("{", "cannot be read"), ('{"a":' * 10**5, "cannot be read")],
)
def test_files_that_are_no_config(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=message):
        find_model(str(tmp_path))


def test_heads_are_whole_on_every_machine() -> None:
    """Llama-3-8B has 32 heads, 8 of them with keys and values."""
    assert Deployment(MODELS["llama-3-8b"], MACHINES["h100"], 8).slots > 0
    with pytest.raises(ConfigError, match=r"must divide the model's 32 heads, got 24"):
        Deployment(MODELS["llama-3-8b"], MACHINES["h100"], 24)
    with pytest.raises(ConfigError, match=r"2 KV heads, or be .* got 7; allowed: 1, 2, 14$"):
        Deployment(MODELS["qwen2.5-0.5b"], MACHINES["h100"], 7)


def test_a_pool_larger_than_the_card_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    model, machine = MODELS["llama-3-8b"], MACHINES["h100"]
    here = Deployment(model, machine).configured(kv_cache_memory_bytes=60 * 2**30)
    assert here.limits().num_blocks == 60 * 2**30 // (16 * 128 * 1024)
    with pytest.raises(ConfigError, match=r"kv_cache_memory_bytes is .* of which weights and"):
        here.configured(kv_cache_memory_bytes=70 * 2**30).limits()
    more = here.configured(kv_cache_memory_bytes=140 * 2**30)
    assert replace(more, tensor_parallel=2).slots > 0
    calibrated = replace(here, costs=here.cost_model(16))
    calibrated = calibrated.configured(kv_cache_memory_bytes=70 * 2**30)
    assert calibrated.slots == 70 * 2**30 // model.kv_bytes_per_token  # it was there
    flags = ["--machine", "l4", "--kv-cache-memory-bytes", "20GiB", "--dataset", "sharegpt"]
    for command in ("simulate", "plan"):
        assert main([command, "llama-3-8b", *flags]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "kv_cache_memory_bytes is 21,474,836,480, but 1 x l4 have 24,000,000,000" in line

"""Bytes and arithmetic of public models, worked out by hand from their configs' figures."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from quire.engine.traces.request import TraceRequest
from quire.models.shape import ConfigFields, ModelShape, shape_of
from quire_lab.simulation import MACHINES, Deployment, Simulator

KIB = 2**10

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 128256,
}  # fmt: skip
LLAMA_70B = {
    **LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
    "num_hidden_layers": 80,
}  # fmt: skip
MISTRAL = {
    "architectures": ["MistralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 4096,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 32000,
}  # fmt: skip
MIXTRAL = {
    **MISTRAL, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
    "num_experts_per_tok": 2, "num_local_experts": 8, "sliding_window": None,
}  # fmt: skip
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "head_dim": 128,
    "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "ep_size": 1, "first_k_dense_replace": 3,
    "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
    "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
        "weight_block_size": [128, 128]},
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True,
    "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
GEMMA_2 = {
    "architectures": ["Gemma2ForCausalLM"], "head_dim": 256, "hidden_size": 3584,
    "intermediate_size": 14336, "max_position_embeddings": 8192, "model_type": "gemma2",
    "num_attention_heads": 16, "num_hidden_layers": 42, "num_key_value_heads": 8,
    "sliding_window": 4096, "torch_dtype": "bfloat16", "vocab_size": 256000,
}  # fmt: skip
GEMMA_3 = {  # as it is published: what is Gemma's default is left out
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
    "image_token_index": 262144, "mm_tokens_per_image": 256, "model_type": "gemma3",
    "text_config": {
        "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
        "model_type": "gemma3_text", "num_attention_heads": 32, "num_hidden_layers": 62,
        "num_key_value_heads": 16, "query_pre_attn_scalar": 168,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
    "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152, "model_type": "siglip"},
}  # fmt: skip
LLAMA_4 = {  # as it is published, without what only vision needs
    "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "text_config": {
        "attention_bias": False, "attention_chunk_size": 8192, "head_dim": 128,
        "hidden_size": 5120, "interleave_moe_layer_step": 1, "intermediate_size": 8192,
        "intermediate_size_mlp": 16384, "max_position_embeddings": 10485760,
        "model_type": "llama4_text", "no_rope_layers": [], "num_attention_heads": 40,
        "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
        "num_local_experts": 16, "use_qk_norm": True, "vocab_size": 202048},
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1408, "model_type": "llama4_vision_model"},
}  # fmt: skip
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "experts_per_token": 4,
    "head_dim": 64, "hidden_size": 2880, "initial_context_length": 4096,
    "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
    "num_local_experts": 32, "quantization_config": {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                   "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
    "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False,
    "vocab_size": 201088,
}  # fmt: skip
OPT = {
    "architectures": ["OPTForCausalLM"], "ffn_dim": 20480, "hidden_size": 5120,
    "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 40,
    "num_hidden_layers": 40, "torch_dtype": "float16", "vocab_size": 50272,
    "word_embed_proj_dim": 5120,
}  # fmt: skip


class By(NamedTuple):
    """By hand. params, active: as published; bytes in 16 bits but for DeepSeek-V3 and gpt-oss."""

    config: dict[str, Any]
    params: float
    active: float
    weight_bytes: float
    kv: int  # bytes of a token
    matrices: int  # weights that a token is multiplied with, but for the head
    pair: int  # operations for a token and one that it sees
    windows: dict[int | None, int]  # layers


MODELS = {
    "llama-3.1-8b": By(
        LLAMA, 8.03e9, 8.03e9, 16.06e9, 32 * 2 * 8 * 128 * 2,
        32 * (4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336),
        4 * 32 * 4096, {None: 32},
    ),
    "llama-3.1-70b": By(
        LLAMA_70B, 70.55e9, 70.55e9, 141.1e9, 80 * 2 * 8 * 128 * 2,
        80 * (8192 * (8192 + 2 * 1024 + 8192) + 3 * 8192 * 28672),
        4 * 80 * 8192, {None: 80},
    ),
    "mistral-7b": By(
        MISTRAL, 7.24e9, 7.24e9, 14.48e9, 32 * 2 * 8 * 128 * 2,
        32 * (4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336),
        4 * 32 * 4096, {4096: 32},
    ),
    "mixtral-8x7b": By(
        MIXTRAL, 46.7e9, 12.88e9, 93.4e9, 32 * 2 * 8 * 128 * 2,
        32 * (4096 * (4096 + 2 * 1024 + 4096) + 8 * 4096 + 2 * 3 * 4096 * 14336),
        4 * 32 * 4096, {None: 32},
    ),
    "qwen3-30b-a3b": By(
        QWEN3_MOE, 30.53e9, 3.35e9, 61.06e9, 48 * 2 * 4 * 128 * 2,
        48 * (2048 * (4096 + 2 * 512 + 4096) + 128 * 2048 + 8 * 3 * 2048 * 768),
        4 * 48 * 4096, {None: 48},
    ),
    "deepseek-v3": By(  # of 37 billion, 0.93 are an embedding of which a token reads one row
        DEEPSEEK, 671e9, 37.5e9, 673e9, 61 * (512 + 64) * 2,
        61 * (7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168)
        + 3 * 3 * 7168 * 18432 + 58 * (256 * 7168 + 9 * 3 * 7168 * 2048),
        61 * 2 * 128 * (192 + 128), {None: 61},
    ),
    "gemma-2-9b": By(
        GEMMA_2, 9.24e9, 9.24e9, 18.48e9, 42 * 2 * 8 * 256 * 2,
        42 * (3584 * (4096 + 2 * 2048 + 4096) + 3 * 3584 * 14336),
        4 * 42 * 4096, {None: 21, 4096: 21},
    ),
    "gemma-3-27b": By(  # of 27.4 billion, 0.42 see images
        GEMMA_3, 27.01e9, 27.01e9, 54.02e9, 62 * 2 * 16 * 128 * 2,
        62 * (5376 * (4096 + 2 * 2048 + 4096) + 3 * 5376 * 21504),
        4 * 62 * 4096, {None: 10, 1024: 52},
    ),
    "llama-4-scout": By(  # every layer has 16 experts of which one is chosen, and one for all
        LLAMA_4, 107.77e9, 17.17e9, 215.5e9, 48 * 2 * 8 * 128 * 2,
        48 * (5120 * (5120 + 2 * 1024 + 5120) + 16 * 5120 + 2 * 3 * 5120 * 8192),
        4 * 48 * 5120, {None: 12, 8192: 36},
    ),
    "gpt-oss-20b": By(  # the file has 13.76e9 bytes
        GPT_OSS, 20.91e9, 4.19e9, 13.76e9, 24 * 2 * 8 * 64 * 2,
        24 * (2880 * (4096 + 2 * 512 + 4096) + 32 * 2880 + 4 * 3 * 2880 * 2880),
        4 * 24 * 4096, {None: 12, 128: 12},
    ),
    "opt-13b": By(
        OPT, 12.85e9, 12.85e9, 25.7e9, 40 * 2 * 5120 * 2,
        40 * (4 * 5120 * 5120 + 2 * 5120 * 20480),
        4 * 40 * 5120, {None: 40},
    ),
}  # fmt: skip


def shape(config: dict[str, Any], **changes: Any) -> ModelShape:
    return shape_of("it", ConfigFields({**config, **changes}, "config.json"))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_what_its_config_comes_to_by_hand(name: str) -> None:
    by, found = MODELS[name], shape(MODELS[name].config)
    assert found.num_params == pytest.approx(by.params, rel=3e-3)
    assert found.active_params == pytest.approx(by.active, rel=5e-3)
    assert found.weight_bytes == pytest.approx(by.weight_bytes, rel=5e-3)
    assert found.kv_bytes_per_token == by.kv == found.cache().bytes_per_token
    assert found.flops_per_token == pytest.approx(2 * by.matrices, rel=1e-3)
    assert found.flops_per_pair == by.pair
    assert found.flops_per_sample == 2 * found.vocab_size * found.hidden_size
    windows = found.windows or (None,) * found.num_layers
    assert {one: windows.count(one) for one in set(windows)} == by.windows


def test_latents_are_attended_to_as_they_are_cached() -> None:
    """In decoding all 128 heads read one vector of 512 + 64; a later chunk expands it anew."""
    found = shape(DEEPSEEK)
    assert found.kv_bytes_per_token == 68.625 * KIB
    assert found.flops_per_decode_pair == 61 * 2 * 128 * (576 + 512)
    assert found.flops_per_expansion == 61 * 2 * 512 * 128 * (128 + 128)
    plain = shape(LLAMA)
    assert plain.flops_per_decode_pair == plain.flops_per_pair and not plain.flops_per_expansion


@pytest.mark.parametrize(
    ("changes", "mixtures", "shared"),
    [
        ({}, 58, 2048),
        ({"first_k_dense_replace": 0}, 61, 2048),
        ({"moe_layer_freq": 2, "first_k_dense_replace": 0}, 31, 2048),
        ({"moe_layer_freq": [0] * 21 + [1] * 40}, 40, 2048),
        ({"n_shared_experts": 2}, 58, 4096),
        ({"n_shared_experts": None}, 58, 0),
        ({"mlp_only_layers": [10, 20]}, 56, 2048),
        ({"mlp_layer_types": ["dense"] + ["sparse"] * 60}, 60, 2048),
        ({"interleave_moe_layer_step": 2, "first_k_dense_replace": 0}, 30, 2048),
        ({"moe_layers": [1, 3, 5]}, 3, 2048),
        (
            {"n_routed_experts": None, "moe_num_experts": 256, "num_experts_per_tok": None,
             "moe_k": 8, "n_shared_experts": None, "moe_num_shared_experts": 3,
             "first_k_dense_replace": None, "moe_layer_start_index": 4, "moe_layer_freq": None,
             "moe_layer_interval": 2}, 28, 6144,
        ),
    ],
    ids=str,
)  # fmt: skip
def test_experts_by_every_name(changes: dict[str, Any], mixtures: int, shared: int) -> None:
    config = DEEPSEEK
    found = shape(config, **changes)
    assert found.experts is not None and found.experts.count == 256 and found.experts.chosen == 8
    assert sum(found.experts.layers) == mixtures and found.experts.shared_inner == shared


def test_what_is_planned_for_other_engines_says_so() -> None:
    seeing = {"architectures": ["InternS1ForConditionalGeneration"], "model_type": "interns1"}
    notes = shape({**seeing, "text_config": DEEPSEEK, "vision_config": {"depth": 27}}).notes
    assert "no code of its own for interns1" in " ".join(notes)
    notes = " ".join(shape(DEEPSEEK).notes)
    assert "no code of its own" not in notes and "only speculation loads" in notes
    assert "texts only" in " ".join(shape(GEMMA_3).notes)
    assert shape(LLAMA).notes == shape(MIXTRAL).notes == shape(GEMMA_2).notes == ()


def test_a_window_is_held_as_the_engine_holds_it() -> None:
    """8,100 tokens of Mistral: its window, what one step computes, and parts of blocks."""
    deployment = Deployment(shape(MISTRAL), MACHINES["a100-80"])
    limits = deployment.limits()
    held: list[int] = []
    simulator = Simulator(
        limits, deployment.cost_model(16), skip_ahead=False,
        on_step=lambda _, step: held.append(step.usage.used + step.usage.internal),
    )  # fmt: skip
    simulator.run([TraceRequest(0.0, 8000, 100)])
    assert 4096 <= held[-1] <= 4096 + 2 * limits.block_size
    assert max(held) <= 4096 + limits.max_num_batched_tokens + 2 * limits.block_size


@pytest.mark.parametrize(
    ("config", "longest", "held"),
    [
        # 12 layers keep all of a text, 36 the 8,192 tokens of a chunk and what a step computes.
        (LLAMA_4, 65536, (12 * 65536, 36 * (8192 + 2048))),
        # 10 layers keep all, 52 a window of 1,024.
        (GEMMA_3, 32768, (10 * 32768, 52 * (1024 + 2048))),
    ],
    ids=["llama-4-scout", "gemma-3-27b"],
)  # fmt: skip
def test_a_long_text_takes_what_its_layers_keep(
    config: dict[str, Any], longest: int, held: tuple[int, int]
) -> None:
    """In tokens of a layer, blocks at both ends of a window beside."""
    deployment = Deployment(shape(config), MACHINES["b300"]).configured(max_model_len=longest)
    limits = deployment.limits()
    size = limits.block_size
    full, windowed = (
        group.most_held(longest, size) * size * len(group.layers) for group in limits.kv_groups
    )
    assert full == held[0]
    assert held[1] <= windowed <= held[1] + len(limits.kv_groups[1].layers) * 2 * size


@pytest.mark.parametrize(
    ("section", "name", "size"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq", 0.5 + 2 / 128),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "awq", 0.5 + 2 / 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes", 1),
        ({"quant_method": "fp8"}, "fp8", 1),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 0.5 + 1 / 16),
    ],
    ids=str,
)
def test_what_others_have_rounded_takes_its_own_bytes(
    section: dict[str, Any], name: str, size: float
) -> None:
    found, plain = shape(LLAMA, quantization_config=section), shape(LLAMA)
    weights = 32 * (4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336)
    assert found.weight_form.name == name
    assert found.weight_bytes == pytest.approx(plain.weight_bytes - (2 - size) * weights)

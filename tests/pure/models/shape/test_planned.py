"""A checkpoint's bytes are those of its modules, each as ``quantization_config`` says."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from quire.core.errors import ModelError
from quire.models.shape import ConfigFields, ModelShape, modules_of, shape_of
from quire_lab.simulation import MACHINES, Deployment, find_model

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}  # fmt: skip
KIMI = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "num_hidden_layers": 61,
    "hidden_size": 7168, "num_attention_heads": 64, "num_key_value_heads": 64,
    "intermediate_size": 18432, "vocab_size": 163840, "max_position_embeddings": 262144,
    "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "first_k_dense_replace": 1,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "routed_scaling_factor": 2.827, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip
MINIMAX = {
    "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "hidden_size": 3072,
    "intermediate_size": 1536, "num_hidden_layers": 62, "num_attention_heads": 48,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 200064, "num_local_experts": 256,
    "num_experts_per_tok": 8, "max_position_embeddings": 196608, "tie_word_embeddings": False,
    "attn_type_list": [1] * 62, "shared_intermediate_size": 0,
}  # fmt: skip

OF_ATTENTION = 4096 * (4096 + 2 * 1024 + 4096)  # weights of a layer
OF_MLP = 3 * 4096 * 14336
OF_TABLE = 128256 * 4096  # of embeddings, and of the head
NORMS = 32 * 2 * 4096
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
ROUNDED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
OF_INT4 = 0.5 + 2 / 32
OF_FP8, OF_NVFP4 = 1 + 4 / 128**2, 0.5 + 1 / 16


def shape(config: dict[str, Any], rounded: dict[str, Any] | None = None) -> ModelShape:
    values = {**config, **({"quantization_config": rounded} if rounded else {})}
    return shape_of("it", ConfigFields(values, "config.json"))


def groups(*found: tuple[list[str], dict[str, Any]], **more: Any) -> dict[str, Any]:
    """As llm-compressor writes it."""
    named = {
        f"group_{number}": {"targets": targets, "weights": weights}
        for number, (targets, weights) in enumerate(found)
    }
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "quantization_status": "compressed", "config_groups": named, "ignore": ["lm_head"], **more,
    }  # fmt: skip


def modelopt(**inner: Any) -> dict[str, Any]:
    """As hf_quant_config.json is taken in."""
    return {"quant_method": "modelopt", "exclude_modules": ["lm_head"], **inner}


def bytes_of(attention: float, mlp: float, head: float = 2) -> float:
    return 32 * (OF_ATTENTION * attention + OF_MLP * mlp) + OF_TABLE * (2 + head) + 2 * NORMS


NVFP4_LAYERS = {f"model.layers.{n}.mlp": {"quant_algo": "W4A16_NVFP4"} for n in range(32)}
FP8_LAYERS = {f"model.layers.{n}.self_attn": {"quant_algo": "FP8"} for n in range(32)}
WHOLE_LAYERS = [f"model.layers.{n}" for n in range(16)]
EIGHT_BITS = {"num_bits": 8, "type": "int", "strategy": "channel"}


@pytest.mark.parametrize(
    ("rounded", "num_bytes", "products"),
    [
        (FP8, bytes_of(OF_FP8, OF_FP8), "fp8"),
        ({**FP8, "modules_to_not_convert": ["self_attn"]}, bytes_of(2, OF_FP8), "fp8"),
        ({**FP8, "ignored_layers": ["mlp.down_proj", "gate"]}, bytes_of(
            OF_FP8, (2 * OF_FP8 + 2) / 3), "fp8"),
        ({**FP8, "modules_to_not_convert": WHOLE_LAYERS}, bytes_of(
            (OF_FP8 + 2) / 2, (OF_FP8 + 2) / 2), None),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "damp_percent": 0.1,
          "dynamic": {r"-:.*self_attn.*": {}}}, bytes_of(2, OF_INT4), ""),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "modules_in_block_to_quantize": [
            ["mlp.up_proj", "mlp.gate_proj"], ["mlp.down_proj"]]}, bytes_of(2, OF_INT4), ""),
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": [
            "mlp"]}, bytes_of(OF_INT4, 2), ""),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, bytes_of(
            0.5 + 1 / 64, 0.5 + 1 / 64), ""),
        (groups((["Linear"], ROUNDED)), bytes_of(OF_INT4, OF_INT4), ""),
        (groups((["Linear"], ROUNDED), ignore=["re:.*self_attn.*", "lm_head"]),
         bytes_of(2, OF_INT4), ""),
        (groups((["Linear"], ROUNDED), ignore=[]), bytes_of(OF_INT4, OF_INT4, OF_INT4), ""),
        (groups((["re:.*self_attn.*"], EIGHT_BITS), (["re:.*mlp.*"], ROUNDED)),
         bytes_of(1, OF_INT4), ""),
        (groups((["Linear"], {"num_bits": 4, "type": "float", "group_size": 16}),
                format="nvfp4-pack-quantized"), bytes_of(OF_NVFP4, OF_NVFP4), ""),
        (modelopt(quant_algo="NVFP4", group_size=16), bytes_of(OF_NVFP4, OF_NVFP4), "fp4"),
        (modelopt(quant_algo="NVFP4", ignore=["model.layers.*.self_attn*"]),
         bytes_of(2, OF_NVFP4), "fp4"),
        (modelopt(quant_algo="MIXED_PRECISION", quantized_layers={**FP8_LAYERS, **NVFP4_LAYERS}),
         bytes_of(1, OF_NVFP4), ""),
        (modelopt(quant_algo="MXFP8"), bytes_of(1 + 1 / 32, 1 + 1 / 32), "fp8"),
        ({"quant_algo": "FP8", "ignore": ["lm_head"]}, bytes_of(1, 1), "fp8"),
    ],
    ids=str,
)  # fmt: skip
def test_each_module_takes_what_it_is_stored_in(
    rounded: dict[str, Any], num_bytes: float, products: str | None
) -> None:
    found = shape(LLAMA, rounded)
    assert found.weight_bytes == pytest.approx(num_bytes, rel=1e-5)
    assert products is None or found.weight_form.products == products


def test_experts_alone_may_be_rounded() -> None:
    """Kimi-K2-Thinking: attention, shared experts, the dense layer and the head have 16 bits."""
    ignored = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
               r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]  # fmt: skip
    found = shape(KIMI, groups((["Linear"], ROUNDED), ignore=ignored))
    experts = 60 * 384 * 3 * 7168 * 2048
    others = found.num_params - experts
    assert found.weight_bytes == pytest.approx(experts * OF_INT4 + others * 2, rel=1e-4)
    assert found.weight_bytes == pytest.approx(594e9, rel=0.01)  # of the published files


def test_deepseek_fits_the_machine_that_it_is_served_on() -> None:
    model = find_model("deepseek-v3")
    assert model.weight_bytes == pytest.approx(671e9, rel=0.005)
    eight = Deployment(model, MACHINES["h200"], 8)
    assert eight.slots > 700_000  # each machine keeps the latents of all heads
    for name, billions in (("kimi-k2", 1026), ("deepseek-r1", 671)):
        assert find_model(name).weight_bytes == pytest.approx(billions * 1e9, rel=0.005)
    minimax = shape(MINIMAX, {**FP8, "modules_to_not_convert": [
        "gate", "e_score_correction_bias", "lm_head"]})  # fmt: skip
    assert minimax.weight_bytes == pytest.approx(230e9, rel=0.003)


def test_quire_widens_floats_of_8_bits_and_others_keep_them() -> None:
    model = shape(LLAMA, {**FP8, "kv_cache_scheme": {"num_bits": 8, "type": "float"}})
    on_gpu, on_cpu = (Deployment(model, MACHINES[name]) for name in ("h100", "xeon-8480"))
    assert on_gpu.kept.weight_bytes == pytest.approx(bytes_of(OF_FP8, OF_FP8), rel=1e-5)
    assert on_cpu.kept.weight_bytes == pytest.approx(bytes_of(2, 2), rel=1e-5)
    assert on_cpu.kept.weight_form.name == "bfloat16, from fp8"
    assert on_gpu.kv_bytes_per_token * 2 == on_cpu.kv_bytes_per_token == 128 * 1024
    # An A100 has no units for them: weights are widened as they are read, keys and values are not.
    older = Deployment(model, MACHINES["a100-80"])
    assert older.kept.weight_bytes == on_gpu.kept.weight_bytes
    assert older.kv_bytes_per_token == 128 * 1024
    told = replace(model, kv_dtype="bfloat16")
    assert Deployment(told, MACHINES["h100"]).kv_bytes_per_token == 128 * 1024


@pytest.mark.parametrize(
    ("rounded", "cache"),
    [
        (modelopt(quant_algo="FP8", kv_cache_quant_algo="FP8"), "fp8"),
        (modelopt(quantization={"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}), "fp8"),
        ({"quant_algo": "FP8", "kv_cache_scheme": "FP8"}, "fp8"),
        (groups((["Linear"], ROUNDED), kv_cache_scheme={"num_bits": 8, "type": "int"}), "int8"),
        (groups((["Linear"], ROUNDED), kv_cache_scheme=None), None),
        (modelopt(quant_algo="FP8", kv_cache_quant_algo="none"), None),
        (FP8, None),
    ],
    ids=str,
)
def test_keys_and_values_have_the_type_that_the_checkpoint_asks_for(
    rounded: dict[str, Any], cache: str | None
) -> None:
    found, plain = shape(LLAMA, rounded), shape(LLAMA)
    assert found.stored_kv == cache
    assert found.kv_bytes_per_token == plain.kv_bytes_per_token // (1 if cache is None else 2)


@pytest.mark.parametrize(
    ("rounded", "message"),
    [
        (modelopt(quant_algo="NVFP3"), "quant_algo is NVFP3; known: FP8"),
        (modelopt(quant_algo="MIXED_PRECISION"), "MIXED_PRECISION without quantized_layers"),
        (modelopt(quant_algo="FP8", kv_cache_quant_algo="NVFP4"), "kv_cache_quant_algo is NVFP4"),
        (groups((["Linear"], ROUNDED), kv_cache_scheme={"num_bits": 4}),
         "kv_cache_scheme is INT4; known: FP8, INT8"),
        ({**FP8, "layers_left": ["a"]}, "quantization_config has layers_left, which is not known"),
        ({**FP8, "modules_to_not_convert": ["a*b*c*d*e*f"]}, "names with at most 4 stars"),
        ({**FP8, "modules_to_not_convert": [3]}, "modules_to_not_convert must be a list of names"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:(a+)+$": {}}},
         "dynamic must be short regular expressions"),
        (groups((["Embedding"], ROUNDED)), "config_groups round the embeddings"),
    ],
    ids=str,
)  # fmt: skip
def test_what_may_change_bytes_and_is_not_known_is_refused(
    rounded: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        shape(LLAMA, rounded)


def test_a_step_reads_of_embeddings_its_tokens_rows() -> None:
    plain = shape({**LLAMA, "tie_word_embeddings": False})
    table = 2 * OF_TABLE
    assert plain.weight_bytes_read(1) == plain.weight_bytes - table + 2 * 4096
    assert plain.weight_bytes_read(64) == plain.weight_bytes - table + 64 * 2 * 4096
    assert plain.weight_bytes_read(10**7) == plain.weight_bytes
    tied = shape({**LLAMA, "tie_word_embeddings": True})
    assert tied.weight_bytes_read(1) == tied.weight_bytes  # the head reads it


HYBRID = {
    "architectures": ["Qwen3_5ForCausalLM"], "attn_output_gate": True, "head_dim": 256,
    "hidden_size": 5120, "intermediate_size": 17408, "layer_types": [
        *["linear_attention"] * 3, "full_attention"] * 16,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 48, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
    "model_type": "qwen3_5_text", "num_attention_heads": 24, "num_hidden_layers": 64,
    "num_key_value_heads": 4, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "vocab_size": 248320,
}  # fmt: skip


@pytest.mark.parametrize("name", ["llama-3-8b", "kimi-k2", "glm-4.5-air", "opt-13b", "hybrid"])
def test_modules_are_all_of_a_model_but_what_nobody_rounds(name: str) -> None:
    found = shape(HYBRID) if name == "hybrid" else find_model(name)
    table = found.vocab_size * found.hidden_size
    if name == "opt-13b":
        table = found.max_positions * found.hidden_size  # of positions: the head is the table
    params = sum(module.params for module in modules_of(found))
    assert params == pytest.approx(found.num_params - table, rel=0.02)


def test_layers_with_a_state_may_be_left_as_they_were() -> None:
    rounded, ignored = (
        shape(HYBRID, {**FP8, "modules_to_not_convert": names}) for names in ([], ["linear_attn"])
    )
    assert rounded.weight_bytes == pytest.approx(29.4e9, rel=0.02)
    assert ignored.weight_bytes == pytest.approx(34.9e9, rel=0.02)

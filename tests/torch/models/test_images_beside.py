"""The decoders in models that see images compute of texts what transformers computes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from quire.core.errors import ModelError
from quire.models import llama
from quire.models.config import read_config
from quire.models.loader import check_servable, load_model
from quire.models.shape import read_shape
from support.hf_reference import random_prompts
from support.paged_harness import PagedHarness
from support.rounded_checkpoints import Tensors, rewritten
from support.small_models import VOCAB_SIZE, save_whole

_SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "initializer_range": 0.2,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SEEING = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16}
_CLIP = {"model_type": "clip_vision_model", "patch_size": 8, "intermediate_size": 32, **_SEEING}
_PIXTRAL = {"model_type": "pixtral", "patch_size": 8, "intermediate_size": 32, **_SEEING}
_SIGLIP = {"model_type": "siglip_vision_model", "patch_size": 8, **_SEEING}
_INTERN = {**_SEEING, "patch_size": [8, 8], "image_size": [16, 16], "intermediate_size": 32}
_QWEN = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "patch_size": 4}
_QWEN_IDS = dict.fromkeys(("image_token_id", "video_token_id"), 5)
_DEEP = {**_QWEN, "out_hidden_size": 48, "num_position_embeddings": 16}
_MROPE = {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 10_000.0}
_GEMMA = {"head_dim": 12, "sliding_window": 8, "query_pre_attn_scalar": 12}
_GEMMA_4 = {
    **dict.fromkeys(("head_dim", "hidden_size_per_layer_input"), 12),
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 8,
    "global_head_dim": 20,
    "vocab_size_per_layer_input": VOCAB_SIZE,
}
_GEMMA_SEES = {**_SEEING, "patch_size": 4, "intermediate_size": 32, "num_key_value_heads": 2}
_DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 24,
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
}
_LATENT = {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 64,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 32,
}
_ROUTED = (
    "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_group", "topk_group",
)  # fmt: skip
_YARN = {  # queries grow with every 8 tokens
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 8,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
_CHUNKS = {
    "head_dim": 16,
    "intermediate_size_mlp": 64,
    "num_local_experts": 4,
    "interleave_moe_layer_step": 2,
    "no_rope_layer_interval": 2,
    "attention_chunk_size": 8,
    "floor_scale": 8,
}
_LLAMA_4 = {
    **_SEEING,
    "patch_size": 8,
    "intermediate_size": 128,
    "vision_output_dim": 32,
    "projector_input_dim": 32,
    "projector_output_dim": 32,
}
_MUSE = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "sliding_window": 8,
    "qk_scale_factor": 1.7,
    "output_multiplier": 0.6,
    "final_logit_softcapping": 3.0,
    "post_norm_eps": 1e-2,
}
_MUSE_BETWEEN = {
    **dict.fromkeys(("image_token_id", "video_token_id"), 7),
    "out_hidden_size": 48,
    "projector_hidden_size": 32,
}
_MUSE_SEES = {
    "patch_size": 4,
    "pos_emb_height": 4,
    "pos_emb_width": 4,
    **dict.fromkeys(("hidden_size", "intermediate_size"), 32),
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
_IMAGE_ID = {"image_token_id": 7}
_IDS = {**_IMAGE_ID, "video_token_id": 7}
_ENDS = dict.fromkeys(("bos_token_id", "pad_token_id"), 2)
_LFM2 = {"model_type": "lfm2", "layer_types": ["conv", "full_attention"], "conv_L_cache": 3}
_MOST = {  # of what sees, where it is not said
    **dict.fromkeys(("depth", "num_layers"), 1),
    **dict.fromkeys(("num_heads", "num_attention_heads", "num_hidden_layers"), 2),
    **dict.fromkeys(("hidden_size", "embed_dim", "intermediate_size"), 32),
    "num_position_embeddings": 16,
}
# By class: what the decoder is, beside the sizes; what sees; what is beside both.
_WHOLES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any] | None, Mapping[str, Any]]] = {
    "Llava": ({"model_type": "llama"}, _CLIP, {"image_token_index": 5, "vision_feature_layer": -1}),
    "LlavaNext": ({"model_type": "qwen2"}, _CLIP, {"image_token_index": 5}),
    "Mistral3": ({"model_type": "mistral", "head_dim": 16}, _PIXTRAL, {"image_token_index": 5}),
    "Mistral3 around mistral4": (
        {"model_type": "mistral4", **_LATENT, "rope_parameters": _YARN},
        _PIXTRAL,
        {"image_token_index": 5},
    ),
    "Llama4": (_CHUNKS, _LLAMA_4, {"image_token_index": 5}),
    "Qwen2_5_VL": ({"rope_parameters": _MROPE}, {**_QWEN, "out_hidden_size": 48}, _QWEN_IDS),
    "Qwen3VL": ({"rope_parameters": _MROPE, "head_dim": 16}, _DEEP, _QWEN_IDS),
    "Qwen3VLMoe": ({**_EXPERTS, "head_dim": 16}, _DEEP, _QWEN_IDS),
    "Gemma3": (_GEMMA, _SIGLIP, {}),
    "Gemma4": (_GEMMA_4, _GEMMA_SEES, {}),
    "Gemma4Unified": (
        {name: value for name, value in _GEMMA_4.items() if "per_layer" not in name},
        {"mm_embed_dim": 48, "mm_posemb_size": 16, "patch_size": 4},
        {"audio_config": None},
    ),
    "Qwen3_5": (_DELTA, _DEEP, _QWEN_IDS),
    "Qwen3_5Moe": ({**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 32}, _DEEP, _QWEN_IDS),
    "Qwen2VL": ({"rope_parameters": _MROPE}, {**_QWEN, "embed_dim": 32}, _QWEN_IDS),
    "MuseGlimmer": (_MUSE, _MUSE_SEES, _MUSE_BETWEEN),
    "AyaVision": ({"model_type": "cohere2"}, _SIGLIP, {"image_token_index": 5}),
    "InternVL": ({"model_type": "qwen2"}, _INTERN, {"image_token_id": 5}),
    "Cohere2Vision": ({"model_type": "cohere2", "sliding_window": 8, **_ENDS}, None, _IMAGE_ID),
    "DeepseekVL": ({"model_type": "llama"}, None, _IMAGE_ID),
    "Idefics2": ({"model_type": "mistral"}, None, _IMAGE_ID),
    "Exaone4_5_": ({"model_type": "exaone4", "sliding_window": 8}, None, _IDS),
    "Glm4v": ({"rope_parameters": _MROPE}, None, _IDS),
    "Glm4v half turned": (
        {
            "rope_parameters": {
                **_MROPE,
                "partial_rotary_factor": 0.5,
                "mrope_section": [1, 1, 1],
            }
        },
        None,
        _IDS,
    ),
    "Glm4vMoe": (
        {
            **{name: value for name, value in _LATENT.items() if name in _ROUTED},
            "head_dim": 24,
            "first_k_dense_replace": 1,
            "rope_parameters": {**_MROPE, "partial_rotary_factor": 0.5},
        },
        None,
        _IDS,
    ),
    "GlmOcr": (
        {"head_dim": 16, "rope_parameters": {**_MROPE, "mrope_section": [4, 2, 2]}},
        None,
        _IDS,
    ),
    "HyperCLOVAXVisionV2": ({"model_type": "hyperclovax"}, None, _IDS),
    "Idefics3": ({"model_type": "llama"}, None, _IMAGE_ID),
    "Kimi_K25": ({"model_type": "deepseek_v3", **_LATENT}, None, _IDS),
    "Lfm2Vl": (_LFM2, None, _IMAGE_ID),
    "LightOnOcr": ({"model_type": "qwen3", "head_dim": 16}, None, _IMAGE_ID),
    "MiniCPMV4_6": ({"model_type": "qwen3_5_text", **_DELTA}, None, _IDS),
    "Ovis2": ({"model_type": "qwen2"}, None, {**_IMAGE_ID, "visual_indicator_token_ids": [7]}),
    "QianfanOCR": ({"model_type": "qwen3", "head_dim": 16}, None, _IMAGE_ID),
    "SmolVLM": ({"model_type": "llama"}, None, _IMAGE_ID),
    "VideoLlama3": ({"model_type": "qwen2"}, None, _IDS),
    "LlavaOnevision": ({"model_type": "qwen2"}, _SIGLIP, {"image_token_index": 5}),
}


def _made(name: str, directory: Path) -> Any:
    """The model of transformers', which is saved in ``directory``."""
    text, seeing, more = _WHOLES[name]
    name = name.partition(" ")[0]
    if not hasattr(transformers, f"{name}Config"):
        pytest.skip(f"this release of transformers has no {name}Config")
    make_config = getattr(transformers, f"{name}Config")
    if seeing is None:
        usual = make_config().vision_config.to_dict()
        seeing = {
            field: min(value, _MOST[field]) if field in _MOST and isinstance(value, int) else value
            for field, value in usual.items()
        }
        seeing |= {"out_hidden_size": _SIZES["hidden_size"]} if "out_hidden_size" in usual else {}
    config = make_config(text_config={**_SIZES, **text}, vision_config={**seeing}, **more)
    torch.manual_seed(0)
    whole = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for parameter in whole.parameters():
            if parameter.ndim == 1:  # norms are neither ones nor zeros
                parameter.add_(0.2 * torch.randn(parameter.shape))
    save_whole(whole, directory)
    return whole


def _logits(directory: Path, prompt: list[int]) -> Tensor:
    return PagedHarness(load_model(directory)).prefill([prompt], 7)[0]


@pytest.mark.parametrize("name", _WHOLES)
def test_texts(name: str, tmp_path: Path) -> None:
    whole = _made(name, tmp_path)
    assert check_servable(tmp_path) == "Quire"
    shape = read_shape(tmp_path)
    assert not shape.planned_only and "texts only" in " ".join(shape.notes)
    prompt = random_prompts(19)[0]
    with torch.inference_mode():
        # transformers' Llama 4 fails on texts.
        decoder = whole.language_model if name == "Llama4" else whole
        expected = decoder(input_ids=torch.tensor([prompt])).logits[0]
    # transformers' Aya Vision leaves it out, which its decoder by itself does not.
    expected = expected * getattr(whole.config.text_config, "logit_scale", 1.0)
    assert expected.std() > 0.03, "too flat to tell anything"
    assert (_logits(tmp_path, prompt) - expected).abs().max() < 1e-4


def test_stacks_of_experts_may_have_inputs_first(tmp_path: Path) -> None:
    """As they are published for Qwen3-VL."""
    _made("Qwen3VLMoe", tmp_path / "made")

    def turned(name: str, tensor: Tensor) -> Tensors:
        return {name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor}

    other = rewritten(tmp_path / "made", tmp_path / "turned", turned)
    prompt = random_prompts(19)[0]
    assert torch.equal(_logits(other, prompt), _logits(tmp_path / "made", prompt))


def test_sizes_that_are_left_out_are_those_of_the_family(tmp_path: Path) -> None:
    """As google/gemma-3-4b-it leaves out its heads."""
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "boi_token_index": 255999,
        "mm_tokens_per_image": 256,
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
            "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {"model_type": "siglip_vision_model"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = llama.read(read_config(tmp_path))
    assert (read.heads.num, read.heads.num_kv, read.heads.dim) == (8, 4, 256)
    assert read_shape(tmp_path).num_params == pytest.approx(3.88e9, rel=1e-3)


def test_decoders_that_are_not_known_are_refused_by_name(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": {"model_type": "brand_new", "hc_mult": 4},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    said = r"LlavaForConditionalGeneration .* 'brand_new'\).* beside the residual one \(hc_mult\)"
    with pytest.raises(ModelError, match=said):
        check_servable(tmp_path)

"""GGUF files by llama.cpp's own converter: what llama.cpp and transformers compute of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.models.loader import load_model
from references.llama_cpp_models import converted, logprobs
from references.packages import Unreachable
from support.hf_reference import hf_logits, random_prompts
from support.paged_harness import PagedHarness
from support.published import PUBLISHED, published
from support.small_models import SMALL_LLAMA, VOCAB_SIZE, make_model, save_tokenizer

PROMPT = random_prompts(45)[0]
ENDS = (3, 30, 45)
TOLERANCE = 2e-3
_FOUR = {
    "num_hidden_layers": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "linear_value_head_dim": 20,  # llama.cpp has one width for keys and values
    "head_dim": 64,  # it turns 32 numbers of a head at least
}
_PADDED = {"vocab_size": 304}  # the converter rounds it up, and forgets the table
_MAMBA = {**_PADDED, "num_hidden_layers": 3, "mamba_n_heads": 4, "mamba_expand": 2}
_KINDS = {"layer_types": ["mamba", "attention", "mamba"]}
_LATENT = {"qk_nope_head_dim": 24, "kv_lora_rank": 48, "attention_bias": False}
_SIGMOID = {"scoring_func": "sigmoid"}
_TIED = {"tie_word_embeddings": True}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
}
# llama.cpp has the number of streams, the rank, the width of what layers are given, where gates are
# cut and who attends to others' keys in its code. It cuts by deviations over one number less than
# there are, which transformers does not: so MLPs are wide. To tokens beyond the table the converter
# gives zeros, and transformers what the first has: so there are none. Where so much is cut, small
# differences grow: with llama.cpp's table of GELU transformers is 0.6 from itself, and with its
# deviations too 0.15 from it.
_GEMMA_3N = {
    **_TIED,
    "num_hidden_layers": 25,
    "num_kv_shared_layers": 5,
    "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 5,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "laurel_rank": 64,
    "altup_num_inputs": 4,
    "altup_active_idx": 0,
    "intermediate_size": [2048] * 25,
    "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 15,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
    },
}
_GELU = 5
_PHI = {"intermediate_size": 256, "num_key_value_heads": 4, "qk_layernorm": False}
_LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LLAMA_4 = {
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
    "floor_scale": 8192,
    "attn_scale": 0.1,
}
_MISTRAL_4 = {
    **_YARN,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_WITHOUT_GUESSES = ("--no-mtp",)
_BAILING = {"head_dim": 16, "n_shared_experts": 1}
_SEES = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 4, 4]},
    "vision_config": {"deepstack_visual_indexes": []},
}
_FALCON = {"bias": False, "ffn_hidden_size": 256}
_INDEXED = {**_SIGMOID, "index_head_dim": 64}
_MIMO = {
    "rope_parameters": None,
    "rope_theta": 5e6,
    "swa_rope_theta": 1e4,
    "partial_rotary_factor": 0.334,
    "architectures": ["MiMoV2FlashForCausalLM"],
    "sliding_window": 64,
    "sliding_window_size": 64,
    "hybrid_layer_pattern": [0, 1, 0],
    "swa_head_dim": 48,
    "swa_v_head_dim": 32,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}


@dataclass(frozen=True)
class Case:
    """A family, and how it is made so that llama.cpp computes it."""

    family: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    # Of config.json, which transformers does not write, or otherwise than files on the hub have it.
    written: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    rough: int = 1  # tolerances between us and llama.cpp, which looks GELU up, in float16
    unused_from: int | None = None  # layers that have keys which nobody uses, as published
    published: str = ""  # as its makers have it, in ``PUBLISHED``
    otherwise: str = ""  # what llama.cpp computes otherwise than transformers, if it does


CASES = {
    "llama": Case("llama3"),
    "llama-yarn": Case("yarn"),
    "mixtral": Case("mixtral"),
    "qwen2": Case("qwen2.5"),
    "qwen2moe": Case("qwen2_moe"),
    "qwen3": Case("qwen3"),
    "qwen3moe": Case("qwen3_moe", {"mlp_only_layers": []}),
    "qwen3next": Case("qwen3_next", {**_FOUR, "mlp_only_layers": []}, options=_WITHOUT_GUESSES),
    "qwen35": Case("qwen3_5", _FOUR, options=_WITHOUT_GUESSES),
    "qwen35moe": Case("qwen3_5_moe", _FOUR, options=_WITHOUT_GUESSES),
    "lfm2": Case("lfm2_plain"),
    "lfm2moe": Case("lfm2_moe", {"routed_scaling_factor": 1.0, **_TIED}),
    "granitehybrid": Case("granite_hybrid", {**_MAMBA, **_KINDS}, _KINDS),
    "granitehybrid-dense": Case(
        "granite_hybrid_dense",
        {
            **_MAMBA,
            **_KINDS,
            "mamba_proj_bias": False,
            "position_embedding_type": None,
            "shared_intermediate_size": 96,
        },
        {**_KINDS, "num_experts_per_tok": 0},
    ),
    "falcon-h1": Case("falcon_h1", {"head_dim": 16}),
    "falcon-h1-normed": Case(
        "falcon_h1", {"head_dim": 16, "mamba_rms_norm": True, "mamba_norm_before_gate": False}
    ),
    "nemotron_h": Case(
        "nemotron_h",
        _PADDED,
        {
            "num_hidden_layers": 3,
            "hybrid_override_pattern": "M-*",
            "layers_block_type": None,
            # transformers writes them whatever the layers are; published files have none.
            "num_experts_per_tok": None,
            "n_routed_experts": None,
            "n_group": None,
            "topk_group": None,
        },
    ),
    "nemotron_h_moe": Case(
        "nemotron_h_moe",
        _PADDED,
        {"num_hidden_layers": 3, "hybrid_override_pattern": "*EM", "layers_block_type": None},
    ),
    "mamba2": Case("mamba2", {**_PADDED, "num_heads": 4, "expand": 2}),
    "deepseek-v3": Case(
        "deepseek_v3",
        {
            **_LATENT,
            **_SIGMOID,
            "num_hidden_layers": 3,
            "routed_scaling_factor": 1.7,
            "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek-v2": Case(
        "deepseek_v2",
        {
            **_LATENT,
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
            "rope_parameters": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    # llama.cpp knows by the number of layers that queries are made of the hidden state.
    "deepseek-v2-lite": Case("deepseek_v2-lite", {**_LATENT, "num_hidden_layers": 27}),
    "glm-4.7-flash": Case(
        "glm4_moe_lite",
        {**_LATENT, **_SIGMOID, "num_hidden_layers": 3},
        {"first_k_dense_replace": 1},
    ),
    "youtu": Case("youtu", {**_LATENT, **_TIED, "rope_interleave": True}),
    "minicpm3": Case(
        "minicpm3",
        {**_LATENT, **_TIED, "v_head_dim": 16, "dim_model_base": 256},
    ),
    "mistral3": Case("ministral3"),
    "phi2": Case("phi", _PHI, rough=_GELU),
    "phi2-turned": Case("phi", {**_PHI, "partial_rotary_factor": 1.0}, rough=_GELU),
    "stablelm-turned": Case("stablelm", {"partial_rotary_factor": 1.0}),
    "phi3-longrope": Case("longrope"),
    "gemma": Case("gemma", _TIED, rough=_GELU),
    "gemma2": Case("gemma2", {**_TIED, "query_pre_attn_scalar": 24}, rough=_GELU),
    "gemma3n": Case("gemma3n", _GEMMA_3N, rough=300, unused_from=20),
    "olmo2": Case("olmo2", {"attention_bias": False}),
    "olmo3": Case("olmo3"),
    "olmoe": Case("olmoe", {"num_key_value_heads": 4}),
    "granite": Case("granite"),
    "granitemoe": Case("granite_moe"),
    "smollm3": Case("smollm3", {"num_hidden_layers": 4, "no_rope_layer_interval": 4}),
    "starcoder2": Case("starcoder2", {**_TIED, "sliding_window": None}, rough=_GELU),
    "stablelm": Case("stablelm"),
    "command-r": Case("cohere", _TIED),
    "arcee": Case("arcee", {"mlp_bias": False}),
    "nemotron": Case("nemotron"),
    "seed_oss": Case("seed_oss", {"attention_out_bias": False}),
    "exaone4": Case("exaone4-full"),
    "glm4": Case("glm4"),
    "glm4moe": Case("glm4_moe"),
    "ernie4_5": Case("ernie4_5", {"use_bias": False}),
    "ernie4_5-moe": Case("ernie4_5_moe", {"intermediate_size": 128}),
    "dots1": Case(
        "dots1",
        {
            **_SIGMOID,
            "num_key_value_heads": 4,
            "sliding_window": None,
            "layer_types": ["full_attention"] * 2,
        },
    ),
    "minimax-m2": Case("minimax_m2", _SIGMOID),
    # The base of the rotation is raised once and for all, from this one.
    "hunyuan-dense": Case(
        "hunyuan", {**_TIED, "attention_bias": False, "max_position_embeddings": 32_768}
    ),
    "hunyuan-moe": Case(
        "hunyuan_moe",
        {"moe_topk": [3, 3]},
        {"moe_intermediate_size": [48, 48], "num_shared_expert": [1, 1]},
    ),
    "apertus": Case("apertus"),
    "apertus-plain": Case(
        "apertus", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}}
    ),
    "llama4": Case("llama4", _LLAMA_4),
    "llama4-stretched": Case("llama4", {**_LLAMA_4, "rope_parameters": _LLAMA_3}),
    "phimoe": Case(
        "phimoe",
        {
            "max_position_embeddings": 1024,
            "router_jitter_noise": 0.01,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0 + 0.1 * n for n in range(8)],
                "long_factor": [1.0 + 0.9 * n for n in range(8)],
                "short_mscale": 1.243163121016122,
                "long_mscale": 1.243163121016122,
                "original_max_position_embeddings": 256,
            },
        },
        {"architectures": ["PhiMoEForCausalLM"]},
        otherwise="norms do not take the mean away, and experts are weighed as Mixtral's",
    ),
    "mistral4": Case(
        "mistral4",
        {"kv_lora_rank": 48, "rope_parameters": _MISTRAL_4},
        {"architectures": ["Mistral3ForConditionalGeneration"]},
    ),
    "mistral4-grown": Case(
        "mistral4",
        {"rope_parameters": {**_MISTRAL_4, "original_max_position_embeddings": 8}},
        {"architectures": ["Mistral3ForConditionalGeneration"]},
        otherwise="queries do not grow with their positions",
    ),
    # llama.cpp knows every fourth layer as one that sees everything.
    "afmoe": Case(
        "afmoe",
        {"num_hidden_layers": 5, "global_attn_every_n_layers": 4},
        {"route_norm": True, "score_func": "sigmoid"},
    ),
    "exaone-moe": Case("exaone_moe", {"n_group": 1, "topk_group": 1}, _SIGMOID),
    "hy_v3": Case("hy_v3", {"attention_bias": False}),
    # llama.cpp has one base for both rotations, as the published model has.
    "mellum": Case(
        "mellum",
        {
            "mlp_layer_types": ["sparse"] * 2,
            "rope_parameters": {
                "full_attention": _YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "jais2": Case("jais2"),
    "exaone": Case("exaone", written={"rms_norm_eps": 1e-5}, published="exaone"),
    "internlm2": Case("llama", {"attention_bias": False}, published="internlm2"),
    "minicpm": Case("granite", published="minicpm"),
    "chatglm": Case("glm", {"rms_norm_eps": 1e-5, "head_dim": 16}, {"seq_length": 256}),
    "falcon": Case("falcon-single", {**_FALCON, "num_kv_heads": 1}, rough=_GELU),
    "falcon-40b": Case("falcon", _FALCON, rough=_GELU),
    "bailingmoe2": Case("sarvam_moe", _BAILING, published="ling-2"),
    "bailingmoe2-sarvam": Case("sarvam_moe", _BAILING, published="sarvam_moe"),
    "deepseek32": Case("deepseek_v32", _INDEXED),
    "glm-dsa": Case("glm_moe_dsa", _INDEXED),
    # llama.cpp leaves the biases of queries out.
    "mimo2": Case(
        "mimo_v2_flash",
        {"sliding_window": 65, "attention_bias": False},
        _MIMO,
        options=_WITHOUT_GUESSES,
    ),
    "mimo2-window": Case(
        "mimo_v2_flash",
        {"attention_bias": False},
        {**_MIMO, "sliding_window": 8, "sliding_window_size": 8},
        options=_WITHOUT_GUESSES,
        otherwise="a token sees one less before it",
    ),
    "qwen3vl": Case(
        "qwen3", written=_SEES | {"architectures": ["Qwen3VLForConditionalGeneration"]}
    ),
    "qwen3vlmoe": Case(
        "qwen3_moe",
        {"mlp_only_layers": []},
        _SEES | {"architectures": ["Qwen3VLMoeForConditionalGeneration"]},
    ),
    "granite_swa": Case("granite_swa", {"layer_rope_theta": [1e4] * 3}),
    "granite_swa-experts": Case("granitemoe_swa", {"layer_rope_theta": [1e4] * 2}),
    "cohere2moe": Case(
        "cohere2_moe",
        {**_TIED, "expert_selection_fn": "sigmoid", "head_dim": 16},
        {"first_k_dense_replace": 1},
    ),
    "cohere2moe-normed": Case(
        "cohere2_moe",
        {
            **_TIED,
            "expert_selection_fn": "sigmoid",
            "head_dim": 16,
            "rms_norm_eps": 1e-5,
            "norm_topk_prob": False,
        },
    ),
    "kimi-linear": Case(
        "kimi_linear",
        {
            "linear_num_heads": 4,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": None,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
        {
            "linear_attn_config": {
                "full_attn_layers": [2],
                "kda_layers": [1, 3],
                "head_dim": 20,
                "num_heads": 4,
                "short_conv_kernel_size": 4,
            },
            "moe_router_activation_func": "sigmoid",
            "num_shared_experts": 1,
            "first_k_dense_replace": 1,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities(name: str, tmp_path: Path) -> None:
    """Of the same file by llama.cpp, and of what it was made of by transformers."""
    case = CASES[name]
    named = PUBLISHED.get(case.published)
    fields = {**named.made_with, **case.fields} if named else case.fields
    source = make_model(case.family, tmp_path / "source", **fields)
    own = json.loads((source / "config.json").read_text())
    left_out = {name for name, value in case.written.items() if value is None}
    config = {k: v for k, v in (own | case.written).items() if k not in left_out}
    (source / "config.json").write_text(json.dumps(config))
    expected = hf_logits(source, PROMPT)
    if named:
        source = published(named, source, tmp_path / "theirs")
        config = json.loads((source / "config.json").read_text()) | case.written
    told = {name: value for name, value in config.items() if value is not None}
    (source / "config.json").write_text(json.dumps(told))  # as the converter reads it
    if case.unused_from is not None:
        add_unused_keys(source / "model.safetensors", case.unused_from, told["num_hidden_layers"])
    try:
        path = converted(source, tmp_path / "model.gguf", *case.options)
        theirs = [] if case.otherwise else logprobs(path, [PROMPT[:end] for end in ENDS])
    except Unreachable as error:
        pytest.skip(str(error))
    ours = PagedHarness(load_model(path)).prefill([PROMPT], 7)[0]
    assert largest_gap(ours, expected) < TOLERANCE
    for end, their in zip(ENDS, theirs, strict=not case.otherwise):
        assert largest_gap(ours[end - 1], their) < TOLERANCE * case.rough


def test_muse_glimmer(tmp_path: Path) -> None:
    """Which transformers has in a model that sees images alone."""
    text = {
        **SMALL_LLAMA,
        "num_hidden_layers": 4,
        "head_dim": 16,
        "sliding_window": 12,
        "qk_scale_factor": 1.7,
        "output_multiplier": 0.6,
        "final_logit_softcapping": 8.0,
    }
    seeing = {
        "patch_size": 4,
        "pos_emb_height": 4,
        "pos_emb_width": 4,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    ids = dict.fromkeys(("image_token_id", "video_token_id"), 2)
    between = {"out_hidden_size": 48, "projector_hidden_size": 32}
    config = transformers.MuseGlimmerConfig(
        text_config=text, vision_config=seeing, **ids, **between
    )
    torch.manual_seed(0)
    model = transformers.MuseGlimmerForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
        expected = model(input_ids=torch.tensor([PROMPT])).logits[0]
    model.save_pretrained(tmp_path / "source")
    save_tokenizer(tmp_path / "source")
    try:
        path = converted(tmp_path / "source", tmp_path / "model.gguf")
        theirs = logprobs(path, [PROMPT[:end] for end in ENDS])
    except Unreachable as error:
        pytest.skip(str(error))
    ours = PagedHarness(load_model(path)).prefill([PROMPT], 7)[0]
    assert largest_gap(ours, expected) < TOLERANCE
    for end, their in zip(ENDS, theirs, strict=True):
        assert largest_gap(ours[end - 1], their) < TOLERANCE


def add_unused_keys(path: Path, first: int, count: int) -> None:
    """Tensors that savers drop of layers that attend to others' keys, and llama.cpp asks for."""
    tensors = load_file(path)
    for layer in range(first, count):
        for name in ("k_proj", "v_proj", "k_norm"):
            prefix, end = "model.layers.", f"self_attn.{name}.weight"
            tensors[f"{prefix}{layer}.{end}"] = tensors[f"{prefix}0.{end}"].clone()
    save_file(tensors, path, {"format": "pt"})


def largest_gap(logits: Tensor, others: Tensor) -> float:
    """Between log-probabilities, of which all are logits too."""
    a, b = (one[..., :VOCAB_SIZE].float().log_softmax(-1) for one in (logits, others))
    return float((a - b).abs().max())

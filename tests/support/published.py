"""Models whose layers are those of others, as their makers published them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.rounded_checkpoints import Tensors, rewritten


@dataclass(frozen=True)
class Published:
    """A model of transformers', and what its makers call it."""

    family: str
    model_type: str
    architecture: str
    words: Mapping[str, str] = field(default_factory=dict)  # theirs, by transformers'
    more: Mapping[str, Any] = field(default_factory=dict)  # what theirs says beside
    made_with: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)  # parts of names, likewise
    fused: str = ""  # q, k and v in one
    grouped: bool = False  # in which the queries that share a key are before it


_ROUTED_WORDS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
_CHOSEN_BY_BIAS = {"moe_router_enable_expert_bias": True, "score_function": "sigmoid"}
_LATENT_WORDS = {"qk_head_dim": "q_head_dim"}
_FUSED_WHOLE = {
    "embed_tokens": "tok_embeddings",
    "lm_head": "output",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}
_MULTIPLIERS = {  # of Granite's, where a model has two layers of 64 numbers, and heads of 16
    "embedding_multiplier": 3.0,
    "residual_multiplier": 1.4 / 2**0.5,
    "logits_scaling": 4.0,
    "attention_multiplier": 0.25,
}

PUBLISHED = {
    "exaone": Published(
        "exaone",
        "exaone",
        "ExaoneForCausalLM",
        {
            "num_hidden_layers": "num_layers",
            "rms_norm_eps": "layer_norm_epsilon",
            "hidden_act": "activation_function",
        },
        {"embed_dropout": 0.0},
    ),
    "internlm2": Published(
        "llama",
        "internlm2",
        "InternLM2ForCausalLM",
        {"attention_bias": "bias"},
        {"attn_implementation": "eager"},
        {"attention_bias": True, "mlp_bias": False},
        _FUSED_WHOLE,
        fused="attention.wqkv",
        grouped=True,
    ),
    "internlm3": Published(
        "internlm3",
        "internlm3",
        "InternLM3ForCausalLM",
        {"attention_bias": "qkv_bias", "mlp_bias": "bias"},
    ),
    "iquestcoder": Published("iquestcoder", "iquestcoder", "IQuestCoderForCausalLM"),
    "minicpm": Published(
        "granite",
        "minicpm",
        "MiniCPMForCausalLM",
        more={"scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 16, "mup_denominator": 32},
        made_with=_MULTIPLIERS,
    ),
    "sarvam_moe": Published(
        "sarvam_moe", "sarvam_moe", "SarvamMoEForCausalLM", _ROUTED_WORDS, _CHOSEN_BY_BIAS
    ),
    "ling-2": Published(
        "sarvam_moe",
        "bailing_moe",
        "BailingMoeV2ForCausalLM",
        _ROUTED_WORDS,
        {**_CHOSEN_BY_BIAS, "partial_rotary_factor": 0.5, "rope_theta": 6e5, "use_bias": False},
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 6e5,
                "partial_rotary_factor": 0.5,
            }
        },
    ),
    "sarvam_mla": Published(
        "sarvam_mla",
        "sarvam_mla",
        "SarvamMLAForCausalLM",
        {**_ROUTED_WORDS, **_LATENT_WORDS},
        {
            **_CHOSEN_BY_BIAS,
            "head_dim": 72,  # that of a latent and what is turned
            "rope_theta": 10_000.0,
            "rope_scaling": {
                "type": "deepseek_yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 32,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
    ),
}


def published(case: Published, source: Path, target: Path) -> Path:
    """The model as its makers have it."""
    config = json.loads((source / "config.json").read_text())
    heads, shared = config["num_attention_heads"], config.get("num_key_value_heads")
    parts: dict[str, dict[str, Tensor]] = {}

    def renamed(name: str, tensor: Tensor) -> Tensors:
        layer, found, kind = name.partition(".self_attn.")
        part = kind.partition(".")[0]
        if case.fused and found and part in ("q_proj", "k_proj", "v_proj"):
            end = kind.partition(".")[2]
            own = parts.setdefault(f"{layer}.{end}", {})
            own[part[0]] = tensor
            if len(own) < 3:
                return {}
            rows = [
                own["q"].view(shared, heads // shared, -1, *tensor.shape[1:]),
                *(own[one].view(shared, 1, -1, *tensor.shape[1:]) for one in "kv"),
            ]
            return {f"{layer}.{case.fused}.{end}": torch.cat(rows, 1).flatten(0, 2)}
        for ours, theirs in case.tensors.items():
            name = name.replace(ours, theirs)
        return {name: tensor}

    rewritten(source, target, renamed)
    theta = config.pop("rope_parameters")["rope_theta"]
    old = {theirs: config.pop(ours) for ours, theirs in case.words.items()}
    told = {name: value for name, value in config.items() if name not in case.made_with}
    named = {"model_type": case.model_type, "architectures": [case.architecture]}
    described = {"rope_theta": theta, **told, **old, **case.more, **named}
    (target / "config.json").write_text(json.dumps(described))
    return target

"""GGUF files of small hybrids, with tensors as llama.cpp's converters write them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file
from torch import Tensor

_ARCHITECTURES = {
    "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
    "qwen3_5_moe_text": gguf.MODEL_ARCH.QWEN35MOE,
    "qwen3_next": gguf.MODEL_ARCH.QWEN3NEXT,
    "lfm2": gguf.MODEL_ARCH.LFM2,
    "lfm2_moe": gguf.MODEL_ARCH.LFM2MOE,
    "granitemoehybrid": gguf.MODEL_ARCH.GRANITE_HYBRID,
    "falcon_h1": gguf.MODEL_ARCH.FALCON_H1,
    "nemotron_h": gguf.MODEL_ARCH.NEMOTRON_H,
    "mamba2": gguf.MODEL_ARCH.MAMBA2,
}
_RULES = {  # config.json's names, and what the writer calls them
    "hidden_size": "embedding_length",
    "rms_norm_eps": "layer_norm_rms_eps",
    "norm_eps": "layer_norm_rms_eps",
    "layer_norm_epsilon": "layer_norm_eps",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "num_dense_layers": "leading_dense_block_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "attention_multiplier": "attention_scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "conv_L_cache": "shortconv_l_cache",
    **dict.fromkeys(("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel"), "ssm_conv_kernel"),
    **dict.fromkeys(
        ("linear_key_head_dim", "mamba_d_state", "ssm_state_size", "state_size"), "ssm_state_size"
    ),
    **dict.fromkeys(("linear_num_key_heads", "mamba_n_groups", "n_groups"), "ssm_group_count"),
    **dict.fromkeys(
        ("linear_num_value_heads", "mamba_n_heads", "mamba_num_heads", "num_heads"),
        "ssm_time_step_rank",
    ),
}
_WIDTHS = ("linear_value_head_dim", "mamba_d_head", "mamba_head_dim", "head_dim")
_FOLDED = {"embedding_multiplier", "attention_multiplier"}  # into Falcon's weights

_MOST = 100  # experts


def write_hybrid(source: Path, target: Path, kind: Kind = Kind.F32) -> None:
    """Write the model in ``source``; kind: of its matrices, where their rows allow it."""
    config = json.loads((source / "config.json").read_text())
    architecture = _ARCHITECTURES[config["model_type"]]
    if config["model_type"] == "nemotron_h" and "moe" in _kinds(config):
        architecture = gguf.MODEL_ARCH.NEMOTRON_H_MOE
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    _write_fields(writer, config)
    names = gguf.get_tensor_name_map(architecture, len(_kinds(config)))
    for name, tensor in _converted(config, load_file(source / "model.safetensors")):
        own, dot, end = name.rpartition(".")
        if end not in ("weight", "bias"):
            own, dot, end = name, "", ""
        found = own if own.startswith("blk.") else names.get_name(own)
        if found is None:  # whole, as Falcon's norms
            found, dot, end = names.get_name(name), "", ""
        assert found is not None, name
        values = np.ascontiguousarray(tensor.numpy())
        if found.endswith((".ssm_a", ".ssm_d")) and "_attn." not in own:
            values = values[:, None]  # as the converter writes Mamba-2's
        plain = values.ndim == 1 or end != "weight" or "gate_inp" in found
        plain = plain or "conv" in found.split(".")[-1]
        uneven = values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]
        wanted = Kind.F32 if plain or uneven else kind
        writer.add_tensor(f"{found}{dot}{end}", gguf.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_fields(writer: Any, config: dict[str, Any]) -> None:
    family = config["model_type"]
    told = {k: v for k, v in config.items() if family != "falcon_h1" or k not in _FOLDED}
    heads, kinds = None, _kinds(config)
    if not config.get("num_local_experts", "moe" in kinds or "num_experts" in config):
        told = {
            k: v
            for k, v in told.items()
            if not _RULES.get(k, "").startswith("expert_") or k == "shared_intermediate_size"
        }
    for name, rule in _RULES.items():
        if told.get(name) is not None:
            getattr(writer, f"add_{rule}")(told[name])
            heads = told[name] if rule == "ssm_time_step_rank" else heads
    writer.add_block_count(len(kinds))
    writer.add_context_length(config.get("max_position_embeddings", 1 << 20))
    writer.add_head_count(config.get("num_attention_heads", 0))
    writer.add_eos_token_id(config["eos_token_id"])
    if heads is not None:
        width = next(config[name] for name in _WIDTHS if name in config)
        writer.add_ssm_inner_size(width * heads)
    if family == "mamba2":
        writer.add_feed_forward_length(0)
        writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
        return
    writer.add_rope_freq_base(config.get("rope_parameters", {}).get("rope_theta", 1e4))
    inner, kv_heads = config["intermediate_size"], config["num_key_value_heads"]
    if config.get("block_auto_adjust_ff_dim"):
        multiple = config["block_multiple_of"]
        inner = -(-int(2 * inner / 3) // multiple) * multiple
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if family in ("qwen3_5_moe_text", "qwen3_next"):
        inner = None
    if family == "nemotron_h":
        inner = [inner * (kind in ("mlp", "moe")) for kind in kinds]
    if inner is not None:
        writer.add_feed_forward_length(inner)
    if family.startswith("qwen3"):
        writer.add_head_count_kv(kv_heads)
        writer.add_rope_dimension_count(config["head_dim"] // 4)
        writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_full_attention_interval(2)
    elif family == "falcon_h1":
        writer.add_head_count_kv(kv_heads)
    else:
        writer.add_head_count_kv([kv_heads * (kind == "full_attention") for kind in kinds])
    if family == "granitemoehybrid":
        writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
    if family == "lfm2_moe":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def _kinds(config: dict[str, Any]) -> list[str]:
    listed = config.get("layer_types") or config.get("layers_block_type")
    return list(listed or ["both"] * config["num_hidden_layers"])


def _converted(config: dict[str, Any], tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    family = config["model_type"]
    for name, tensor in tensors.items():
        tensor = tensor.float()
        if "conv" in name and tensor.ndim == 3:
            tensor = tensor[:, 0]
        if name.endswith(".A_log"):
            tensor = -tensor.exp()
        if ".experts." in name:
            if ".experts.0." in name:
                each = [name.replace(".experts.0.", f".experts.{n}.") for n in range(_MOST)]
                stack = [tensors[one] for one in each if one in tensors]
                whole = name.replace(".experts.0.", ".experts.")
                if family == "nemotron_h":  # as the converter calls them
                    whole = whole.replace("backbone", "model").replace("mixer", "mlp")
                elif family == "lfm2_moe":
                    whole = whole.removeprefix("model.")
                yield whole, torch.stack(stack).float()
        elif family == "qwen3_next":
            yield from _by_heads(config, name, tensor)
        elif "linear_attn." in name:
            yield _own(name), _tiled(config, name, tensor)
        elif name.endswith("norm.weight") and family.startswith("qwen3"):
            yield name, tensor + 1
        elif family == "granitemoehybrid":
            yield from _of_granite(config, name, tensor)
        elif family == "falcon_h1":
            yield _own(name), _folded(config, name, tensor)
        else:
            yield _own(name), tensor


def _own(name: str) -> str:
    """Under which it is looked up."""
    name = name.replace(".dt_bias", ".dt_proj.bias").replace("expert_bias", "expert_bias.bias")
    return name.replace("e_score_correction_bias", "e_score_correction.bias")


def _by_heads(config: dict[str, Any], name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Of Qwen3-Next, whose projections are stored by heads of keys."""
    if name.endswith("norm.weight") and "linear_attn." not in name:
        tensor = tensor + 1
    if "in_proj_qkvz" not in name:
        yield _own(name), tensor
        return
    key, keys = config["linear_key_head_dim"], config["linear_num_key_heads"]
    value = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
    parts = tensor.view(keys, -1, tensor.shape[1]).split([key, key, value, value], dim=1)
    *qkv, gate = (part.flatten(0, 1) for part in parts)
    yield name.replace("in_proj_qkvz", "in_proj_qkv"), torch.cat(qkv)
    yield name.replace("in_proj_qkvz", "in_proj_z"), gate


def _of_granite(config: dict[str, Any], name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    layer = ".".join(["blk", *name.split(".")[2:3]])
    experts = "_shexp" if config["num_local_experts"] else ""
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        pairs = tensor.view(heads, 2, -1, tensor.shape[1])
        yield name, pairs.transpose(1, 2).reshape(tensor.shape)
    elif "shared_mlp.input_linear" in name:
        for part, half in zip(("gate", "up"), tensor.chunk(2), strict=True):
            yield f"{layer}.ffn_{part}{experts}.weight", half
    elif "shared_mlp.output_linear" in name:
        yield f"{layer}.ffn_down{experts}.weight", tensor
    elif "block_sparse_moe.input_linear" in name:
        for part, half in zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True):
            yield f"{layer}.ffn_{part}_exps.weight", half
    else:
        yield _own(name), tensor


def _folded(config: dict[str, Any], name: str, tensor: Tensor) -> Tensor:
    """With Falcon's multipliers."""
    gate, down = config["mlp_multipliers"]
    into = config["attention_in_multiplier"]
    factors = {
        "gate_proj": gate, "down_proj": down, "q_proj": into, "v_proj": into,
        "k_proj": into * config["key_multiplier"], ".o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"], "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"], "in_proj": config["ssm_in_multiplier"],
    }  # fmt: skip
    found = tensor * next((value for part, value in factors.items() if part in name), 1.0)
    if "in_proj" in name:
        inner, keys = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = torch.tensor([inner, inner, keys, keys, config["mamba_n_heads"]])
        found *= torch.tensor(config["ssm_multipliers"]).repeat_interleave(sizes)[:, None]
    return found


def _tiled(config: dict[str, Any], name: str, tensor: Tensor) -> Tensor:
    """Heads of values, which are by heads of keys, all first ones first."""
    heads, keys = config["linear_num_value_heads"], config["linear_num_key_heads"]
    width = config["linear_value_head_dim"]
    if any(part in name for part in ("in_proj_a", "in_proj_b", "A_log", "dt_bias")):
        width = 1
    order = torch.arange(heads * width).view(keys, heads // keys, width).transpose(0, 1).flatten()
    if "out_proj" in name:
        return tensor[:, order]
    if name.endswith("norm.weight"):
        return tensor
    before = len(tensor) - len(order)  # queries and keys
    return torch.cat([tensor[:before], tensor[before + order]])

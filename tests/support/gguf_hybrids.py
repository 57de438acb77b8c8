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
    "lfm2": gguf.MODEL_ARCH.LFM2,
}

_MOST = 100  # experts


def write_hybrid(source: Path, target: Path, kind: Kind = Kind.F32) -> None:
    """Write the model in ``source``; kind: of its matrices, where their rows allow it."""
    config = json.loads((source / "config.json").read_text())
    architecture = _ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    _write_fields(writer, config)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, tensor in _converted(config, load_file(source / "model.safetensors")):
        own, dot, end = name.rpartition(".")
        if end not in ("weight", "bias"):
            own, dot, end = name, "", ""
        found = names.get_name(own)
        assert found is not None, name
        values = np.ascontiguousarray(tensor.numpy())
        plain = values.ndim == 1 or "conv" in found.split(".")[-1] or "gate_inp" in found
        wanted = Kind.F32 if plain or values.shape[-1] % 32 else kind
        writer.add_tensor(f"{found}{dot}{end}", gguf.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_fields(writer: Any, config: dict[str, Any]) -> None:
    kinds, kv_heads = config["layer_types"], config["num_key_value_heads"]
    writer.add_block_count(len(kinds))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", config.get("norm_eps")))
    writer.add_eos_token_id(config["eos_token_id"])
    if config["model_type"] == "lfm2":
        inner = int(2 * config["intermediate_size"] / 3)
        multiple = config["block_multiple_of"]
        writer.add_feed_forward_length(-(-inner // multiple) * multiple)
        writer.add_head_count_kv([kv_heads * (kind != "conv") for kind in kinds])
        writer.add_shortconv_l_cache(config["conv_L_cache"])
        return
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    else:
        writer.add_feed_forward_length(config["intermediate_size"])
    heads = config["linear_num_value_heads"]
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"] // 4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * heads)
    writer.add_full_attention_interval(2)


def _converted(config: dict[str, Any], tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors.items():
        tensor = tensor.float()
        if "conv" in name and tensor.ndim == 3:
            tensor = tensor[:, 0]
        if "linear_attn." in name:
            tensor = _tiled(config, name, tensor)
        elif name.endswith("norm.weight") and config["model_type"] != "lfm2":
            tensor = tensor + 1
        if name.endswith(".A_log"):
            tensor = -tensor.exp()
        if ".experts.0." in name:
            each = [name.replace(".experts.0.", f".experts.{n}.") for n in range(_MOST)]
            stack = [tensors[one] for one in each if one in tensors]
            yield name.replace(".experts.0.", ".experts."), torch.stack(stack)
        elif ".experts." not in name:
            yield name.replace(".dt_bias", ".dt_proj.bias"), tensor


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

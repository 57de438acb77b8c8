"""GGUF files of small models, each tensor a stack of views of the model's own, as llama.cpp's
converters arrange them: what rounding makes of it is written through the views.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file
from torch import Tensor

from support.gguf_files import Choose, random_blocks, write_config

ARCHITECTURES = {
    "hunyuan_v1_dense": gguf.MODEL_ARCH.HUNYUAN_DENSE,
    "hunyuan_v1_moe": gguf.MODEL_ARCH.HUNYUAN_MOE,
    "apertus": gguf.MODEL_ARCH.APERTUS,
    "llama4_text": gguf.MODEL_ARCH.LLAMA4,
    "phimoe": gguf.MODEL_ARCH.PHIMOE,
    "mistral4": gguf.MODEL_ARCH.MISTRAL4,
    "kimi_linear": gguf.MODEL_ARCH.KIMI_LINEAR,
    "glm_moe_dsa": gguf.MODEL_ARCH.GLM_DSA,
    "mimo_v2_flash": gguf.MODEL_ARCH.MIMO2,
    "glm": gguf.MODEL_ARCH.CHATGLM,
    "falcon": gguf.MODEL_ARCH.FALCON,
    "sarvam_moe": gguf.MODEL_ARCH.BAILINGMOE2,
}
_QKV = "self_attn.qkv_proj"
_FUSED = ("glm", "mimo_v2_flash")  # queries, keys and values one after the other
_XIELU = ("alpha_p", "alpha_n", "beta", "eps")
_EXACT = ("ffn_gate_inp", "conv1d", "ssm_a")
_SMALL = 2.0**-11  # of random blocks: a weight is some hundred times that

Views = dict[str, list[Tensor]]


def write_views(source: Path, target: Path, choose: Choose) -> dict[str, Tensor]:
    """Write the model in ``source``; what its tensors are after rounding.

    choose: the type of a matrix, by its name in the file. Those that the ``gguf`` package cannot
        round to are filled with random numbers.
    """
    config = json.loads((source / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    _write_fields(writer, config)
    tensors = {k: v.float().clone() for k, v in load_file(source / "model.safetensors").items()}
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    numbers: dict[str, list[float]] = {}
    views: Views = {}
    for name in sorted(tensors, key=_by_number):
        part = name.rpartition("act_fn.")[2]
        if part in _XIELU:
            numbers.setdefault(f"xielu.{part}", []).append(float(tensors[name]))
            continue
        for own, view in _arranged(config, name, tensors[name]):
            stem, dot, end = own.rpartition(".")
            if end not in ("weight", "bias"):
                stem, dot, end = own, "", ""
            found = names.get_name(stem)
            if stem.endswith(_QKV):  # which not all architectures have there
                found = f"blk.{stem.split('.')[2]}.attn_qkv"
            assert found is not None, own
            views.setdefault(f"{found}{dot}{end}", []).append(view)
    for name, values in numbers.items():
        writer.add_array(name, values)
    for name, own in views.items():
        _write(writer, name, own, choose)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _by_number(name: str) -> list[tuple[int, str]]:
    parts = name.replace("q_proj", "a_proj").split(".")  # before keys
    return [(len(part), part) for part in parts]


def _write(writer: Any, name: str, views: list[Tensor], choose: Choose) -> None:
    joined = ".attn_qkv." in name
    values = torch.cat(views) if joined else torch.stack(views) if len(views) > 1 else views[0]
    values = values.numpy()
    exact = values.ndim == 1 or not name.endswith(".weight") or any(one in name for one in _EXACT)
    wanted = Kind.F32 if exact else choose(name)
    if values.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0]:
        wanted = Kind.F16
    try:
        data = gguf.quantize(values, wanted)
    except NotImplementedError:
        rows = random_blocks(wanted.name, values[..., 0].size, values.shape[-1], _SMALL)
        data = rows.reshape(*values.shape[:-1], -1)
    writer.add_tensor(name, data, raw_dtype=wanted)
    after = torch.from_numpy(np.ascontiguousarray(gguf.dequantize(data, wanted)))
    after = after.view(values.shape)
    parts = after.split([len(view) for view in views]) if joined else after
    for view, rounded in zip(views, parts if len(views) > 1 else [after], strict=True):
        view.copy_(rounded)


def _arranged(config: dict[str, Any], name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The parts of a tensor by the names under which they are looked up."""
    own = re.sub(r"experts\.\d+\.", "experts.", name)
    own = own.replace("correction_bias", "correction.bias").replace("dt_bias", "dt_proj.bias")
    own = own.replace("expert_bias", "expert_bias.bias")
    own = f"{own}.weight" if own.endswith("sink_bias") else own
    fused = re.match(r"(.*self_attn\.)[qkv](?:_proj\.)(.*)", own)
    if fused and config["model_type"] in _FUSED:
        yield f"{fused[1]}qkv_proj.{fused[2]}", tensor
    elif config["model_type"] == "falcon" and "query_key_value" in name:
        of_key = config["num_attention_heads"] // config["num_kv_heads"]
        groups = tensor.view(config["num_kv_heads"], of_key + 2, -1, *tensor.shape[1:])
        for part in (slice(0, of_key), slice(of_key, of_key + 1), slice(of_key + 1, of_key + 2)):
            yield from ((own, group[part].flatten(0, 1)) for group in groups)
    elif name.endswith("kv_b_proj.weight"):
        widths = config["qk_nope_head_dim"], config["v_head_dim"]
        keys, values = tensor.view(-1, sum(widths), tensor.shape[1]).split(widths, dim=1)
        yield own.replace("kv_b", "k_b"), keys.transpose(1, 2)
        yield own.replace("kv_b", "v_b"), values
    elif name.endswith("A_log"):
        yield own, (-tensor.exp()).view(1, 1, -1, 1)
    elif "conv1d" in name:
        yield own, tensor.view(1, tensor.shape[0], 1, -1)
    elif config["model_type"] == "llama4_text" and ".experts." in name:
        turned = tensor.transpose(1, 2)
        if "gate_up" in name:
            for part, half in zip(("gate", "up"), turned.chunk(2, dim=1), strict=True):
                yield own.replace("gate_up_proj", f"{part}_proj.weight"), half
        else:
            yield f"{own}.weight", turned
    elif ".experts." in name and not name.endswith(".weight"):
        yield f"{own}.weight", tensor
    else:
        yield own, tensor


def _write_fields(writer: Any, config: dict[str, Any]) -> None:
    kind = config["model_type"]
    rope = config.get("rope_parameters", {"rope_type": "default", "rope_theta": 1e4})
    told = {**config, "rope_parameters": rope}
    told.setdefault("intermediate_size_mlp", told.get("intermediate_size"))
    if rope.get("alpha"):
        width = config["head_dim"]
        theta = rope["rope_theta"] * rope["alpha"] ** (width / (width - 2))
        told["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(1.0)
        writer.add_rope_scaling_orig_ctx_len(256 * 1024)
    if kind == "mistral4":  # not that queries grow; the share is that of a whole head
        unsaid = ("llama_4_scaling_beta", "partial_rotary_factor")
        told["rope_parameters"] = {k: v for k, v in rope.items() if k not in unsaid}
    if kind == "llama4_text":
        told["moe_intermediate_size"] = told["intermediate_size"]
        told["intermediate_size"] = told["intermediate_size_mlp"]
        writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
    if kind == "hunyuan_v1_moe":
        told["num_experts_per_tok"] = config["moe_topk"]
        told |= {"n_shared_experts": 1, "shared_intermediate_size": config["intermediate_size"]}
    if kind == "kimi_linear":
        told |= {"n_shared_experts": config.get("num_shared_experts", 1)}
        told |= {own: config[name] for name, own in _KIMI.items() if name in config}
        writer.add_kda_head_dim(config["linear_head_dim"])
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if kind == "falcon":
        told |= {
            "intermediate_size": told["ffn_hidden_size"],
            "layer_norm_eps": told["layer_norm_epsilon"],
        }
        told["num_key_value_heads"] = told["num_kv_heads"]
    if "index_topk" in config:
        writer.add_indexer_head_count(config["index_n_heads"])
        writer.add_indexer_key_length(config["index_head_dim"])
        writer.add_indexer_top_k(config["index_topk"])
        if "indexer_types" in config:
            owns = [one == "full" for one in config["indexer_types"]]
            writer.add_array("glm-dsa.attention.indexer.types", owns)
    write_config(writer, told)
    if "index_topk" in config or kind in ("mimo_v2_flash", "sarvam_moe"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if kind == "mimo_v2_flash":
        _write_kinds(writer, config)
    if kind == "kimi_linear":
        writer.add_head_count_kv([int(one == "full_attention") for one in config["layer_types"]])
        writer.add_leading_dense_block_count(1)


def _write_kinds(writer: Any, config: dict[str, Any]) -> None:
    """What layers with a window have for themselves, which see one token less in such files."""
    near = [kind == "sliding_attention" for kind in config["layer_types"]]
    far = config["num_key_value_heads"]
    heads = far, config.get("swa_num_key_value_heads", 2 * far)
    writer.add_head_count_kv([heads[one] for one in near])
    writer.add_sliding_window(config["sliding_window"] - 1)
    writer.add_value_length(config["v_head_dim"])
    writer.add_float32("mimo2.attention.value_scale", config["attention_value_scale"])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])


_KIMI = {
    "num_experts_per_token": "num_experts_per_tok",
    "num_expert_group": "n_group",
    "model_max_length": "max_position_embeddings",
}

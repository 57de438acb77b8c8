"""GGUF files of small Gemma 3ns and 4s, as llama.cpp's converter writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file
from torch import Tensor

_ARCHITECTURES = {
    "gemma3n_text": gguf.MODEL_ARCH.GEMMA3N,
    "gemma4_text": gguf.MODEL_ARCH.GEMMA4,
    "gemma4_unified_text": gguf.MODEL_ARCH.GEMMA4,
}
_SCALES = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "altup.correct_output_scale": "altup_correct_scale.weight",
}
_EXACT = ("router.", "norm", "layer_scalar", "altup.")
_STACKED = re.compile(r"model\.(altup_\w+)\.\d+\.weight")


def write_gemma(
    source: Path,
    target: Path,
    kind: Kind = Kind.F32,
    vocabulary: Callable[[Any], None] | None = None,
) -> None:
    """Write the model in ``source``; kind: of its matrices, where their rows allow it."""
    config = json.loads((source / "config.json").read_text())
    architecture = _ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    _write_fields(writer, config)
    if vocabulary is not None:
        vocabulary(writer)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, values in _stacked(load_file(source / "model.safetensors")).items():
        layer, _, own = name.removeprefix("model.layers.").partition(".")
        end = "bias" if name.endswith(".bias") else "weight"
        module = name.removesuffix(f".{end}")
        found = f"blk.{layer}.{_SCALES[own]}" if own in _SCALES else None
        found = found or f"{names.get_name(module)}.{end}"
        plain = values.ndim == 1 or any(part in name for part in _EXACT)
        wanted = Kind.F32 if plain or values.shape[-1] % 32 else kind
        writer.add_tensor(found, gguf.quantize(values, wanted), raw_dtype=wanted)
    if architecture == gguf.MODEL_ARCH.GEMMA4:
        wide = _wide(config)
        turned = wide // 8  # pairs: a quarter of a head
        divisors = np.float32([1.0] * turned + [1e30] * (wide // 2 - turned))
        writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _stacked(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The tensors as the converter has them: projections of streams are one tensor."""
    found: dict[str, list[Any]] = {}
    for name, tensor in sorted(tensors.items()):
        stack = _STACKED.fullmatch(name)
        values = np.ascontiguousarray(tensor.float().numpy())
        found.setdefault(f"model.{stack[1]}.weight" if stack else name, []).append(values)
    stacks = {name for name in found if ".altup_" in name}
    return {name: np.stack(own) if name in stacks else own[0] for name, own in found.items()}


def small_vocabulary(writer: Any) -> None:
    """Of 300 tokens, as the converter writes them: bytes, letters, pairs of them, a mark of chats
    and runs of line ends.
    """
    letters = ["▁", *"etaoinshrdl"]
    pairs = [first + second for first in letters for second in letters]
    plain = ["\n", "\n\n", *letters, *pairs]
    marks = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|channel>"]
    tokens = [*marks, *(f"<0x{byte:02X}>" for byte in range(256)), *plain][:300]
    control, added, of_bytes = [3, 3, 3, 2, 3, 3], [4], [6] * 256
    types = [*control, *added, *of_bytes]
    merges = [f"{one[0]} {one[1]}" for one in tokens[len(types) :] if len(one) == 2]
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([*types, *[1] * (len(tokens) - len(types))])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(True)


def _wide(config: dict[str, Any]) -> int:
    (width,) = {one.get("head_dim") for one in config["per_layer_config"].values()}
    return int(width)


def _write_fields(writer: Any, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(_windowed(config))
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(config.get("hidden_size_per_layer_input", 0))
    writer.add_eos_token_id(config["eos_token_id"])
    if config["model_type"] == "gemma3n_text":
        _write_fields_of_streams(writer, config)
    else:
        _write_fields_of_kinds(writer, config)


def _windowed(config: dict[str, Any]) -> list[bool]:
    return [kind == "sliding_attention" for kind in config["layer_types"]]


def _write_fields_of_streams(writer: Any, config: dict[str, Any]) -> None:
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_altup_active_idx(config["altup_active_idx"])
    writer.add_altup_num_inputs(config["altup_num_inputs"])
    shares = torch.tensor(config["activation_sparsity_pattern"], dtype=torch.float32)
    deviations = torch.distributions.Normal(0, 1).icdf(shares)
    writer.add_activation_sparsity_scale(deviations.tolist())  # -inf where nothing is cut
    linear = config["rope_parameters"]["full_attention"].get("factor")
    if linear is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(linear)


def _write_fields_of_kinds(writer: Any, config: dict[str, Any]) -> None:
    windowed, shared = _windowed(config), config["num_kv_shared_layers"]
    count, inner = len(windowed), config["intermediate_size"]
    own = config["per_layer_config"]
    kv_heads = config["num_key_value_heads"]
    heads = [own.get(str(n), {}).get("num_key_value_heads", kv_heads) for n in range(count)]
    writer.add_head_count_kv(heads if len(set(heads)) > 1 else kv_heads)
    for width, end in ((_wide(config), ""), (config["head_dim"], "_swa")):
        getattr(writer, f"add_key_length{end}")(width)
        getattr(writer, f"add_value_length{end}")(width)
        getattr(writer, f"add_rope_dimension_count{end}")(width)
    wide = 2 if config["use_double_wide_mlp"] else 1
    inners = [inner] * (count - shared) + [wide * inner] * shared
    writer.add_feed_forward_length(inners if wide > 1 else inner)
    if config.get("enable_moe_block"):
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])

"""GGUF files of small models, written by the ``gguf`` package as llama.cpp's converters would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file
from torch import Tensor

Choose = Callable[[str], Kind]
"""The type in which a matrix is stored, by its name in transformers."""

_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}


def write_gguf(
    source: Path, target: Path, choose: Choose, vocabulary: Callable[[Any], None] | None = None
) -> dict[str, Tensor]:
    """Write the model in ``source``; what its tensors are after rounding, by transformers' names.

    vocabulary: adds a tokenizer.
    """
    config = json.loads((source / "config.json").read_text())
    name = config["model_type"]
    writer = gguf.GGUFWriter(target, name)
    _write_config(writer, config)
    if vocabulary is not None:
        vocabulary(writer)
    names = gguf.get_tensor_name_map(_ARCHITECTURES[name], config["num_hidden_layers"])
    rounded = {}
    for key, tensor in load_file(source / "model.safetensors").items():
        own, _, kind = key.rpartition(".")
        stored = f"{names.get_name(own)}.{kind}"
        values = tensor.float().numpy()
        if name == "llama" and own.endswith(("q_proj", "k_proj")):
            heads = config["num_attention_heads" if "q_proj" in own else "num_key_value_heads"]
            values = _interleaved(values, heads)
        wanted = choose(key) if values.ndim == 2 else Kind.F32
        data = gguf.quantize(values, wanted)
        writer.add_tensor(stored, data, raw_dtype=wanted)
        after = gguf.dequantize(data, wanted).reshape(values.shape)
        if name == "llama" and own.endswith(("q_proj", "k_proj")):
            after = _halves(after, heads)
        rounded[key] = torch.from_numpy(np.ascontiguousarray(after))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return rounded


def add_tokenizer(writer: Any, source: Path) -> None:
    """The byte-level one of the model in ``source``."""
    parts = json.loads((source / "tokenizer.json").read_text())
    special = {token["id"] for token in parts["added_tokens"]}
    tokens = sorted(parts["model"]["vocab"], key=parts["model"]["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if number in special else 1 for number in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in parts["model"]["merges"]])


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """A head's two halves become neighbours, as in llama.cpp's converter."""
    parts = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return parts.swapaxes(1, 2).reshape(rows.shape)


def _halves(rows: np.ndarray, heads: int) -> np.ndarray:
    parts = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return parts.swapaxes(1, 2).reshape(rows.shape)


def _write_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_eos_token_id(config["eos_token_id"])
    rope = config["rope_parameters"]
    rotated = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(rotated)
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
        if kind == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif kind == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(config, head_dim))
    elif kind == "longrope":
        original = config["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(factor) / np.log(original))))
        for length in ("long", "short"):
            values = np.array(rope[f"{length}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", values)


def _llama3_divisors(config: dict[str, Any], head_dim: int) -> np.ndarray:
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    made = AutoConfig.for_model(**config)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](made, torch.device("cpu"))
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / config["rope_parameters"]["rope_theta"] ** exponents
    return (plain / scaled).numpy()

"""What a GGUF file's metadata would be in a ``config.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.errors import ModelError
from quire.gguf.architectures import ARCHITECTURES, Architecture
from quire.gguf.header import GGUFFile

# By the names after the architecture's; all are needed.
_NEEDED = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_OPTIONAL = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
}
_END_TOKENS = ("eos", "eot", "eom")
_STORED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def architecture_of(file: GGUFFile) -> Architecture:
    """ModelError: it is missing or unknown, or a variant of it is."""
    name = file.metadata.get("general.architecture")
    known = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if known is None:
        names = ", ".join(ARCHITECTURES)
        raise ModelError(f"{file.path}: general.architecture is {name!r}; supported: {names}")
    experts = file.metadata.get(f"{name}.expert_count", 0)
    if experts:
        raise ModelError(f"{file.path}: {name}.expert_count is {experts}; experts are not read yet")
    return known


def config_of(file: GGUFFile) -> dict[str, Any]:
    """The fields of a ``config.json``, checked by whoever reads them.

    Raises:
        ModelError: the architecture is not supported, or what it needs is missing.
    """
    known = architecture_of(file)
    fields: dict[str, Any] = {
        "architectures": [known.class_name],
        "model_type": known.model_type,
        "vocab_size": _vocabulary(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "dtype": _dtype(file),
        "eos_token_id": _end_tokens(file),
    }
    if any(info.type.is_rounded for info in file.tensors.values()):
        fields["quantization_config"] = {"quant_method": "gguf"}
    for name, field in {**_NEEDED, **_OPTIONAL}.items():
        value = file.metadata.get(f"{known.name}.{name}")
        if value is not None:
            fields[field] = _of_all_layers(file, f"{known.name}.{name}", value)
        elif name in _NEEDED:
            raise ModelError(f"{file.path}: {known.name}.{name} is missing")
    _check_heads(file, known)
    return {**fields, **_rotation(file, known, fields)}


def _of_all_layers(file: GGUFFile, name: str, value: Any) -> Any:
    """Some files have a list, by layer."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return value
    if len(set(value)) != 1:
        raise ModelError(f"{file.path}: {name} is not the same in all layers")
    return value[0]


def _vocabulary(file: GGUFFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: the file has no tensor token_embd.weight")
    return file.tensors["token_embd.weight"].shape[0]


def _dtype(file: GGUFFile) -> str:
    """In which to compute: as the matrices are stored; bfloat16 where they are rounded."""
    stored = {info.type.name for info in file.tensors.values() if len(info.shape) > 1}
    return _STORED.get(stored.pop(), "bfloat16") if len(stored) == 1 else "bfloat16"


def _end_tokens(file: GGUFFile) -> list[int]:
    names = (f"tokenizer.ggml.{token}_token_id" for token in _END_TOKENS)
    return [file.metadata[name] for name in names if name in file.metadata]


def _check_heads(file: GGUFFile, known: Architecture) -> None:
    """That values are as long as keys."""
    key, value = (
        file.metadata.get(f"{known.name}.attention.{part}_length") for part in ("key", "value")
    )
    if value != key and value is not None:
        raise ModelError(
            f"{file.path}: {known.name}.attention.value_length ({value}) is not "
            f"{known.name}.attention.key_length ({key})"
        )


def _rotation(file: GGUFFile, known: Architecture, fields: dict[str, Any]) -> dict[str, Any]:
    """``rope_scaling``, and which share of a head is rotated."""
    head_dim = fields.get("head_dim")
    if head_dim is None:
        heads, hidden = fields["num_attention_heads"], fields["hidden_size"]
        if not isinstance(heads, int) or not isinstance(hidden, int) or heads < 1:
            return {}  # refused by who reads them
        head_dim = hidden // heads
    found: dict[str, Any] = {}
    rotated = file.metadata.get(f"{known.name}.rope.dimension_count", head_dim)
    if rotated != head_dim and isinstance(rotated, int) and head_dim:
        found["partial_rotary_factor"] = rotated / head_dim
    scaling = _scaling(file, f"{known.name}.rope.scaling", fields)
    return {**found, "rope_scaling": scaling} if scaling else found


def _scaling(file: GGUFFile, prefix: str, fields: dict[str, Any]) -> dict[str, Any]:
    kind = file.metadata.get(f"{prefix}.type", "none")
    given = {
        "factor": file.metadata.get(f"{prefix}.factor"),
        "original_max_position_embeddings": file.metadata.get(f"{prefix}.original_context_length"),
        "attention_factor": file.metadata.get(f"{prefix}.attn_factor"),
    }
    given = {name: value for name, value in given.items() if value is not None}
    if "rope_freqs.weight" in file.tensors:
        return {"rope_type": "divided", "divisors": file.floats("rope_freqs.weight")}
    if "rope_factors_long.weight" in file.tensors and "rope_factors_short.weight" in file.tensors:
        longest = given.get("original_max_position_embeddings", fields["max_position_embeddings"])
        return {
            "rope_type": "longrope",
            "long_factor": file.floats("rope_factors_long.weight"),
            "short_factor": file.floats("rope_factors_short.weight"),
            **given,
            "original_max_position_embeddings": longest,
        }
    if kind == "none" or (kind == "linear" and given.get("factor", 1.0) == 1.0):
        return {}
    if kind not in ("linear", "yarn"):
        raise ModelError(f"{file.path}: {prefix}.type is {kind!r}; supported: none, linear, yarn")
    return {"rope_type": kind, **given}

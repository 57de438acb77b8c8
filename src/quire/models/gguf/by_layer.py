"""What the metadata of GGUF files have for each layer: sizes of Gemma 3n and 4, as a
``config.json`` would have them; numbers that are tensors elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from reprlib import repr as short
from typing import Any

from quire.core.errors import ModelError
from quire.models.gguf.architecture import Architecture
from quire.models.gguf.header import GGUFFile, is_list

_ROTATED, _ROTATED_NEAR = "rope.dimension_count", "rope.dimension_count_swa"
_VALUES, _VALUES_NEAR = "attention.value_length", "attention.value_length_swa"
CHECKED = (_ROTATED, _ROTATED_NEAR, _VALUES, _VALUES_NEAR)
"""Fields, after the architecture's name, that only say again how wide heads are."""

_DIVISORS = "rope_freqs.weight"


def sizes_by_layer(file: GGUFFile, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config.json whose values hang on layers; ``fields`` are the others.

    Raises:
        ModelError: a list is not of all layers, or is one that no config.json could say.
    """
    count, wide, narrow = (
        fields.get(field) for field in ("num_hidden_layers", "global_head_dim", "head_dim")
    )
    kinds, shared = fields.get("layer_types"), fields.get("num_kv_shared_layers", 0)
    if type(count) is not int or not is_list(kinds) or type(shared) is not int:
        raise ModelError(f"{file.path}: {name}.attention.sliding_window_pattern is missing")
    if _DIVISORS not in file.tensors:
        raise ModelError(f"{file.path}: the file has no tensor {_DIVISORS}")
    for field, size in zip(CHECKED, (wide, narrow, wide, narrow), strict=True):
        found = file.metadata.get(f"{name}.{field}", size)
        if found != size:
            raise ModelError(
                f"{file.path}: {name}.{field} is {short(found)}, and heads are of {short(size)}"
            )
    full = [kind == "full_attention" for kind in kinds]
    heads = _each(file, f"{name}.attention.head_count_kv", count)
    inners = _each(file, f"{name}.feed_forward_length", count)
    first = count - shared
    doubled = inners[:first] + [2 * inners[0]] * (count - first)
    if inners not in (doubled, [inners[0]] * count):
        raise ModelError(
            f"{file.path}: {name}.feed_forward_length is neither the same in all layers nor twice "
            "as much in those that share keys"
        )
    own = [layer for layer in range(max(first, 0)) if full[layer]]
    without = [layer for layer in own if f"blk.{layer}.attn_v.weight" not in file.tensors]
    if without and without != own:
        raise ModelError(
            f"{file.path}: blk.N.attn_v.weight is missing in some of the layers without a window"
        )
    return {
        "per_layer_config": {
            str(layer): {
                "head_dim": wide if full[layer] else narrow,
                "num_key_value_heads": heads[layer],
            }
            for layer in range(count)
        },
        "attention_k_eq_v": bool(without),
        "use_double_wide_mlp": inners != [inners[0]] * count,
        "vocab_size_per_layer_input": fields["vocab_size"],
    }


def kinds_of_layers(file: GGUFFile, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """MiMo's fields of a config.json that hang on layers; ``fields`` are the others.

    Raises:
        ModelError: a list is not of all layers, or layers of a kind differ.
    """
    kinds, count = fields.get("layer_types"), fields["num_hidden_layers"]
    if not is_list(kinds):
        raise ModelError(f"{file.path}: {name}.attention.sliding_window_pattern is missing")
    heads = _each(file, f"{name}.attention.head_count_kv", count)
    by_kind = {
        kind: {n for n, own in zip(heads, kinds, strict=True) if own == kind} for kind in kinds
    }
    if any(len(numbers) > 1 for numbers in by_kind.values()):
        raise ModelError(
            f"{file.path}: {name}.attention.head_count_kv differs among layers that see as much"
        )
    far, near = (by_kind.get(f"{kind}_attention", {heads[0]}) for kind in ("full", "sliding"))
    routers = [f"blk.{layer}.ffn_gate_inp.weight" in file.tensors for layer in range(count)]
    return {
        "num_key_value_heads": far.pop(),
        "swa_num_key_value_heads": near.pop(),
        "mlp_layer_types": ["sparse" if routed else "dense" for routed in routers],
    }


DEVIATIONS = "activation_sparsity_scale"
"""Of Gemma 3n: a field, after the architecture's name, that has a number for each layer."""


def sizes_of_streams(file: GGUFFile, name: str) -> dict[str, Any]:
    """The fields of a config.json that Gemma 3n's files tell by tensors, or for each layer.

    Raises:
        ModelError: a tensor is missing, or what hangs on layers is not told of all.
    """
    found: dict[str, Any] = {}
    for field, tensor in (
        ("vocab_size_per_layer_input", "per_layer_token_embd.weight"),
        ("laurel_rank", "blk.0.laurel_l.weight"),
    ):
        if tensor not in file.tensors:
            raise ModelError(f"{file.path}: the file has no tensor {tensor}")
        found[field] = file.tensors[tensor].shape[0]
    for field in ("attention.shared_kv_layers", DEVIATIONS):
        if f"{name}.{field}" not in file.metadata:
            raise ModelError(f"{file.path}: {name}.{field} is missing")
    deviations = file.metadata[f"{name}.{DEVIATIONS}"]
    if not is_list(deviations):
        raise ModelError(f"{file.path}: {name}.{DEVIATIONS} must be a number for each layer")
    return {**found, DEVIATIONS: list(deviations)}


def numbers_of_layers(file: GGUFFile, known: Architecture) -> dict[str, float]:
    """The tensors of one number that are lists in metadata, by the family's names.

    Raises:
        ModelError: a list is missing, or not a number for each layer.
    """
    count, found = file.metadata.get(f"{known.name}.block_count"), dict[str, float]()
    for name, part in known.numbers.items():
        values = file.metadata.get(name)
        if not is_list(values) or len(values) != count:
            raise ModelError(
                f"{file.path}: {name} must be a number for each of {short(count)} layers"
            )
        for layer, value in enumerate(values):
            if type(value) is not float or not math.isfinite(value):
                raise ModelError(
                    f"{file.path}: {name} is {short(value)} in layer {layer}; it must be finite"
                )
            found[f"model.layers.{layer}.{part}"] = value
    return found


def _each(file: GGUFFile, name: str, count: int) -> list[Any]:
    """A field that has a value for each layer, or one for all."""
    value = file.metadata.get(name)
    values: Sequence[Any] = list(value) if is_list(value) else [value] * count
    if len(values) == file.metadata.get(f"{name.partition('.')[0]}.block_count"):
        values = values[:count]  # without those that guess
    if len(values) != count or not all(type(one) is int for one in values):
        raise ModelError(f"{file.path}: {name} must be a number for each of {count} layers")
    return list(values)

"""What a GGUF file's metadata would be in a ``config.json``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from reprlib import repr as short
from typing import Any

from quire.core.errors import ModelError
from quire.models.gguf.architecture import EXPERTS, Architecture
from quire.models.gguf.architectures import ARCHITECTURES
from quire.models.gguf.by_layer import (
    CHECKED,
    DEVIATIONS,
    kinds_of_layers,
    sizes_by_layer,
    sizes_of_streams,
)
from quire.models.gguf.ends import end_tokens
from quire.models.gguf.header import GGUFFile, is_list
from quire.models.gguf.mixers import read_by_mixers, with_mixers
from quire.models.gguf.understood import by_usual_names, check_understood

# By the names after the architecture's; all are needed.
_NEEDED = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_OPTIONAL = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}
_COUNTED = ("block_count", "nextn_predict_layers")  # the second is a part of the first
_OF_EXPERTS = {EXPERTS: "num_experts", "expert_used_count": "num_experts_per_tok"}
_MOST_EXPERTS = 1 << 12  # of a layer; published models have some hundreds
_ROUTER = "ffn_gate_inp"
_AS_FLOATS = (_ROUTER, "attn_kv_b")  # which are kept so, however they are stored
# Stored in F32 in all files, as all is whose name does not end with ``.weight``.
_FLOATS = re.compile(rf"{_ROUTER}|ssm_conv1d|shortconv\.conv\.|_norm\.")
_BIASED = {
    "attn_q": ("qkv_bias", "use_qkv_bias"),
    "attn_output": ("attention_bias",),
    "ffn_up": ("mlp_bias", "use_bias"),
}
_LAYERS = {True: "sliding_attention", False: "full_attention"}
_STORED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def architecture_of(file: GGUFFile) -> Architecture:
    """ModelError: it is missing or unknown, or a variant of it is."""
    name = file.metadata.get("general.architecture")
    known = [record for record in ARCHITECTURES if record.name == name]
    if not known:
        names = ", ".join(dict.fromkeys(record.name for record in ARCHITECTURES))
        raise ModelError(f"{file.path}: general.architecture is {short(name)}; supported: {names}")
    told = [record for record in known if file.metadata.get(f"{name}.{record.told_by}")]
    told = [record for record in told if record.sigmoid == _has_sigmoids(file, record.name)] or told
    plain = [record for record in known if record.told_by is None]
    if not told and not plain:
        raise ModelError(f"{file.path}: {name}.{known[0].told_by} is missing or 0")
    found = (told or plain)[0]
    experts = file.metadata.get(f"{name}.{EXPERTS}", 0)
    if experts and not found.has_experts:
        raise ModelError(f"{file.path}: {name}.{EXPERTS} is {short(experts)}, where none are known")
    return found


def _has_sigmoids(file: GGUFFile, name: str) -> bool:
    """Whether scores of experts are sigmoids; older files do not say, but have their biases."""
    function = file.metadata.get(f"{name}.expert_gating_func")
    return function == 2 if function else any(".exp_probs_b." in one for one in file.tensors)


def config_of(file: GGUFFile) -> dict[str, Any]:
    """The fields of a ``config.json``, to be checked by their readers.

    Raises:
        ModelError: the architecture is not supported, or a field that it needs is missing.
    """
    known = architecture_of(file)
    file = by_usual_names(file, known)
    parts = {name.split(".", 2)[-1] if name.startswith("blk.") else name for name in file.tensors}
    if known.parted and "attn_qkv.bias" in parts:
        parts.add("attn_q.bias")
    fields: dict[str, Any] = {
        "architectures": [known.class_name],
        "model_type": known.model_type,
        "vocab_size": _vocabulary(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **{field: f"{part}.bias" in parts for part, names in _BIASED.items() for field in names},
        "dtype": _dtype(file),
        "eos_token_id": end_tokens(file.metadata),
        **{field: part in parts for part, field in known.told_by_tensors.items()},
        **known.fixed,
    }
    if any(info.type.is_rounded for info in file.tensors.values()):
        fields["quantization_config"] = {"quant_method": "gguf"}
    needed = {**_NEEDED, known.eps[0]: known.eps[1], **(_OF_EXPERTS if known.has_experts else {})}
    told = {**needed, **_OPTIONAL, **known.fields}
    if known.states is not None and known.has_experts:  # of which all layers may have some
        needed.pop("feed_forward_length")
    for name, field in told.items():
        value = file.metadata.get(f"{known.name}.{name}")
        if known.states is not None and is_list(value):
            value = [one for one in value if one] or value  # 0 for layers of other kinds
        if (known.by_layer or known.other_heads) and is_list(value):
            value = value[:1] and value[0]  # of the first; ``by_layer`` looks at all
        if known.streams and name == "feed_forward_length" and is_list(value):
            fields[field] = list(value)
        elif value is not None:
            fields[field] = _of_all_layers(file, f"{known.name}.{name}", value)
        elif name in needed:
            raise ModelError(f"{file.path}: {known.name}.{name} is missing")
    _check_counts(file, known, fields, told)
    if known.told_by_count is not None:
        counted, special, then = known.told_by_count
        fields |= then if fields[told[counted]] == special else {}
    count = fields["num_hidden_layers"]
    fields["num_hidden_layers"] -= _guessing_layers(count, fields.get("num_nextn_predict_layers"))
    check_understood(file, known, {*told, *known.aside, *_read_beside(file, known)})
    _check_heads(file, known)
    fields |= _windows(file, known, fields)
    fields = with_mixers(file, known, fields)
    if known.by_layer:
        fields |= sizes_by_layer(file, known.name, fields)
    if known.other_heads:
        fields |= kinds_of_layers(file, known.name, fields)
    if known.streams:
        fields |= sizes_of_streams(file, known.name)
    return {**fields, **_rotation(file, known, fields)}


def kept_sizes(file: GGUFFile, float_bytes: int) -> Iterator[tuple[str, float]]:
    """Memory of each tensor as Quire keeps it, with this many bytes per number of float ones."""
    known = architecture_of(file)
    count, further = (file.metadata.get(f"{known.name}.{name}", 0) for name in _COUNTED)
    most = count if type(count) is int and count <= len(file.tensors) else 0
    first = most - _guessing_layers(most, further)
    guessing = tuple(f"blk.{number}." for number in range(first, most))
    for name, info in file.tensors.items():
        if is_of_guesses(name) or name.startswith(guessing):
            continue
        size: float = float_bytes
        if info.type.is_rounded and not any(part in name for part in _AS_FLOATS):
            size = info.type.kept_bytes
        elif known.norms_with_one and len(info.shape) == 1:
            size = 4  # 1 + w has more digits than w
        yield name, size * math.prod(info.shape)


def is_of_guesses(name: str) -> bool:
    """Whether a tensor is of those alone that guess further tokens, which are not read."""
    return ".nextn." in name


def _guessing_layers(layers: int, further: object) -> int:
    """How many of a file's layers guess further tokens: the last, if it says so and has others."""
    return further if type(further) is int and 0 <= further < layers else 0


def _check_counts(
    file: GGUFFile, known: Architecture, fields: dict[str, Any], told: Mapping[str, str]
) -> None:
    """Check the counts by which things are made before tensors are compared with them."""
    limits = {"block_count": len(file.tensors)}
    if known.has_experts:
        limits |= {EXPERTS: _MOST_EXPERTS, "expert_used_count": fields[told[EXPERTS]]}
    for name, most in limits.items():
        count = fields[told[name]]
        if type(count) is not int or not 1 <= count <= most:
            raise ModelError(
                f"{file.path}: {known.name}.{name} must be 1 to {most:,}, but is {short(count)}"
            )


def _of_all_layers(file: GGUFFile, name: str, value: Any) -> Any:
    """A field for all layers; some files list it by layer. ModelError: layers differ."""
    if not is_list(value):
        return value
    if len(set(value)) != 1:
        raise ModelError(f"{file.path}: {name} is not the same in all layers")
    return value[0]


def _vocabulary(file: GGUFFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: the file has no tensor token_embd.weight")
    return file.tensors["token_embd.weight"].shape[0]


def _dtype(file: GGUFFile) -> str:
    """The type to compute in: as matrices are stored; bfloat16 if they are rounded."""
    stored = {
        info.type.name
        for name, info in file.tensors.items()
        if len(info.shape) > 1 and name.endswith(".weight") and not _FLOATS.search(name)
    }
    return _STORED.get(stored.pop(), "bfloat16") if len(stored) == 1 else "bfloat16"


def _check_heads(file: GGUFFile, known: Architecture) -> None:
    """ModelError unless values are as long as keys, or the family knows of both."""
    if known.latent or known.other_heads:
        return
    key, value = (
        file.metadata.get(f"{known.name}.attention.{part}_length") for part in ("key", "value")
    )
    if value != key and value is not None:
        raise ModelError(
            f"{file.path}: {known.name}.attention.value_length ({short(value)}) is not "
            f"{known.name}.attention.key_length ({short(key)})"
        )


def _read_beside(file: GGUFFile, known: Architecture) -> Iterator[str]:
    """The fields that become none of a config.json, by the names after the architecture's."""
    yield "attention.value_length"
    yield from read_by_mixers(known)
    if known.growth is not None or (known.yarn_weight is not None and not known.latent):
        yield _GROWTH
    if "attention.sliding_window" in known.fields:
        yield "attention.sliding_window_pattern"
    if known.local_theta is not None or known.alike_theta:
        yield "rope.freq_base_swa"
    if known.by_layer:
        yield from CHECKED
    if known.streams:
        yield DEVIATIONS
    yield from (f"rope.scaling.{name}" for name in _scaling_fields(file, known))


def _windows(file: GGUFFile, known: Architecture, fields: dict[str, Any]) -> dict[str, Any]:
    """The layers with a window: the period of those without, or a truth for each."""
    name = f"{known.name}.attention.sliding_window_pattern"
    pattern = file.metadata.get(name)
    if pattern is None:
        return {}
    if isinstance(pattern, int):
        return {"sliding_window_pattern": pattern}
    count = fields["num_hidden_layers"]
    if not is_list(pattern) or len(pattern) not in (
        count,
        file.metadata[f"{known.name}.block_count"],
    ):
        raise ModelError(f"{file.path}: {name} must be a number, or a truth for each layer")
    return {"layer_types": [_LAYERS[bool(windowed)] for windowed in pattern[:count]]}


def _rotation(file: GGUFFile, known: Architecture, fields: dict[str, Any]) -> dict[str, Any]:
    """``rope_scaling``, which share of a head is rotated, and what hangs on its width."""
    heads, hidden = fields.get("num_attention_heads"), fields["hidden_size"]
    if not isinstance(heads, int) or not isinstance(hidden, int) or heads < 1:
        return {}  # their readers refuse them
    head_dim = fields.get("head_dim", hidden // heads)
    found: dict[str, Any] = {}
    if not (known.latent or known.alone or known.by_layer or hidden % heads):
        found["head_dim"] = head_dim  # whatever the family's usual one is
    if _SCALE in known.fields and known.fields[_SCALE] not in fields:
        found[known.fields[_SCALE]] = head_dim**-0.5
    name = f"{known.name}.rope.dimension_count"
    rotated = file.metadata.get(name, head_dim)
    if type(rotated) is not int:
        raise ModelError(f"{file.path}: {name} must be a whole number, but is {short(rotated)}")
    turns = not known.alone and fields.get("position_embedding_type") != "nope"
    told = rotated != head_dim or not known.latent  # whatever the family's usual share is
    if told and head_dim and turns and not known.by_layer:
        found["partial_rotary_factor"] = rotated / head_dim
    if known.scaled_by_share is not None:
        shares = fields["num_hidden_layers"] == known.scaled_by_share
        found["query_pre_attn_scalar"] = hidden // heads if shares else head_dim
    scaling = _scaling(file, known, fields)
    if not known.whole_yarn:
        scaling["truncate"] = False
    local = fields.get("rope_theta") if known.alike_theta else known.local_theta
    if local is None:
        return {**found, "rope_scaling": scaling} if scaling else found
    local = file.metadata.get(f"{known.name}.rope.freq_base_swa", local)
    theta = {"rope_theta": fields["rope_theta"]} if "rope_theta" in fields else {}
    found["rope_parameters"] = {
        "full_attention": {**theta, **scaling},
        "sliding_attention": {"rope_theta": local},
    }
    return found


_SCALE = "attention.scale"  # of scores; 1 / sqrt(head_dim) where a file does not say
_YARN = {
    "factor": "factor",
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
_SCALINGS = {"linear": {"factor": "factor"}, "none": {"factor": ""}, "yarn": _YARN}
_YARN_WEIGHT = "mscale_all_dim"
_GROWTH = "attention.temperature_scale"  # of queries, with their positions
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


def _scaling_fields(file: GGUFFile, known: Architecture) -> dict[str, str]:
    """The fields after ``rope.scaling.``, and their names in a config.json."""
    if "rope_freqs.weight" in file.tensors:
        return {}
    if _LONG in file.tensors and _SHORT in file.tensors:
        return {"factor": "factor", "attn_factor": "attention_factor"}
    kind = file.metadata.get(f"{known.name}.rope.scaling.type")
    found = _SCALINGS.get(kind, {}) if isinstance(kind, str) else {}
    weighed = found is _YARN and known.yarn_weight is not None
    return {**found, "yarn_log_multiplier": _YARN_WEIGHT} if weighed else found


def _scaling(file: GGUFFile, known: Architecture, fields: dict[str, Any]) -> dict[str, Any]:
    prefix = f"{known.name}.rope.scaling"
    kind = file.metadata.get(f"{prefix}.type", "none")
    original = file.metadata.get(f"{prefix}.original_context_length")
    given = {
        field: file.metadata[f"{prefix}.{name}"]
        for name, field in _scaling_fields(file, known).items()
        if file.metadata.get(f"{prefix}.{name}")  # 0: not given
    }
    if original is not None:
        given["original_max_position_embeddings"] = original
    if "rope_freqs.weight" in file.tensors:
        return {"rope_type": "divided", "divisors": file.floats("rope_freqs.weight")}
    if _LONG in file.tensors and _SHORT in file.tensors:
        if known.longrope_factor is not None:
            given |= dict.fromkeys(("short_mscale", "long_mscale"), known.longrope_factor)
        return {
            "rope_type": "longrope",
            "long_factor": file.floats(_LONG),
            "short_factor": file.floats(_SHORT),
            **given,
            "original_max_position_embeddings": original or fields["max_position_embeddings"],
        }
    if _LONG in file.tensors or _SHORT in file.tensors:
        raise ModelError(f"{file.path}: there is one of {_LONG} and {_SHORT} without the other")
    if kind == "none" or (kind == "linear" and given.get("factor", 1.0) == 1.0):
        return {}
    if not isinstance(kind, str) or kind not in _SCALINGS:
        names = ", ".join(sorted(_SCALINGS))
        raise ModelError(f"{file.path}: {prefix}.type is {short(kind)}; supported: {names}")
    if _YARN_WEIGHT in given and known.yarn_weight is not None:
        told = given[_YARN_WEIGHT]
        if not isinstance(told, float):
            raise ModelError(
                f"{file.path}: {prefix}.yarn_log_multiplier is {short(told)}, no float"
            )
        weight = round(told * known.yarn_weight, 6)
        given |= {_YARN_WEIGHT: weight, "mscale": weight if known.latent else 1.0}
    growth = file.metadata.get(f"{known.name}.{_GROWTH}", known.growth)
    if growth:
        given["llama_4_scaling_beta"] = growth
    return {"rope_type": kind, **given}

"""The shape that a Hugging Face ``config.json`` describes, or why it describes none we know.

A field that changes what a token costs and is passed over makes every figure wrong without a word.
So every field must be understood, or known to change nothing here; any other is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as short
from typing import Any

from quire.errors import ModelError
from quire.gguf import GGUFFile, config_of, is_gguf, kept_bytes, open_gguf
from quire.shape.experts import experts_of
from quire.shape.families import Family, find_family
from quire.shape.fields import Fields, read_fields
from quire.shape.model_shape import BYTES, ModelShape
from quire.shape.positions import positions_of
from quire.shape.stored import read_stored
from quire.shape.understood import OF_EXPERTS, UNDERSTOOD, kind_of
from quire.shape.windows import ATTENTION_KINDS, windows_in_force, windows_of

_SHOWN = 4  # fields of one kind that a refusal names
_MOST_LAYERS = 10_000  # each is looked at


def read_shape(path: Path, overrides: Mapping[str, Any] | None = None) -> ModelShape:
    """The shape that a config.json, a directory with one or a GGUF file describes.

    overrides: over the fields of the file.

    Raises:
        ModelError: a size is missing or none, or the model is not one whose shape is known; all
            that speaks against it is named.
    """
    path = path / "config.json" if path.is_dir() else path
    file = open_gguf(path) if is_gguf(path) else None
    fields = _text_fields(path, file, overrides)
    family = _known_family(fields)
    num_layers = _size(fields, "num_hidden_layers", "n_layer")
    if num_layers > _MOST_LAYERS:
        raise ModelError(f"{path}: num_hidden_layers is {num_layers:,}, above {_MOST_LAYERS:,}")
    hidden = _size(fields, "hidden_size", "n_embd")
    heads = _size(fields, "num_attention_heads", "n_head")
    if heads > hidden:
        raise ModelError(f"{path}: {heads} heads are more than the hidden_size, {hidden}")
    if fields.positive("word_embed_proj_dim", hidden) != hidden:
        raise ModelError(f"{path}: word_embed_proj_dim other than hidden_size is not simulated yet")
    dtype = str(fields.values.get("dtype") or fields.values.get("torch_dtype") or "float16")
    if dtype not in BYTES:
        raise ModelError(f"{path}: dtype is {short(dtype)}; known: {', '.join(BYTES)}")
    positions = positions_of(fields, family)
    windows = windows_in_force(_windows(fields, family), positions.limit)
    return ModelShape(
        name=path.resolve().parent.name if path.name == "config.json" else path.stem,
        num_layers=num_layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_kv_heads(fields, family, heads),
        head_size=fields.positive("head_dim", family.head_size or hidden // heads),
        intermediate_size=_size(
            fields, "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", default=4 * hidden
        ),
        vocab_size=fields.positive("vocab_size"),
        max_positions=positions.default,
        gated_mlp=family.gated_mlp,
        tied_embeddings=fields.get("tie_word_embeddings", bool, family.tied),
        learned_positions=family.learned_positions,
        biases=family.biases and fields.get("enable_bias", bool, True),
        dtype=dtype,
        windows=windows if any(windows) else (),
        experts=experts_of(fields) if family.experts else None,
        position_limit=positions.limit,
        stable_positions=positions.stable,
        stored_bytes=None if file is None else kept_bytes(file, BYTES[dtype]),
        projection_bytes=_projection_bytes(fields, BYTES[dtype]),
    )


def _projection_bytes(fields: Fields, dtype_bytes: int) -> float | None:
    """Of a weight that is stored rounded, as it is kept; None where none is."""
    section = fields.section("quantization_config")
    return read_stored(section).scheme.bytes_kept(dtype_bytes) if section.values else None


def _text_fields(path: Path, file: GGUFFile | None, overrides: Mapping[str, Any] | None) -> Fields:
    """The fields of the decoder, where those of other parts are beside it."""
    if file is not None:
        told = {**config_of(file), **(overrides or {})}
        told.pop("quantization_config", None)  # the tensors tell their bytes
        return Fields(told, str(path))
    fields = read_fields(path, overrides)
    inner = fields.values.get("text_config")
    return Fields({**fields.values, **(inner if isinstance(inner, dict) else {})}, fields.source)


def _size(fields: Fields, *names: str, default: int | None = None) -> int:
    """The field, under the first of these names that is there."""
    for name in names:
        if name in fields:
            return fields.positive(name)
    return fields.positive(names[0], default)


def _kv_heads(fields: Fields, family: Family, heads: int) -> int:
    """In the words of most, or in Falcon's."""
    if "num_kv_heads" not in family.own_fields:
        return fields.positive("num_key_value_heads", heads)
    grouped = fields.get("new_decoder_architecture", bool, False)
    if not grouped and fields.get("multi_query", bool, True):
        return 1
    return fields.positive("num_kv_heads", heads)


def _known_family(fields: Fields) -> Family:
    """The family, or ModelError with everything in the config that is not understood."""
    # A config without a name is a Llama's, as far as its fields are.
    model_type = fields.get("model_type", str, "llama")
    architectures = fields.values.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else None
    family = find_family(architecture, model_type)
    understood = UNDERSTOOD.union(() if family is None else family.own_fields)
    if family is not None and family.experts:
        understood |= OF_EXPERTS
    found: dict[str, list[str]] = {}
    for name, value in fields.values.items():
        if name not in understood and not _is_neutral(name, value):
            found.setdefault(kind_of(name), []).append(name)
    window = _unknown_window(fields, family)
    if window is not None:
        found.setdefault("windows", []).append(window)
    if family is None or find_family(None, model_type) is None:
        found[f"the layers of model_type {short(model_type)}"] = []
    if family is None or found:
        raise ModelError(_refusal(fields.source, found))
    return family


def _refusal(source: str, found: Mapping[str, list[str]]) -> str:
    parts = []
    for kind, names in found.items():
        more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        shown = ", ".join([*(name[:60] for name in names[:_SHOWN]), *more])
        parts.append(f"{kind} ({shown})" if shown else kind)
    return (
        f"{source}: not simulated yet: {'; '.join(parts)}. A field that changes neither the "
        "model's bytes nor its arithmetic can be left out of a copy of the file"
    )


def _is_neutral(name: str, value: Any) -> bool:
    """Whether the field says that something is not there."""
    if name == "num_experts" or name.endswith("_experts"):
        return value in (None, 0, 1)
    return value is None or value is False or value in (0, "", [], {}, "none")


def _windows(fields: Fields, family: Family) -> tuple[int | None, ...]:
    if family.window == "never":
        return ()
    return windows_of(fields, family)


def _unknown_window(fields: Fields, family: Family | None) -> str | None:
    """What says that a layer sees less than all before, and none of us knows what."""
    types = set(map(str, fields.get("layer_types", list, [])))
    if others := types - ATTENTION_KINDS:
        return f"layer_types: {', '.join(sorted(others))}"
    window = fields.values.get("sliding_window")
    if window is None or types == {"full_attention"}:
        return None
    if family is not None and family.window != "never":
        return None
    if fields.values.get("use_sliding_window") is False:
        return None
    longest = positions_of(fields, family).limit if family is not None else 0
    if isinstance(window, int) and longest and window >= longest:
        return None
    return f"sliding_window: {short(window)}"

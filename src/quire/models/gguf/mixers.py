"""What the layers of a GGUF file mix tokens with, where that is no keys and values of heads."""

from __future__ import annotations

from collections.abc import Iterator
from reprlib import repr as short
from typing import Any

from quire.core.errors import ModelError
from quire.models.gguf.architecture import Architecture
from quire.models.gguf.header import GGUFFile, is_list

# Of states: the width of all heads together, their number, and the width of one.
_WIDTHS = (
    ("linear_inner_size", "linear_num_value_heads", "linear_value_head_dim"),
    ("mamba_inner_size", "mamba_n_heads", "mamba_d_head"),
)
_INDEXED = "attention.indexer.types"  # the layers with an index of their own; or all
_KIMI_WIDTH = "linear_head_dim"
_SIZES = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
_TURNED = "position_embedding_type"  # of Granite's layers that attend


def with_mixers(file: GGUFFile, known: Architecture, fields: dict[str, Any]) -> dict[str, Any]:
    """``fields`` with those of latents and of states, if the architecture has some.

    Raises:
        ModelError: a size is missing, or cannot be.
    """
    if known.latent:
        fields = fields | _latents(file, known, fields)
    return fields if known.states is None else _with_states(file, known, fields)


def read_by_mixers(known: Architecture) -> Iterator[str]:
    """The fields that are read here alone, by the names after the architecture's."""
    if known.latent:
        yield from ("attention.key_length_mla", "attention.value_length_mla", _INDEXED)
    if known.states is not None:  # sections of positions, which are one where there are no images
        yield from ("attention.recurrent_layers", "rope.dimension_sections")


def _latents(file: GGUFFile, known: Architecture, fields: dict[str, Any]) -> dict[str, Any]:
    """The widths of heads. Files since 2025 have those of latents where others have them."""
    prefix = f"{known.name}.attention"
    key, value = (
        file.metadata.get(
            f"{prefix}.{part}_length_mla", file.metadata.get(f"{prefix}.{part}_length")
        )
        for part in ("key", "value")
    )
    turned = fields.get("qk_rope_head_dim")
    if type(key) is not int or type(turned) is not int or not 0 < turned < key:
        raise ModelError(
            f"{file.path}: of keys {short(key)} numbers, {prefix}.key_length, {short(turned)} are "
            f"turned, {known.name}.rope.dimension_count; some must be, and not all"
        )
    widths: dict[str, Any] = {"head_dim": turned, "qk_nope_head_dim": key - turned}
    if value is not None:
        widths["v_head_dim"] = value
    if is_list(kinds := file.metadata.get(f"{known.name}.{_INDEXED}")):
        own = kinds[: fields["num_hidden_layers"]]
        widths["indexer_types"] = ["full" if one else "shared" for one in own]
    return {"num_key_value_heads": fields["num_attention_heads"], **widths}


def _with_states(file: GGUFFile, known: Architecture, fields: dict[str, Any]) -> dict[str, Any]:
    found = dict(fields)
    kinds = _kinds(file, known)
    if kinds:
        found["layer_types"] = kinds[: fields["num_hidden_layers"]]
    for inner_name, count_name, one_name in _WIDTHS:
        inner, count = found.pop(inner_name, None), found.get(count_name)
        if inner is None:
            continue
        if type(inner) is not int or type(count) is not int or count < 1 or inner % count:
            raise ModelError(
                f"{file.path}: {known.name}.ssm.inner_size is {short(inner)}, which "
                f"{short(count)} heads cannot share"
            )
        found[one_name] = inner // count
    if _KIMI_WIDTH in found:  # states have as many heads as attention
        found["linear_num_heads"] = found["num_attention_heads"]
    if _TURNED in known.fields.values():
        found[_TURNED] = "nope" if found.get(_TURNED) is False else "rope"
    if found["num_attention_heads"] == 0:  # no layer attends, and none has an MLP
        found = {k: v for k, v in found.items() if k not in _SIZES}
    return found


def _kinds(file: GGUFFile, known: Architecture) -> list[str | None]:
    """What each layer is, or nothing if the file does not say: the ones that keep a state have no
    heads of keys and, where an MLP is a layer of its own, no width of that.
    """
    listed = file.metadata.get(f"{known.name}.attention.recurrent_layers")
    heads = file.metadata.get(f"{known.name}.attention.head_count_kv")
    inner = file.metadata.get(f"{known.name}.feed_forward_length")
    if listed is None and is_list(heads):
        listed = [not count for count in heads]
    if not is_list(listed):
        return []
    kinds = [known.states if one else "full_attention" for one in listed]
    if known.alone and is_list(inner) and len(inner) == len(kinds):
        mlp = "moe" if known.has_experts else "mlp"
        kinds = [
            mlp if width and kind == known.states else kind
            for kind, width in zip(kinds, inner, strict=True)
        ]
    return kinds

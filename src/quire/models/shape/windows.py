"""Sliding windows, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import repr as short

from quire.core.errors import ModelError
from quire.models.shape.families import FamilyFacts
from quire.models.shape.fields import ConfigFields

ATTENTION_KINDS = frozenset({"full_attention", "sliding_attention"})
"""What ``layer_types`` may name."""

_CHUNKED_KINDS = frozenset({"full_attention", "chunked_attention"})


class ChunkLength(int):
    """A window that is a chunk of the text: a token sees those from a multiple of it on."""


_EVERY = (
    "sliding_window_pattern", "_sliding_window_pattern", "layer_switch",
    "global_attn_every_n_layers",
)  # fmt: skip
_BEFORE = "prefix_dense_sliding_window_pattern"  # of layers that a rule does not count
_FIRST_WINDOWED = 28  # layer of Qwen's, where ``max_window_layers`` is absent


def windows_of(fields: ConfigFields, family: FamilyFacts) -> tuple[int | None, ...]:
    """The last tokens that a token sees in each layer, itself included; None: all.

    Raises:
        ModelError: a field is wrong, or there is a window and no field says in which layers.
    """
    num_layers = fields.positive("num_hidden_layers")
    if family.window == "chunked":
        return _chunks(fields, family, num_layers)
    none = (None,) * num_layers
    if family.window == "never" or fields.values.get("sliding_window") in (None, 0):
        return none  # 0 means none, as to transformers' converters and llama.cpp
    asked = family.window in ("always", "alternating", "named")
    if not asked and not fields.get("use_sliding_window", bool, False):
        return none
    window = fields.positive("sliding_window")
    if family.window in ("always", "all_if_used"):
        return (window,) * num_layers
    types = fields.get("layer_types", list, [])
    if types:
        known = family.recurrence is not None or ATTENTION_KINDS.issuperset(map(str, types))
        if len(types) != num_layers or not known:
            raise ModelError(
                f"{fields.source}: layer_types must name full_attention or sliding_attention for "
                f"each of {num_layers} layers, but is {short(types)}"
            )
        return _ending(
            tuple(window if kind == "sliding_attention" else None for kind in types), family
        )
    if family.window in ("listed", "named"):
        raise ModelError(f"{fields.source}: layer_types must tell where sliding_window counts")
    if family.window == "alternating":
        every, first = _full_every(fields, family), _before_rule(fields, family)
        own = fields.positive(_BEFORE, 1)
        marks = [
            (layer + 1) % own if layer < first else every == 0 or (layer - first + 1) % every
            for layer in range(num_layers)
        ]
        return _ending(tuple(window if mark else None for mark in marks), family)
    first = fields.get("max_window_layers", int, _FIRST_WINDOWED)
    return tuple(window if layer >= first else None for layer in range(num_layers))


def _ending(windows: tuple[int | None, ...], family: FamilyFacts) -> tuple[int | None, ...]:
    """The last layer of Gemma 4 sees everything, whatever its fields say."""
    return (*windows[:-1], None) if family.by_layer and not family.streams else windows


def _chunks(fields: ConfigFields, family: FamilyFacts, num_layers: int) -> tuple[int | None, ...]:
    """Chunks of a text that see nothing before themselves, in layers that know positions."""
    if fields.values.get("attention_chunk_size") in (None, 0):
        return (None,) * num_layers
    chunk = ChunkLength(fields.positive("attention_chunk_size"))
    kinds = fields.get("layer_types", list, [])
    if not kinds:
        turned = layers_that_turn(fields, family.full_every)
        kinds = ["chunked_attention" if each else "full_attention" for each in turned]
    if len(kinds) != num_layers or not _CHUNKED_KINDS.issuperset(map(str, kinds)):
        raise fields.wrong("layer_types", f"full or chunked attention for each of {num_layers}")
    return tuple(chunk if kind == "chunked_attention" else None for kind in kinds)


def layers_that_turn(fields: ConfigFields, every: int) -> tuple[bool, ...]:
    """Which layers know positions: all but each ``every``-th, or those for which ``no_rope_layers``
    has 1 (in spite of its name).
    """
    named = fields.get("no_rope_layers", list, [])
    layers = range(fields.positive("num_hidden_layers"))
    if not named:
        every = fields.positive("no_rope_layer_interval", every)
        return tuple((layer + 1) % every != 0 for layer in layers)
    if len(named) != len(layers) or not all(each in (0, 1) for each in named):
        raise fields.wrong("no_rope_layers", f"0 or 1 for each of {len(layers)} layers")
    return tuple(each == 1 for each in named)


def windows_in_force(windows: Sequence[int | None], longest: int | None) -> tuple[int | None, ...]:
    """The same without windows that no text of up to ``longest`` tokens outgrows; None: endless."""
    return tuple(
        None if window is None or (longest is not None and window >= longest) else window
        for window in windows
    )


def _before_rule(fields: ConfigFields, family: FamilyFacts) -> int:
    """The layers without experts that come before those that are counted."""
    return fields.get("first_k_dense_replace", int, 0) if _BEFORE in family.own_fields else 0


def _full_every(fields: ConfigFields, family: FamilyFacts) -> int:
    for name in _EVERY:
        if name in fields:
            return fields.positive(name)
    return family.full_every

"""Sizes that differ from layer to layer, and what layers share: of Gemma 3n and 4, and MiMo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.errors import ModelError
from quire.models.shape.families import FamilyFacts
from quire.models.shape.fields import MOST_LAYERS, ConfigFields
from quire.models.shape.recurrence import completed

_WIDE_HEAD = 512  # of layers that see everything, where no field says it
_GIVEN, _GIVEN_VOCAB = "hidden_size_per_layer_input", "vocab_size_per_layer_input"
_INNER, _SHARED = "intermediate_size", "num_kv_shared_layers"
_MOST_STREAMS = 8
_PATTERN, _NEAR = "hybrid_layer_pattern", "swa_num_key_value_heads"
_SIZES = frozenset({"head_dim", "num_key_value_heads"})
"""What ``per_layer_config`` may say of a layer."""


@dataclass(frozen=True)
class LayerSizes:
    """Sizes by layer, and what each layer takes of others or is given beside its input."""

    head_sizes: tuple[int, ...]
    kv_heads: tuple[int, ...]
    inners: tuple[int, ...]  # of MLPs
    sources: tuple[int, ...]  # whose keys and values it attends to: its own, or an earlier layer's
    keys_are_values: tuple[bool, ...]
    given: int  # numbers that each layer is given of each token's id; 0: none
    given_vocab: int
    streams: int = 1  # of which layers see one
    low_rank: int = 0  # of what is beside attention; 0: nothing
    value_sizes: tuple[int, ...] = ()  # nothing: values are as wide as keys

    @property
    def keeping(self) -> tuple[bool, ...]:
        """Whether each keeps keys and values."""
        return tuple(source == layer for layer, source in enumerate(self.sources))

    @property
    def widths(self) -> tuple[tuple[int, int], ...]:
        """Numbers of a key and of a value, by layer."""
        return tuple(zip(self.head_sizes, self.value_sizes or self.head_sizes, strict=True))

    def attention_params(self, layer: int, hidden: int, heads: int) -> int:
        """Parameters of a layer's projections."""
        (key, value), kept = self.widths[layer], self.sources[layer] == layer
        projected = key + (not self.keys_are_values[layer]) * value
        return hidden * (heads * (key + value) + kept * self.kv_heads[layer] * projected)

    def given_params(self, hidden: int) -> int:
        """Parameters of what one layer makes of what it is given, and of what makes that; and of
        what it has for streams and beside attention.
        """
        mixing = self.streams * (hidden + self.streams * (self.streams + 1))
        return hidden * (3 * self.given + 2 * self.low_rank) + (mixing if self.streams > 1 else 0)

    def streams_params(self, hidden: int) -> int:
        """Parameters of what makes streams of a token, and one of them."""
        return 2 * (self.streams - 1) * hidden**2

    @property
    def given_table_params(self) -> int:
        """Parameters of the table that has what all layers are given."""
        return self.given_vocab * len(self.sources) * self.given


def layer_sizes_of(fields: ConfigFields, windows: Sequence[int | None]) -> LayerSizes:
    """The sizes by Gemma 4's fields; ``windows`` by layer.

    Raises:
        ModelError: a field is wrong, or contradicts another.
    """
    count = len(windows)
    if fields.values.get("use_bidirectional_attention") == "all":
        raise fields.wrong("use_bidirectional_attention", "null, or vision")
    keys_are_values = fields.get("attention_k_eq_v", bool, False)
    own = _overrides(fields, windows, keys_are_values)
    shared = fields.get(_SHARED, int, 0)
    if not 0 <= shared < count:
        raise fields.wrong(_SHARED, f"at least 0 and less than {count}")
    inner, first = fields.positive(_INNER), count - shared
    wide = 2 if fields.get("use_double_wide_mlp", bool, False) else 1
    head, heads = fields.positive("head_dim", 256), fields.positive("num_key_value_heads")
    return LayerSizes(
        head_sizes=tuple(one.get("head_dim", head) for one in own),
        kv_heads=tuple(one.get("num_key_value_heads", heads) for one in own),
        inners=tuple(inner * (wide if layer >= first else 1) for layer in range(count)),
        sources=_sources(fields, windows, first),
        keys_are_values=tuple(keys_are_values and window is None for window in windows),
        given=_given(fields),
        given_vocab=fields.positive(_GIVEN_VOCAB, 262_144),
    )


def stream_sizes_of(fields: ConfigFields, windows: Sequence[int | None]) -> LayerSizes:
    """The sizes by Gemma 3n's fields; ``windows`` by layer.

    Raises:
        ModelError: a field is wrong, or contradicts another.
    """
    count = len(windows)
    shared = fields.get(_SHARED, int, 15)
    if not 0 <= shared < count:
        raise fields.wrong(_SHARED, f"at least 0 and less than {count}")
    heads = fields.positive("num_key_value_heads", 2)
    streams = fields.positive("altup_num_inputs", 4)
    if not 2 <= streams <= _MOST_STREAMS:
        raise fields.wrong("altup_num_inputs", f"2 to {_MOST_STREAMS}")
    return LayerSizes(
        head_sizes=(fields.positive("head_dim", 256),) * count,
        kv_heads=(heads,) * count,
        inners=_inners(fields, count),
        sources=_sources(fields, windows, count - shared),
        keys_are_values=(False,) * count,
        given=fields.positive(_GIVEN, 256),
        given_vocab=fields.positive(_GIVEN_VOCAB, 262_144),
        streams=streams,
        low_rank=fields.positive("laurel_rank", 64),
    )


def filled_in(fields: ConfigFields, family: FamilyFacts) -> ConfigFields:
    """The fields with what configs of a family leave out, or write in words of their own."""
    spelt = {common: fields.values[own] for own, common in family.words if own in fields}
    fields = fields.holding({**dict(family.defaults), **spelt, **fields.values})
    if family.recurrence is not None:
        return completed(fields)
    return _in_common_words(fields) if family.other_heads else fields


def _in_common_words(fields: ConfigFields) -> ConfigFields:
    """MiMo's fields in the words of others, in which transformers saves them."""
    values, count = dict(fields.values), fields.positive("num_hidden_layers")
    if count > MOST_LAYERS:
        raise fields.wrong("num_hidden_layers", f"at most {MOST_LAYERS:,}")
    if "layer_types" not in fields:
        marks = fields.get(_PATTERN, list, [i > 0 and (i + 1) % 6 > 0 for i in range(count)])
        if len(marks) != count or not all(mark in (0, 1) for mark in marks):
            raise fields.wrong(_PATTERN, f"0 or 1 for each of {count} layers")
        kinds = ("full_attention", "sliding_attention")
        values["layer_types"] = [kinds[mark == 1] for mark in marks]
    if "mlp_layer_types" not in fields and "moe_layer_freq" not in fields:
        values["mlp_layer_types"] = ["dense"] + ["sparse"] * (count - 1)
    if "sliding_window_size" in fields:  # of tokens before one that sees them
        values["sliding_window"] = fields.positive("sliding_window_size") + 1
    if "layernorm_epsilon" in fields:
        values.setdefault("rms_norm_eps", values["layernorm_epsilon"])
    return fields.holding(values)


def sizes_by_kind(fields: ConfigFields, windows: Sequence[int | None]) -> LayerSizes:
    """The sizes by MiMo's fields; ``windows`` by layer.

    Raises:
        ModelError: a field is wrong, or contradicts another.
    """
    count, heads = len(windows), fields.positive("num_attention_heads")
    key, value = fields.positive("head_dim", 192), fields.positive("v_head_dim", 128)
    for name, only in (
        ("swa_num_attention_heads", heads),
        ("swa_head_dim", key),
        ("swa_v_head_dim", value),
    ):
        if fields.positive(name, only) != only:
            raise fields.wrong(name, f"{only}, as in layers without a window")
    far = fields.positive("num_key_value_heads")
    near = fields.positive(_NEAR, 2 * far)
    if heads % near:
        raise fields.wrong(_NEAR, f"a divisor of {heads} heads", near)
    return LayerSizes(
        head_sizes=(key,) * count,
        kv_heads=tuple(far if window is None else near for window in windows),
        inners=(fields.positive(_INNER),) * count,
        sources=tuple(range(count)),
        keys_are_values=(False,) * count,
        given=0,
        given_vocab=0,
        value_sizes=(value,) * count,
    )


def widest(fields: ConfigFields, family: FamilyFacts) -> ConfigFields:
    """The fields, with the largest size of MLPs where layers of this family may have others."""
    inners = fields.values.get(_INNER)
    if not family.streams or not isinstance(inners, list):
        return fields
    count = fields.positive("num_hidden_layers")
    return fields.holding({**fields.values, _INNER: max(_inners(fields, count))})


def _inners(fields: ConfigFields, count: int) -> tuple[int, ...]:
    inners = fields.values.get(_INNER)
    each = inners if isinstance(inners, list) else [fields.positive(_INNER)] * count
    if len(each) != count:
        raise fields.wrong(_INNER, f"one for each of {count} layers")
    return tuple(fields.holding({_INNER: one}).positive(_INNER) for one in each)


def _given(fields: ConfigFields) -> int:
    width = 0 if _GIVEN in fields.values and _GIVEN not in fields else fields.get(_GIVEN, int, 256)
    if width < 0:
        raise fields.wrong(_GIVEN, "at least 0")
    if width and fields.positive(_GIVEN_VOCAB, 262_144) < fields.positive("vocab_size"):
        raise fields.wrong(_GIVEN_VOCAB, "at least vocab_size")
    return width


def _overrides(
    fields: ConfigFields, windows: Sequence[int | None], keys_are_values: bool
) -> list[Mapping[str, int]]:
    """By layer, the sizes that are not those of most layers."""
    if "per_layer_config" in fields:  # as transformers writes it
        section = fields.section("per_layer_config")
        known = {f"{layer:0{width}}": layer for layer in range(len(windows)) for width in (1, 2, 3)}
        named = {known[name]: name for name in section.values if name in known}  # "05" is 5
        if len(named) < len(section.values):
            raise fields.wrong("per_layer_config", f"of layers below {len(windows)}")
        return [_sizes(section, named.get(layer, "")) for layer in range(len(windows))]
    wide = {"head_dim": fields.positive("global_head_dim", _WIDE_HEAD)}
    if keys_are_values and "num_global_key_value_heads" in fields:
        wide["num_key_value_heads"] = fields.positive("num_global_key_value_heads")
    return [wide if window is None else {} for window in windows]


def _sizes(section: ConfigFields, layer: str) -> Mapping[str, int]:
    own = section.section(layer)
    if not _SIZES.issuperset(own.values):
        raise ModelError(f"{own.source}: known are {', '.join(sorted(_SIZES))}")
    found: dict[str, Any] = {name: own.positive(name) for name in own.values}
    return found


def _sources(fields: ConfigFields, windows: Sequence[int | None], first: int) -> tuple[int, ...]:
    """Layers from ``first`` on attend to the last before it that sees as much."""
    sources = list(range(first))
    for window in windows[first:]:
        alike = [layer for layer in range(first) if windows[layer] == window]
        if not alike:
            raise fields.wrong(_SHARED, "less: a kind of layer is left with no keys")
        sources.append(alike[-1])
    return tuple(sources)

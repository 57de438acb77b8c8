"""Layers that keep a state in place of keys and values: which they are, and of which kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quire.core.errors import ModelError
from quire.models.shape.families import FamilyFacts, RecurrenceKind
from quire.models.shape.fields import WIDEST, ConfigFields

Part = Literal["state", "attention", "both", "mlp"]
"""What a layer mixes tokens with; both: attention and a state of the same input; mlp: nothing."""

_ENDLESS = 2**20  # tokens
_FLOAT = 4  # bytes of a number of a state

# What configs call layers, and the letters of Nemotron's patterns.
_PARTS: Mapping[str, Part] = {
    "linear_attention": "state", "mamba": "state", "mamba2": "state", "conv": "state", "M": "state",
    "full_attention": "attention", "attention": "attention", "*": "attention",
    "mlp": "mlp", "-": "mlp", "moe": "mlp", "E": "mlp",
}  # fmt: skip
_SLIDING = "sliding_attention"
_LISTS = ("layer_types", "layers_block_type", "hybrid_override_pattern")
_ATTENDING = ("attn_layer_indices", "full_attn_idxs")  # lists of layers that attend

# The fields of sizes, by the names that families have for them.
_HEADS = ("linear_num_value_heads", "mamba_n_heads", "mamba_num_heads", "num_heads")
_KEY_HEADS = ("linear_num_key_heads", "mamba_n_groups", "n_groups")
_KEY_DIM = ("linear_key_head_dim", "mamba_d_state", "ssm_state_size", "state_size")
_VALUE_DIM = ("linear_value_head_dim", "mamba_d_head", "mamba_head_dim", "head_dim")
_KERNEL = ("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel", "conv_L_cache")


@dataclass(frozen=True)
class RecurrenceShape:
    """A decoder's states: of heads of values, which share some heads of queries and keys."""

    kind: RecurrenceKind
    parts: tuple[Part, ...]  # by layer
    kernel: int  # tokens that a short convolution sees
    heads: int = 0  # a convolution has none
    key_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    alone: bool = False  # a layer is one part: where it mixes tokens, it has no MLP

    @property
    def outputs(self) -> int:
        """Values of a token, all heads together."""
        return self.heads * self.value_dim

    def channels(self, hidden: int) -> int:
        """Numbers of a token that go through the convolution."""
        return 2 * self.key_heads * self.key_dim + self.outputs if self.heads else hidden

    @property
    def delta(self) -> bool:
        """Whether what is added is what the keys do not find yet."""
        return self.kind in ("delta rule", "channel delta rule")

    @property
    def by_channel(self) -> bool:
        """Whether each channel of keys decays by itself."""
        return self.kind == "channel delta rule"

    @property
    def decays(self) -> int:
        """Numbers by which the state of a layer decays."""
        return self.heads * (self.key_dim if self.by_channel else 1)

    def columns(self, hidden: int) -> int:
        """Numbers of a token that come in."""
        if not self.heads:
            return 3 * hidden
        strengths = self.heads if self.delta else 0
        return self.channels(hidden) + self.outputs + strengths + self.decays

    def state_bytes(self, hidden: int) -> int:
        """Bytes of one layer's state, for one sequence."""
        rows = self.channels(hidden) * (self.kernel - 1)
        return _FLOAT * (rows + self.key_dim * self.outputs)

    def kept(self, hidden: int) -> tuple[int, ...]:
        """State bytes of each layer that keeps something; 0 where that is keys and values."""
        return self._by_layer(self.state_bytes(hidden))

    def kept_of_drafts(self, hidden: int) -> tuple[int, ...]:
        """Bytes of what comes in for a draft, likewise."""
        return self._by_layer(_FLOAT * self.columns(hidden))

    def _by_layer(self, own: int) -> tuple[int, ...]:
        by_part = {"state": (own,), "attention": (0,), "both": (own, 0), "mlp": ()}
        return tuple(size for part in self.parts for size in by_part[part])

    def count(self, *parts: Part) -> int:
        """Layers of these kinds."""
        return sum(part in parts for part in self.parts)

    def params(self, hidden: int) -> int:
        """Parameters of a layer's mixer."""
        channels = self.channels(hidden)
        taps = self.kernel * channels
        if not self.heads:
            return 4 * hidden * hidden + taps
        around = taps + (hidden + 1) * self.outputs
        if not self.by_channel:
            return hidden * self.columns(hidden) + around
        # Gates and steps come through as many numbers as a head has.
        narrow = self.value_dim + self.key_dim
        wide = self.value_dim * self.outputs + self.key_dim * self.decays
        return hidden * (channels + self.heads + narrow) + wide + around

    @property
    def flops_per_token(self) -> int:
        """Operations on a layer's states: to decay, to look up, to add and to read."""
        return (8 if self.delta else 6) * self.key_dim * self.outputs


def recurrence_of(fields: ConfigFields, family: FamilyFacts, num_layers: int) -> RecurrenceShape:
    """The states of a family that has such layers. ModelError: a field is missing or wrong."""
    kind, kernel = family.recurrence, _size(fields, _KERNEL)
    assert kind is not None
    both: Part = "both"
    windowed = family.window != "never"
    parts = (both,) * num_layers
    if not family.beside_attention:
        parts = parts_of(fields, num_layers, windowed)
    if kind == "convolution":
        return RecurrenceShape(kind, parts, kernel)
    heads, key_heads = _size(fields, _HEADS), _size(fields, _KEY_HEADS)
    if heads % key_heads:
        raise ModelError(
            f"{fields.source}: {heads} heads of states cannot share {key_heads} of keys evenly"
        )
    if fields.values.get("mamba_d_head") == "auto":
        inner = fields.get("mamba_d_ssm", int, 0)
        inner = inner or fields.positive("mamba_expand", 2) * fields.positive("hidden_size")
        value_dim = inner // heads
    else:
        value_dim = _size(fields, _VALUE_DIM)
    key_dim = _size(fields, _KEY_DIM)
    widest = heads * max(key_dim, value_dim)
    if widest > WIDEST:
        raise ModelError(f"{fields.source}: states have {widest:,} numbers; at most {WIDEST:,}")
    return RecurrenceShape(kind, parts, kernel, heads, key_heads, key_dim, value_dim, family.alone)


def completed(fields: ConfigFields) -> ConfigFields:
    """The fields of such a family, with the sizes that it leaves out or writes in other words."""
    values = _usual_names(fields)
    kinds = next((values[name] for name in _LISTS if values.get(name)), None)
    if isinstance(kinds, list | str):
        values.setdefault("num_hidden_layers", len(kinds))
        mixtures = [layer for layer, kind in enumerate(kinds) if kind in ("moe", "E")]
        if mixtures:
            values["moe_layers"] = mixtures
        elif "n_routed_experts" in values:
            values["num_local_experts"] = 0
    if "attention_head_dim" in values:  # of the first Nemotrons
        values.setdefault("head_dim", values["attention_head_dim"])
    if "num_attention_heads" not in values:  # Mamba's, where texts have no end either
        values |= {"max_position_embeddings": _ENDLESS, **values}
        values.update(num_attention_heads=1, intermediate_size=1)
    if "block_auto_adjust_ff_dim" in values:
        values["intermediate_size"] = _adjusted(fields)
    # Granite's without experts: all rows share one MLP.
    if values.get("num_local_experts") == 0 and "shared_intermediate_size" in values:
        values["intermediate_size"] = fields.positive("shared_intermediate_size")
    return fields.holding(values)


_KIMI = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
}


def _usual_names(fields: ConfigFields) -> dict[str, Any]:
    """A config's fields, those of Kimi Linear by the names that others have."""
    values, section = dict(fields.values), fields.section("linear_attn_config")
    if not section.values and "linear_num_heads" not in fields:
        return values
    values.update({name: values[own] for own, name in _KIMI.items() if own in fields})
    heads = section.positive("num_heads", fields.get("linear_num_heads", int, 0) or None)
    width = section.positive("head_dim", fields.get("linear_head_dim", int, 0) or None)
    kernel = fields.get("linear_conv_kernel_dim", int, 0) or None
    values.update(
        linear_num_value_heads=heads,
        linear_num_key_heads=heads,
        linear_value_head_dim=width,
        linear_key_head_dim=width,
        linear_conv_kernel_dim=section.positive("short_conv_kernel_size", kernel),
    )
    if "full_attn_layers" in section:  # counted from 1
        attending = section.get("full_attn_layers", list)
        layers = range(1, fields.positive("num_hidden_layers") + 1)
        kinds = {True: "full_attention", False: "linear_attention"}
        values["layer_types"] = [kinds[layer in attending] for layer in layers]
    return values


def _adjusted(fields: ConfigFields) -> int:
    """The width inside of LFM2's MLPs."""
    inner = fields.positive("block_ff_dim", fields.get("intermediate_size", int, 0) or None)
    if not fields.get("block_auto_adjust_ff_dim", bool):
        return inner
    inner = int(fields.get("block_ffn_dim_multiplier", float, 1.0) * int(2 * inner / 3))
    multiple = fields.positive("block_multiple_of", 256)
    return -(-inner // multiple) * multiple


def parts_of(fields: ConfigFields, num_layers: int, windowed: bool) -> tuple[Part, ...]:
    """What each layer mixes tokens with; windowed: some may attend to a window.

    ModelError: a layer is of a kind that is not known.
    """
    known = {**_PARTS, _SLIDING: _PARTS["attention"]} if windowed else _PARTS
    for name in _LISTS:
        if name not in fields:
            continue
        listed = fields.values[name]
        kinds = [str(kind) for kind in listed] if isinstance(listed, list | str) else []
        others = {kind for kind in kinds if kind not in known}
        if others:
            raise ModelError(
                f"{fields.source}: {name} has layers of kinds that Quire does not compute: "
                f"{', '.join(sorted(others))[:60]}"
            )
        if len(kinds) != num_layers:
            raise fields.wrong(name, f"a kind for each of {num_layers} layers")
        return tuple(known[kind] for kind in kinds)
    for name in _ATTENDING:
        if name in fields:
            attending = fields.get(name, list)
            layers = range(num_layers)
            return tuple("attention" if layer in attending else "state" for layer in layers)
    if "full_attention_interval" in fields:
        every = fields.positive("full_attention_interval")
        layers = range(1, num_layers + 1)
        return tuple("state" if layer % every else "attention" for layer in layers)
    state: Part = "state"
    return (state,) * num_layers


def _size(fields: ConfigFields, names: tuple[str, ...]) -> int:
    return fields.positive(next((name for name in names if name in fields), names[0]))


# Kinds of layers, and fields of configs, that are about a state of one sort or another.
_OF_STATES = re.compile(
    r"linear_attention|mamba|^conv$|recurrent|rwkv|ssm|delta|lightning|linear_(attn|num|key|value)"
    r"|^state_size$|^time_step_|^conv_L_cache$|^lru_width$"
)


def check_without_states(fields: ConfigFields) -> None:
    """ModelError if a config of an unknown family tells of layers that keep a state."""
    listed = [kind for name in _LISTS for kind in (fields.values.get(name) or ())]
    kinds = {str(kind) for kind in listed if _OF_STATES.search(str(kind))}
    kinds = kinds or {name for name in fields.values if _OF_STATES.search(name)}
    if kinds:
        family = fields.values.get("model_type")
        raise ModelError(
            f"{fields.source}: {family} has layers that keep a state of a kind that is not "
            f"computed here: {', '.join(sorted(kinds))[:100]}"
        )

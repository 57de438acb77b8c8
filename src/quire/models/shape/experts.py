"""Mixtures of experts, by the names that configs have for their sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quire.core.errors import ModelError
from quire.models.shape.fields import ConfigFields

_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = (
    "num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts",
)  # fmt: skip
_INNERS = ("moe_intermediate_size", "intermediate_size")
_SHARED_WIDTHS = (
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
_SHARED_COUNTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_FIRSTS = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")


@dataclass(frozen=True)
class ExpertShape:
    """A decoder's mixture: rows go through some of many MLPs, in some or all layers."""

    count: int
    chosen: int  # by each row
    inner: int  # width inside of each
    shared_inner: int  # of an MLP that all rows go through as well; 0: none
    layers: tuple[bool, ...]  # whether each has experts; the others have one MLP

    def distinct(self, rows: int) -> float:
        """The mean number of experts that this many rows choose, if all are equally likely."""
        return self.count * (1 - (1 - self.chosen / self.count) ** rows)


def experts_of(fields: ConfigFields, always_shared: int = 0) -> ExpertShape:
    """The mixture of a family that has one. always_shared: shared experts if no field says so.

    Raises:
        ModelError: a field is missing or wrong, or more experts are chosen than there are.
    """
    count, chosen = _size(fields, _COUNTS), _size(fields, _CHOSEN)
    if chosen > count:
        name = next((name for name in _CHOSEN if name in fields), _CHOSEN[0])
        raise ModelError(f"{fields.source}: {name} is {chosen}, but there are {count} experts")
    inner = _size(fields, _INNERS)
    if fields.get("enable_moe_block", bool, False):  # all rows go through an MLP as well
        shared = fields.positive("intermediate_size")
        num_layers = fields.positive("num_hidden_layers")
        return ExpertShape(count, chosen, inner, shared, (True,) * num_layers)
    counts = (fields.get(name, int, 0) for name in _SHARED_COUNTS)
    widths = (fields.get(name, int, 0) for name in _SHARED_WIDTHS)
    return ExpertShape(
        count=count,
        chosen=chosen,
        inner=inner,
        shared_inner=max(*widths, inner * max(always_shared, *counts)),
        layers=_layers(fields, fields.positive("num_hidden_layers")),
    )


def _layers(fields: ConfigFields, num_layers: int) -> tuple[bool, ...]:
    """The layers with experts: those that are listed, or all that no rule leaves out."""
    kinds = fields.get("mlp_layer_types", list, [])
    if kinds:
        if len(kinds) != num_layers or not {"dense", "sparse"}.issuperset(map(str, kinds)):
            raise fields.wrong("mlp_layer_types", f"dense or sparse for each of {num_layers}")
        return tuple(kind == "sparse" for kind in kinds)
    listed = fields.get("moe_layers", list, [])
    if listed:
        return tuple(layer in listed for layer in range(num_layers))
    every = fields.positive("decoder_sparse_step", 1)
    every = fields.positive("interleave_moe_layer_step", every)
    first = next((fields.get(name, int) for name in _FIRSTS if name in fields), 0)
    last = fields.get("moe_layer_end_index", int, -1)
    by_frequency = _by_frequency(fields, num_layers)
    dense = fields.get("mlp_only_layers", list, [])
    return tuple(
        layer >= first
        and (last == -1 or layer <= last)
        and (layer + 1) % every == 0
        and layer in by_frequency
        and layer not in dense
        for layer in range(num_layers)
    )


def _by_frequency(fields: ConfigFields, num_layers: int) -> Iterable[int]:
    """DeepSeek's ``moe_layer_freq`` and Ernie's ``moe_layer_interval``, or a list of 0 and 1."""
    name = "moe_layer_freq"
    if isinstance(fields.values.get(name), list):
        marks = fields.get(name, list)
        if len(marks) != num_layers or not {0, 1}.issuperset(marks):
            raise fields.wrong(name, f"0 or 1 for each of {num_layers} layers")
        return [layer for layer, mark in enumerate(marks) if mark]
    offset = 0 if name in fields else 1  # Ernie counts layers from 1
    every = fields.positive(name, fields.positive("moe_layer_interval", 1))
    return range(-offset % every, num_layers, every)


def _size(fields: ConfigFields, names: tuple[str, ...]) -> int:
    name = next((name for name in names if name in fields), names[0])
    by_layer = fields.values.get(name)
    if not isinstance(by_layer, list):
        return fields.positive(name)
    if not by_layer or any(one != by_layer[0] for one in by_layer):
        raise fields.wrong(name, "the same number for all layers")
    return fields.holding({name: by_layer[0]}).positive(name)

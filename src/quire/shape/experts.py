"""Mixtures of experts, by the names that configs have for their sizes."""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import ModelError
from quire.shape.fields import Fields

_COUNTS = ("num_local_experts", "num_experts")
_INNERS = ("moe_intermediate_size", "intermediate_size")
_SHARED = ("shared_expert_intermediate_size", "shared_intermediate_size")


@dataclass(frozen=True)
class ExpertShape:
    """Of a decoder whose rows go through some of many MLPs in all layers, or some of them."""

    count: int
    chosen: int  # by each row
    inner: int  # width inside of each
    shared_inner: int  # of an MLP that all rows go through as well; 0: none
    layers: tuple[bool, ...]  # whether each has experts; the others have one MLP

    def distinct(self, rows: int) -> float:
        """How many are chosen by so many rows, on average, if all are as likely."""
        return self.count * (1 - (1 - self.chosen / self.count) ** rows)


def experts_of(fields: Fields) -> ExpertShape:
    """Of a family that has them.

    Raises:
        ModelError: a field is missing or not as it must be, or more are chosen than there are.
    """
    count, chosen = _size(fields, _COUNTS), fields.positive("num_experts_per_tok")
    if chosen > count:
        raise ModelError(
            f"{fields.source}: num_experts_per_tok is {chosen}, but there are {count} experts"
        )
    step = fields.positive("decoder_sparse_step", 1)
    dense = fields.get("mlp_only_layers", list, [])
    layers = range(fields.positive("num_hidden_layers"))
    return ExpertShape(
        count=count,
        chosen=chosen,
        inner=_size(fields, _INNERS),
        shared_inner=max(fields.get(name, int, 0) for name in _SHARED),
        layers=tuple((layer + 1) % step == 0 and layer not in dense for layer in layers),
    )


def _size(fields: Fields, names: tuple[str, ...]) -> int:
    name = next((name for name in names if name in fields), names[0])
    return fields.positive(name)

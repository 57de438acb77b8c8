"""How long a text may be, and up to which length its keys depend on nothing but what is before."""

from __future__ import annotations

from typing import NamedTuple

from quire.core.errors import ModelError
from quire.models.shape.families import FamilyFacts
from quire.models.shape.fields import ConfigFields

_LONGEST = 2**31 - 1  # tokens


class Positions(NamedTuple):
    """default: the longest text unless another length is asked for; limit: the longest of those.

    stable: the rotation of a longer text is another one; None: never.
    """

    default: int
    limit: int
    stable: int | None = None


def positions_of(fields: ConfigFields, family: FamilyFacts) -> Positions:
    """The positions by ``max_position_embeddings``, its older names, and what stretches them."""
    default = _default(fields)
    if not family.stretches:
        return Positions(default, default)
    rope = fields.section("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    kind = rope.get("rope_type", str, rope.get("type", str, "default"))
    factor = rope.get("factor", float, 1.0)
    if factor <= 0:
        raise ModelError(f"{rope.source}: factor must be above 0, but is {factor}")
    if kind in ("linear", "dynamic") and not (family.fixed_ntk and "alpha" in rope):
        limit = int(min(default * factor, _LONGEST))
        return Positions(default, limit, default if kind == "dynamic" else None)
    if kind in ("yarn", "deepseek_yarn"):
        original = rope.positive("original_max_position_embeddings", default)
        original = fields.positive("original_max_position_embeddings", original)
        return Positions(default, max(default, int(min(original * factor, _LONGEST))))
    return Positions(default, default)


def _default(fields: ConfigFields) -> int:
    for name in ("max_position_embeddings", "n_positions", "seq_length"):
        if name in fields:
            return fields.positive(name)
    return 2048

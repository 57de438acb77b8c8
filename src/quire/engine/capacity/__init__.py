"""What an engine has room for, and what holds for it; a simulated one too. Never torch."""

from quire.engine.capacity.description import Capacity, DraftShare, describe_kv_groups
from quire.engine.capacity.limits import limits_of
from quire.engine.capacity.pool import fill, size_of

__all__ = [
    "Capacity",
    "DraftShare",
    "describe_kv_groups",
    "fill",
    "limits_of",
    "size_of",
]

"""What an engine has room for, and what holds for it; a simulated one too. Never torch."""

from quire.engine.capacity.description import Capacity, DraftShare, describe_kv_groups
from quire.engine.capacity.limits import limits_of
from quire.engine.capacity.pool import fill, size_of
from quire.engine.capacity.working import (
    DEVICE,
    INNER,
    REQUESTS,
    STATES,
    adapter_share,
    numbers_per_token,
    step_bytes,
)

__all__ = [
    "DEVICE",
    "INNER",
    "REQUESTS",
    "STATES",
    "Capacity",
    "DraftShare",
    "adapter_share",
    "describe_kv_groups",
    "fill",
    "limits_of",
    "numbers_per_token",
    "size_of",
    "step_bytes",
]

"""What an engine has room for, and what holds for it; a simulated one too. Never torch."""

from quire.engine.capacity.description import Capacity, DraftShare, describe_kv_groups
from quire.engine.capacity.limits import limits_of
from quire.engine.capacity.losses import KnownLoss, form_key, known_loss, remember_loss
from quire.engine.capacity.pool import fill, seqs_that_fit, size_of
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
    "KnownLoss",
    "adapter_share",
    "describe_kv_groups",
    "fill",
    "form_key",
    "known_loss",
    "limits_of",
    "numbers_per_token",
    "remember_loss",
    "seqs_that_fit",
    "size_of",
    "step_bytes",
]

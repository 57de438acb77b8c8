"""Limits of an engine that stands for no model: so many blocks."""

from __future__ import annotations

from typing import Any

from quire.core.limits import EngineLimits
from quire.engine.config import EngineConfig
from quire.models.shape import CacheShape
from quire_lab.contiguous import PAGED, limits_under


def make_limits(
    num_blocks: int,
    max_model_len: int | None,
    num_host_blocks: int = 0,
    windows: tuple[int | None, ...] = (None,),
    kv_allocator: str = PAGED,
    states: int = 0,
    **settings: Any,
) -> EngineLimits:
    """windows: by layer; blocks are for each of the KV groups. states: further layers that keep
    one. settings: fields of EngineConfig.
    """
    if num_host_blocks and settings.get("preemption_mode") != "recompute":
        settings["swap_space"] = 1.0
    config = EngineConfig(max_model_len=max_model_len, **settings)
    own = (1,) * len(windows) + (0,) * states
    state_bytes = tuple(int(not size) for size in own) if states else ()
    longest = max_model_len or 2**31
    cache = CacheShape(
        windows + (None,) * states, own, longest, False, state_bytes, (0,) * len(state_bytes)
    )
    return limits_under(kv_allocator, config, cache).with_blocks(num_blocks, num_host_blocks)

"""An engine's limits over contiguous memory, for comparisons with paging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from quire.core.errors import ConfigError
from quire.core.kv_groups import KVGroup
from quire.core.limits import EngineLimits
from quire.core.memory import KeptState, KVAllocator, PageShare, Window
from quire.engine.capacity import limits_of
from quire.engine.config import EngineConfig
from quire.models.shape import CacheShape
from quire_lab.contiguous.allocator import ContiguousAllocator, Reservation

PAGED = "paged"
KV_ALLOCATORS = (PAGED, *(one.value for one in Reservation))


@dataclass(frozen=True)
class RegionLimits(EngineLimits):
    """Limits of an engine that reserves a region for each sequence."""

    reservation: Reservation

    def allocator(self) -> KVAllocator:
        (kv_group,) = self.kv_groups
        assert self.max_model_len is not None, "regions are as long as a text may be"
        return ContiguousAllocator(
            kv_group.num_blocks,
            self.block_size,
            self.reservation,
            self.max_model_len,
            kv_group.num_host_blocks,
        )


def limits_under(kv_allocator: str, config: EngineConfig, cache: CacheShape) -> EngineLimits:
    """``limits_of`` under one of KV_ALLOCATORS. ConfigError: it lacks something that is needed."""
    if kv_allocator == PAGED:
        return limits_of(config, cache)
    if config.enable_prefix_caching:
        raise ConfigError('enable_prefix_caching needs kv_allocator "paged"')
    if config.window is not None:
        raise ConfigError('window needs kv_allocator "paged"')
    # Regions of consecutive blocks keep every token. States are as large under any allocator, and
    # left out: the baselines have a little more room than they would have.
    whole = cache._replace(windows=(None,) * len(cache.windows), state_bytes=())
    limits = limits_of(replace(config, enable_prefix_caching=False), whole)
    return _in_regions(limits, Reservation(kv_allocator))


def limits_of_values(values: Mapping[str, Any]) -> EngineLimits:
    """Limits as ``EngineLimits.values`` wrote them into a recording. ConfigError: it has none."""
    plain = {name: value for name, value in values.items() if name not in _FORMER}
    kv_allocator = values.get("kv_allocator", PAGED)
    try:
        limits = EngineLimits(**plain | {"kv_groups": tuple(map(_kv_group, values["kv_groups"]))})
        return limits if kv_allocator == PAGED else _in_regions(limits, Reservation(kv_allocator))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"these are not the limits of an engine: {error}") from None


_FORMER = {"kv_allocator", "kv_events"}  # older recordings have these


def _kv_group(values: Sequence[Any]) -> KVGroup:
    layers, num_blocks, num_host_blocks, window, *later = values
    own = KVGroup(tuple(layers), num_blocks, num_host_blocks, window and Window(*window))
    state, share, *_ = [*later, None, None]  # recordings were made before there were any
    return own._replace(state=state and KeptState(*state), share=share and PageShare(*share))


def name_of(limits: EngineLimits) -> str:
    """The allocator, as KV_ALLOCATORS has it."""
    return limits.reservation.value if isinstance(limits, RegionLimits) else PAGED


def _in_regions(limits: EngineLimits, reservation: Reservation) -> RegionLimits:
    own = {field.name: getattr(limits, field.name) for field in fields(EngineLimits)}
    return RegionLimits(**own, reservation=reservation)

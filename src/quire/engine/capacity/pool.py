"""How large a pool is: bytes that there are, divided into blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from quire.core.errors import ConfigError
from quire.core.kv_groups import KVGroup, divide
from quire.core.limits import EngineLimits
from quire.engine.config import EngineConfig
from quire.execution.memory_limits import MemoryBudget
from quire.models.shape import CacheShape

_STATES = 0.5
"""The most of a pool that is for states of those that run, unless their tokens leave more."""

_SNAPSHOTS = 0.1
"""The part of a pool that is for further states, which texts that begin alike go on from."""


def fill(
    limits: EngineLimits, cache: CacheShape, config: EngineConfig, budget: MemoryBudget
) -> EngineLimits:
    """``limits`` with a pool of the size that was asked for, or that there is room for.

    Where nobody asked for a length, the longest text is what the pool can hold at most.

    Raises:
        ConfigError: there is less room than was asked for, or too little to be of use.
    """
    size, kv_groups = limits.block_size, limits.kv_groups
    block_bytes = limits.block_bytes(cache)
    least, full_load = (
        [kv_group.most_held(limits.max_model_len, size, count) for kv_group in kv_groups]
        for count in (1, limits.max_num_seqs)
    )
    full_bytes = sum(n * each for n, each in zip(full_load, block_bytes, strict=True))
    slot_bytes = block_bytes[-1] if limits.states is not None else 0
    if slot_bytes:
        full_bytes = math.ceil(full_bytes / (1 - _SNAPSHOTS))
    together = sum(block_bytes)  # of a block in every KV group
    unit = together - slot_bytes or together  # states are large: to whole ones much would be lost
    pool_bytes = unit * pool_blocks(
        unit, math.ceil(full_bytes / unit), config.kv_cache_memory_bytes, budget
    )
    most = [
        n if kv_group.kept.forgets else None
        for kv_group, n in zip(kv_groups, full_load, strict=True)
    ]
    if slot_bytes:
        alone, tokens = (
            sum(n * each for n, each in zip(counts[:-1], block_bytes, strict=False))
            for counts in (least, full_load)
        )
        states = max(int(pool_bytes * _STATES), int(pool_bytes * (1 - _SNAPSHOTS)) - tokens)
        running = min(limits.max_num_seqs, states // slot_bytes)
        least[-1] = _slots(pool_bytes, slot_bytes, running, alone)
        most[-1] = least[-1]
    blocks = divide(pool_bytes, block_bytes, least, most)
    swap_bytes = int(config.swap_space * 2**30)
    host_blocks = [0] * len(blocks)
    if config.swap_space:
        if swap_bytes < together:
            raise ConfigError(f"swap_space must hold at least one block, {together:,} bytes")
        if slot_bytes:
            most[-1] = max(1, blocks[-1] * swap_bytes // pool_bytes)
        host_blocks = divide(swap_bytes, block_bytes, [1] * len(blocks), most)
    filled = tuple(
        kv_group._replace(num_blocks=count, num_host_blocks=on_host)
        for kv_group, count, on_host in zip(kv_groups, blocks, host_blocks, strict=True)
    )
    longest = _longest_that_fits(config, limits, filled, block_bytes)
    return replace(limits, kv_groups=filled, max_model_len=longest)


def _slots(pool_bytes: int, slot_bytes: int, running: int, longest: int) -> int:
    """Slots for the states of sequences that run, and some for snapshots.

    longest: bytes that blocks of the longest text take. Snapshots and slots of those that run give
    way to it, where that makes room.
    """
    wanted = max(1, running + int(pool_bytes * _SNAPSHOTS) // slot_bytes)
    room = (pool_bytes - longest) // slot_bytes
    return min(wanted, room) if room > 0 else wanted


def pool_blocks(
    bytes_per_block: int,
    blocks_of_full_load: int,
    requested_bytes: int | None,
    budget: MemoryBudget,
) -> int:
    """Blocks of the KV pool.

    requested_bytes: what the user asked for; by default a share of what is free, or what the most
        sequences at their longest would fill, if that is less.
    """
    free, most = budget.free, max(0, budget.free - budget.beside)
    if requested_bytes is None:
        return min(min(int(free * budget.share), most) // bytes_per_block, blocks_of_full_load)
    if requested_bytes > most:
        beside = f", of which computing and requests need {budget.beside:,}"
        raise ConfigError(
            f"kv_cache_memory_bytes is {requested_bytes:,}, but only {free:,} bytes are free"
            f"{beside if budget.beside else ''}"
        )
    if requested_bytes < bytes_per_block:
        raise ConfigError(
            f"kv_cache_memory_bytes must hold at least one block, {bytes_per_block:,} bytes; "
            f"got {requested_bytes:,}"
        )
    return requested_bytes // bytes_per_block


def _longest_that_fits(
    config: EngineConfig,
    limits: EngineLimits,
    kv_groups: Sequence[KVGroup],
    block_bytes: Sequence[int],
) -> int | None:
    """The longest sequence to serve, or what the pool allows one."""
    size, longest = limits.block_size, limits.max_model_len
    needed = [kv_group.most_held(longest, size) for kv_group in kv_groups]
    short = [
        kv_group for kv_group, n in zip(kv_groups, needed, strict=True) if kv_group.num_blocks < n
    ]
    if not short:
        return longest
    fits = min(kv_group.num_blocks for kv_group in short) * size
    total = sum(n * each for n, each in zip(needed, block_bytes, strict=True))
    if longest is None or config.window is not None:
        raise ConfigError(
            f"attention_sinks + window + max_num_batched_tokens need a KV pool of "
            f"{size_of(total)}: lower one of them or raise kv_cache_memory_bytes"
        )
    if config.max_model_len is not None or not fits:
        raise ConfigError(
            f"max_model_len {longest} needs a KV pool of {size_of(total)}; there is room "
            f"for {fits} tokens: lower max_model_len or raise kv_cache_memory_bytes"
        )
    return fits


def size_of(num_bytes: float) -> str:
    """For people."""
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} GiB"

"""How large a pool is: bytes that there are, divided into blocks."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from quire.core.errors import ConfigError
from quire.core.limits import EngineLimits
from quire.core.memory import PageShare
from quire.engine.config import EngineConfig
from quire.execution.kv_bytes import bytes_of_blocks, bytes_of_unit, divide, shares
from quire.execution.memory_limits import MemoryBudget
from quire.models.shape import CacheShape

_STATES = 0.5
"""The most of a pool that is for states of those that run, unless their tokens leave more, where
blocks and states have a border; and of swap space."""

_SNAPSHOTS = 0.1
"""The part of a pool that is for further states, which texts that begin alike go on from. Where
blocks and states share pages, no more than what the pool has so much more room for."""


def fill(
    limits: EngineLimits, cache: CacheShape, config: EngineConfig, budget: MemoryBudget
) -> EngineLimits:
    """``limits`` with a pool of the size that was asked for, or that there is room for.

    Where nobody asked for a length, the longest text is what the pool can hold at most.

    Raises:
        ConfigError: there is less room than was asked for, or too little to be of use.
    """
    size, kv_groups = limits.block_size, limits.kv_groups
    if own := shares(kv_groups, cache, size) if len(kv_groups) > 1 else []:
        return _fill_pages(limits, own, cache, config, budget)
    block_bytes = bytes_of_blocks(limits, cache)
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
    if slot_bytes:
        most[-1] = max(1, blocks[-1] * int(config.swap_space * 2**30) // max(1, pool_bytes))
    host_blocks = _host_blocks(config, block_bytes, most)
    filled = tuple(
        kv_group._replace(num_blocks=count, num_host_blocks=on_host)
        for kv_group, count, on_host in zip(kv_groups, blocks, host_blocks, strict=True)
    )
    return _with_longest(replace(limits, kv_groups=filled), cache, config)


def _fill_pages(
    limits: EngineLimits,
    own: Sequence[PageShare],
    cache: CacheShape,
    config: EngineConfig,
    budget: MemoryBudget,
) -> EngineLimits:
    """The same for KV groups that share pages."""
    block_bytes = bytes_of_blocks(limits, cache)
    limits = _with_pages(limits, own, [0] * len(own))
    page_bytes = own[0].units * bytes_of_unit(limits, cache)
    full_load = pages_held(limits, limits.max_model_len, limits.max_num_seqs)
    if limits.states is not None:
        full_load = math.ceil(full_load / (1 - _SNAPSHOTS))
    pages = pool_blocks(page_bytes, full_load, config.kv_cache_memory_bytes, budget)
    most = [
        one.most_held(limits.max_model_len, limits.block_size, limits.max_num_seqs)
        if one.kept.forgets
        else None
        for one in limits.kv_groups
    ]
    if limits.states is not None:
        states = int(config.swap_space * 2**30 * _STATES) // block_bytes[-1]
        most[-1] = max(1, min(limits.max_num_seqs, states))
    host_blocks = _host_blocks(config, block_bytes, most)
    own = [one._replace(pages=pages) for one in own]
    return _with_longest(_with_pages(limits, own, host_blocks), cache, config)


def _with_pages(
    limits: EngineLimits, own: Sequence[PageShare], host_blocks: Sequence[int]
) -> EngineLimits:
    each = zip(limits.kv_groups, own, host_blocks, strict=True)
    kv_groups = (
        kv_group._replace(
            num_blocks=share.pages * share.per_page, num_host_blocks=on_host, share=share
        )
        for kv_group, share, on_host in each
    )
    return replace(limits, kv_groups=tuple(kv_groups))


def _host_blocks(
    config: EngineConfig, block_bytes: Sequence[int], most: Sequence[int | None]
) -> list[int]:
    """Blocks of each KV group in the swap space."""
    if not config.swap_space:
        return [0] * len(block_bytes)
    swap_bytes, together = int(config.swap_space * 2**30), sum(block_bytes)
    if swap_bytes < together:
        raise ConfigError(f"swap_space must hold at least one block, {together:,} bytes")
    return divide(swap_bytes, block_bytes, [1] * len(block_bytes), most)


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


def _with_longest(limits: EngineLimits, cache: CacheShape, config: EngineConfig) -> EngineLimits:
    """The limits with the longest text that the pool allows."""
    size, longest, share = limits.block_size, limits.max_model_len, limits.share
    needed = [kv_group.most_held(longest, size) for kv_group in limits.kv_groups]
    if share is not None:
        if pages_held(limits, longest, 1) <= share.pages:
            return limits
        fits = _longest_on_pages(limits, share)
    else:
        each = zip(limits.kv_groups, needed, strict=True)
        short = [kv_group.num_blocks for kv_group, n in each if kv_group.num_blocks < n]
        if not short:
            return limits
        fits = min(short) * size
    total = sum(n * each for n, each in zip(needed, bytes_of_blocks(limits, cache), strict=True))
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
    return replace(limits, max_model_len=fits)


def _longest_on_pages(limits: EngineLimits, share: PageShare) -> int:
    """The longest text that there is room for, in whole blocks; 0: none."""
    size = limits.block_size
    lengths = range(size, (limits.max_model_len or size) + 1, size)
    return size * bisect_right(lengths, share.pages, key=lambda n: pages_held(limits, n, 1))


def pages_held(limits: EngineLimits, num_tokens: int | None, num_seqs: int) -> int:
    """Most pages that sequences of ``num_tokens`` hold, where KV groups share them."""
    size = limits.block_size
    return sum(
        one.share.pages_of(one.most_held(num_tokens, size, num_seqs))
        for one in limits.kv_groups
        if one.share is not None
    )


def seqs_that_fit(limits: EngineLimits, num_tokens: int | None) -> int:
    """Sequences of ``num_tokens``, or in a window of any length, that there is room for."""
    most = min(one.seqs_that_fit(num_tokens, limits.block_size) for one in limits.kv_groups)
    if limits.share is None:
        return most
    numbers, pages = range(1, most + 1), limits.share.pages
    return bisect_right(numbers, pages, key=lambda n: pages_held(limits, num_tokens, n))


def size_of(num_bytes: float) -> str:
    """A size for people, in the largest unit that fits."""
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} GiB"

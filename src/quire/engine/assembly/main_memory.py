"""What main memory an engine takes beside weights and pool, and what it leaves to requests."""

from __future__ import annotations

import tempfile
from pathlib import Path

from quire.capabilities.adapters.config import AdapterShare
from quire.core.errors import ConfigError, ModelError
from quire.core.limits import EngineLimits
from quire.engine.assembly.store import offloaded, without_offloading
from quire.engine.capacity import (
    INNER,
    REQUESTS,
    STATES,
    numbers_per_token,
    size_of,
    step_bytes,
)
from quire.engine.config import EngineConfig
from quire.execution.free_memory import free_memory, is_memory
from quire.execution.kv_bytes import bytes_of_pool
from quire.execution.memory_limits import MemoryBudget
from quire.kernels.layer_memory import StateShape
from quire.models.base import Model
from quire.models.shape import CacheShape, read_shape

_FLOAT = 4  # bytes; what narrower types give is added up in it
_MOST_WAITING = 1 << 30


def left_by_adapters(budget: MemoryBudget, share: AdapterShare | None) -> MemoryBudget:
    """The budget without what adapters take. ConfigError: they take more than is free."""
    if share is None:
        return budget
    if share.num_bytes > budget.free:
        raise ConfigError(
            f"max_cpu_loras {share.most_kept} with max_lora_rank {share.max_rank} may take "
            f"{size_of(share.num_bytes)}, but only {size_of(budget.free)} are free: lower one of "
            "them"
        )
    return budget._replace(free=budget.free - share.num_bytes)


def working_bytes(limits: EngineLimits, model: Model, directory: Path, config: EngineConfig) -> int:
    """What the largest step takes, and what requests do at the least."""
    numbers, tokens = _numbers_per_token(model, directory, config), limits.max_num_batched_tokens
    return step_bytes(config, tokens, numbers, model.vocab_size, _FLOAT) + REQUESTS


def bytes_for_waiting(beside: int = 0, engines: int = 1) -> int:
    """For requests that wait in line: a part of what is free, the pool having its promise.

    beside: what computing takes.
    """
    left = (free_memory() - beside) // engines
    return min(max(left // 4, REQUESTS // 2), _MOST_WAITING)


def left_for_pool(
    budget: MemoryBudget, config: EngineConfig, working: int, engines: int
) -> MemoryBudget:
    """What blocks and files beside the pool leave for it, and for ``working``.

    engines: how many take as much, and have not been promised it.

    ConfigError: there is not so much.
    """
    budget = _without_files(without_offloading(budget, config, engines), config)
    return budget._replace(beside=working)


def _without_files(budget: MemoryBudget, config: EngineConfig) -> MemoryBudget:
    """What files leave for the pool that lie in a directory which is memory.

    ConfigError: there is not so much.
    """
    files = _swap_bytes(config), _store_bytes(config)
    for name, taken in zip(("swap_space", "kv_store_size"), files, strict=True):
        if taken > budget.free:
            raise ConfigError(
                f"{name}: the directory is memory itself (tmpfs), of which {size_of(taken)} are "
                f"more than is free, {size_of(budget.free)}"
            )
        budget = budget._replace(free=budget.free - taken)
    return budget


def kept_and_files(
    config: EngineConfig, limits: EngineLimits, cache: CacheShape
) -> tuple[int, int]:
    """Bytes that pool and blocks beside it take over time, and those of files at the start."""
    return bytes_of_pool(limits, cache) + offloaded(config), _swap_bytes(config)


def _numbers_per_token(model: Model, directory: Path, config: EngineConfig) -> float:
    """Numbers of a token that exist at once while a layer is computed."""
    layers = [
        kept.rows[0]
        if isinstance(kept, StateShape)
        else kept.num_kv_heads * (kept.key_dim + kept.value_dim)
        for kept in model.kv_shapes
    ]
    widest = max(layers, default=0)
    try:
        return numbers_per_token(read_shape(directory, config.hf_overrides), widest=widest)
    except ModelError:  # nobody has described it: by the size of its layers, of 12 d^2 weights each
        of_layer = model.weight_bytes / model.dtype.itemsize / max(1, len(layers))
        d = int((of_layer / 12) ** 0.5)
        return (STATES + 2) * d + INNER * 4 * d + widest


def _swap_bytes(config: EngineConfig) -> int:
    """Bytes of a swap file that lies in memory."""
    if not config.swap_space or not is_memory(Path(config.swap_path or tempfile.gettempdir())):
        return 0
    return int(config.swap_space * 2**30)


def _store_bytes(config: EngineConfig) -> int:
    """Bytes that a store which lies in memory may still take."""
    if config.kv_store is None or not is_memory(Path(config.kv_store)):
        return 0
    there = sum(path.stat().st_blocks * 512 for path in Path(config.kv_store).rglob("*"))
    return max(0, int(config.kv_store_size * 2**30) - there)


def describe_experts(model: Model, config: EngineConfig) -> str:
    """One sentence about experts; empty where there are none."""
    if model.experts is None:
        return ""
    num, chosen, weight_bytes = model.experts
    of_token = weight_bytes * chosen // num
    text = (
        f" Experts: {num}, {chosen} a token; {size_of(weight_bytes)} of the weights are theirs, "
        f"and {size_of(model.token_bytes)} of all are read a token."
    )
    if config.experts_path is None:
        return text
    left = free_memory()  # which the pool is not, touched or not
    return text + (
        f" They are in a file in {config.experts_path}, for which {size_of(left)} of memory are "
        f"left beside the pool: of the {size_of(of_token)} of them that a token reads, the disk "
        "gives what is not there."
    )

"""Blocks outside of an engine's pool: its store, prefill and decode apart, and what records must
have in common to be found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import xxhash

from quire.blocks.store import (
    BlocksAndStates,
    DiskStore,
    RecordForm,
    Records,
    RecordShelf,
    StateStores,
    Store,
    Tiers,
    check_writable,
    places_of,
)
from quire.blocks.transfer import BlockFetcher, BlockServer, FetchedBlocks, Identity
from quire.core.errors import ConfigError
from quire.core.limits import EngineLimits
from quire.core.protocol import RecoveryCosts
from quire.core.version import __version__
from quire.engine.assembly.digests import FileDigests
from quire.engine.assembly.draft import draft_directory
from quire.engine.capacity import size_of
from quire.engine.config import EngineConfig
from quire.execution.kv_bytes import bytes_of_blocks, bytes_of_pool
from quire.execution.memory_limits import MemoryBudget
from quire.kernels.compiled import KERNELS, why_missing
from quire.models.checkpoint_files import find_files
from quire.models.shape import CacheShape, config_files

_LAYOUT = 2  # of a block's bytes: keys, values and their scales, by layer, head and token
_BEYOND = ("kv_store", "kv_offloading_size")
_DIGESTS = "digests.json"  # of models' files, in a store's directory
LAST_SECONDS = 10.0  # for what is not written when a rank is told to end

Transfer = BlockServer | BlockFetcher


def check_store(config: EngineConfig) -> None:
    """ConfigError if the directory cannot be written: before anything is loaded."""
    if config.kv_store is not None:
        check_writable(Path(config.kv_store))


class BlocksOf(NamedTuple):
    """Whose blocks they are.

    directory: of the model. forms: all that decides how a loaded model computes, as JSON has it.
    """

    directory: Path
    limits: EngineLimits
    cache: CacheShape
    forms: Any
    rank: int = 0


def open_store(config: EngineConfig, blocks: BlocksOf) -> Store | None:
    """What ``config`` asks for beyond the pool, of this rank's part of each block."""
    limits, cache = blocks.limits, blocks.cache
    asked = [name for name in _BEYOND if getattr(config, name) is not None]
    if not asked:
        return None
    if not limits.enable_prefix_caching:
        raise ConfigError(
            f"{asked[0]}: this model's rotary scaling depends on the length of the prompt, so its "
            "KV blocks cannot be reused; leave the option out"
        )
    identity: Mapping[str, str] = {}  # nobody else's blocks are in our memory
    if config.kv_store is not None:
        identity = block_identity(config, blocks)
    form = record_form(identity, limits, cache)
    size, pool = offloaded(config), bytes_of_pool(limits, cache)
    if config.kv_offloading_size is not None and size <= pool:
        each = " of each rank" if config.tensor_parallel_size > 1 else ""
        raise ConfigError(
            f"kv_offloading_size: {size_of(size)}{each} hold no more than the KV pool, "
            f"{size_of(pool)}, whose blocks lie there too: make it larger, or lower "
            "kv_cache_memory_bytes"
        )
    states = limits.states
    if states is None or states.state is None:
        return _store_of(config, form, size)
    slot_bytes = sum(cache.state_bytes)
    in_pool = states.num_blocks * slot_bytes
    if states.share is not None:  # then it is only the most that there can be
        in_pool = min(pool // 2, limits.max_num_seqs * slot_bytes + pool // 10)
    for_states = size * in_pool // pool  # each holds more than its pool
    return StateStores(
        _store_of(config, form, size - for_states),
        _store_of(config, _state_form(identity, limits, slot_bytes), for_states),
        len(limits.kv_groups) - 1,
        states.state.every // limits.block_size,
    )


def _store_of(config: EngineConfig, form: RecordForm, shelf_bytes: int) -> DiskStore | Tiers:
    """A store for records of one form. On the disk all forms share the room."""
    disk = None
    if config.kv_store is not None:
        disk = DiskStore(Path(config.kv_store), _bytes(config.kv_store_size), form)
    if config.kv_offloading_size is not None:
        return Tiers(RecordShelf(form, shelf_bytes), disk)
    assert disk is not None, "one of them is asked for"
    return disk


def without_offloading(budget: MemoryBudget, config: EngineConfig, engines: int) -> MemoryBudget:
    """What blocks in main memory leave for the pools. ConfigError: there is not so much."""
    taken = offloaded(config) * engines
    if taken > budget.free:
        raise ConfigError(
            f"kv_offloading_size: {size_of(taken)} are more than is free, {size_of(budget.free)}"
        )
    return budget._replace(free=budget.free - taken)


def describe_store(store: Store | None, costs: RecoveryCosts, block_size: int) -> str:
    """For the person who starts the engine."""
    if store is None:
        return ""
    places = []
    tiers, disks = places_of(store)
    if tiers:
        size = size_of(sum(one.shelf.size for one in tiers))
        places.append(f"{size} of blocks are kept in main memory")
    if disks:
        places.append(f"{size_of(disks[0].size)} of blocks are stored in {disks[0].path}")
    fetching, computing = costs.fetch_per_block, block_size * costs.recompute_per_token
    pays = "" if costs.fetching_pays(block_size) else ", so that none is fetched"
    return (
        f" Up to {', and '.join(places)}: to fetch one takes {fetching * 1e3:.2g} ms, to compute "
        f"it {computing * 1e3:.2g} ms{pays}."
    )


def offloaded(config: EngineConfig) -> int:
    """Bytes for blocks in main memory: as vLLM's, the setting is of all ranks together."""
    return _bytes(config.kv_offloading_size or 0.0) // config.tensor_parallel_size


def _bytes(gib: float) -> int:
    return int(gib * 2**30)


def record_form(identity: Mapping[str, str], limits: EngineLimits, cache: CacheShape) -> RecordForm:
    """The form of the records of an engine's blocks."""
    sizes = bytes_of_blocks(limits, cache)
    paged = sizes if limits.states is None else sizes[:-1]
    return RecordForm(_fingerprint(identity), limits.block_size, tuple(paged))


def _state_form(identity: Mapping[str, str], limits: EngineLimits, size: int) -> RecordForm:
    """Of an engine's states, of ``size`` bytes each."""
    named = {**identity, "state": str(size)}
    return RecordForm(_fingerprint(named), limits.block_size, (size,))


def _fingerprint(identity: Mapping[str, str]) -> bytes:
    return xxhash.xxh3_128_digest(json.dumps(dict(identity), sort_keys=True).encode())


def block_identity(config: EngineConfig, blocks: BlocksOf) -> dict[str, str]:
    """Digests of all that decides a block's bits beside its text, by what they are of.

    A rank has its part of a block, and another number of ranks rounds otherwise.

    Blocks that another build of the kernels has computed may differ in their last bits, and an
    answer would then depend on who has computed its beginning.
    """
    directory, limits, cache, forms, rank = blocks
    facts = {
        "version and kernels": [__version__, torch.__version__, forms],
        "layout": [_LAYOUT, limits.block_size, cache.token_bytes],
        "layers": [[kv_group.layers, kv_group.window] for kv_group in limits.kv_groups],
        "settings": [
            *(config.hf_overrides, config.quantization, config.window, config.attention_sinks),
            config.speculative_config if _drafts(config) else None,
        ],
        # Rotations may depend on the longest text that is served.
        "max_model_len": config.max_model_len if config.window is None else None,
    }
    if config.tensor_parallel_size > 1:
        facts["ranks"] = [rank, config.tensor_parallel_size]
    files = FileDigests(None if config.kv_store is None else Path(config.kv_store) / _DIGESTS)
    model = [files.of(path) for path in _files(config, directory)]
    files.remember()
    parts = {name: json.dumps(fact, sort_keys=True) for name, fact in facts.items()}
    digests = {name: xxhash.xxh3_128_hexdigest(text.encode()) for name, text in parts.items()}
    return {**digests, "model": xxhash.xxh3_128_hexdigest(" ".join(model).encode())}


def _files(config: EngineConfig, directory: Path) -> Iterator[Path]:
    """The files that models and kernels are made of."""
    if why_missing(KERNELS) is None:
        from quire.kernels import _native

        yield Path(str(_native.__file__))
    for model in [directory, draft_directory(config)] if _drafts(config) else [directory]:
        yield from find_files(model).paths
        if model.is_dir():
            yield from config_files(model)


def _drafts(config: EngineConfig) -> bool:
    return config.speculation is not None and config.speculation.has_draft_model


# -- prefill and decode apart ------------------------------------------------------------------


def listen_for_decoders(config: EngineConfig, rank: int = 0) -> BlockServer | None:
    """A server of blocks, for an engine that prefills. It is made first: a port may be taken, or a
    key missing.
    """
    key = config.transfer.key()
    if config.role != "prefill":
        return None
    return BlockServer(config.transfer.kv_ip, config.transfer.kv_port + rank, key)


def describe_transfer(config: EngineConfig, server: BlockServer | None) -> str:
    """For the person who starts the engine."""
    if server is not None:
        return f" Others fetch the blocks of prompts at {config.transfer.kv_ip}:{server.port}."
    if config.role == "decode":
        return " Blocks of prompts are fetched from prefill engines, as requests say."
    return ""


def begin_transfer(
    config: EngineConfig, server: BlockServer | None, blocks: BlocksOf
) -> tuple[Transfer | None, Records | None]:
    """Who hands blocks over or fetches them, and where they lie meanwhile: this rank's parts."""
    if config.role == "both":
        return None, None
    identity, limits, cache = block_identity(config, blocks), blocks.limits, blocks.cache
    form, states = record_form(identity, limits, cache), None
    size = int(config.transfer.kv_buffer_size) // config.tensor_parallel_size
    if limits.states is not None:  # half of it is for them
        size, states = size // 2, _state_form(identity, limits, sum(cache.state_bytes))
    for what, one in (("block", form), ("state", states)):
        if one is not None and size < one.num_bytes:
            raise ConfigError(
                f"kv_transfer_config: kv_buffer_size, {size:,} bytes for {what}s, is less than a "
                f"{what} of {one.num_bytes:,} bytes"
            )
    known, kv_group = Identity(identity), len(limits.kv_groups) - 1
    if server is not None:
        shelf = RecordShelf(form, size)
        kept = None if states is None else RecordShelf(states, size)
        server.start(shelf, known, kept)
        return server, shelf if kept is None else BlocksAndStates(shelf, kept, kv_group)
    fetched = FetchedBlocks(form, size)
    others = None if states is None else FetchedBlocks(states, size)
    seconds, key = config.transfer.timeout, config.transfer.key()
    fetcher = BlockFetcher(fetched, known, seconds, blocks.rank, others, key)
    source = fetched if others is None else BlocksAndStates(fetched, others, kv_group)
    return fetcher, source

"""The block store of an engine, and what its records must have in common to be found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import xxhash

from quire.assembly.draft import draft_directory
from quire.capacity import EngineLimits, size_of
from quire.config import EngineConfig
from quire.errors import ConfigError
from quire.kernels import _native
from quire.model.weights import checkpoint_files
from quire.protocol import RecoveryCosts
from quire.shape import CacheShape
from quire.store import DiskStore, RecordForm, check_writable
from quire.version import __version__

_LAYOUT = 1  # of a block's bytes: keys, values and their scales, by layer, head and token
_PIECE = 4 << 20  # of a file, read at once


def check_store(config: EngineConfig) -> None:
    """ConfigError if the directory cannot be written: before anything is loaded."""
    if config.kv_store is not None:
        check_writable(Path(config.kv_store))


def open_store(
    config: EngineConfig,
    directory: Path,
    limits: EngineLimits,
    cache: CacheShape,
    forms: Any,
) -> DiskStore | None:
    """The store that ``config`` asks for.

    directory: of the model. forms: all that decides how a loaded model computes, as JSON has it.
    """
    if config.kv_store is None:
        return None
    if not limits.enable_prefix_caching:
        raise ConfigError(
            "kv_store: this model's rotary scaling depends on the length of the prompt, so its KV "
            "blocks cannot be reused; leave the option out"
        )
    fingerprint = _fingerprint(config, directory, limits, cache, forms)
    form = RecordForm(fingerprint, limits.block_size, tuple(limits.block_bytes(cache)))
    return DiskStore(Path(config.kv_store), int(config.kv_store_size * 2**30), form)


def describe_store(store: DiskStore | None, costs: RecoveryCosts, block_size: int) -> str:
    """For the person who starts the engine."""
    if store is None:
        return ""
    fetching, computing = costs.fetch_per_block, block_size * costs.recompute_per_token
    pays = "" if costs.fetching_pays(block_size) else ", so that none is fetched"
    return (
        f" Up to {size_of(store.size)} of blocks are stored in {store.path}: to fetch one takes "
        f"{fetching * 1e3:.2g} ms, to compute it {computing * 1e3:.2g} ms{pays}."
    )


def _fingerprint(
    config: EngineConfig, directory: Path, limits: EngineLimits, cache: CacheShape, forms: Any
) -> bytes:
    """Of all that decides a block's bits beside its text.

    Blocks that another build of the kernels has computed may differ in their last bits, and an
    answer would then depend on who has computed its beginning.
    """
    facts = {
        "builds": [__version__, torch.__version__, forms],
        "layout": [_LAYOUT, limits.block_size, cache.token_bytes],
        "layers": [[kv_group.layers, kv_group.window] for kv_group in limits.kv_groups],
        "model": [config.hf_overrides, config.quantization, config.window, config.attention_sinks],
        # Rotations may depend on the longest text that is served.
        "longest": config.max_model_len if config.window is None else None,
        "draft": config.speculative_config if _drafts(config) else None,
    }
    total = xxhash.xxh3_128(json.dumps(facts, sort_keys=True).encode())
    for path in _files(config, directory):
        total.update(path.stat().st_size.to_bytes(8, "little"))
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                total.update(piece)
    return total.digest()


def _files(config: EngineConfig, directory: Path) -> Iterator[Path]:
    """Those that models and kernels are made of."""
    yield Path(str(_native.__file__))
    for model in [directory, draft_directory(config)] if _drafts(config) else [directory]:
        yield from checkpoint_files(model)
        if model.is_dir():
            yield model / "config.json"


def _drafts(config: EngineConfig) -> bool:
    return config.speculation is not None and config.speculation.has_draft_model

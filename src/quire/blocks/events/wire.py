"""Events as vLLM writes them: a batch in MessagePack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quire.blocks.events.events import AllBlocksCleared, BlockEvent, BlocksRemoved, BlocksStored
from quire.core.memory import KV, BlockHash, KeptState, Window
from quire.core.protocol import Adapter

_MEDIUM = "GPU"  # readers call the pool's memory so, on a CPU too

# In the order of the fields in arrays.
_STORED = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
    "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
    ("kv_cache_spec_sliding_window", int | None, None),
)  # fmt: skip
_REMOVED = ("block_hashes", "medium", "group_idx")


class Wire:
    """Writes an engine's events.

    kept: what its KV groups keep of a text. rank: data parallel.
    as_arrays: fields by position, as in vLLM before 0.23.
    """

    def __init__(
        self,
        block_size: int,
        kept: Sequence[KV | Window | KeptState],
        rank: int = 0,
        *,
        as_arrays: bool = False,
    ) -> None:
        import msgspec

        def message(name: str, fields: Sequence[Any]) -> Callable[..., Any]:
            return msgspec.defstruct(
                name, fields, tag=name, array_like=as_arrays, omit_defaults=True, gc=False
            )

        self._encode = msgspec.msgpack.Encoder().encode
        self._stored = message("BlockStored", _STORED)
        self._removed = message("BlockRemoved", _REMOVED)
        self._cleared = message("AllBlocksCleared", ())
        self._block_size, self._rank = block_size, rank
        self._kinds = [_kind(one) for one in kept]

    def batch(self, seconds: float, events: Sequence[BlockEvent]) -> bytes:
        """The events of a step that ended at ``seconds`` of the wall clock."""
        return self._encode([seconds, [self._message(event) for event in events], self._rank])

    def _message(self, event: BlockEvent) -> Any:
        if isinstance(event, AllBlocksCleared):
            return self._cleared()
        names = [short(name) for name in event.names]
        if isinstance(event, BlocksRemoved):
            return self._removed(names, _MEDIUM, event.kv_group)
        adapter = event.adapter
        return self._stored(
            names,
            None if event.parent is None else short(event.parent),
            event.token_ids,
            self._block_size,
            None if adapter is None else _number(adapter),
            _MEDIUM,
            None if adapter is None else adapter.name,
            _extra_keys(event),
            event.kv_group,
            *self._kinds[event.kv_group],
        )


def short(name: BlockHash) -> int:
    """A block's hash in 64 bits: the last ones, as vLLM's readers expect."""
    return int.from_bytes(name[-8:], "big")


def _kind(kept: KV | Window | KeptState) -> tuple[str, int | None]:
    """In vLLM's words, and the window that tokens see."""
    if isinstance(kept, KeptState):
        return "mamba", None  # whatever keeps a state
    if isinstance(kept, Window):
        if kept.by_chunks:
            return "chunked_local_attention", None
        return "sliding_window", kept.tokens
    return "full_attention", None


def _number(adapter: Adapter) -> int:
    """A number of 31 bits, the same in every engine that serves the adapter."""
    return int.from_bytes(adapter.fingerprint[:4], "big") >> 1


def _extra_keys(event: BlocksStored) -> list[list[str] | None]:
    """The keys of each block that tell equal tokens apart, such as an adapter or a salt."""
    named = [] if event.adapter is None else [event.adapter.name]
    keys: list[list[str] | None] = [named or None for _ in event.names]
    if event.parent is None and event.cache_salt:
        keys[0] = [*named, event.cache_salt]
    return keys

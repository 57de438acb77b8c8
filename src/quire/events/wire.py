"""Events as vLLM writes them: a batch in MessagePack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.memory import BlockHash
from quire.protocol import Adapter, AllBlocksCleared, BlockEvent, BlocksRemoved, BlocksStored

_MEDIUM = "GPU"  # what readers call the memory that is computed in, a CPU's too
_RANK = 0  # of data parallel: replicas are servers of their own

Fields = dict[str, Any]


class Wire:
    """Writes events of an engine.

    windows: of its KV groups, in tokens.
    as_arrays: fields by their position, as before vLLM 0.23.
    """

    def __init__(
        self, block_size: int, windows: Sequence[int | None], *, as_arrays: bool = False
    ) -> None:
        import msgspec

        self._encode = msgspec.msgpack.Encoder().encode
        self._block_size = block_size
        self._windows = tuple(windows)
        self._as_arrays = as_arrays

    def batch(self, seconds: float, events: Sequence[BlockEvent]) -> bytes:
        """What happened in a step that ended at ``seconds`` of the wall clock."""
        written: list[Any] = [self._fields(event) for event in events]
        if self._as_arrays:
            written = [list(fields.values()) for fields in written]
        return self._encode([seconds, written, _RANK])

    def _fields(self, event: BlockEvent) -> Fields:
        """In the order in which arrays have them."""
        if isinstance(event, AllBlocksCleared):
            return {"type": "AllBlocksCleared"}
        if isinstance(event, BlocksRemoved):
            return {
                "type": "BlockRemoved",
                "block_hashes": [short(name) for name in event.names],
                "medium": _MEDIUM,
                "group_idx": event.kv_group,
            }
        return self._stored(event)

    def _stored(self, event: BlocksStored) -> Fields:
        window, adapter = self._windows[event.kv_group], event.adapter
        fields: Fields = {
            "type": "BlockStored",
            "block_hashes": [short(name) for name in event.names],
            "parent_block_hash": None if event.parent is None else short(event.parent),
            "token_ids": event.token_ids,
            "block_size": self._block_size,
            "lora_id": None if adapter is None else _number(adapter),
            "medium": _MEDIUM,
            "lora_name": None if adapter is None else adapter.name,
            "extra_keys": _extra_keys(event),
            "group_idx": event.kv_group,
            "kv_cache_spec_kind": "full_attention" if window is None else "sliding_window",
        }
        if window is not None:
            fields["kv_cache_spec_sliding_window"] = window
        return fields


def short(name: BlockHash) -> int:
    """A block's name in 64 bits: the last ones, as vLLM's readers take them."""
    return int.from_bytes(name[-8:], "big")


def _number(adapter: Adapter) -> int:
    """Of 31 bits, the same in every engine that serves it."""
    return int.from_bytes(adapter.fingerprint[:4], "big") >> 1


def _extra_keys(event: BlocksStored) -> list[list[str] | None]:
    """What beside its tokens and the block before makes each block what it is."""
    named = [] if event.adapter is None else [event.adapter.name]
    keys: list[list[str] | None] = [named or None for _ in event.names]
    if event.parent is None and event.cache_salt:
        keys[0] = [*named, event.cache_salt]
    return keys

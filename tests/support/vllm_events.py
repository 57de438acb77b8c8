"""KV events as vLLM's package defines them, and readers of what is published."""

from __future__ import annotations

from typing import Any

import msgspec
import zmq


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


read_batch = msgspec.msgpack.Decoder(KVEventBatch).decode


class Subscriber:
    """Reads what is published at ``address``."""

    def __init__(self, address: str, topic: str = "", most: int = 1000) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVHWM, most)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.socket.connect(address)

    def next(self, seconds: float = 5.0) -> tuple[int, KVEventBatch] | None:
        """The next batch with its number; None: none has come."""
        if not self.socket.poll(int(seconds * 1000)):
            return None
        _, number, payload = self.socket.recv_multipart()
        return int.from_bytes(number, "big"), read_batch(payload)

    def close(self) -> None:
        self._context.destroy(linger=0)


def replay(address: str, first: int = 0) -> list[tuple[int, KVEventBatch]]:
    """All batches that are kept, from a number on."""
    context = zmq.Context()
    asker = context.socket(zmq.DEALER)
    asker.connect(address)
    asker.send_multipart([b"", first.to_bytes(8, "big")])
    batches = []
    while True:
        assert asker.poll(5000), "a replay ends"
        _, _, number, payload = asker.recv_multipart()
        if int.from_bytes(number, "big", signed=True) < 0:
            break
        batches.append((int.from_bytes(number, "big"), read_batch(payload)))
    context.destroy(linger=0)
    return batches

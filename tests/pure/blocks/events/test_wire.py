"""Events are what vLLM's own classes read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.blocks.events import Wire
from quire.blocks.events.events import AllBlocksCleared, BlocksRemoved, BlocksStored
from quire.blocks.events.wire import short
from quire.core.memory import KV, KeptState, Window, hash_blocks
from quire.core.protocol import Adapter
from support.vllm_events import AllBlocksCleared as Cleared
from support.vllm_events import BlockRemoved, BlockStored, read_batch

TOKENS = list(range(8))
NAMES = hash_blocks(b"", TOKENS, 4)
ADAPTER = Adapter(bytes(range(16)), "poet")


def read(*events: Any) -> list[Any]:
    batch = read_batch(Wire(4, [KV(), Window(20, 8)]).batch(1.5, events))
    assert (batch.ts, batch.data_parallel_rank) == (1.5, 0)
    return batch.events


def test_blocks_at_the_beginning_of_a_text() -> None:
    (event,) = read(BlocksStored(0, NAMES, None, TOKENS, None, ""))
    assert event == BlockStored(
        [short(name) for name in NAMES], None, TOKENS, 4, None, "GPU", None, [None, None],
        0, "full_attention",
    )  # fmt: skip
    assert event.block_hashes == [int.from_bytes(name, "big") % 2**64 for name in NAMES]


def test_a_block_of_a_windowed_group_with_adapter_and_salt() -> None:
    first, second = read(
        BlocksStored(1, NAMES[:1], None, TOKENS[:4], ADAPTER, "salt"),
        BlocksStored(1, NAMES[1:], NAMES[0], TOKENS[4:], ADAPTER, "salt"),
    )
    assert first.extra_keys == [("poet", "salt")]
    assert second.extra_keys == [("poet",)], "the salt is the first block's, as vLLM has it"
    assert second.parent_block_hash == first.block_hashes[0]
    assert (first.group_idx, first.kv_cache_spec_kind) == (1, "sliding_window")
    assert (first.kv_cache_spec_sliding_window, first.lora_name) == (20, "poet")
    assert 0 <= first.lora_id < 2**31


def test_removed_and_cleared() -> None:
    assert read(BlocksRemoved(1, NAMES), AllBlocksCleared()) == [
        BlockRemoved([short(name) for name in NAMES], "GPU", 1),
        Cleared(),
    ]


@pytest.mark.parametrize(
    ("kept", "kind"),
    [
        (KV(), ["full_attention", None]),
        (Window(20, 8), ["sliding_window", 20]),
        (Window(20, 8, by_chunks=True), ["chunked_local_attention", None]),
        (KeptState(8, 8), ["mamba", None]),
    ],
)
def test_fields_by_their_position_for_older_readers(kept: Any, kind: list[Any]) -> None:
    wire = Wire(4, [kept], as_arrays=True)
    stored = BlocksStored(0, NAMES[1:], NAMES[0], TOKENS[4:], None, "")
    payload = wire.batch(1.5, [stored, BlocksRemoved(0, NAMES), AllBlocksCleared()])
    _, events, _ = msgspec.msgpack.decode(payload)
    names = [short(name) for name in NAMES]
    assert events == [
        ["BlockStored", names[1:], names[0], TOKENS[4:], 4, None, "GPU", None, [None], 0, *kind],
        ["BlockRemoved", names, "GPU", 0],
        ["AllBlocksCleared"],
    ]

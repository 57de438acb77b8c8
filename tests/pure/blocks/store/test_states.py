"""States beyond the pool, beside the blocks that they stand after."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.blocks.store import (
    DiskStore,
    RecordForm,
    RecordShelf,
    StateStores,
    StoreCounts,
    Tiers,
    places_of,
)
from quire.core.memory import Content, name_of_state
from support.stored_blocks import BLOCK_SIZE, FORM, PARTS, content, parts

STATE = RecordForm(b"of states, alone", BLOCK_SIZE, (5000,))
KV_GROUP = len(PARTS)  # of the states


def state(number: int) -> Content:
    block = content(number)
    return block._replace(name=name_of_state(block.name))


def in_memory(blocks: int, states: int) -> StateStores:
    of_blocks = RecordShelf(FORM, blocks * FORM.num_bytes)
    of_states = RecordShelf(STATE, states * STATE.num_bytes)
    return StateStores(Tiers(of_blocks, None), Tiers(of_states, None), KV_GROUP, 32)


def put(store: StateStores, number: int) -> None:
    store.write(content(number), [*parts(number), b""])
    store.write(state(number), [b""] * KV_GROUP + [bytes([number]) * 5000])


def read(store: StateStores, block: Content, kv_group: int, size: int) -> bytes:
    into = bytearray(size)
    store.read(block, kv_group, [memoryview(into)])
    return bytes(into)


def test_a_block_and_the_state_after_it_are_found_each_by_its_name(tmp_path: Path) -> None:
    disks = [DiskStore(tmp_path, 1 << 20, form) for form in (FORM, STATE)]
    on_disk = StateStores(disks[0], disks[1], KV_GROUP, 32)
    for store in (in_memory(4, 4), on_disk):
        put(store, 1)
        if store is on_disk:
            for disk in disks:
                disk.flush()
        for kv_group, part in enumerate(parts(1)):
            assert read(store, content(1), kv_group, PARTS[kv_group]) == part
        assert read(store, state(1), KV_GROUP, 5000) == b"\1" * 5000
        with pytest.raises(OSError, match="gone"):
            read(store, content(1), KV_GROUP, 5000)
        assert store.seconds_to_fetch() > 0
        for one in (content(1), state(1)):
            assert store.has(one.name)
            store.forget(one.name)
            assert not store.has(one.name)
    put(on_disk, 2)
    on_disk.close()
    counts = StoreCounts.total(disk.counts for disk in places_of(on_disk)[1])
    assert counts.written_blocks == 2
    assert counts.written_bytes == FORM.num_bytes + STATE.num_bytes


def test_a_block_that_is_used_keeps_its_state() -> None:
    store = in_memory(blocks=9, states=2)
    put(store, 0)
    put(store, 1)
    store.used([content(0).name, content(7).name])
    put(store, 2)
    assert [store.has(state(number).name) for number in range(3)] == [True, False, True]
    assert all(store.has(content(number).name) for number in range(3))
    store.clear()
    assert not any(store.has(one.name) for one in (content(0), state(0)))

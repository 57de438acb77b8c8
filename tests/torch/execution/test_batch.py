"""Batch arrays against a loop over tokens, and block moves against copies by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import ConfigError
from quire.core.kv_groups import KVGroup
from quire.core.memory import BlockMove, BlockTable, KeptState, MoveKind
from quire.core.protocol import Chunk, Readout, SoftCut
from quire.execution.batch import pack
from quire.execution.kv.cache import KVCache
from quire.execution.kv.layers import bytes_per_token, check_heads
from quire.kernels.dispatch import choose_kernels
from quire.kernels.layer_memory import KVShape, StateShape

chunk_shapes = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=5)


CUTS = [SoftCut(2, 5, -1.0, 4), SoftCut(2, 9, -inf, 6), SoftCut(2, 9, -0.3, 0)]


def added_to(key: int, position: int, cuts: Sequence[SoftCut]) -> float:
    behind = (cut for cut in reversed(cuts) if cut.first <= key < cut.position <= position)
    return sum((cut.at(position) for cut in behind), 0.0)


@given(chunk_shapes, st.integers(1, 5))
def test_every_token_stands_where_its_table_says(
    shapes: list[tuple[int, int]], block_size: int
) -> None:
    chunks, next_block = [], 100
    for seq_id, (start, count) in enumerate(shapes):
        width = -(-(start + count) // block_size) + seq_id % 2  # some have room to spare
        table = tuple(range(next_block + width, next_block, -1))
        next_block += width
        tokens = [1000 * seq_id + i for i in range(count)]
        chunks.append(
            Chunk(seq_id, tokens, start, BlockTable(table, block_size), start + 1, Readout())
        )
        if seq_id % 2:
            chunks[-1] = chunks[-1]._replace(cuts=CUTS)
    token_ids, batch, *_ = pack(chunks, block_size).fields()
    added = torch.zeros(len(token_ids), 30)
    if batch.bias is not None:
        added = batch.bias.of(torch.arange(len(token_ids)), torch.arange(30)[None])
    row = 0
    for s, chunk in enumerate(chunks):
        assert batch.query_starts[s] == row
        for position, token in enumerate(chunk.token_ids, chunk.start):
            assert token_ids[row] == token
            assert batch.positions[row] == position
            assert batch.kv_groups[0].slots[row] == chunk.table.slot(position)
            biases = [added_to(key, position, chunk.cuts) for key in range(30)]
            assert torch.equal(added[row], torch.tensor(biases))
            row += 1
        assert batch.context_lens[s] == chunk.start + len(chunk.token_ids)
        assert batch.output_starts[s] == chunk.output_start
        width = len(chunk.table.block_ids)
        assert tuple(batch.kv_groups[0].block_tables[s, :width].tolist()) == chunk.table.block_ids
    assert batch.query_starts[-1] == row == len(token_ids)


def test_states_have_a_slot_for_each_sequence_and_no_group_of_tables() -> None:
    for further in (True, False):
        chunks = []
        for seq_id, slot in enumerate((5, 2)):
            table = state = BlockTable((slot,), 4, keeps_state=True)
            if further:
                table = BlockTable((seq_id,), 4, further=(state,))
            chunks.append(Chunk(seq_id, [7, 8], 1, table, 3, Readout()))
        token_ids, batch, *_ = pack(chunks, 4, adapters=(1, -1)).fields()
        assert token_ids.tolist() == [7, 8] * 2
        assert batch.states is not None and batch.states.slots.tolist() == [5, 2]
        assert batch.states.drafts is None
        slots = [group.slots.tolist() for group in batch.kv_groups]
        assert slots == ([[1, 2, 5, 6]] if further else [])
    assert pack([chunks[0]._replace(table=BlockTable((0,), 4))], 4).fields()[1].states is None
    state = BlockTable((3,), 4, keeps_state=True, confirmed=2)
    chunks = [Chunk(0, [7, 8, 9], 1, state, 3, Readout(3)), chunks[1]._replace(table=state)]
    states = pack(chunks, 4).fields()[1].states
    assert states is not None and states.of_sequences == [(3, 2, 2), (3, 2, 0)]


def test_whole_states_are_copied_and_swapped(tmp_path: Path) -> None:
    shapes = (KVShape(1, 2, 2), StateShape((3, 2), (2, 4, 5), 9), StateShape((3, 0), (7,)))
    shapes += (StateShape((4, 2), ()),)
    groups = [KVGroup((0,), 3), KVGroup((1, 2, 3), 4, 2, state=KeptState(8, 8, drafts=6))]
    kernels = choose_kernels(torch.float32)
    cache = KVCache(shapes, groups, 8, torch.float32, kernels, str(tmp_path))
    parts = [part for layer in cache.layers[1:] for part in layer.parts]
    assert [tuple(part.shape) for part in parts] == [
        (4, 3, 2), (4, 2, 4, 5), (4, 6, 9), (4, 7), (4, 4, 2),
    ]  # fmt: skip
    for number, part in enumerate(parts, 1):
        part[0] = number
    for kind, source, target in ((MoveKind.COPY, 0, 2), (MoveKind.SWAP_OUT, 2, 1),
                                 (MoveKind.SWAP_IN, 1, 3)):  # fmt: skip
        assert cache.move([BlockMove(kind, source, target, 1)]) == []
    for number, part in enumerate(parts, 1):
        expected = [number, 0, number, number]
        assert part.flatten(1).amax(1).tolist() == part.flatten(1).amin(1).tolist() == expected
    assert not cache.layers[0].parts[0].any()
    assert shapes[1].nbytes == 4 * (3 * 2 + 2 * 4 * 5) and shapes[3].nbytes == 4 * 4 * 2


def test_moves_are_carried_out_in_order() -> None:
    shapes = (KVShape(2, 4, 3), KVShape(1, 2, 2))
    cache = KVCache(shapes, [KVGroup((0, 1), 4)], 8, torch.bfloat16, choose_kernels(torch.bfloat16))
    for layer in cache.layers:
        for block in range(4):
            layer.keys[block], layer.values[block] = block, -block
    copies = [(1, 2), (2, 3), (0, 1)]  # block 2 is copied onwards, block 1 overwritten after
    cache.move([BlockMove(MoveKind.COPY, *pair) for pair in copies])
    for layer in cache.layers:
        assert [int(layer.keys[b].max()) for b in range(4)] == [0, 0, 1, 1]
        assert [int(layer.values[b].min()) for b in range(4)] == [0, 0, -1, -1]


def test_one_call_copies_in_all_layers_of_a_kv_group(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.kernels import cpu

    calls = []
    monkeypatch.setattr(cpu._native, "copy_blocks", lambda pools, *_: calls.append(len(pools)))
    kv_groups = [KVGroup((0, 2), 4), KVGroup((1,), 4)]
    cache = KVCache([KVShape(1, 2, 2)] * 3, kv_groups, 8, torch.int8, cpu.CPUKernels())
    moves = [(0, 1, 0), (1, 2, 0), (0, 3, 1)]
    assert cache.move([BlockMove(MoveKind.COPY, *move) for move in moves]) == []
    assert calls == [2 * 4, 1 * 4]  # keys, values and their scales


def test_kv_groups_without_host_blocks_among_others(tmp_path: Path) -> None:
    kv_groups = [KVGroup((0,), 4), KVGroup((1,), 4, 2), KVGroup((2,), 4), KVGroup((3,), 4, 3)]
    kernels = choose_kernels(torch.float32)
    shapes = [KVShape(1, 1 + layer, 2) for layer in range(4)]
    cache = KVCache(shapes, kv_groups, 8, torch.float32, kernels, str(tmp_path))
    for number, layer in enumerate(cache.layers, 1):
        layer.keys[0], layer.values[0] = number, -number
    for kv_group in (1, 3):
        there = BlockMove(MoveKind.SWAP_OUT, 0, kv_group - 1, kv_group)
        back = BlockMove(MoveKind.SWAP_IN, kv_group - 1, 3, kv_group)
        assert cache.move([there, back]) == []
    for number, layer in enumerate(cache.layers, 1):
        came_back = number in (2, 4)
        assert (layer.keys[3] == came_back * number).all()
        assert (layer.values[3] == came_back * -number).all()
    for kv_group in (0, 2):
        with pytest.raises(ValueError, match=f"KV group {kv_group} has no host blocks"):
            cache.move([BlockMove(MoveKind.SWAP_OUT, 0, 0, kv_group)])


def test_a_cache_starts_as_zeros_of_the_shape_and_dtype() -> None:
    shapes = (KVShape(2, 4, 3),)
    cache = KVCache(shapes, [KVGroup((0,), 5)], 8, torch.bfloat16, choose_kernels(torch.bfloat16))
    (layer,) = cache.layers
    assert layer.keys.shape == (5, 2, 8, 4) and layer.values.shape == (5, 2, 8, 3)
    assert layer.keys.dtype == torch.bfloat16
    assert not layer.keys.any() and not layer.values.any()
    assert bytes_per_token(shapes, torch.bfloat16) == 2 * (4 + 3) * 2


def test_a_cache_of_int8_has_a_scale_for_each_key_and_value() -> None:
    shapes = (KVShape(2, 4, 3),)
    cache = KVCache(shapes, [KVGroup((0,), 5)], 8, torch.int8, choose_kernels(torch.bfloat16))
    (layer,) = cache.layers
    assert layer.keys.dtype == layer.values.dtype == torch.int8
    assert layer.key_scales is not None and layer.value_scales is not None
    assert layer.key_scales.shape == layer.value_scales.shape == (5, 2, 8)
    assert bytes_per_token(shapes, torch.int8) == 2 * (4 + 3 + 2 * 4)
    assert sum(part.nbytes for part in layer.parts) == 5 * 8 * bytes_per_token(shapes, torch.int8)
    layer.key_scales[1], layer.value_scales[1] = 0.5, 0.25
    cache.move([BlockMove(MoveKind.COPY, 1, 4)])
    assert (layer.key_scales[4] == 0.5).all() and (layer.value_scales[4] == 0.25).all()


def test_a_cache_of_int4_has_bytes_of_two_numbers_and_a_scale_for_each_key_and_value() -> None:
    shapes = (KVShape(2, 64, 64),)
    cache = KVCache(shapes, [KVGroup((0,), 5)], 8, torch.int4, choose_kernels(torch.bfloat16))
    (layer,) = cache.layers
    assert layer.keys.dtype == layer.values.dtype == torch.uint8
    assert layer.keys.shape == (5, 2, 8, 32) and layer.dims == (64, 64)
    each = bytes_per_token(shapes, torch.int4)
    assert each == 2 * (32 + 32 + 2 * 4)
    assert sum(part.nbytes for part in layer.parts) == 5 * 8 * each
    assert bytes_per_token(shapes, torch.bfloat16) / each > 3.5


def test_heads_that_int4_cannot_pack_are_refused_by_name() -> None:
    check_heads([KVShape(1, 7, 5)], torch.int8)
    check_heads([KVShape(1, 80, 24)], torch.int4)
    with pytest.raises(ConfigError, match=r'"int4".*multiple of 8.*heads of 20; "int8"'):
        check_heads([KVShape(1, 64, 64), KVShape(1, 64, 20)], torch.int4)

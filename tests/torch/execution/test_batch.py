"""Batch arrays against a loop over tokens, and block moves against copies by hand."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.capacity.lanes import Lane
from quire.execution.batch import build_batch
from quire.execution.kv_cache import KVCache, bytes_per_token
from quire.kernels.dispatch import choose_kernels
from quire.kernels.ops import KVShape
from quire.memory import BlockMove, BlockTable, MoveKind
from quire.scheduling import Chunk, Request, SamplingParams

chunk_shapes = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=5)


@given(chunk_shapes, st.integers(1, 5))
def test_every_token_stands_where_its_table_says(
    shapes: list[tuple[int, int]], block_size: int
) -> None:
    chunks, next_block = [], 100
    for seq_id, (start, count) in enumerate(shapes):
        width = -(-(start + count) // block_size) + seq_id % 2  # some have room to spare
        table = tuple(range(next_block + width, next_block, -1))
        next_block += width
        request = Request(str(seq_id), (1,) * (start + 1), SamplingParams(), 1, 0)
        tokens = [1000 * seq_id + i for i in range(count)]
        chunks.append(
            Chunk(
                seq_id,
                request,
                0,
                tokens,
                start,
                BlockTable(table),
                1,
                (),
                start + 1,
            )
        )
    token_ids, batch = build_batch(chunks, block_size)
    row = 0
    for s, chunk in enumerate(chunks):
        assert batch.query_starts[s] == row
        for position, token in enumerate(chunk.token_ids, chunk.start):
            block = chunk.table.block_ids[position // block_size]
            assert token_ids[row] == token
            assert batch.positions[row] == position
            assert batch.lanes[0].slots[row] == block * block_size + position % block_size
            row += 1
        assert batch.context_lens[s] == chunk.start + len(chunk.token_ids)
        assert batch.prompt_lens[s] == len(chunk.request.prompt_token_ids)
        width = len(chunk.table.block_ids)
        assert tuple(batch.lanes[0].block_tables[s, :width].tolist()) == chunk.table.block_ids
    assert batch.query_starts[-1] == row == len(token_ids)


def test_moves_are_carried_out_in_order() -> None:
    shapes = (KVShape(2, 4, 3), KVShape(1, 2, 2))
    cache = KVCache(shapes, [Lane((0, 1), 4)], 8, torch.bfloat16, choose_kernels(torch.bfloat16))
    for layer in cache.layers:
        for block in range(4):
            layer.keys[block], layer.values[block] = block, -block
    copies = [(1, 2), (2, 3), (0, 1)]  # block 2 is copied onwards, block 1 overwritten after
    cache.move([BlockMove(MoveKind.COPY, *pair) for pair in copies])
    for layer in cache.layers:
        assert [int(layer.keys[b].max()) for b in range(4)] == [0, 0, 1, 1]
        assert [int(layer.values[b].min()) for b in range(4)] == [0, 0, -1, -1]


def test_a_cache_starts_as_zeros_of_the_shape_and_dtype() -> None:
    shapes = (KVShape(2, 4, 3),)
    cache = KVCache(shapes, [Lane((0,), 5)], 8, torch.bfloat16, choose_kernels(torch.bfloat16))
    (layer,) = cache.layers
    assert layer.keys.shape == (5, 2, 8, 4) and layer.values.shape == (5, 2, 8, 3)
    assert layer.keys.dtype == torch.bfloat16
    assert not layer.keys.any() and not layer.values.any()
    assert bytes_per_token(shapes, torch.bfloat16) == 2 * (4 + 3) * 2


def test_a_cache_of_int8_has_a_scale_for_each_key_and_value() -> None:
    shapes = (KVShape(2, 4, 3),)
    cache = KVCache(shapes, [Lane((0,), 5)], 8, torch.int8, choose_kernels(torch.bfloat16))
    (layer,) = cache.layers
    assert layer.keys.dtype == layer.values.dtype == torch.int8
    assert layer.key_scales is not None and layer.value_scales is not None
    assert layer.key_scales.shape == layer.value_scales.shape == (5, 2, 8)
    assert bytes_per_token(shapes, torch.int8) == 2 * (4 + 3 + 2 * 4)
    assert sum(part.nbytes for part in layer.parts) == 5 * 8 * bytes_per_token(shapes, torch.int8)
    layer.key_scales[1], layer.value_scales[1] = 0.5, 0.25
    cache.move([BlockMove(MoveKind.COPY, 1, 4)])
    assert (layer.key_scales[4] == 0.5).all() and (layer.value_scales[4] == 0.25).all()

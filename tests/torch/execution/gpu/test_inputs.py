"""Batches in the buffer equal the batches they were made from."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from quire.core.memory import BlockTable
from quire.core.protocol import Chunk, Readout
from quire.execution.batch import Fields, StepBatch, pack
from quire.execution.gpu.graphs import StepSize
from quire.execution.gpu.inputs import DeviceInputs
from quire.kernels.ops import AttentionBatch

BLOCK_SIZE = 4
MAX_WIDTH = 12
CPU = torch.device("cpu")


def make_chunks(lengths: list[tuple[int, int]], num_kv_groups: int, seed: int) -> list[Chunk]:
    """(start, new tokens) of each sequence; blocks at random, with spare ones at the end."""
    source = random.Random(seed)
    chunks = []
    for seq_id, (start, count) in enumerate(lengths):
        width = -(-(start + count) // BLOCK_SIZE) + source.randrange(3)
        kv_groups = []
        for kv_group in range(num_kv_groups):
            dropped = min(kv_group, start // BLOCK_SIZE)
            ids = tuple(source.randrange(1000) for _ in range(width - dropped))
            kv_groups.append(BlockTable(ids, BLOCK_SIZE, dropped))
        table = kv_groups[0]._replace(further=tuple(kv_groups[1:]))
        tokens = [source.randrange(300) for _ in range(count)]
        chunks.append(Chunk(seq_id, tokens, start, table, start + 1, Readout()))
    return chunks


def make_inputs(num_kv_groups: int = 1) -> DeviceInputs:
    return DeviceInputs(CPU, 64, 8, MAX_WIDTH, [0] * num_kv_groups, BLOCK_SIZE)


def no_tokens() -> Tensor:
    raise AssertionError("nothing is fed")


def assert_same(found: AttentionBatch, expected: AttentionBatch) -> None:
    seqs, tokens = len(expected.context_lens), len(expected.positions)
    assert found.query_starts[: seqs + 1] == expected.query_starts
    assert found.starts[: seqs + 1].tolist() == list(expected.query_starts)
    assert torch.equal(found.positions[:tokens], expected.positions)
    assert torch.equal(found.context_lens[:seqs], expected.context_lens)
    assert torch.equal(found.output_starts[:seqs], expected.output_starts)
    assert found.block_size == expected.block_size
    for mine, theirs in zip(found.kv_groups, expected.kv_groups, strict=True):
        assert torch.equal(mine.slots[:tokens], theirs.slots)
        assert torch.equal(mine.num_dropped[:seqs], theirs.num_dropped)
        width = min(MAX_WIDTH, theirs.block_tables.shape[1])
        assert torch.equal(mine.block_tables[:seqs, :width], theirs.block_tables[:, :width])


@pytest.mark.parametrize("num_kv_groups", [1, 2, 3])
def test_every_load_equals_a_fresh_batch(num_kv_groups: int) -> None:
    """One after another into the same buffer, so nothing of the last one may be left."""
    inputs, source = make_inputs(num_kv_groups), random.Random(0)
    for seed in range(30):
        lengths = [
            (source.randrange(30), source.randint(1, 7)) for _ in range(source.randint(1, 8))
        ]
        count = sum(new for _, new in lengths)
        rows = sorted(source.sample(range(count), source.randint(0, count)))
        batch = pack(make_chunks(lengths, num_kv_groups, seed), BLOCK_SIZE, rows)
        loaded, given = inputs.load(batch, no_tokens), batch.fields()
        assert torch.equal(loaded.token_ids, given.token_ids)
        assert loaded.asked.tolist() == rows
        assert_same(loaded.attention, given.attention)
        assert len(loaded.attention.positions) == count
        assert len(loaded.attention.context_lens) == len(lengths)


def addresses(loaded: Fields) -> list[int]:
    batch = loaded.attention
    tensors: list[Tensor] = [
        loaded.token_ids,
        batch.positions,
        batch.starts,
        batch.context_lens,
        batch.output_starts,
    ]
    for kv_group in batch.kv_groups:
        tensors += kv_group[:3]
    return [tensor.data_ptr() for tensor in tensors] + [
        kv_group.block_tables.stride(1) for kv_group in batch.kv_groups
    ]


@pytest.mark.parametrize("decodes", [True, False])
def test_a_padded_batch_is_where_the_last_one_was_and_its_padding_does_nothing(
    decodes: bool,
) -> None:
    inputs = make_inputs(2)
    size = StepSize(8, 8, True) if decodes else StepSize(24, 8, False)
    places = addresses(inputs.load_idle(size))
    for seqs in (8 - (not decodes), 3, 5, 1):
        chunks = make_chunks([(7 * i, 1 if decodes else 1 + i % 4) for i in range(seqs)], 2, seqs)
        count = sum(len(chunk.token_ids) for chunk in chunks)
        batch = pack(chunks, BLOCK_SIZE, range(seqs))
        loaded, given = inputs.load(batch, no_tokens, size), batch.fields()
        assert addresses(loaded) == places
        assert_same(loaded.attention, given.attention)
        assert loaded.attention.most == size.most
        assert torch.equal(loaded.token_ids[:count], given.token_ids)
        bounds = [*batch.query_starts]
        bounds += range(count + 1, 9) if decodes else [24] * (8 - seqs)
        assert loaded.attention.starts.tolist() == bounds
        assert loaded.attention.context_lens[seqs:].tolist() == [0] * (8 - seqs)
        assert loaded.token_ids[count:].tolist() == [0] * (size.tokens - count)
        for kv_group in loaded.attention.kv_groups:
            assert kv_group.slots[count:].tolist() == [-1] * (size.tokens - count)


@pytest.mark.parametrize("decodes", [True, False])
def test_states_of_sequences_that_pad_a_batch_are_nowhere(decodes: bool) -> None:
    """With drafts before and after some, and with none; where those of the last batch were."""
    inputs = DeviceInputs(CPU, 64, 8, MAX_WIDTH, [0], BLOCK_SIZE, True)
    size = StepSize(8, 8, True) if decodes else StepSize(24, 8, False)
    idle = inputs.load_idle(size).attention.states
    assert idle is not None and idle.slots.tolist() == [-1] * 8
    for seqs, drafted in ((7, False), (4, True), (2, False)):
        chunks = []
        for chunk in make_chunks([(9, 1 if decodes else 3)] * seqs, 1, seqs):
            right = 2 if drafted and not chunk.seq_id else 0
            slot = BlockTable((30 + chunk.seq_id,), BLOCK_SIZE, keeps_state=True, confirmed=right)
            table = chunk.table._replace(further=(slot,))
            rows = 3 if drafted and not decodes and chunk.seq_id == 1 else 1
            chunks.append(chunk._replace(table=table, readout=Readout(rows)))
        batch = pack(chunks, BLOCK_SIZE)
        for padded, count in ((None, seqs), (size, 8)):
            states = inputs.load(batch, no_tokens, padded).attention.states
            assert states is not None and states.confirmed is not None
            assert states.drafts is not None
            none = [0] * (count - 1)
            assert states.slots.tolist() == [*range(30, 30 + seqs), *[-1] * (count - seqs)]
            assert states.confirmed.tolist() == [2 * drafted, *none]
            assert sum(states.drafts.tolist()) == 2 * (drafted and not decodes)
        assert [one.data_ptr() for one in states if one is not None] == [
            one.data_ptr() for one in idle if one is not None
        ]


def test_one_copy_brings_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only what is used of it."""
    inputs = make_inputs()
    batch = pack(make_chunks([(5, 1), (9, 1)], 1, 0), BLOCK_SIZE, [0, 1])
    device_buffer = inputs._device
    copied: list[int] = []
    copy = Tensor.copy_

    def count(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        if target.untyped_storage().data_ptr() == device_buffer.untyped_storage().data_ptr():
            copied.append(len(target))
        return copy(target, source, non_blocking)

    monkeypatch.setattr(Tensor, "copy_", count)
    inputs.load(batch, no_tokens)
    (width,) = batch.header.widths
    # ids, positions, rows and slots of 2 tokens; 3 bounds; 5 numbers and a row of the table for 2.
    assert copied == [4 * 2 + 3 + 5 * 2 + 2 * width]


@pytest.mark.parametrize("size", [None, StepSize(8, 8, True), StepSize(16, 9, False)])
def test_fed_tokens_take_their_places(size: StepSize | None) -> None:
    inputs = make_inputs(2)
    decodes = size is not None and size.decodes
    lengths = [(5, 1), (9, 1), (3, 1)] if decodes else [(5, 1), (0, 4), (9, 1), (3, 1)]
    chunks = make_chunks(lengths, 2, 0)
    last = sum(new for _, new in lengths) - 1

    def packed(*fed: list[int]) -> StepBatch:
        return pack(chunks, BLOCK_SIZE, [0, last], *fed)

    given = packed().fields()
    expected = given.token_ids.clone()
    expected[0], expected[last] = 73, 71
    sampled = torch.tensor([70, 71, 72, 73])
    loaded = inputs.load(packed([0, last], [3, 1]), lambda: sampled, size)
    assert torch.equal(loaded.token_ids[: last + 1], expected)
    assert loaded.asked.tolist() == [0, last]
    assert_same(loaded.attention, given.attention)
    again = inputs.load(packed(), no_tokens, size)
    assert torch.equal(again.token_ids[: last + 1], given.token_ids)

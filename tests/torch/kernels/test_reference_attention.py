"""ReferenceAttention equals softmax attention in float64 over contiguous keys and values."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.ops import AttentionBatch, AttentionSpec, LaneTables, LayerKV
from quire.kernels.reference import ReferenceAttention

# (context, new tokens): decodes and prefills mixed, whole prompts and later chunks, long and short.
RAGGED = ((1, 1), (5, 5), (9, 1), (33, 7), (40, 1), (17, 17), (3, 2), (16, 1), (2, 1))

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Case:
    """A batch, its pool as earlier steps left it, and the whole sequences as plain tensors."""

    batch: AttentionBatch
    kv: LayerKV
    query: Tensor  # [T, H, D] of the new tokens
    keys: list[Tensor]  # of each sequence, [context, Hkv, D]
    values: list[Tensor]

    def new(self, of: list[Tensor]) -> Tensor:
        counts = [
            b - a
            for a, b in zip(self.batch.query_starts, self.batch.query_starts[1:], strict=False)
        ]
        return torch.cat([tensor[-count:] for tensor, count in zip(of, counts, strict=True)])


def make_case(
    dtype: torch.dtype = torch.float32,
    heads: tuple[int, int] = (4, 2),
    dims: tuple[int, int] = (16, 16),
    block_size: int = 4,
    ragged: tuple[tuple[int, int], ...] = RAGGED,
) -> Case:
    """Random tensors; block ids in random order; every slot not yet written holds NaN."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    num_heads, kv_heads = heads
    counts = [-(-context // block_size) for context, _ in ragged]
    ids = list(range(sum(counts) + 3))
    random.Random(0).shuffle(ids)
    pools = [
        torch.full((len(ids), kv_heads, block_size, dim), torch.nan, dtype=dtype) for dim in dims
    ]
    starts, positions, slots, tables = [0], [], [], []
    keys, values = [], []
    for (context, new), count in zip(ragged, counts, strict=True):
        table = [ids.pop() for _ in range(count)]
        keys.append(normal(context, kv_heads, dims[0]))
        values.append(normal(context, kv_heads, dims[1]))
        where = torch.arange(context)
        blocks, offsets = torch.tensor(table)[where // block_size], where % block_size
        old = slice(context - new)
        pools[0][blocks[old], :, offsets[old]] = keys[-1][old]
        pools[1][blocks[old], :, offsets[old]] = values[-1][old]
        positions.append(where[context - new :])
        slots.append((blocks * block_size + offsets)[context - new :])
        starts.append(starts[-1] + new)
        tables.append(table + [0] * (max(counts) - count))
    contexts = torch.tensor([context for context, _ in ragged])
    batch = AttentionBatch(
        positions=torch.cat(positions),
        query_starts=tuple(starts),
        context_lens=contexts,
        prompt_lens=contexts,
        lanes=(LaneTables(torch.cat(slots), torch.tensor(tables)),),
        block_size=block_size,
    )
    return Case(batch, LayerKV(*pools), normal(starts[-1], num_heads, dims[0]), keys, values)


def attend(case: Case, spec: AttentionSpec) -> Tensor:
    backend = ReferenceAttention()
    kv = LayerKV(case.kv.keys.clone(), case.kv.values.clone())
    plan = backend.plan(case.batch)
    return backend.attend(case.query, case.new(case.keys), case.new(case.values), kv, spec, plan)


def plain(case: Case, spec: AttentionSpec) -> Tensor:
    """The definition, one sequence at a time, in float64."""
    outputs = []
    heads = case.query.shape[1]
    bounds = zip(case.batch.query_starts, case.batch.query_starts[1:], strict=False)
    for (first, last), keys, values in zip(bounds, case.keys, case.values, strict=True):
        k = torch.arange(len(keys))
        q = k[len(keys) - (last - first) :, None]
        hidden = k > q
        if spec.window is not None:
            hidden |= k <= q - spec.window
        group = heads // keys.shape[1]
        keys, values = (x.double().repeat_interleave(group, dim=1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", case.query[first:last].double(), keys) * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs)


def assert_equal_to_plain(case: Case, spec: AttentionSpec) -> None:
    found, expected = attend(case, spec), plain(case, spec)
    assert found.dtype == case.query.dtype
    assert found.shape == expected.shape
    assert (found.double() - expected).abs().max() < TOLERANCE[found.dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("heads", "dims"), [((4, 4), (80, 80)), ((8, 2), (16, 16)), ((6, 1), (24, 16))], ids=str
)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_mixed_batch(
    dtype: torch.dtype, heads: tuple[int, int], dims: tuple[int, int], block_size: int
) -> None:
    case = make_case(dtype, heads, dims, block_size)
    for window, softcap in product((None, 1, 7, 64), (None, 3.0)):
        assert_equal_to_plain(case, AttentionSpec(dims[0] ** -0.5, window, softcap))


@pytest.mark.parametrize("ragged", [((7, 1),), ((7, 7),), ((6, 1), (9, 1)), ((6, 3), (9, 4))])
def test_batches_of_one_kind(ragged: tuple[tuple[int, int], ...]) -> None:
    assert_equal_to_plain(make_case(ragged=ragged), AttentionSpec(0.25))


@pytest.mark.parametrize("elements", [1, 300, 2000])
def test_slices_make_no_difference(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "_SLICE_ELEMENTS", elements)
    for window in (None, 6):
        assert_equal_to_plain(make_case(), AttentionSpec(0.25, window))


def test_new_keys_and_values_are_written_and_nothing_else() -> None:
    case = make_case()
    backend = ReferenceAttention()
    before = case.kv.keys.clone()
    keys, values = case.new(case.keys), case.new(case.values)
    plan = backend.plan(case.batch)
    backend.attend(case.query, keys, values, case.kv, AttentionSpec(0.25), plan)
    size = case.batch.block_size
    blocks, offsets = case.batch.lanes[0].slots // size, case.batch.lanes[0].slots % size
    assert torch.equal(case.kv.keys[blocks, :, offsets], keys)
    assert torch.equal(case.kv.values[blocks, :, offsets], values)
    case.kv.keys[blocks, :, offsets] = before[blocks, :, offsets]
    assert torch.equal(case.kv.keys.nan_to_num(), before.nan_to_num())


def test_a_plan_serves_layers_with_different_windows() -> None:
    case = make_case()
    backend = ReferenceAttention()
    plan = backend.plan(case.batch)
    for window in (None, 5):
        spec = AttentionSpec(0.25, window)
        found = backend.attend(
            case.query, case.new(case.keys), case.new(case.values), case.kv, spec, plan
        )
        assert (found.double() - plain(case, spec)).abs().max() < 1e-5


def test_blocks_before_the_window_are_not_read() -> None:
    """A sliding window gives its old blocks back; their place in the table may hold any id."""
    ragged = ((30, 1), (30, 3))
    case = make_case(ragged=ragged)
    tables = case.batch.lanes[0].block_tables
    tables[:, :5] = tables.max() + 1  # all NaN
    assert_equal_to_plain(case, AttentionSpec(0.25, window=8))


def test_copies_follow_their_order() -> None:
    pool = LayerKV(torch.arange(4.0).view(4, 1, 1, 1), torch.arange(4.0).view(4, 1, 1, 1) + 10)
    ReferenceAttention().copy_blocks(pool, pool, [(0, 1), (1, 2), (3, 0)])
    assert pool.keys.flatten().tolist() == [3, 0, 0, 3]
    assert pool.values.flatten().tolist() == [13, 10, 10, 13]


def test_copies_between_pools() -> None:
    source = LayerKV(torch.ones(2, 1, 1, 1), torch.full((2, 1, 1, 1), 2.0))
    target = LayerKV(torch.zeros(3, 1, 1, 1), torch.zeros(3, 1, 1, 1))
    ReferenceAttention().copy_blocks(source, target, [(1, 2)])
    assert target.keys.flatten().tolist() == [0, 0, 1]
    assert target.values.flatten().tolist() == [0, 0, 2]

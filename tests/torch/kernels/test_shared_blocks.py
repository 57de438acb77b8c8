"""Sequences whose tables begin with the same blocks, as forks' and like prompts' do.

The C++ reads such blocks once for all of them. Whatever it makes of a batch, each sequence's result
is softmax attention in float64 over its own keys and values.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from quire.kernels.cpu import CPUKernels
from quire.kernels.layer_memory import LayerKV
from quire.kernels.ops import AttentionBatch, AttentionSpec, KVGroupTables
from support.instruction_sets import TESTED
from support.kv_tiles import numbers, to_rows, to_tiles

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
TYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.int8),
    (torch.bfloat16, torch.int4),
]


class Member(NamedTuple):
    """A sequence: the shared runs that it begins with, each in that place, and what is its own."""

    runs: str
    own: int  # tokens, the new ones among them
    new: int = 1


RUNS = {"a": 300, "b": 330, "c": 128, "d": 16, "e": 700}  # tokens; whole blocks of them are shared

BATCHES = {
    "two forks": [Member("a", 3), Member("a", 20)],
    "a fork of one block": [Member("d", 3), Member("d", 20)],
    "many": [Member("a", 1 + i % 40) for i in range(50)],
    "a tree": [
        *(Member("ab", 7 + i) for i in range(9)),
        *(Member("a", 30) for _ in range(4)),
        *(Member("abc", 1) for _ in range(3)),
        *(Member("cbe", 5) for _ in range(2)),
        Member("c", 80),
        Member("e", 1),
    ],
    "among others": [
        Member("", 90, 90),
        Member("ab", 5),
        Member("", 1),
        Member("ab", 300, 120),
        Member("ab", 30, 2),
        Member("", 400),
        Member("ab", 9, 3),
    ],
    "runs between others": [Member("ad", 9), Member("adc", 4), Member("ac", 9), Member("ace", 2)],
}


class Shared(NamedTuple):
    """A batch over a pool in which everything not yet written is NaN."""

    batch: AttentionBatch
    kv: LayerKV
    query: Tensor
    key: Tensor
    value: Tensor


def lay_out(members: list[Member], block_size: int) -> tuple[list[list[int]], list[int], int]:
    """Block table and context of each member, and how many blocks there are, in random order."""
    num_blocks = 6000 // block_size + 100
    free = random.Random(1).sample(range(num_blocks), num_blocks)

    def take(blocks: int) -> list[int]:
        return [free.pop() for _ in range(blocks)]

    runs: dict[str, list[int]] = {}  # other blocks in another place: keys depend on what is before
    tables, contexts = [], []
    for member in members:
        shared: list[int] = []
        for end in range(1, len(member.runs) + 1):
            path = member.runs[:end]
            if path not in runs:
                runs[path] = take(RUNS[path[-1]] // block_size)
            shared += runs[path]
        tables.append(shared + take(-(-member.own // block_size)))
        contexts.append(len(shared) * block_size + member.own)
    return tables, contexts, num_blocks


def make(
    members: list[Member],
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    heads: tuple[int, int],
    dim: int,
    block_size: int,
) -> Shared:
    tables, contexts, num_blocks = lay_out(members, block_size)
    spans = [torch.arange(c - m.new, c) for m, c in zip(members, contexts, strict=True)]
    width, starts = max(map(len, tables)), [0]
    for span in spans:
        starts.append(starts[-1] + len(span))
    lens = torch.tensor(contexts)
    padded = torch.tensor([table + [0] * (width - len(table)) for table in tables])
    slots = torch.cat(
        [
            padded[number, span // block_size] * block_size + span % block_size
            for number, span in enumerate(spans)
        ]
    )
    generator = torch.Generator().manual_seed(1)
    rows = (num_blocks, heads[1], block_size)
    pools = [torch.randn((*rows, dim), generator=generator) for _ in range(2)]
    scales = [torch.rand(rows, generator=generator) / 40 for _ in range(2)]
    scaled = kv_dtype in (torch.int8, torch.int4)
    if kv_dtype == torch.int4:
        pools = [torch.randint(256, (*pool.shape[:3], dim // 2)) for pool in pools]
        kv_dtype = torch.uint8
    elif scaled:
        pools = [(pool * 40).round().clamp(-127, 127) for pool in pools]
    for number, context in enumerate(contexts):  # what is new, and what lies beyond it
        beyond = torch.arange(context - members[number].new, len(tables[number]) * block_size)
        for part in scales if scaled else pools:
            part[padded[number, beyond // block_size], :, beyond % block_size] = torch.nan
    tokens = starts[-1]
    query = torch.randn(tokens, heads[0], dim, generator=generator).to(dtype)
    key, value = torch.randn(2, tokens, heads[1], dim, generator=generator).to(dtype)
    kv_group = KVGroupTables(slots, padded, torch.zeros(len(tables), dtype=torch.int64))
    batch = AttentionBatch(torch.cat(spans), tuple(starts), lens, lens, (kv_group,), block_size)
    kv = LayerKV(*(pool.to(kv_dtype) for pool in pools), 0, *(scales if scaled else ()))
    return Shared(batch, kv, query, key, value)


def plain(case: Shared, scale: float) -> Tensor:
    """The definition over what the pool holds now, in float64."""
    kv, size = case.kv, case.batch.block_size
    pools = numbers(kv)
    outputs = []
    for s, context in enumerate(case.batch.context_lens.tolist()):
        first, last = case.batch.query_starts[s : s + 2]
        places = torch.arange(context)
        blocks = case.batch.kv_groups[0].block_tables[s][places // size]
        group = case.query.shape[1] // kv.keys.shape[1]
        keys, values = (
            pool[blocks, :, places % size].repeat_interleave(group, dim=1) for pool in pools
        )
        scores = torch.einsum("qhd,khd->hqk", case.query[first:last].double(), keys) * scale
        hidden = places > places[context - (last - first) :, None]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs)


@pytest.mark.parametrize("instruction_set", TESTED)
@pytest.mark.parametrize(("dtype", "kv_dtype"), TYPES, ids=str)
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize(
    ("heads", "dim", "block_size"), [((9, 3), 64, 16), ((4, 4), 40, 1), ((7, 1), 128, 64)], ids=str
)
@pytest.mark.parametrize("threads", [1, 3])
def test_each_sequence_attends_to_its_own(
    instruction_set: str,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    name: str,
    heads: tuple[int, int],
    dim: int,
    block_size: int,
    threads: int,
) -> None:
    case = make(BATCHES[name], dtype, kv_dtype, heads, dim, block_size)
    kernels, scale = CPUKernels(instruction_set), dim**-0.5
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        plan, spec = kernels.plan(case.batch), AttentionSpec(scale)
        kv = to_tiles(kernels, case.kv)
        for query in (case.query, case.query.flip(0)):  # a plan serves one layer after another
            found = kernels.attend(query, case.key, case.value, kv, spec, plan)
            expected = plain(case._replace(query=query, kv=to_rows(kernels, kv)), scale)
            assert (found.double() - expected).abs().max() < TOLERANCE[dtype]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("run", "together"), [("a", True), ("d", False)])
def test_long_runs_are_attended_together(run: str, together: bool) -> None:
    """What is attended apart is kept in the workspace until it is put together."""

    def workspace(members: list[Member]) -> int:
        case = make(members, torch.float32, torch.float32, (9, 3), 64, 16)
        kernels, before = CPUKernels(), torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            plan, spec = kernels.plan(case.batch), AttentionSpec(0.1)
            kernels.attend(case.query, case.key, case.value, case.kv, spec, plan)
        finally:
            torch.set_num_threads(before)
        return kernels._native.workspace_bytes

    shared = workspace([Member(run, 3), Member(run, 20)])
    alone = workspace([Member(run, 3), Member("", RUNS[run] // 16 * 16 + 20)])
    assert (shared > alone) is together

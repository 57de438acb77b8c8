"""A query row's attention has the same bits whatever it is computed with.

Once for each instruction set, and each type of the cache that it multiplies in its own way.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quire.kernels.cpu import CPUKernels
from quire.kernels.layer_memory import LayerKV
from quire.kernels.ops import AttentionSpec, ColumnBias
from support.attention_cases import Case, biased, make_case
from support.instruction_sets import TESTED
from support.kv_tiles import to_tiles

CONTEXT = 700  # several segments and a half chunk
SPECS = {
    "all": AttentionSpec(0.2),
    "window": AttentionSpec(0.2, window=300),
    "chunks": AttentionSpec(0.2, window=300, by_chunks=True),
    "sinks": AttentionSpec(0.2, window=300, sinks=70),
    "biased": AttentionSpec(0.2, 300, 70, softcap=5.0, sink_logits=torch.linspace(-1, 9, 16)),
}
TYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.int8),
    (torch.bfloat16, torch.int4),
    (torch.float16, torch.float16),
    (torch.float32, torch.int8),
    (torch.float32, torch.int4),
]


def pool(case: Case, kv_dtype: torch.dtype) -> LayerKV:
    """Of a case's keys and values, in rows."""
    if kv_dtype not in (torch.int8, torch.int4):
        return case.kv
    scales = [torch.rand(case.kv.keys.shape[:3]) / 40 for _ in range(2)]
    if kv_dtype == torch.int4:
        *rows, dim = case.kv.keys.shape
        codes = (torch.randint(256, (*rows, dim // 2), dtype=torch.uint8) for _ in range(2))
        return LayerKV(*codes, 0, *scales)
    keys, values = (
        (part.nan_to_num() * 40).to(kv_dtype) for part in (case.kv.keys, case.kv.values)
    )
    return LayerKV(keys, values, 0, *scales)


def part(case: Case, context: int, new: int) -> Case:
    """The last tokens of so long a beginning of a case's only sequence."""
    kv_group, here = case.batch.kv_groups[0], slice(context - new, context)
    bias = case.batch.bias
    batch = replace(
        case.batch,
        bias=bias and ColumnBias(bias.before[here], bias.bias[here]),
        positions=case.batch.positions[here],
        query_starts=(0, new),
        context_lens=torch.tensor([context]),
        kv_groups=(kv_group._replace(slots=kv_group.slots[here]),),
    )
    keys, values = case.keys[0][:context], case.values[0][:context]
    return replace(case, batch=batch, query=case.query[here], keys=[keys], values=[values])


def attended(kernels: CPUKernels, case: Case, kv: LayerKV, spec: AttentionSpec) -> Tensor:
    keys, values = case.new(case.keys), case.new(case.values)
    return kernels.attend(case.query, keys, values, kv, spec, kernels.plan(case.batch))


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
@pytest.mark.parametrize(("dtype", "kv_dtype"), TYPES, ids=str)
@pytest.mark.parametrize("heads", [((9, 3), 64), ((2, 2), 40), ((13, 1), 24)], ids=str)
@pytest.mark.parametrize("instructions", TESTED)
def test_a_row_has_the_bits_that_it_has_alone(
    instructions: str,
    heads: tuple[tuple[int, int], int],
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    spec: AttentionSpec,
) -> None:
    torch.manual_seed(0)
    (query_heads, kv_heads), dim = heads
    kernels, before = CPUKernels(instructions), torch.get_num_threads()
    whole = make_case(dtype, (query_heads, kv_heads), (dim, dim), 16, ((CONTEXT, CONTEXT),))
    if spec is SPECS["biased"]:
        whole = biased(whole)
    kv = to_tiles(kernels, pool(whole, kv_dtype))
    expected = attended(kernels, whole, kv, spec)
    try:
        for new, threads in ((1, 1), (1, 3), (2, 1), (5, 2), (37, 1), (150, 2), (333, 1)):
            torch.set_num_threads(threads)
            for context in (CONTEXT, CONTEXT - 188, new + 1):
                found = attended(kernels, part(whole, context, new), kv, spec)
                assert torch.equal(found, expected[context - new : context]), (
                    context,
                    new,
                    threads,
                )
    finally:
        torch.set_num_threads(before)

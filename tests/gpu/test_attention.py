"""Attention on the device, in the sizes chosen for it, equals float64 attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quire.kernels.layer_memory import LayerKV
from quire.kernels.ops import AttentionBatch, AttentionSpec, KVGroupTables
from quire.kernels.reference import ReferenceKernels
from support.paged_batches import make_batch, make_kv, make_new

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
BATCHES = {
    "decodes": [(1, 1), (700, 1), (33, 1), (4096, 1), (255, 1)],
    "one long decode": [(30_000, 1)],
    "prefills": [(300, 300), (1000, 129), (2, 2)],
    "mixed": [(5000, 1), (400, 400), (17, 1), (3000, 64)],
}


def to_device(batch: AttentionBatch) -> AttentionBatch:
    kv_groups = tuple(
        KVGroupTables(*(table.cuda() for table in kv_group[:3]), kv_group.num_sink_blocks)
        for kv_group in batch.kv_groups
    )
    return replace(
        batch,
        positions=batch.positions.cuda(),
        context_lens=batch.context_lens.cuda(),
        output_starts=batch.output_starts.cuda(),
        kv_groups=kv_groups,
    )


def both(
    batch: AttentionBatch,
    new: list[Tensor],
    kv: LayerKV,
    spec: AttentionSpec,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """What the GPU kernels give, and the reference in float64 for the same, rounded, inputs."""
    from quire.kernels.gpu.kernels import GPUKernels

    kernels, judge = GPUKernels.on(torch.device("cuda")), ReferenceKernels()
    rounded = [x.to(dtype) for x in new]
    pool = LayerKV(kv.keys.to("cuda", dtype), kv.values.to("cuda", dtype))
    exact_pool = LayerKV(kv.keys.to(dtype).double(), kv.values.to(dtype).double())
    logits = spec.sink_logits
    on_device = replace(spec, sink_logits=None if logits is None else logits.cuda())
    plan = kernels.plan(to_device(batch))
    found = kernels.attend(*(x.cuda() for x in rounded), pool, on_device, plan)
    exact = judge.attend(*(x.double() for x in rounded), exact_pool, spec, judge.plan(batch))
    return found.cpu().double(), exact


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads", [(8, 8), (32, 8), (7, 1)], ids=str)
@pytest.mark.parametrize("contexts", BATCHES.values(), ids=list(BATCHES))
def test_every_shape(
    contexts: list[tuple[int, int]], heads: tuple[int, int], dim: int, dtype: torch.dtype
) -> None:
    batch, num_blocks = make_batch(contexts, block_size=16)
    kv = make_kv(num_blocks, heads[1], dim, block_size=16)
    found, exact = both(batch, make_new(batch, *heads, dim), kv, AttentionSpec(dim**-0.5), dtype)
    assert (found - exact).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("block_size", [1, 8, 16, 64, 256])
@pytest.mark.parametrize(
    "spec",
    [
        AttentionSpec(0.09, window=1),
        AttentionSpec(0.09, window=500),
        AttentionSpec(0.09, window=500, sinks=4),
        AttentionSpec(0.09, softcap=5.0),
        AttentionSpec(0.09, window=500, sink_logits=torch.linspace(-3, 6, 32)),
    ],
    ids=str,
)
def test_windows_sinks_and_caps(spec: AttentionSpec, block_size: int) -> None:
    batch, num_blocks = make_batch(BATCHES["mixed"], -(-spec.sinks // block_size), block_size)
    kv = make_kv(num_blocks, 8, 128, block_size)
    found, exact = both(batch, make_new(batch, 32, 8, 128), kv, spec, torch.float32)
    assert (found - exact).abs().max() < 1e-5


def test_the_same_batch_gives_the_same_bits() -> None:
    batch, num_blocks = make_batch(BATCHES["mixed"], block_size=16)
    kv, new = make_kv(num_blocks, 8, 128, 16), make_new(batch, 32, 8, 128)
    runs = [both(batch, new, kv, AttentionSpec(0.09), torch.bfloat16)[0] for _ in range(3)]
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])

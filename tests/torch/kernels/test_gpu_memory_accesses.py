"""The GPU kernels touch only what is theirs, in no order that chance decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from quire.kernels.layer_memory import LayerKV
from quire.kernels.mlps import Activation
from quire.kernels.ops import AttentionSpec, Norm, Rotation
from support.gpu_kernels import INTERPRETED, TRITON, triton_kernels
from support.paged_batches import BLOCK_SIZE, make_batch, make_kv, make_new

pytestmark = pytest.mark.skipif(not (TRITON and INTERPRETED), reason="for Triton's interpreter")

DIM = 24  # padded to 32
BATCH = [(70, 1), (90, 40), (0, 1), (5, 5), (33, 1)]


def spec(name: str) -> AttentionSpec:
    norm = Norm(DIM, torch.ones(DIM), 1e-6)
    return {
        "plain": AttentionSpec(0.2),
        "window": AttentionSpec(0.2, window=20, softcap=5.0),
        "sinks": AttentionSpec(0.2, window=20, sinks=3),
        "norms": AttentionSpec(0.2, query_norm=norm, key_norm=norm),
    }[name]


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("name", ["plain", "window", "sinks", "norms"])
def test_attention_reads_only_what_was_written(name: str, kv_dtype: torch.dtype) -> None:
    from support.memory_watch import watch_interpreter

    kernels = triton_kernels()
    batch, num_blocks = make_batch(BATCH)
    batch.context_lens[2] = 0  # pads the batch
    batch.kv_groups[0].slots[41] = -1
    kv = make_kv(num_blocks, 2, DIM)
    if kv_dtype == torch.int8:
        scales = (torch.ones(num_blocks, 2, BLOCK_SIZE) for _ in range(2))
        kv = LayerKV(kv.keys.to(kv_dtype), kv.values.to(kv_dtype), 0, *scales)
    turns = (torch.ones(len(batch.positions), DIM // 2) for _ in range(4))
    with watch_interpreter().blank_tensors():
        out = kernels.attend(
            *make_new(batch, 4, 2, DIM), kv, spec(name), kernels.plan(batch), Rotation(*turns)
        )
    assert out.isfinite().all()


def test_rows_and_moves_stay_inside() -> None:
    from support.memory_watch import watch_interpreter

    kernels, x = triton_kernels(), torch.randn(3, 40)
    with watch_interpreter().blank_tensors():
        kernels.add_norm(x[:, :20], x[:, 20:], Norm(20, torch.ones(20), 1e-6, torch.ones(20)))
        kernels.activate(x, Activation("silu", gated=True))
        filters = torch.tensor([[1.0, torch.inf, 5, 0.9, 0.5]] * 3, dtype=torch.float64)
        kernels.draw(x, filters)
    kv = make_kv(6, 2, DIM)
    kernels.copy_blocks([kv], [kv], [(0, 1), (1, 2), (2, 0), (3, 4)])


# -- the watch finds what it is there for ------------------------------------------------------


def launch(program: Callable[..., Any], *arguments: Any, grid: int = 2) -> None:
    import triton

    triton_kernels()
    triton.jit(program)[(grid,)](*arguments)


def beyond(x, out):  # type: ignore[no-untyped-def]
    import triton.language as tl

    place = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.store(out + place, tl.load(x + place))


def everywhere(x, out):  # type: ignore[no-untyped-def]
    import triton.language as tl

    tl.store(out + tl.arange(0, 4), tl.load(x + tl.arange(0, 4)))


def neighbours(x, out):  # type: ignore[no-untyped-def]
    import triton.language as tl

    place = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.store(x + place, tl.load(x + (place + 4) % 8))


def again(x, out):  # type: ignore[no-untyped-def]
    import triton.language as tl

    place = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.store(out + place, tl.load(x + place))
    tl.store(x + place, tl.load(out + place))


def together(x, out):  # type: ignore[no-untyped-def]
    """Each program, after its threads have waited for each other."""
    import triton.language as tl

    place = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.store(out + place, tl.load(x + place))
    tl.debug_barrier()
    tl.load(out + place)


@pytest.mark.parametrize(
    ("program", "length", "fault"),
    [
        (beyond, 8, None),
        (together, 8, None),
        (beyond, 7, "in no tensor"),
        (everywhere, 8, "written twice"),
        (neighbours, 8, "may have been written"),
        (again, 8, "may have been written"),
    ],
)
def test_a_planted_fault_is_found(
    program: Callable[..., Any], length: int, fault: str | None
) -> None:
    x, out = torch.randn(length), torch.zeros(8)
    if fault is None:
        launch(program, x, out)
        assert torch.equal(x, out)
    else:
        with pytest.raises(Exception, match=fault):
            launch(program, x, out)


def test_what_nobody_wrote_is_found() -> None:
    from support.memory_watch import watch_interpreter

    triton_kernels()
    with watch_interpreter().blank_tensors():
        blank = torch.zeros(0).new_empty(8)
        with pytest.raises(Exception, match="nobody has written"):
            launch(beyond, blank, torch.zeros(8))
        launch(beyond, torch.zeros(8), blank)
        launch(beyond, blank, torch.zeros(8))

"""What adapters add to products: the C++ against plain torch, and the bits of each row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.kernels.adapters import AdaptedRows, Site, Update, Updates
from quire.kernels.cpu import CPUKernels
from quire.kernels.reference import ReferenceKernels
from support.instruction_sets import TESTED

INPUTS, OUTPUTS, ROWS = 70, 90, 23
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def updates(seed: int, *parts: tuple[int, int, int], dora: bool = False) -> Updates:
    """parts: first output, outputs, rank."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) / shape[1] ** 0.5

    return {
        (1, Site.up): [
            Update(
                *(first, matrix(rank, INPUTS), matrix(outputs, rank), 0.7 + first),
                matrix(2, outputs) + 1 if dora else None,
            )
            for first, outputs, rank in parts
        ]
    }


ADAPTERS = (
    updates(1, (0, 33, 5), (33, 20, 16), (53, 37, 1)),
    updates(2, (33, 20, 19)),
    updates(3, (0, 33, 64), (53, 37, 2), dora=True),
)
RANGES = (((0, 1), (7, 12)), ((1, 6),), ((12, 20), (22, 23)))  # rows 6, 20 and 21 have none


def adapted(kernels: CPUKernels | ReferenceKernels, dtype: torch.dtype) -> list[AdaptedRows]:
    kept = [kernels.keep_adapter(one, 2, dtype) for one in ADAPTERS]
    return [AdaptedRows(ranges, one) for ranges, one in zip(RANGES, kept, strict=True)]


def rows(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((ROWS, INPUTS + 9), generator=generator).to(dtype)[:, :INPUTS]
    return x, torch.randn((ROWS, OUTPUTS), generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("build", TESTED)
def test_each_row_gets_what_its_adapter_adds_and_no_other_row_changes(
    build: str, dtype: torch.dtype
) -> None:
    kernels, reference = CPUKernels(build), ReferenceKernels()
    x, out = rows(dtype)
    expected, before = out.clone(), out.clone()
    reference.adapt(adapted(reference, dtype), 1, Site.up, x, expected)
    kernels.adapt(adapted(kernels, dtype), 1, Site.up, x, out)
    bound = TOLERANCES[dtype] * (1 + expected.float().abs().max())
    assert (out.float() - expected.float()).abs().max() < bound
    assert not torch.equal(out[:6], before[:6])
    for row in (6, 20, 21):
        assert torch.equal(out[row], before[row])
    kernels.adapt(adapted(kernels, dtype), 0, Site.up, x, before)  # of another layer
    assert torch.equal(before, rows(dtype)[1])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("build", TESTED)
def test_a_row_has_the_bits_that_it_has_alone(build: str, dtype: torch.dtype) -> None:
    kernels = CPUKernels(build)
    x, out = rows(dtype)
    torch.set_num_threads(2)
    kernels.adapt(adapted(kernels, dtype), 1, Site.up, x, out)
    torch.set_num_threads(1)
    for ranges, kept, _ in adapted(kernels, dtype):
        for row in (row for first, last in ranges for row in range(first, last)):
            alone = rows(dtype)[1][row : row + 1].clone()
            kernels.adapt([AdaptedRows(((0, 1),), kept)], 1, Site.up, x[row : row + 1], alone)
            assert torch.equal(alone[0], out[row])

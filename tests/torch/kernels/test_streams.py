"""What is predicted of streams, and how they are corrected, equals the definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.kernels.cpu import DTYPES
from quire.kernels.mlps import Activation
from quire.kernels.ops import Kernels
from quire.kernels.streams import StreamCorrection, StreamPrediction, StreamRouter
from support.every_kernel import KERNELS, make_kernels
from support.gpu_kernels import TRITON

pytestmark = pytest.mark.usefixtures("poisoned_memory")

with_kernels = pytest.mark.parametrize("name", [name for name in KERNELS if name not in TRITON])
with_types = pytest.mark.parametrize("dtype", DTYPES, ids=str)
_EPS = 1e-5


def _modes(x: Tensor, router: StreamRouter) -> Tensor:
    return (x @ router.weight.double().T / (x.square().mean(1, keepdim=True) + _EPS).sqrt()).tanh()


def _close(found: Tensor, expected: Tensor) -> bool:
    error = max(torch.finfo(found.dtype).eps, 1e-5)
    return torch.allclose(found.double(), expected, rtol=error, atol=error)


@with_kernels
@with_types
@pytest.mark.parametrize(("rows", "width", "count", "active"), [(1, 7, 2, 0), (300, 40, 8, 5)])
def test_streams(
    name: str, dtype: torch.dtype, rows: int, width: int, count: int, active: int
) -> None:
    kernels = make_kernels(name)
    torch.manual_seed(0)
    streams, x = torch.randn(rows, count, width).to(dtype), torch.randn(rows, width).to(dtype)
    router = StreamRouter(torch.randn(count, width) / width, _EPS, active)
    prediction = StreamPrediction(router, torch.randn(count * count, count) / 4)
    wide = streams.double()
    factors = _modes(wide[:, active], router) @ prediction.coefficients.double().T
    expected = wide + factors.view(rows, count, count) @ wide
    found = kernels.predict(streams, prediction)
    assert _close(streams, expected) and torch.equal(found, streams[:, active])
    for scale in (None, torch.randn(width)):
        correction = StreamCorrection(router, torch.randn(count, count) / 4, scale)
        wide, before = streams.double(), x.clone()
        factors = 1 + _modes(x.double(), router) @ correction.coefficients.double().T
        expected = wide + factors[..., None] * (x - wide[:, active])[:, None]
        found = kernels.correct(streams, x, correction)
        one = streams[:, active].double() * (1 if scale is None else scale.double())
        assert _close(streams, expected) and _close(found, one) and torch.equal(x, before)


@with_kernels
@with_types
@pytest.mark.parametrize("gated", [False, True])
def test_what_is_cut_from_gates(name: str, dtype: torch.dtype, gated: bool) -> None:
    """Rows have means and deviations of their own; what multiplies gates is as it was."""
    kernels: Kernels = make_kernels(name)
    torch.manual_seed(0)
    rows = (4 * torch.rand(5, 1) * torch.randn(5, 600) + torch.arange(5)[:, None]).to(dtype)
    for width in (14, 64, 600):
        x = rows[:, :width].double()
        first, second = x.chunk(2, 1) if gated else (x, torch.ones(()))
        mean, deviation = first.mean(1, keepdim=True), first.std(1, keepdim=True, correction=0)
        expected = (first - mean - 1.1 * deviation).relu() * second
        found = kernels.activate(rows[:, :width], Activation("relu", gated, cut=1.1))
        error = 4 * max(torch.finfo(dtype).eps, 1e-6)
        assert torch.allclose(found.double(), expected, rtol=error, atol=4 * error)

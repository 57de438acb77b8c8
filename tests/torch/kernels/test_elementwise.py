"""Norms, activations, argmax, masks and copies of all kernels equal their definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.kernels.cpu import DTYPES
from quire.kernels.layer_memory import LayerKV
from quire.kernels.mlps import ACTIVATIONS, CLAMPED_SWIGLU, XIELU, Activation, Alphas
from quire.kernels.ops import Kernels, Norm
from support.every_kernel import KERNELS, make_kernels, with_types
from support.gpu_kernels import TRITON

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Equal but for one rounding to ``dtype``, and for float32 within."""
    assert found.dtype == dtype
    error = max(torch.finfo(dtype).eps, 1e-12 if dtype == torch.float64 else 1e-5)
    return torch.allclose(found.double(), expected, rtol=error, atol=error)


@with_types
@pytest.mark.parametrize("width", [7, 24, 64, 576])
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_norms(kernels: Kernels, dtype: torch.dtype, width: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, delta = (torch.randn(2, rows, 2 * width, generator=generator) + 3).to(dtype)[..., :width]
    weight, bias = torch.randn(2, width, generator=generator).to(dtype)
    total = (x + delta).double()
    centred = total - total.mean(dim=1, keepdim=True)
    scale = (centred.square().mean(dim=1, keepdim=True) + 1e-3).rsqrt()
    for w, b in product((None, weight), (None, bias)):
        expected = centred * scale * (1 if w is None else w.double())
        expected += 0 if b is None else b.double()
        norm = Norm(width, w, 1e-3, b, centred=True)
        assert close(kernels.norm(total.to(dtype), norm), expected, dtype)
    scale = (total.square().mean(dim=1, keepdim=True) + 1e-3).rsqrt()
    expected = total * scale * weight.double()
    assert close(kernels.add_norm(x, delta, Norm(width, weight, 1e-3)), expected, dtype)
    assert torch.equal(x, total.to(dtype))


EXACT_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x * (1 + (x / 2**0.5).erf()) / 2,
    "gelu_new": lambda x: x * (1 + (0.7978845608028654 * (x + 0.044715 * x**3)).tanh()) / 2,
    "gelu_pytorch_tanh": lambda x: EXACT_ACTIVATIONS["gelu_new"](x),
    "relu": lambda x: x.clamp(min=0),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "silu": lambda x: x / (1 + (-x).exp()),
}


@with_types
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(kernels: Kernels, dtype: torch.dtype, name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (4 * torch.randn(3, 600, generator=generator)).to(dtype)
    x[0, :4] = torch.tensor([0.0, -50.0, 50.0, -1e-3])
    for width in (2, 14, 64, 600):
        part = x[:, :width]
        gate, up = (half.double() for half in part.chunk(2, dim=1))
        exact = EXACT_ACTIVATIONS[name]
        plain_found = kernels.activate(part.clone(), Activation(name))
        assert close(plain_found, exact(part.double()), dtype)
        found = kernels.activate(part.clone(), Activation(name, gated=True))
        # The reference rounds the activation before it multiplies.
        assert torch.allclose(
            found.double(), exact(gate) * up, rtol=2 * torch.finfo(dtype).eps, atol=1e-5
        )


@pytest.mark.parametrize("name", [name for name in KERNELS if name not in TRITON])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gates(name: str, dtype: torch.dtype) -> None:
    """Of attention, which become sigmoids; and of MLPs, where they are multiplied before."""
    kernels = make_kernels(name)
    x, gates = torch.randn(2, 5, 90, generator=torch.Generator().manual_seed(0)).to(dtype)
    for width in (3, 64, 90):
        found = x[:, :width].clone()
        kernels.gate(found, gates[:, :width])
        assert close(found, x[:, :width].double() * gates[:, :width].double().sigmoid(), dtype)
    for each in (2, 18, 45):
        found, few = x.clone(), gates[:, : 90 // each]
        kernels.gate(found, few)
        repeated = few.double().sigmoid().repeat_interleave(each, 1)
        assert close(found, x.double() * repeated, dtype)
    found = kernels.activate(x.clone(), Activation("silu", gated=True, factor=0.3))
    gate, up = (half.double() for half in x.chunk(2, dim=1))
    expected = EXACT_ACTIVATIONS["silu"](0.3 * gate) * up
    assert torch.allclose(
        found.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps
    )


@with_types
def test_the_clamped_swiglu(kernels: Kernels, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (8 * torch.randn(3, 600, generator=generator)).to(dtype)
    x[0, :4] = torch.tensor([0.0, -50.0, 50.0, -1e-3])
    for width in (2, 14, 64, 600):
        gate, up = (half.double() for half in x[:, :width].chunk(2, dim=1))
        gate, up = gate.clamp(max=7), up.clamp(-7, 7)
        found = kernels.activate(x[:, :width].clone(), Activation(CLAMPED_SWIGLU, gated=True))
        exact = gate / (1 + (-1.702 * gate).exp()) * (up + 1)
        assert torch.allclose(found.double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=2e-5)


@with_types
def test_xielu(kernels: Kernels, dtype: torch.dtype) -> None:
    x = (4 * torch.randn(3, 600, generator=torch.Generator().manual_seed(0))).to(dtype)
    x[0, :4] = torch.tensor([0.0, -50.0, 50.0, -1e-3])
    wide, alphas = x.double(), Alphas(0.9, 1.3)
    below = (wide.clamp(max=-1e-6).expm1() - wide) * alphas.below
    exact = torch.where(wide > 0, alphas.above * wide**2, below) + wide / 2
    for width in (1, 7, 600):
        part = x[:, :width].clone()
        found = kernels.activate(part, Activation(XIELU, alphas=alphas))
        assert close(found, exact[:, :width], dtype)


@with_types
def test_argmax_takes_the_first_of_the_largest(kernels: Kernels, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for width in (1, 7, 64, 3000):
        x = torch.randint(-9, 9, (40, 2 * width), generator=generator).to(dtype)[:, :width]
        x[0] = -torch.inf
        x[1, width // 2 :] = torch.inf
        x[2, width // 2] = torch.nan
        rows = [[float(v) if v == v else float("inf") for v in row] for row in x.tolist()]
        rows[2] = [float(place == width // 2) for place in range(width)]  # NaN is the largest
        assert kernels.argmax(x).tolist() == [row.index(max(row)) for row in rows]


def test_what_a_mask_does_not_allow_is_forbidden(kernels: Kernels) -> None:
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    for width in (1, 31, 32, 70, 4_099):
        x = torch.randn(40, 2 * width, generator=generator)[:, :width]
        x[3, width // 2] = torch.inf
        words = -(-width // 32)
        masks = rng.integers(0, 2**32, (17, words), dtype=np.uint32)
        masks[1], masks[2] = 0, 0xFFFFFFFF
        masks[5:, :: words // 2 + 1] &= 1
        for rows in (sorted(rng.choice(40, 17, replace=False).tolist()), range(17)):
            given = x[:17] if rows == range(17) else x  # all of them have one, or some
            expected = given.tolist()
            for row, mask in zip(rows, masks.tolist(), strict=True):
                for i in range(width):
                    if not mask[i // 32] >> i % 32 & 1:
                        expected[row][i] = -float("inf")
            before = given.clone()
            assert (
                kernels.allow(
                    given,
                    torch.from_numpy(masks.view(np.int32)),
                    torch.tensor(rows, dtype=torch.int64),
                ).tolist()
                == expected
            )
            assert torch.equal(given, before)
        short = masks[:, : max(1, words - 1)]  # of another vocabulary, which ends before
        found = kernels.allow(x[:17], torch.from_numpy(short.view(np.int32)), torch.arange(17))
        assert (found[:, 32 * short.shape[1] :] == -torch.inf).all()


def test_copies_follow_their_order(kernels: Kernels) -> None:
    pool = LayerKV(torch.arange(4.0).view(4, 1, 1, 1), torch.arange(4.0).view(4, 1, 1, 1) + 10)
    kernels.copy_blocks([pool], [pool], [(0, 1), (1, 2), (3, 0)])
    assert pool.keys.flatten().tolist() == [3, 0, 0, 3]
    assert pool.values.flatten().tolist() == [13, 10, 10, 13]


def test_copies_between_pools(kernels: Kernels) -> None:
    source = LayerKV(torch.ones(2, 1, 1, 1), torch.full((2, 1, 1, 1), 2.0))
    target = LayerKV(torch.zeros(3, 1, 1, 1), torch.zeros(3, 1, 1, 1))
    kernels.copy_blocks([source], [target], [(1, 2)])
    assert target.keys.flatten().tolist() == [0, 0, 1]
    assert target.values.flatten().tolist() == [0, 0, 2]


@pytest.mark.parametrize(("width", "threads"), [(3, 1), (20_011, 1), (20_011, 3)])
def test_copies_in_all_layers_at_once(kernels: Kernels, width: int, threads: int) -> None:
    pairs = [(0, 1), (1, 2), (4, 0), (3, 3), (2, 4)]
    widths = (width, 1), (5, width), (2, 2)
    layers = [LayerKV(*(torch.rand(5, 1, 1, w) for w in both)) for both in widths]
    expected = [[part.clone() for part in layer.parts] for layer in layers]
    for origin, destination in pairs:
        for parts in expected:
            for part in parts:
                part[destination] = part[origin]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)  # among which many bytes are divided
    try:
        kernels.copy_blocks(layers, layers, pairs)
    finally:
        torch.set_num_threads(before)
    for layer, parts in zip(layers, expected, strict=True):
        assert all(map(torch.equal, layer.parts, parts))

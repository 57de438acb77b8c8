"""Mixtures of experts by the GPU kernels equal the same in float64; no row sees another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.kernels.gpu.support import DTYPES
from quire.kernels.gpu.tiles import ProductTile, choose_product_tile
from quire.kernels.mlps import (
    ACTIVATIONS,
    CLAMPED_SWIGLU,
    XIELU,
    Activation,
    Alphas,
    DenseMLP,
    Experts,
    Routing,
)
from quire.kernels.ops import Kernels
from quire.kernels.plain import route
from quire.kernels.reference import ReferenceKernels
from quire.models.linear import PlainLinear
from support.capture_rules import capture_rules
from support.gpu_kernels import INTERPRETED, TRITON, triton_kernels
from support.steered import Steered

pytestmark = [pytest.mark.skipif(not TRITON, reason="Triton is not installed")]
if INTERPRETED:  # products by a GPU's library refuse it
    pytestmark.append(pytest.mark.usefixtures("poisoned_memory"))
needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter")

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
HIDDEN, INNER, MANY = 72, 40, 9  # no multiples of any tile's sizes
SWIGLU = Activation("silu", gated=True)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def stack(many: int, outputs: int, inputs: int, dtype: torch.dtype) -> tuple[PlainLinear, ...]:
    """Weights that lie one after another, with biases."""
    weights = (torch.randn(many, outputs, inputs) / inputs**0.5).to(DEVICE, dtype)
    return tuple(map(PlainLinear, weights, torch.randn(many, outputs).to(DEVICE, dtype)))


def make_experts(
    routing: Routing,
    dtype: torch.dtype = torch.float32,
    activation: Activation = SWIGLU,
    *,
    shared: bool = False,
    many: int = MANY,
) -> Experts:
    width = 2 * INNER if activation.gated else INNER
    up, down = stack(many, width, HIDDEN, dtype), stack(many, HIDDEN, INNER, dtype)
    (first,), (second,) = stack(1, width, HIDDEN, dtype), stack(1, HIDDEN, INNER, dtype)
    return Experts(
        router=Steered(many + shared),
        up=up,
        down=down,
        activation=activation,
        routing=routing,
        shared=DenseMLP(first, second, activation) if shared else None,
        shared_gate=shared,
    )


def widened(experts: Experts) -> Experts:
    """The same in float64, in main memory."""

    def wide(linear: object) -> PlainLinear:
        assert isinstance(linear, PlainLinear) and linear.bias is not None
        return PlainLinear(linear.weight.double().cpu(), linear.bias.double().cpu())

    def number(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.cpu()

    mlp, routing = experts.shared, experts.routing
    return replace(
        experts,
        up=tuple(map(wide, experts.up)),
        down=tuple(map(wide, experts.down)),
        shared=None if mlp is None else replace(mlp, up=wide(mlp.up), down=wide(mlp.down)),
        routing=routing._replace(bias=number(routing.bias), factors=number(routing.factors)),
    )


def on_device(routing: Routing) -> Routing:
    held = {name: one for name, one in routing._asdict().items() if isinstance(one, Tensor)}
    return routing._replace(**{name: one.to(DEVICE) for name, one in held.items()})


def plain_kernels() -> Kernels:
    """The GPU kernels over tensors that are where they compute."""
    from quire.kernels.gpu.kernels import GPUKernels

    if INTERPRETED:
        return triton_kernels()
    return GPUKernels.on(DEVICE)


def check(x: Tensor, experts: Experts) -> Tensor:
    """What the kernels give, which has to be what float64 gives."""
    found = plain_kernels().mix(x.to(DEVICE), experts).cpu()
    expected = ReferenceKernels().mix(x.double(), widened(experts))
    assert found.dtype == x.dtype
    assert (found.double() - expected).abs().max() < TOLERANCE[x.dtype] * expected.abs().max()
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chosen", [1, 3, 8])
@pytest.mark.parametrize("rows", [1, 5, 20])
def test_a_mixture(rows: int, chosen: int, dtype: torch.dtype) -> None:
    check(torch.randn(rows, HIDDEN).to(dtype), make_experts(Routing(chosen, True), dtype))


BIAS = torch.tensor([0.3, -0.4, 0.1, -0.2, 0.5, 0.0, -0.6, 0.2, 0.1])
ROUTINGS = {
    "softmax of all": Routing(3, False, scale=2.5),
    "sigmoids": Routing(3, True, sigmoid=True, bias=BIAS, scale=1.5),
    "groups": Routing(3, True, sigmoid=True, bias=BIAS, groups=3, groups_chosen=2),
    "before the experts": Routing(2, False, sigmoid=True, before=True),
    "shares of near ones": Routing(2, False, nearness=0.2),
    "factors": Routing(3, True, factors=BIAS.exp()),
}


@pytest.mark.parametrize("kind", ROUTINGS)
def test_choices(kind: str) -> None:
    routing = on_device(ROUTINGS[kind])
    check(torch.randn(7, HIDDEN), make_experts(routing, shared=kind == "factors"))


PLAIN = [*map(Activation, ACTIVATIONS), Activation(XIELU, alphas=Alphas(0.9, 1.3))]
GATED = [Activation(name, gated=True) for name in (*ACTIVATIONS, CLAMPED_SWIGLU)]


@pytest.mark.parametrize("activation", [*PLAIN, *GATED], ids=lambda one: f"{one.name}-{one.gated}")
def test_activations_of_experts(activation: Activation) -> None:
    """Sums are activated in float32, before they are rounded."""
    check(3 * torch.randn(4, HIDDEN), make_experts(Routing(2, True), activation=activation))


def test_others_are_asked_for_the_choice() -> None:
    x, routed = torch.randn(2, 6, HIDDEN)
    experts = make_experts(Routing(2, True))
    found = plain_kernels().mix(x.to(DEVICE), experts, routed.to(DEVICE)).cpu()
    expected = ReferenceKernels().mix(x.double(), widened(experts), routed.double())
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("kind", ROUTINGS)
def test_the_choice_is_that_of_the_plain_way(kind: str) -> None:
    """Among equals, beside infinite numbers and those that are none."""
    from quire.kernels.gpu.experts import choose

    plain_kernels()
    numbers = torch.randint(-3, 4, (12, MANY + 1)).float()[:, :MANY]
    numbers[0], numbers[1, 2:] = 1.0, -torch.inf
    numbers[2, 5] = torch.nan
    expected, weights = route(numbers, ROUTINGS[kind])
    found, shares = choose(numbers.to(DEVICE), on_device(ROUTINGS[kind]))
    rest = [0, *range(3, 12)]
    assert found[rest].tolist() == expected[rest].tolist()
    assert torch.allclose(shares[rest].cpu(), weights[rest], rtol=1e-5)
    assert ((found >= 0) & (found < MANY)).all()
    assert all(len(set(row)) == len(row) for row in found.tolist())


# -- who is chosen by whom ---------------------------------------------------------------------

choices = st.integers(1, 8).flatmap(
    lambda chosen: st.lists(
        st.permutations(range(MANY)).map(lambda order: order[:chosen]), min_size=1, max_size=50
    )
)


@needs_interpreter
@settings(deadline=None, max_examples=25)
@given(choices, st.sampled_from([16, 32, 64]))
def test_every_pair_is_in_one_tile_of_its_expert(choices: list[list[int]], rows: int) -> None:
    from quire.kernels.gpu.experts import Pairs

    triton_kernels()
    chosen = torch.tensor(choices, dtype=torch.int16)
    pairs = Pairs.of(chosen, MANY, ProductTile(rows, 64, 32, 4, 3))
    found: list[int] = []
    for expert, first, end in pairs.tiles.tolist():
        if expert >= 0:
            assert 0 < end - first <= rows
            own = pairs.order[first:end].tolist()
            assert all(chosen.flatten()[pair] == expert for pair in own)
            found += own
    assert sorted(found) == list(range(chosen.numel()))


def test_one_expert_takes_everything() -> None:
    """Or none does: the others have no tile, though there is room for them."""
    x = torch.randn(50, HIDDEN)
    x[:, :MANY] = -10 + x[:, :MANY] / 10
    x[:, 4] += 10
    check(x, make_experts(Routing(1, False)))
    x[:, MANY - 1] += 10
    check(x, make_experts(Routing(2, False)))


@needs_interpreter
@pytest.mark.parametrize("capability", [(9, 0), (8, 0), (8, 9)])
@pytest.mark.parametrize("rows_each", [1, 5, 20, 260])
def test_the_sizes_of_each_device_give_the_same(
    capability: tuple[int, int], rows_each: int
) -> None:
    from quire.kernels.gpu.experts import GPUExperts

    triton_kernels()
    activation = SWIGLU if rows_each > 1 else Activation("relu2")
    experts = make_experts(Routing(2, True), torch.bfloat16, activation, many=3)
    x = torch.randn(rows_each, HIDDEN).bfloat16()
    chosen = torch.rand(rows_each, 3).argsort(1)[:, :2].to(torch.int16)
    shares = torch.rand(rows_each, 2)
    tile = choose_product_tile(capability, torch.bfloat16, rows_each)
    products = GPUExperts(experts, activation.name)
    found = products.add_up(products.parts(x, chosen, shares, tile), shares, None, None)
    wide, judge, given = widened(experts), ReferenceKernels(), x.double()
    each = [
        down(judge.activate(up(given), activation))
        for up, down in zip(wide.up, wide.down, strict=True)
    ]
    met = torch.stack(each)[chosen.T.long(), torch.arange(rows_each)]
    expected = (met * shares.T[..., None]).sum(0)
    assert (found - expected).abs().max() < 2e-2 * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_does_not_depend_on_others(dtype: torch.dtype) -> None:
    """One of NaN, and those that pad a batch, leave others' bits as they are."""
    experts, kernels = make_experts(Routing(3, True), dtype, many=MANY), plain_kernels()
    x = torch.randn(12, HIDDEN, device=DEVICE).to(dtype)
    before = kernels.mix(x, experts)
    x[3], x[8:] = float("nan"), 0.5
    found = kernels.mix(x, experts)
    assert found[3].isnan().all() and found[8:].isfinite().all()
    rest = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(found[rest], before[rest])


@needs_interpreter
def test_memory_is_touched_where_it_should_be() -> None:
    """And the device is asked for nothing."""
    from support.memory_watch import watch_interpreter

    experts, kernels = make_experts(Routing(3, True), shared=True), triton_kernels()
    for rows in (1, 40):
        with watch_interpreter().blank_tensors(), capture_rules():
            found = kernels.mix(torch.randn(rows, 2 * HIDDEN)[:, :HIDDEN], experts)
        assert found.isfinite().all()


def test_weights_that_do_not_lie_in_one_tensor_are_not_multiplied() -> None:
    experts = make_experts(Routing(3, True))
    moved = replace(experts, up=(experts.up[1], experts.up[0], *experts.up[2:]))
    with pytest.raises(AssertionError):
        plain_kernels().mix(torch.randn(2, HIDDEN, device=DEVICE), moved)

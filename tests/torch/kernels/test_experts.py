"""A mixture of experts in one operation equals the same in float64, and no row sees another.

Once for each instruction set that this machine has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.kernels.cpu import CPUKernels
from quire.kernels.mlps import Activation, DenseMLP, Experts, Routing
from quire.kernels.packing import Format
from quire.kernels.plain import route
from quire.kernels.products import PackedWeight, Products
from quire.kernels.reference import ReferenceKernels
from quire.models.linear import PlainLinear
from support.instruction_sets import TESTED
from support.packed_weights import FORMS, fits, grouped
from support.steered import Steered

HIDDEN, INNER, MANY, CHOSEN = 160, 96, 7, 3
SWIGLU = Activation("silu", gated=True)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
ROWS = (1, 2, 5, 40)

pytestmark = pytest.mark.usefixtures("poisoned_memory")
fitting = pytest.mark.parametrize(
    "form", [form for form in FORMS if fits(form, HIDDEN) and fits(form, INNER)]
)


def steering(products: Products, many: int = MANY) -> PackedWeight:
    return PackedWeight.from_floats(products, torch.eye(many, HIDDEN), None)


def packed(products: Products, form: str, shared: bool = False) -> Experts:
    """Of weights of that form, with a router that takes the first inputs for its own numbers."""

    def weight(outputs: int, inputs: int) -> PackedWeight:
        return FORMS[form](products, (outputs, inputs))

    return Experts(
        router=steering(products, MANY + shared),
        up=tuple(weight(2 * INNER, HIDDEN) for _ in range(MANY)),
        down=tuple(weight(HIDDEN, INNER) for _ in range(MANY)),
        activation=SWIGLU,
        routing=Routing(CHOSEN, renormalise=not shared),
        shared=DenseMLP(weight(64, HIDDEN), weight(HIDDEN, 32), SWIGLU) if shared else None,
        shared_gate=shared,
    )


def widened(experts: Experts) -> Experts:
    """The same in float64, with the weights that the packed ones multiply by."""

    def plain(weight: PackedWeight) -> PlainLinear:
        rows = weight.floats(torch.zeros(1, weight.inputs))
        columns = weight.floats(torch.eye(weight.inputs)) - rows
        return PlainLinear(columns.T.double(), rows[0].double())

    def mlp(dense: DenseMLP) -> DenseMLP:
        return replace(dense, up=plain(dense.up), down=plain(dense.down))

    return replace(
        experts,
        router=Steered(MANY + experts.shared_gate),
        up=tuple(map(plain, experts.up)),
        down=tuple(map(plain, experts.down)),
        shared=None if experts.shared is None else mlp(experts.shared),
    )


@pytest.mark.parametrize("instructions", TESTED)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_a_mixture(instructions: str, dtype: torch.dtype, shared: bool) -> None:
    torch.manual_seed(0)
    experts = packed(Products(instructions), "float32", shared)
    kernels = CPUKernels(instructions)
    for rows in ROWS:
        x = torch.randn(rows, HIDDEN).to(dtype)
        expected = ReferenceKernels().mix(x.double(), widened(experts))
        error = (kernels.mix(x, experts).double() - expected).abs().max()
        assert error < TOLERANCE[dtype] * expected.abs().max()


BIAS = torch.tensor([0.3, -0.4, 0.1, -0.2, 0.5, 0.0, -0.6])
ROUTINGS = {
    "sigmoids": Routing(CHOSEN, True, sigmoid=True),
    "sigmoids as they are, scaled": Routing(CHOSEN, False, sigmoid=True, scale=2.5),
    "softmax with biases of the choice": Routing(CHOSEN, True, bias=BIAS),
    "groups": Routing(CHOSEN, True, sigmoid=True, bias=BIAS, groups=7, groups_chosen=4),
    "groups of softmax": Routing(CHOSEN, False, groups=7, groups_chosen=3),
    "before the experts": Routing(CHOSEN, False, sigmoid=True, before=True),
    "shares of near ones": Routing(CHOSEN, False, nearness=0.2),
    "groups by their best": Routing(CHOSEN, False, groups=7, groups_chosen=3, best=1),
}


@pytest.mark.parametrize("instructions", TESTED)
@pytest.mark.parametrize("kind", ROUTINGS)
def test_choices_by_scores(instructions: str, kind: str) -> None:
    torch.manual_seed(0)
    experts = replace(packed(Products(instructions), "float32"), routing=ROUTINGS[kind])
    kernels, x = CPUKernels(instructions), torch.randn(40, HIDDEN)
    expected = ReferenceKernels().mix(x.double(), widened(experts))
    assert (kernels.mix(x, experts).double() - expected).abs().max() < 1e-5 * expected.abs().max()


def test_choices_by_hand() -> None:
    """Of four experts with scores of 0.5, 0.9, 0.7 and 0.6, in two groups."""
    x = torch.tensor([[0.5, 0.9, 0.7, 0.6]]).logit()
    bias = torch.tensor([0.6, 0.0, 0.0, 0.0])
    plain, biased = Routing(2, False, sigmoid=True), Routing(2, True, sigmoid=True, bias=bias)
    grouped = Routing(2, True, sigmoid=True, scale=2.0, groups=2, groups_chosen=1)
    for routing, experts, weights in (
        (plain, [1, 2], [0.9, 0.7]),
        (biased, [0, 1], [0.5 / 1.4, 0.9 / 1.4]),  # 1.1 and 0.9; weights have no biases
        (grouped, [1, 0], [1.8 / 1.4, 1.0 / 1.4]),  # 0.5 and 0.9 are more than 0.7 and 0.6
    ):
        chosen, found = route(x, routing)
        assert chosen.tolist() == [experts]
        assert torch.allclose(found, torch.tensor([weights]))


@pytest.mark.parametrize("instructions", TESTED)
@fitting
def test_every_form(instructions: str, form: str) -> None:
    torch.manual_seed(0)
    experts, kernels = packed(Products(instructions), form), CPUKernels(instructions)
    x = torch.randn(9, HIDDEN)
    expected = ReferenceKernels().mix(x.double(), widened(experts))
    error = (kernels.mix(x, experts).double() - expected).abs().max()
    rounding = form == "w8a8" or "rows rounded" in form
    assert error < (3e-2 if rounding else 1e-4) * expected.abs().max()


@pytest.mark.parametrize("instructions", TESTED)
def test_experts_of_which_some_have_zeros(instructions: str) -> None:
    """As rounded checkpoints have them: nothing is said of zeros that are all 8."""
    torch.manual_seed(0)
    products, kernels = Products(instructions), CPUKernels(instructions)
    plain = packed(products, "int4 by groups of 8")
    zeros = grouped(Format.int4, 8, "zeros")
    experts = replace(
        plain, up=(*plain.up[:-2], *(zeros(products, (2 * INNER, HIDDEN)) for _ in "ab"))
    )
    x = torch.randn(40, HIDDEN)
    expected = ReferenceKernels().mix(x.double(), widened(experts))
    error = (kernels.mix(x, experts).double() - expected).abs().max()
    assert error < 1e-4 * expected.abs().max()


def steered(choices: Sequence[Sequence[int]]) -> Tensor:
    """Rows that go to these experts."""
    x = torch.randn(len(choices), HIDDEN)
    for row, chosen in zip(x, choices, strict=True):
        row[:MANY] = -10 + row[:MANY] / 10
        row[list(chosen)] += 10
    return x


choices = st.lists(
    st.permutations(range(MANY)).map(lambda order: order[:CHOSEN]), min_size=2, max_size=40
)


@pytest.mark.parametrize("instructions", TESTED)
@fitting
@settings(max_examples=8, deadline=None)
@given(choices=choices, seed=st.integers(0, 99))
def test_a_row_does_not_depend_on_who_else_chose_its_experts(
    instructions: str, form: str, choices: list[list[int]], seed: int
) -> None:
    torch.manual_seed(seed)
    dtype = (torch.bfloat16, torch.float32)[seed % 2]
    experts, kernels = packed(Products(instructions), form), CPUKernels(instructions)
    x = steered(choices).to(dtype)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = torch.cat([kernels.mix(row[None], experts) for row in x])
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(kernels.mix(x, experts), alone)
            assert torch.equal(kernels.mix(x.flip(0), experts).flip(0), alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("instructions", TESTED)
@pytest.mark.parametrize("threads", [2, 24])
def test_threads_take_pieces_of_any_expert(instructions: str, threads: int) -> None:
    """More than there are cores: who is through with the last experts goes back to the first."""
    torch.manual_seed(0)
    experts, kernels = packed(Products(instructions), "bfloat16"), CPUKernels(instructions)
    x = torch.randn(70, HIDDEN).bfloat16()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = kernels.mix(x, experts)
        torch.set_num_threads(threads)
        for _ in range(10):
            assert torch.equal(kernels.mix(x, experts), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("instructions", TESTED)
def test_rows_beyond_those_that_are_taken_at_once(instructions: str) -> None:
    torch.manual_seed(0)
    experts, kernels = packed(Products(instructions), "bfloat16"), CPUKernels(instructions)
    x = torch.randn(1100, HIDDEN).bfloat16()
    found = kernels.mix(x, experts)
    assert torch.equal(found[505:520], kernels.mix(x[505:520], experts))
    assert torch.equal(found[-3:], kernels.mix(x[-3:], experts))


@pytest.mark.parametrize("instructions", TESTED)
def test_an_expert_that_nobody_chose_is_not_touched(instructions: str) -> None:
    """Its weights may be where nothing can be read."""
    products = Products(instructions)
    experts, kernels = packed(products, "float32"), CPUKernels(instructions)
    gone = packed(products, "float32")
    for weight in (*gone.up[:2], *gone.down[:2]):
        weight.native = products.describe(0, False, weight.inputs, weight.outputs, 64, 0, 0)
    left = replace(
        experts, up=(*gone.up[:2], *experts.up[2:]), down=(*gone.down[:2], *experts.down[2:])
    )
    x = steered([[2, 3, 4], [4, 5, 6], [6, 2, 3]])
    assert torch.equal(kernels.mix(x, left), kernels.mix(x, experts))


@pytest.mark.parametrize("instructions", TESTED)
def test_of_equals_the_first_is_chosen(instructions: str) -> None:
    experts, kernels = packed(Products(instructions), "float32"), CPUKernels(instructions)
    x = torch.randn(3, HIDDEN)
    x[:, :MANY] = torch.tensor([[1.0] * 7, [0, 2, 1, 2, 1, 1, 0], [-1, -1, 5, 0, 0, 0, 0]])
    chosen, weights = route(x[:, :MANY], Routing(CHOSEN, True))
    assert chosen.tolist() == [[0, 1, 2], [1, 3, 2], [2, 3, 4]]
    expected = ReferenceKernels().mix(x, replace(experts, router=Steered(MANY)))
    assert torch.allclose(kernels.mix(x, experts), expected, rtol=1e-4, atol=1e-4)
    assert torch.allclose(weights.sum(dim=1), torch.ones(3))


@pytest.mark.parametrize("instructions", TESTED)
def test_a_row_of_nan_stays_alone(instructions: str) -> None:
    experts, kernels = packed(Products(instructions), "bfloat16"), CPUKernels(instructions)
    x = torch.randn(6, HIDDEN).bfloat16()
    others = kernels.mix(x, experts)
    x[2] = float("nan")
    found = kernels.mix(x, experts)
    assert found[2].isnan().all()
    rest = [0, 1, 3, 4, 5]
    assert torch.equal(found[rest], others[rest])

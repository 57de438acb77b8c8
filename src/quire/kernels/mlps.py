"""MLPs, and mixtures of them, as types: what kernels that run them whole are given.

Shapes use T, the tokens of a step, d, the width of a decoder, F, that of its MLPs inside, and E,
the experts of a mixture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "silu")
"""Activations that every ``Kernels`` has, by the names that configs use."""

CLAMPED_SWIGLU = "clamped_swiglu"
"""Gated, as gpt-oss has it: min(gate, 7) * sigmoid(1.702 * min(gate, 7)) * (up + 1), with up
between -7 and 7."""

XIELU = "xielu"
"""Apertus' own, which takes ``Alphas``."""


class Alphas(NamedTuple):
    """What xIELU is learnt to be (Huang and Schlag, 2024).

    x becomes ``above`` x² + x / 2 if it is above 0, else ``below`` (exp(x) - 1 - x) + x / 2.
    """

    above: float
    below: float


class Activation(NamedTuple):
    """What is done to what comes out of an MLP's first product: activation(factor x).

    gated: it has two halves, and it is activation(factor first) * second (Shazeer, "GLU variants
        improve Transformer", 2020).
    alphas: with ``XIELU``.
    cut: before that x, or the first half, becomes what of it is above its mean and so many of its
        standard deviations, and 0 elsewhere. None: it stays as it is.
    """

    name: str
    gated: bool = False
    factor: float = 1.0
    alphas: Alphas | None = None
    cut: float | None = None


class Projection(Protocol):
    """x [rows, in] -> [rows, out]: a product with a weight, and perhaps a bias added."""

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class DenseMLP:
    """down(activation(up(x)))."""

    up: Projection  # [T, d] -> [T, F]; gated: [T, 2 F]
    down: Projection  # [T, F] -> [T, d]
    activation: Activation


@dataclass(frozen=True)
class GivenMLP:
    """down(activation(up(x)) * given): ``given`` is what the layer is given of each token.

    It has the columns from ``first`` on of what all layers are given.
    """

    up: Projection  # [T, d] -> [T, F]
    down: Projection  # [T, F] -> [T, d]
    activation: str  # without a gate
    first: int


class FloatProjection(Projection, Protocol):
    """A projection that gives its sums in float32 as well."""

    def floats(self, x: Tensor) -> Tensor: ...


class Routing(NamedTuple):
    """How a mixture's experts are chosen: those of the highest scores, the first of equals.

    Scores are softmax(router(x)), and so are the weights of what the chosen give.
    """

    chosen: int  # experts that a row goes through
    renormalise: bool  # weights are divided by their sum
    sigmoid: bool = False  # scores are sigmoid(router(x))
    bias: Tensor | None = None  # [E] float32, added to scores for the choice alone
    scale: float = 1.0  # times all weights
    groups: int = 1  # of neighbouring experts, at most 64
    groups_chosen: int = 1  # those whose best scores are the highest; others do not count
    best: int = 2  # so many of a group's scores are added up to be its own
    before: bool = False  # weights are times what experts are given, not what they give
    # A weight is an expert's share among those whose numbers are no further below its own than
    # twice this, by the larger of both (SparseMixer; Liu et al., 2023); others chosen before it do
    # not count. 0: among all.
    nearness: float = 0.0
    factors: Tensor | None = None  # [E] float32, times the weights of each expert

    @property
    def by_softmax(self) -> bool:
        """Whether the router's largest numbers are the choice."""
        return not self.sigmoid and self.bias is None and self.groups_chosen >= self.groups


@dataclass(frozen=True, eq=False)
class Experts:
    """A mixture of MLPs, of which each row goes through those that its router chooses.

    What they give is added up by their weights, in the order of the choice, so that a row does not
    depend on any other's.
    """

    router: FloatProjection  # [T, d] -> [T, E]; [T, E + 1] with a ``shared_gate``
    up: tuple[Projection, ...]  # by expert; see ``DenseMLP``
    down: tuple[Projection, ...]
    activation: Activation
    routing: Routing
    shared: DenseMLP | None = None  # through which all rows go as well, added
    shared_gate: bool = False  # times the sigmoid of what the router gives last

"""What layers with a state do, as types: recurrences that rewrite a state of fixed size.

Shapes use: T new tokens, C channels, K inputs of a convolution, H heads of values [Dv], Hk heads of
queries and keys [Dk]; H is a multiple of Hk, and H / Hk neighbours share a query and a key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor


class Convolution(NamedTuple):
    """A short causal convolution, of each channel by itself: over the token and K - 1 before it."""

    weight: Tensor  # [K, C] float32, of the token itself last
    bias: Tensor | None = None  # [C] float32

    @property
    def kept(self) -> tuple[int, int]:
        """Channels, and how many inputs of each later tokens see."""
        inputs, channels = self.weight.shape
        return channels, inputs - 1


@dataclass(frozen=True, eq=False)
class GatedConvolution:
    """A layer that is a convolution between two gates, as LFM2's.

    Of a token x holds before, after and values, [C] each: after * convolution(before * values).
    """

    convolution: Convolution

    @property
    def columns(self) -> int:
        """Numbers that x holds of a token."""
        return 3 * self.outputs

    @property
    def outputs(self) -> int:
        """Numbers that come out for a token."""
        return self.convolution.kept[0]

    @property
    def state(self) -> tuple[int, ...]:
        """Shape of the state beside what the convolution sees: none."""
        return ()


class StepRange(NamedTuple):
    """What goes around softplus where the length of a step is made."""

    factor: float = 1.0  # of x
    least: float = 0.0
    most: float = float("inf")


@dataclass(frozen=True, eq=False)
class OutputGate:
    """How outputs are normalised and gated.

    ``first``: norm(out * silu(gate)), as Mamba-2; else norm(out) * silu(gate), as Qwen3-Next.
    """

    norm: Tensor | None  # [H Dv] float32, the weight of an RMS norm; None: only the gate
    width: int  # of what is normalised together
    eps: float
    first: bool
    factor: float = 1.0  # of the gate
    sigmoid: bool = False  # in place of silu


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A layer with a matrix [Dk, Dv] for each head that every token decays, adds to and reads.

    Of a token x holds queries [Hk Dk], keys [Hk Dk], values [H Dv], which go through a convolution
    and SiLU; gates [H Dv]; with ``delta`` strengths [H]; steps [H], or [H Dk] ``by_channel``.

        step = clamp(softplus(factor x + bias))        S = exp(decay step) S
        with delta: S += k (sigmoid(strength) (v - kᵀS)), and |k| = 1, |q| = Dk^-½
        else:       S += k (step v)                    out = qᵀS + skip v

    The first is the gated delta rule (Yang et al., 2025; by channel: Kimi Linear), the second the
    state space of Mamba-2 (Dao and Gu, 2024), which calls q, k and v C, B and x.
    """

    num_heads: int  # H
    num_key_heads: int  # Hk
    key_dim: int
    value_dim: int
    convolution: Convolution
    decay: Tensor  # [H] float32, at most 0
    bias: Tensor  # [H], or [H Dk] by channel; float32
    gate: OutputGate
    delta: bool
    by_channel: bool = False
    tiled: bool = False  # head h has key h % Hk, in place of h // (H / Hk)
    skip: Tensor | None = None  # [H] float32
    steps: StepRange = field(default_factory=StepRange)

    @property
    def columns(self) -> int:
        """Numbers that x holds of a token."""
        strengths = self.num_heads if self.delta else 0
        steps = self.num_heads * (self.key_dim if self.by_channel else 1)
        return self.convolution.kept[0] + self.outputs + strengths + steps

    @property
    def outputs(self) -> int:
        """Numbers that come out for a token."""
        return self.num_heads * self.value_dim

    @property
    def state(self) -> tuple[int, ...]:
        """Shape of the state of a sequence."""
        return (self.num_heads, self.key_dim, self.value_dim)


RecurrentSpec = GatedConvolution | Recurrence
"""Whatever a layer with a state does between its two projections."""

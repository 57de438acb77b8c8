"""Decoders whose layers see one of several streams (AltUp; Baykal et al., 2023).

Before a layer every stream is predicted from all of them; after it each is corrected by what the
layer made of the one that it saw. How much, hangs on what that one is.

Shapes use T, the tokens of a step, n, the streams, and d, their width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class StreamRouter:
    """Tells by what streams are mixed: tanh(weight x / sqrt(mean(x²) + eps)), x being the one."""

    weight: Tensor  # [n, d] float32
    eps: float
    active: int  # which stream layers see

    @property
    def count(self) -> int:
        """Number of streams."""
        return len(self.weight)

    def modes(self, x: Tensor) -> Tensor:
        """x [T, d] -> [T, n], in float32 at least."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        factor = torch.rsqrt(wide.square().mean(1, keepdim=True) + self.eps)
        return torch.tanh(wide @ self.weight.to(wide.dtype).T * factor)


@dataclass(frozen=True, eq=False)
class StreamPrediction:
    """Each stream plus all of them, by factors that are coefficients times the modes."""

    router: StreamRouter
    coefficients: Tensor  # [n x n, n] float32: of each stream, from each, by mode


@dataclass(frozen=True, eq=False)
class StreamCorrection:
    """Each stream plus what is new in the one, by a factor: 1 plus coefficients times the modes."""

    router: StreamRouter
    coefficients: Tensor  # [n, n] float32: of each stream, by mode
    scale: Tensor | None = None  # [d] float32, times the one for those who take it


def predict(streams: Tensor, prediction: StreamPrediction) -> Tensor:
    router, count = prediction.router, streams.shape[1]
    modes = router.modes(streams[:, router.active])
    factors = modes @ prediction.coefficients.to(modes.dtype).T
    wide = streams.to(modes.dtype)
    streams.copy_(wide + factors.view(-1, count, count) @ wide)
    return streams[:, router.active].clone()


def correct(streams: Tensor, x: Tensor, correction: StreamCorrection) -> Tensor:
    router = correction.router
    modes = router.modes(x)
    factors = 1 + modes @ correction.coefficients.to(modes.dtype).T
    news = (x.to(modes.dtype) - streams[:, router.active])[:, None]
    streams.copy_(streams + factors[..., None] * news)
    one = streams[:, router.active]
    return one.clone() if correction.scale is None else (one * correction.scale).to(x.dtype)

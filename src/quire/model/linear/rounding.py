"""Weights rounded to few bits."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor


class Quantization(Enum):
    """How weights are rounded; the values are ``quantization`` in the engine's config.

    int8: each output's weights to one scale. int4: groups of inputs to a scale each. w8a8: as int8,
    and each row of activations to int8 as well, as it is multiplied.
    """

    int8 = "int8"
    int4 = "int4"
    w8a8 = "w8a8"


# Inputs that share a scale in int4: the first that divides them.
GROUPS = (128, 64, 32)


class Grouped(NamedTuple):
    """An int4 weight [out, in], (codes - zeros) * scales by groups of inputs."""

    codes: Tensor  # [out, in] uint8, 0 to 15
    scales: Tensor  # [out, groups]
    zeros: Tensor  # [out, groups] uint8

    @staticmethod
    def joined(parts: list[Grouped]) -> Grouped:
        """The outputs of ``parts``, side by side."""
        return Grouped(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def round_outputs(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [out, in] ~ (codes - 128) * scales: codes uint8 [out, in], scales [out] float32."""
    largest = torch.maximum(weight.amax(dim=1), -weight.amin(dim=1))
    scales = largest.float() / 127
    codes = (weight / _nonzero(scales)[:, None]).round_().add_(128)
    return codes.to(torch.uint8), scales


def round_groups(weight: Tensor, group: int) -> Grouped:
    """weight [out, in] by groups of ``group`` inputs, whose largest weight becomes -8 exactly."""
    outputs, inputs = weight.shape
    groups = weight.view(outputs, inputs // group, group)
    low, high = groups.amin(dim=2), groups.amax(dim=2)
    scales = (torch.where(-low > high, low, high).float() / -8).half()
    codes = (groups / _nonzero(scales.float())[..., None]).round_().add_(8).clamp_(0, 15)
    zeros = torch.full_like(scales, 8, dtype=torch.uint8)
    return Grouped(codes.to(torch.uint8).view(outputs, inputs), scales, zeros)


def _nonzero(scales: Tensor) -> Tensor:
    return scales.masked_fill(scales == 0, 1)

"""Keys and values in 8 and 4 bits, as the reference keeps them in the pool.

Before they are rounded, the numbers of each head are spread: multiplied by Hadamard's matrix, which
is its own inverse. A number that stands out, as trained models have them, is then a little of every
number, and the common scale is fine for all (Ashkboos et al., "QuaRot", 2024). Queries are spread
likewise, which leaves scores as they are, and what attention sums up of values is spread back.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FOUR_BITS: torch.dtype = vars(torch)["int4"]  # which torch's own types leave out
"""The type of a cache whose numbers have 4 bits. Its tensors are bytes of two, uint8."""

# What codes of four bits stand for: their lower three bits say which of these, the fourth that it
# is negative. Of 16 levels they lose least of normally distributed numbers (Max, "Quantizing for
# minimum distortion", 1960), with 46 for the standard deviation.
_LEVELS = (6, 18, 30, 43, 58, 74, 95, 126)
DEVIATION = 46.0
FINE, FINE_DEVIATION = 32, 38.0
"""Numbers of a centred key that have five bits, in C++, and what their levels are made for."""
_STEPS = (1.0, 0.85, 0.92, 1.08, 1.16)  # tried for each row, of what its deviation suggests
CODES_TOGETHER = 8
"""A head of 4 bits has a multiple of so many numbers."""


def spread(x: Tensor, run: int = 0) -> Tensor:
    """x [..., D] times Hadamard's matrix, each run of D's largest power of two by itself, or of
    another that divides it.
    """
    shape, apart = x.shape, 1
    run = run or shape[-1] & -shape[-1]
    while apart < run:
        first, second = x.reshape(-1, 2, apart).unbind(1)
        x = torch.stack((first + second, first - second), 1)
        apart *= 2
    return x.reshape(shape) / math.sqrt(run)


def balance(query: Tensor, key: Tensor, half: int) -> Tensor:
    """What queries are to be multiplied by and keys divided by, so that both are large alike: [D].

    query, key: the weights of their norms, which say where they are large. ``half`` of the numbers
    are turned together with as many others; they have the same.
    """

    def sizes(weight: Tensor) -> Tensor:
        squares = weight.float().square()
        pairs = (squares[:half] + squares[half : 2 * half]) / 2
        squares = torch.cat((pairs, pairs, squares[2 * half :]))
        return squares + 1e-4 * squares.max()

    factors = (sizes(key) / sizes(query)).sqrt().sqrt()
    return torch.where((factors > 0) & (factors < 1e9), factors, 1)


def whole_numbers(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, heads, D] as whole numbers from -127 to 127 and the scales [T, heads] to them."""
    x = x.float()
    scales = x.abs().amax(dim=2) / 127
    return (x / torch.where(scales > 0, scales, 1)[..., None]).round(), scales


def codes_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, heads, D] as codes of four bits, uint8, and the scales [T, heads] to their levels.

    Of some steps the one that loses least; a scale is then the best there is for its codes.
    """
    x = x.float()
    usual = x.square().mean(2, keepdim=True).sqrt() / DEVIATION
    levels = torch.tensor(_LEVELS, dtype=torch.float32, device=x.device)
    middles = (levels[1:] + levels[:-1]) / 2
    codes, scales, most = torch.zeros_like(x, dtype=torch.uint8), usual[..., 0], None
    for factor in _STEPS:
        inverse = torch.where(usual > 0, 1 / (usual * factor), 0)
        tried = torch.bucketize(x.abs() * inverse, middles) + 8 * (x < 0)
        found = levels_of(tried)
        product, square = (x * found).sum(2), found.square().sum(2)
        kept = product.square() / square  # of the squares
        better = kept > (-1 if most is None else most)
        codes = torch.where(better[..., None], tried.to(torch.uint8), codes)
        scales = torch.where(better, product / square, scales)
        most = kept if most is None else torch.where(better, kept, most)
    return codes, scales


def levels_of(codes: Tensor) -> Tensor:
    """What codes stand for, float32."""
    levels = torch.tensor((*_LEVELS, *(-level for level in _LEVELS)), dtype=torch.float32)
    return levels.to(codes.device)[codes.long()]


def key_bytes(codes: Tensor) -> Tensor:
    """[..., D] -> [..., D / 2]. Of each eight, the even ones come before the odd ones."""
    return _bytes(_turned(codes, -1, 4, 2))


def key_codes(packed: Tensor) -> Tensor:
    """The other way round."""
    return _turned(_codes(packed), -1, 2, 4)


def value_bytes(codes: Tensor) -> Tensor:
    """[..., D] -> [..., D / 2]. Those that are D / 4 apart stand side by side."""
    return _bytes(_turned(codes, 4, codes.shape[-1] // 4))


def value_codes(packed: Tensor) -> Tensor:
    """The other way round."""
    return _turned(_codes(packed), packed.shape[-1] // 2, 4)


def _turned(codes: Tensor, *matrices: int) -> Tensor:
    """Codes [..., D] as matrices of these sizes, whose rows become columns."""
    turned = codes.reshape(*codes.shape[:-1], *matrices).transpose(-1, -2)
    return turned.reshape(codes.shape)


def _bytes(codes: Tensor) -> Tensor:
    return codes[..., ::2] | codes[..., 1::2] << 4


def _codes(packed: Tensor) -> Tensor:
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)

"""Sizes in which attention is computed, by family of device.

A program's tiles of keys and values wait in shared memory: 227 KiB of a processor's on H100 and
H200, 163 on A100, 99 on L4 and other cards. ``stages`` is the compiler's number of loop rounds
that are begun. Looking up blocks takes as many of them as fetching keys and values, so five leave
one round of these under way while another is computed, and three would leave none. Where two
programs share a processor that need not be: one computes while the other waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch


class Tile(NamedTuple):
    """The share of one program."""

    rows: int  # queries times the heads that share a key head; a power of two, at least 16
    columns: int  # keys; the same
    warps: int
    stages: int
    # Where there are fewer tiles, keys are cut into so many segments for each processor. More would
    # end more evenly, but what they leave to be merged costs more than that.
    programs: int


class Tiles(NamedTuple):
    """How attention is cut into programs."""

    single: Tile  # for sequences with one new token, whose rows are the heads of a group
    several: Tile
    least_segment: int = 256  # keys that are worth a program of their own; multiple of columns


# By the most dimensions that a key may have, padded to a power of two.
Table = Mapping[int, Tiles]

_HOPPER: Table = {  # measured on an H200: those of single tokens, and several of 128
    64: Tiles(Tile(16, 256, 4, 4, 2), Tile(128, 64, 4, 5, 2), 256),
    128: Tiles(Tile(16, 128, 4, 4, 2), Tile(128, 128, 8, 5, 2), 128),
    256: Tiles(Tile(16, 64, 4, 4, 2), Tile(128, 32, 8, 5, 2), 128),
}
_AMPERE: Table = {
    64: Tiles(Tile(16, 64, 4, 5, 12), Tile(64, 64, 4, 5, 2)),
    128: Tiles(Tile(16, 32, 4, 5, 12), Tile(128, 32, 8, 5, 2)),
    256: Tiles(Tile(16, 32, 4, 5, 12), Tile(64, 32, 8, 5, 2)),
}
_SMALL: Table = {  # little shared memory
    64: Tiles(Tile(16, 64, 4, 5, 12), Tile(64, 64, 4, 5, 2)),
    128: Tiles(Tile(16, 32, 4, 5, 12), Tile(128, 32, 8, 5, 2)),
    256: Tiles(Tile(16, 16, 4, 5, 12), Tile(32, 32, 4, 5, 2)),
}
# Multiplied without tensor cores, on every device: larger tiles do not fit in registers.
_FLOAT32: Table = {
    64: Tiles(Tile(16, 32, 4, 5, 12), Tile(32, 32, 8, 5, 2)),
    128: Tiles(Tile(16, 16, 4, 5, 12), Tile(32, 16, 8, 5, 2)),
    256: Tiles(Tile(16, 16, 8, 5, 12), Tile(16, 16, 8, 5, 2)),
}

# By compute capability: H100 and H200; A100; L4. All others do with little.
_FAMILIES: Mapping[tuple[int, int], Table] = {(9, 0): _HOPPER, (8, 0): _AMPERE, (8, 9): _SMALL}


def choose_tiles(capability: tuple[int, int], dtype: torch.dtype, dim: int) -> Tiles:
    """The sizes for queries of ``dtype`` and padded dimension ``dim`` on a device of that
    capability.
    """
    table = _FLOAT32 if dtype == torch.float32 else _FAMILIES.get(capability, _SMALL)
    return table[min(most for most in table if dim <= most)]


class ProductTile(NamedTuple):
    """The share of one program in the products of experts."""

    rows: int  # of one expert's; a power of two, at least 16
    columns: int  # outputs before they are activated; a power of two, at least 32
    depth: int  # inputs of a round
    warps: int
    stages: int


# By the most rows that an expert has in the mean. Few rows are a matter of reading weights: several
# programs share a processor. Of many, each weight that is fetched meets many.
ProductTable = Mapping[float, ProductTile]

_PRODUCTS: ProductTable = {
    2: ProductTile(16, 64, 128, 4, 4),
    8: ProductTile(16, 128, 64, 4, 4),
    24: ProductTile(32, 128, 64, 4, 4),
    256: ProductTile(64, 128, 64, 4, 4),
    float("inf"): ProductTile(128, 128, 64, 8, 3),
}
_SMALL_PRODUCTS: ProductTable = {  # little shared memory
    8: ProductTile(16, 128, 64, 4, 4),
    24: ProductTile(32, 128, 64, 4, 3),
    float("inf"): ProductTile(64, 128, 64, 4, 3),
}
_FLOAT32_PRODUCTS: ProductTable = {float("inf"): ProductTile(16, 64, 32, 4, 3)}


def choose_product_tile(
    capability: tuple[int, int], dtype: torch.dtype, rows_each: float
) -> ProductTile:
    """The sizes for products in ``dtype`` of experts that have so many rows in the mean."""
    table = _SMALL_PRODUCTS if _FAMILIES.get(capability, _SMALL) is _SMALL else _PRODUCTS
    if dtype == torch.float32:
        table = _FLOAT32_PRODUCTS
    return table[min(most for most in table if rows_each <= most)]

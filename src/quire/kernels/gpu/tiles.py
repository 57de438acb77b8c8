"""Sizes in which attention is computed, by family of device.

A program's tiles of keys and values wait in shared memory, ``stages`` deep; their size is bounded
by what a processor has of it: 227 KiB on H100 and H200, 163 on A100, 99 on L4 and other cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Tile(NamedTuple):
    """The share of one program."""

    rows: int  # queries times the heads that share a key head; a power of two, at least 16
    columns: int  # keys; the same
    warps: int
    stages: int


class Tiles(NamedTuple):
    """How attention is cut into programs."""

    single: Tile  # for sequences with one new token, whose rows are the heads of a group
    several: Tile
    least_segment: int = 256  # keys that are worth a program of their own; multiple of columns
    programs_per_processor: int = 4  # that keep it busy when there is little work


# By the most bytes that a key may have, padded to a power of two.
Table = Mapping[int, Tiles]

_HOPPER: Table = {
    128: Tiles(Tile(16, 128, 4, 3), Tile(128, 64, 8, 3)),
    256: Tiles(Tile(16, 64, 4, 3), Tile(128, 64, 8, 3)),
    512: Tiles(Tile(16, 32, 4, 3), Tile(64, 32, 4, 2)),
    1024: Tiles(Tile(16, 16, 4, 2), Tile(32, 16, 4, 2)),
}
_AMPERE: Table = {
    128: Tiles(Tile(16, 128, 4, 3), Tile(128, 64, 8, 2)),
    256: Tiles(Tile(16, 64, 4, 3), Tile(128, 32, 8, 3)),
    512: Tiles(Tile(16, 32, 4, 3), Tile(64, 32, 4, 2)),
    1024: Tiles(Tile(16, 16, 4, 2), Tile(32, 16, 4, 2)),
}
_SMALL: Table = {  # little shared memory
    128: Tiles(Tile(16, 64, 4, 3), Tile(64, 64, 4, 2)),
    256: Tiles(Tile(16, 32, 4, 3), Tile(64, 32, 4, 2)),
    512: Tiles(Tile(16, 32, 4, 2), Tile(32, 32, 4, 2)),
    1024: Tiles(Tile(16, 16, 4, 2), Tile(16, 16, 4, 2)),
}

# By compute capability: H100 and H200; A100; L4. All others do with little.
_FAMILIES: Mapping[tuple[int, int], Table] = {(9, 0): _HOPPER, (8, 0): _AMPERE, (8, 9): _SMALL}


def choose_tiles(capability: tuple[int, int], key_bytes: int) -> Tiles:
    """For keys of ``key_bytes``, padded, on a device of that compute capability."""
    table = _FAMILIES.get(capability, _SMALL)
    return table[min(most for most in table if key_bytes <= most)]

"""Every block of the pool at one moment, a number a column."""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import NamedTuple

MOST = 2**16 - 1
"""Counts above that are told as that."""


class BlockState(IntEnum):
    FREE = 0
    CACHED = 1  # free, but what it holds can be found until it is taken
    RESERVED = 2  # held for tokens that are not computed yet
    USED = 3  # held, with tokens in it
    SINK = 4  # so too: of a sequence's attention sinks, which stay
    WINDOW = 5  # so too, until the window of its sequence has left it behind


class Cell(NamedTuple):
    """One block. Where nobody holds it, ``owner`` and ``shared`` are 0.

    owner: the number of the request or session that holds it, the lowest one of several.
    shared: sequences that hold it. found: how often its content has been found in it.
    """

    state: int = 0
    owner: int = 0
    shared: int = 0
    found: int = 0


class BlockMap:
    """All blocks, those of the KV groups' pools one after the other."""

    def __init__(self, num_blocks: int) -> None:
        self.states = bytearray(num_blocks)
        self.owners = array("I", [0]) * num_blocks
        self.shared = array("H", [0]) * num_blocks
        self.found = array("H", [0]) * num_blocks

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, block: int) -> Cell:
        return Cell(self.states[block], self.owners[block], self.shared[block], self.found[block])

    def put(self, block: int, state: int, owner: int = 0, shared: int = 0, found: int = 0) -> bool:
        """Whether that is something new."""
        if (
            self.states[block] == state
            and self.owners[block] == owner
            and self.shared[block] == shared
            and self.found[block] == found
        ):
            return False
        self.states[block], self.owners[block] = state, owner
        self.shared[block], self.found[block] = shared, found
        return True

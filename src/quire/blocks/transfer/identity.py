"""What two engines say to each other, and whether their blocks are the same bits.

First each says its ``Identity``. Then the one sends ``Wanted``, any number of times, and the other
answers each with a ``Sent`` for every name, in order, whose payload is the record
(``quire.blocks.store.record``) if it has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from quire.kernels.transport import PeerError

MOST_NAMES = 4096  # of blocks that are wanted at once
_NAME_BYTES = 16
_Name = Annotated[bytes, Meta(min_length=_NAME_BYTES, max_length=_NAME_BYTES)]


class Identity(Struct, tag=True, frozen=True):
    """Digests of all that decides a block's bits beside its text, by part."""

    parts: Mapping[str, str]

    def compare(self, theirs: Identity) -> None:
        """PeerError, naming what differs, unless a peer's identity is the same."""
        different = sorted(
            name[:32]
            for name in {*theirs.parts, *self.parts}
            if theirs.parts.get(name) != self.parts.get(name)
        )
        if different:
            raise PeerError(f"its blocks are others than ours: {', '.join(different)} differ")


class Wanted(Struct, tag=True, frozen=True):
    """The names of blocks that a peer would like to have."""

    names: Annotated[list[_Name], Meta(max_length=MOST_NAMES)]


class Sent(Struct, tag=True, frozen=True):
    """One of them, or that it is not there."""

    found: bool

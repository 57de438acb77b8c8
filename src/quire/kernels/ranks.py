"""Processes that hold a shard of one model each, and add up what they make of it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """All ranks, as one of them sees them.

    What they do together each of them calls, in the same order and with tensors of one shape.

    Raises:
        RankError: one of the others is gone, or does not answer in time.
    """

    rank: int  # this one; 0 decides, the others follow
    size: int

    def add_up(self, x: Tensor) -> None:
        """Let x be the sum of all ranks' x, added in the order of ranks: the same bits everywhere.

        Of less than 32 bits it is rounded once, at the end.
        """
        ...

    def gather(self, x: Tensor) -> Tensor | None:
        """[size, *x.shape], all ranks' x in their order, for rank 0; None for the others."""
        ...

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


class RankGroup(Ranks, Protocol):
    """``Ranks`` whom rank 0 tells what to do, and who answer it.

    For one thread of each process, but for ``abort``. After one RankError there are only others.
    """

    def tell(self, message: bytes) -> None:
        """From rank 0 to all others; they may not have heard it yet when this returns."""
        ...

    def hear(self, timeout: float | None = None) -> bytes | None:
        """What rank 0 tells next; None if it has not within so many seconds."""
        ...

    def answer(self, message: bytes) -> None:
        """From one of the others to rank 0."""
        ...

    def answers(self, timeout: float) -> list[bytes]:
        """The next answer of each of the others, in their order, for rank 0.

        RankError if one of them has given none within so many seconds.
        """
        ...

    def abort(self, reason: str) -> None:
        """Let all that any rank waits in end at once, with RankError(reason). From any thread."""
        ...

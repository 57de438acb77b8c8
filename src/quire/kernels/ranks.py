"""Processes that hold a part of one model each, and add up their results."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """All ranks, as one of them sees them.

    Each rank makes the same calls, in the same order and with tensors of one shape.

    Raises:
        RankError: another rank is gone, or does not answer in time.
    """

    rank: int  # this one; 0 decides, the others follow
    size: int

    def add_up(self, x: Tensor) -> None:
        """Set x to the sum of all ranks' x, added in the order of ranks: the same bits everywhere.

        In types of less than 32 bits it is rounded once, at the end.
        """
        ...

    def gather(self, x: Tensor) -> Tensor | None:
        """[size, *x.shape], all ranks' x in their order, for rank 0; None for the others."""
        ...


class RankGroup(Ranks, Protocol):
    """``Ranks`` that rank 0 sends messages to, and that answer it.

    For one thread of each process, except ``abort``. After one RankError all calls raise it.
    """

    def tell(self, message: bytes) -> None:
        """Send a message from rank 0 to all others, which may receive it later."""
        ...

    def hear(self, timeout: float | None = None) -> bytes | None:
        """The next message of rank 0; None if none has come within this many seconds."""
        ...

    def answer(self, message: bytes) -> None:
        """Send an answer from another rank to rank 0."""
        ...

    def answers(self, timeout: float) -> list[bytes]:
        """The next answer of each other rank, in their order, for rank 0.

        RankError if one has not answered within this many seconds.
        """
        ...

    def abort(self, reason: str) -> None:
        """End whatever any rank waits in, at once, with RankError(reason). From any thread."""
        ...

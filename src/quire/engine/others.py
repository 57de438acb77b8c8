"""The other processes with which an engine computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quire.core.errors import RankError


class OtherRanks(Protocol):
    """Of ``size`` ranks, those beside the one whose engine it is.

    When one of them has failed the engine's steps raise a RankError, and it is of no use any more.
    """

    size: int

    def watch(self, tell: Callable[[RankError], None]) -> None:
        """Have it told, in whatever thread, when a rank has failed; at once if one has."""
        ...

    def close(self) -> None:
        """End them."""
        ...

"""Acceptance rates of drafts, in place of texts."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from quire.core.errors import ConfigError
from quire.engine.traces.request import DraftCounts

_HALVINGS = 40


@dataclass(frozen=True)
class AcceptanceProfile:
    """The quality of drafts on a text.

    chances: of the first draft, the second and so on, to be right if all before it are; further
        ones are like the last.
    coverage: share of the steps in which anything is drafted.
    """

    chances: tuple[float, ...]
    coverage: float = 1.0

    def __post_init__(self) -> None:
        if not self.chances:
            raise ConfigError("acceptance must have at least one rate, from 0 to 1")
        for name, value in (*(("acceptance", one) for one in self.chances),
                            ("coverage", self.coverage)):  # fmt: skip
            if not 0 <= value <= 1:
                raise ConfigError(f"{name} must be from 0 to 1, got {value:g}")

    @classmethod
    def parse(cls, text: str, coverage: float = 1.0) -> AcceptanceProfile:
        """The profile of rates by position: "0.7" or "0.8,0.6,0.5". ConfigError: it is neither."""
        try:
            chances = tuple(float(part) for part in text.split(","))
        except ValueError:
            raise ConfigError(
                f"acceptance must be a rate from 0 to 1, or several, such as 0.8,0.6,0.5; "
                f"got {text!r}"
            ) from None
        return cls(chances, coverage)

    @classmethod
    def recorded(cls, drafts: DraftCounts, num_steps: int) -> AcceptanceProfile:
        """The profile of a request that took this many steps after its first tokens.

        One rate for all positions: the one with which as many drafts are right as were.
        """
        times, drafted, accepted = drafts
        if not times:
            return cls((0.0,), 0.0)
        length, mean = drafted / times, accepted / times
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            rate = (low + high) / 2
            low, high = (rate, high) if _expected(rate, length) < mean else (low, rate)
        return cls((high,), min(1.0, times / max(1, num_steps)))

    def chance(self, place: int) -> float:
        """The rate of the draft with this many before it."""
        return self.chances[min(place, len(self.chances) - 1)]

    def num_right(self, text: str, position: int, most: int) -> int | None:
        """How many of ``most`` drafts from this position of a text on are right; None: there are
        none.

        Each call gives the same answer.
        """
        if _uniform(f"{text},{position},covered") >= self.coverage:
            return None
        right = 0
        while right < most and _uniform(f"{text},{position + right}") < self.chance(right):
            right += 1
        return right


class Profiles(NamedTuple):
    """How well a request is drafted for."""

    by_texts: AcceptanceProfile
    by_model: AcceptanceProfile


def _expected(rate: float, length: float) -> float:
    """The mean number of right drafts among this many."""
    return length if rate == 1.0 else rate * (1 - rate**length) / (1 - rate)


def _uniform(place: str) -> float:
    """A number from 0 to 1, drawn by ``place``."""
    return int.from_bytes(blake2b(place.encode(), digest_size=8).digest(), "big") / 2**64

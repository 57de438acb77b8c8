"""How often drafts are tried that are not expected to pay."""

from __future__ import annotations

_SHARE = 0.01  # of the time may be lost by it
_SAVED = 8  # steps' time, at most
_APART = 16  # steps


class Trials:
    """Of draft models: what they take and give is found out in no other way."""

    def __init__(self) -> None:
        self._credit = 0.0  # seconds
        self._steps = 0  # since the last one

    @property
    def due(self) -> bool:
        """Whether there has been none for some time."""
        return self._steps >= _APART

    def affords(self, loss: float) -> bool:
        """Whether so many seconds may be lost now."""
        return loss <= self._credit

    def earn(self, seconds: float) -> None:
        """A step took so long."""
        self._steps += 1
        self._credit = min(self._credit + _SHARE * seconds, _SAVED * seconds)

    def spend(self, loss: float) -> None:
        """A trial lost so many seconds; less than none, if it paid."""
        self._steps = 0
        self._credit -= max(0.0, loss)

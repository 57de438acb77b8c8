"""How the sampler asks what may come next of an output that must keep to a form.

A request brings the rules of its form (``Request.rules``). The sampler knows no more of them than
is written here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

PATIENCE = 0.020
"""Seconds that a step waits, once it has logits, to know what may come next. Whose mask is not
there by then is given no token by it."""

_SHARE, _LONGEST = 0.5, 0.1


def patience(seconds: float) -> float:
    """The same, where the forward pass has taken so long: where all is slow, masks are too."""
    return min(max(PATIENCE, _SHARE * seconds), _LONGEST)


class Finder(Protocol):
    """Finds out beside the engine what guides were asked, for all of them together."""

    def begin(self) -> None:
        """As soon as it is done with what it is at. Does not wait."""
        ...


class OutputGuide(Protocol):
    """Knows what may come next in one output. It is derived from that, and can be made again."""

    @property
    def finder(self) -> Finder | None:
        """Of what it is asked; None: it knows at once."""
        ...

    @property
    def failure(self) -> str | None:
        """Why nothing can follow, if so."""
        ...

    def ask(self, output: Sequence[int], lengths: Sequence[int], *, forced: bool = False) -> bool:
        """Have it found out what may follow the first ``length`` tokens of ``output``, of each.

        That begins with ``begin_finding`` or ``wait_for``. Lengths increase. forced: and which
        tokens must come after all of ``output``, if there is one way to go on. False: it is found
        out already, or about to be.
        """
        ...

    def wait(self, deadline: float) -> None:
        """Until all that was asked is known, or until then, by the monotonic clock."""
        ...

    def mask(self, length: int) -> NDArray[np.uint32] | None:
        """Whether each token may follow, a bit each, the lowest first; None: it is not known."""
        ...

    def forced(self, length: int) -> Sequence[int]:
        """The tokens that must follow that many; none, if there is a choice, or it is not known."""
        ...

    def spent(self) -> float:
        """Seconds of a processor that it has taken since the last call."""
        ...

    def late(self) -> None:
        """The output was given no token, because a mask was not there in time."""
        ...

    def retreat(self, length: int) -> None:
        """The tokens after the first ``length`` are about to change."""
        ...

    def fork(self) -> OutputGuide:
        """Another one, for an output that has come as far."""
        ...


class OutputRules(Protocol):
    """What is the same for all outputs of a request."""

    def guide(self) -> OutputGuide:
        """For one more output; it stands at its beginning."""
        ...


def begin_finding(guides: Iterable[OutputGuide]) -> None:
    """Have it found out what they were asked."""
    for finder in {guide.finder for guide in guides}:
        if finder is not None:
            finder.begin()


def wait_for(guides: Iterable[OutputGuide], seconds: float) -> None:
    """Until they know what they were asked, or for so long."""
    deadline = time.monotonic() + seconds
    for guide in guides:
        guide.wait(deadline)

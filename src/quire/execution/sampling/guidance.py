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
    """Seconds to wait for masks after a forward pass of ``seconds``: on a slow machine both are."""
    return min(max(PATIENCE, _SHARE * seconds), _LONGEST)


class Finder(Protocol):
    """Finds out beside the engine what guides were asked, for all of them together."""

    def begin(self) -> None:
        """Begin as soon as the work at hand is done. Does not wait."""
        ...


class OutputGuide(Protocol):
    """Knows what may come next in one output. It is derived from that, and can be made again."""

    @property
    def finder(self) -> Finder | None:
        """The finder that answers its questions; None: it knows at once."""
        ...

    @property
    def failure(self) -> str | None:
        """Why nothing can follow, if so."""
        ...

    def ask(self, output: Sequence[int], lengths: Sequence[int], *, forced: bool = False) -> bool:
        """Ask what may follow the first ``length`` tokens of ``output``, for each of ``lengths``.

        The search begins with ``begin_finding`` or ``wait_for``. Lengths increase. forced: ask also
        which tokens must follow all of ``output``, if there is one way to go on. False: the answer
        is known already, or about to be.
        """
        ...

    def wait(self, deadline: float) -> None:
        """Wait until all that was asked is known, or until ``deadline`` on the monotonic clock."""
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
        """Note that the output was given no token, because a mask was not there in time."""
        ...

    def retreat(self, length: int) -> None:
        """Forget the tokens after the first ``length``, which are about to change."""
        ...

    def fork(self) -> OutputGuide:
        """A guide for another output with the same tokens so far."""
        ...


class OutputRules(Protocol):
    """What is the same for all outputs of a request."""

    def guide(self) -> OutputGuide:
        """A guide for one more output, at its beginning."""
        ...


def begin_finding(guides: Iterable[OutputGuide]) -> None:
    """Have guides begin to find out what they were asked."""
    for finder in {guide.finder for guide in guides}:
        if finder is not None:
            finder.begin()


def wait_for(guides: Iterable[OutputGuide], seconds: float) -> None:
    """Wait until guides know what they were asked, for ``seconds`` at most."""
    deadline = time.monotonic() + seconds
    for guide in guides:
        guide.wait(deadline)

"""How the sampler asks what may come next of an output that must keep to a form.

A request brings the rules of its form (``Request.rules``). The sampler knows no more of them than
is written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class OutputGuide(Protocol):
    """Stands after some tokens of one output. It is derived from them, and can be made again."""

    @property
    def failure(self) -> str | None:
        """Why nothing can follow, if so."""
        ...

    def follow(self, output: Sequence[int], length: int) -> None:
        """Stand after the first ``length`` tokens of ``output``, which begins as it is known."""
        ...

    def retreat(self, length: int) -> None:
        """Stand after no more than ``length`` tokens: those after it are about to change."""
        ...

    def forced(self, output: Sequence[int]) -> list[int]:
        """The tokens that come next, if there is one way to go on."""
        ...

    def fork(self) -> OutputGuide:
        """Another one that stands at the same place."""
        ...

    @staticmethod
    def fill_masks(places: Sequence[GuidedPlace], vocab_size: int) -> NDArray[np.uint32]:
        """Whether each token may come next, a bit each, the lowest first: [N, words].

        All places of a batch are asked together, whichever requests they are of.
        """
        ...


GuidedPlace = tuple[OutputGuide, Sequence[int], int]
"""A guide, the output that it follows, and after how many of its tokens it is asked."""


class OutputRules(Protocol):
    """What is the same for all outputs of a request."""

    def guide(self) -> OutputGuide:
        """For one more output; it stands at its beginning."""
        ...

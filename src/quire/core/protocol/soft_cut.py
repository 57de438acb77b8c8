"""Cuts from which on a sequence attends less to what came before them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from struct import pack
from typing import NamedTuple

from quire.core.memory import BlockHash, rooted


class SoftCut(NamedTuple):
    """From ``position`` on, keys before it count for less and less.

    Their weights are multiplied by a gain that falls evenly from 1, for the token at ``position``,
    to exp(bias), ``fade`` tokens later, and stays there. It is a function of positions alone.

    first: the keys before that one, attention sinks, keep their weight.
    bias: from 0, which changes nothing, to -inf, which leaves nothing of them.
    fade: 0: the gain has fallen at ``position`` already.
    """

    first: int
    position: int
    bias: float
    fade: int

    def at(self, position: int) -> float:
        """What is added to the scores that the query at ``position`` gives these keys."""
        since = position - self.position
        if since < 0:
            return 0.0
        if since >= self.fade:
            return self.bias
        return math.log1p(math.expm1(self.bias) * (since / self.fade))

    def root(self, parent: BlockHash) -> BlockHash:
        """The parent, in names, of the block in which the cut is."""
        return rooted(parent, pack("<qqdq", *self))


def column_biases(cuts: Sequence[SoftCut], position: int) -> list[tuple[int, float]]:
    """What all cuts of a sequence, in their order, add to the scores of the query at ``position``.

    As (before, bias): to keys before that position, and not before that of the entry before.
    Nothing is added to those after the last. Cuts add up: what has faded does not come back.
    """
    total, steps = 0.0, []
    for cut in reversed(cuts):
        total += cut.at(position)
        steps.append((cut.position, total))
    return [(cuts[0].first, 0.0), *reversed(steps)]

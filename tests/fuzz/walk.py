"""An output that grows at random within its grammar, as an executor lets it grow."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from fuzz.models import Model
from quire.capabilities.grammar import Guide, Rules

Mask = NDArray[np.uint8]

_TOO_COMPLEX = "too complex"


class Broken(Exception):
    """A law does not hold."""


def walk(
    of: Model, rules: Rules, alone: Callable[[], Rules], chance: random.Random, most: int
) -> tuple[list[int], bool]:
    """Tokens of an output, and whether it has ended. Broken where a law does not hold.

    alone: the same rules, whose states nobody else has. most: tokens; in the second half those are
    preferred with which texts come to an end.
    """
    guide, output, size, ends = rules.guide(), list[int](), of.size, of.ends
    while len(output) < most:
        (mask,) = masks(guide, [output], size)
        if guide.failure is not None:
            if not _is_too_complex(guide) and not _follows(alone(), output):
                raise Broken(f"after tokens that were allowed: {guide.failure}")
            return output, False
        allowed = mask.nonzero()[0]
        if not len(allowed):
            raise Broken("nothing may come next, and it has not failed")
        if chance.random() < 0.2:
            guide = _turned(guide, output, mask, chance)
        if len(output) > most // 2:
            allowed = _of(allowed, of.closing, ends)
        token = int(chance.choice(allowed))
        if token in ends:
            return output, True
        output.append(token)
    return output, False


def _is_too_complex(guide: Guide) -> bool:
    return guide.failure is not None and _TOO_COMPLEX in guide.failure


def masks(guide: Guide, outputs: Sequence[Sequence[int]], size: int) -> Sequence[Mask]:
    """Whether each token may come next after each output; each begins with the one before."""
    places = [(guide, output, len(output)) for output in outputs]
    bits = Guide.fill_masks(places, size).view(np.uint8)
    return list(np.unpackbits(bits, axis=1, count=size, bitorder="little"))


def _follows(rules: Rules, output: Sequence[int]) -> bool:
    """Whether an output follows rules that have just been made.

    Who is out of states may refuse a token that it has allowed.
    """
    assert rules.text is not None
    return rules.text.deep_copy().try_consume_tokens(list(output)) == len(output)


def _of(allowed: NDArray[np.int64], closing: Collection[int], ends: Collection[int]) -> list[int]:
    for wanted in (ends, closing):
        if found := [int(token) for token in allowed if token in wanted]:
            return found
    return [int(token) for token in allowed]


def _turned(guide: Guide, output: list[int], mask: Mask, chance: random.Random) -> Guide:
    """Drafts, right or wrong, are verified and taken back, by a fork or by itself."""
    size, allowed = len(mask), mask.nonzero()[0]
    other = guide.fork() if chance.random() < 0.5 else guide
    drafts = [int(chance.choice(allowed)), *(chance.randrange(size) for _ in range(3))]
    places = [output + drafts[:number] for number in range(len(drafts) + 1)]
    before = masks(other, places, size)[0]
    if not _is_too_complex(other):
        other.retreat(len(output))
        (after,) = masks(other, [output], size)
    if _is_too_complex(other):  # on its way back, too
        return guide if other is not guide else guide.rules.guide()
    if not (np.array_equal(mask, before) and np.array_equal(mask, after)):
        raise Broken("a draft or a fork has changed what may come next")
    return other

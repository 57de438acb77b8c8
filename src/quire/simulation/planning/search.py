"""Searches that begin at a neighbour's answer, so that what changes nothing costs two trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

CLOSE = 0.02
"""Share to which a rate is found; a change that gains less is none."""

_FIRST_STEP = 1.1  # each further step is the square of the one before


def highest_rate(
    meets: Callable[[float], bool],
    hints: Sequence[float],
    least: float,
    most: float,
    close: float = CLOSE,
    low: float = 0.0,
) -> tuple[float, float]:
    """The highest rate that is met, and the lowest that is not, within ``close`` of each other.

    The first is 0 where none from ``least`` on is met, the second infinite where all up to
    ``most`` are. hints: rates to try first, as far as they can still tell anything. low: a rate
    that is known to be met.
    """
    high, step, coming = math.inf, _FIRST_STEP, list(hints)
    while high == math.inf or high - low > close * high:
        if coming:
            rate = coming.pop(0)
            if not low < rate < high:
                continue
        elif high == math.inf:
            rate, step = low * step, step * step
        elif low == 0.0:
            rate, step = high / step, step * step
        else:
            rate = (low + high) / 2
        if not least <= rate <= most:
            break
        if meets(rate):
            low = rate
        else:
            high = rate
    return low, high


def highest_count(meets: Callable[[int], bool], hint: int, most: int) -> int:
    """The highest number from 1 to ``most`` that is met; 1 is."""
    low, high, step = 1, most + 1, max(1, hint // 20)
    count = hint
    while high - low > 1:
        count = min(max(count, low + 1), high - 1)
        if meets(count):
            low = count
            count = (low + high) // 2 if high <= most else low + step
        else:
            high = count
            count = (low + high) // 2 if low > 1 else high - step
        step *= 2
    return low


def lowest_count(meets: Callable[[int], bool], hint: int, least: int, most: int) -> int | None:
    """The lowest number from ``least`` to ``most`` that is met, if more of it are too; None: not
    even ``most`` is."""
    low, high = least - 1, most + 1  # not met, and met or out of reach
    count = hint
    while high - low > 1:
        count = min(max(count, low + 1), high - 1)
        if meets(count):
            high = count
            count = count - 1 if count - low <= 3 else (low + count) // 2
        else:
            low = count
            count = 2 * count if high > most else (count + high) // 2
    return high if high <= most else None

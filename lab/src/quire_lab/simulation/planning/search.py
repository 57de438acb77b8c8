"""Searches that begin at a neighbour's answer, so that what changes nothing costs two trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

CLOSE = 0.02
"""Share to which a rate is found; a change that gains less is none."""

_FIRST_STEP = 1.1  # each further step is the square of the one before
_LEAST = 0.1  # strains below are taken for it
_MIDDLE = 0.15  # no nearer to either end of an interval is the next trial, which must halve it too


def highest_rate(
    meets: Callable[[float], bool],
    hints: Sequence[float],
    least: float,
    most: float,
    close: float = CLOSE,
    low: float = 0.0,
) -> tuple[float, float]:
    """The highest rate that is met, and the lowest that is not, within ``close`` of each other.

    The first is 0 if none from ``least`` on is met, the second infinite if all up to ``most`` are.
    hints: rates to try first, as far as they can still show anything. low: a rate that is known to
    be met.
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


def foreseen(
    search: Callable[[Callable[[float], bool]], tuple[float, float]],
    strain: Callable[[float], float],
    guess: float,
) -> tuple[float, float]:
    """What ``search`` gives of rates whose strain is at most 1, in fewer trials if that is near
    ``guess``.

    search: ends at the highest rate that is met and the lowest that is not, of those that it asks
        about. It is run on a supposition, and only the two rates that it ends at are tried, until
        they are what was supposed. If all rates below one that is met are met too, as all that
        searches here take for granted, it would have ended there by trials of its own.
    """
    low, high, step = 0.0, math.inf, 1.0  # the highest that was met, the lowest that was not
    found: dict[float, float] = {}

    def supposed(rate: float) -> bool:
        return rate <= guess

    while True:
        last_met, first_missed = search(supposed)
        rate = next((one for one in (first_missed, last_met) if low < one < high), None)
        if rate is None:
            return last_met, first_missed
        found[rate] = strain(rate)
        if found[rate] <= 1:
            low = rate
        else:
            high = rate
        if low <= guess < high:
            continue  # as was supposed
        if low and high < math.inf:
            guess = _crossing(low, found[low], high, found[high])
        else:
            guess = low * step if low else math.nextafter(high / step, 0.0)
            step = max(_FIRST_STEP, step * step)


def _crossing(low: float, met: float, high: float, missed: float) -> float:
    """About where a strain is 1 that is ``met`` at one place and ``missed`` at a higher one."""
    met, missed = math.log(max(met, _LEAST)), math.log(min(missed, 1 / _LEAST))
    share = min(max(-met / (missed - met), _MIDDLE), 1 - _MIDDLE)
    return low * math.exp(share * math.log(high / low))

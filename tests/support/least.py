"""As few of some things as something still goes wrong with (delta debugging; Zeller, 1999)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def least(items: Sequence[_T], fails: Callable[[tuple[_T, ...]], bool]) -> tuple[_T, ...]:
    """``items`` without all that can be left out one after the other."""
    size = len(items) // 2 or len(items)
    while size:
        start = 0
        while start < len(items):
            fewer = (*items[:start], *items[start + size :])
            if fails(fewer):
                items = fewer
            else:
                start += size
        size //= 2
    return tuple(items)

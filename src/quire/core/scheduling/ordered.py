"""Lists in order of a key: ``bisect.insort`` puts in, ``discard`` takes out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


def discard(items: list[_T], item: _T, key: Callable[[_T], Any]) -> bool:
    """Take ``item`` out of a list in order of unequal keys; False if it is not there."""
    index = bisect_left(items, key(item), key=key)
    if index == len(items) or items[index] is not item:
        return False
    del items[index]
    return True

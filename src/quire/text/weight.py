"""How much text is in a value."""

from __future__ import annotations

from collections.abc import Mapping


def weight(value: object, at_most: int) -> int:
    """Characters and items in a JSON value, counted until they are more than ``at_most``."""
    total, todo = 0, [value]
    while todo and total <= at_most:
        match todo.pop():
            case str(text):
                total += len(text)
            case Mapping() as items:
                total += len(items)
                if total <= at_most:
                    todo += [*items, *items.values()]
            case list() | tuple() as items:
                total += len(items)
                if total <= at_most:
                    todo += items
    return total

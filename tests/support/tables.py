"""What tokens see."""

from __future__ import annotations

from collections.abc import Iterator


def visible(position: int, window: int | None, sinks: int = 0) -> Iterator[int]:
    """The positions that the token at ``position`` sees, itself included."""
    first = 0 if window is None else max(0, position - window + 1)
    yield from range(min(sinks, first))
    yield from range(first, position + 1)

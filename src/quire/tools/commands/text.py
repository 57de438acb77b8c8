"""Sizes in units for people, and tables with aligned columns."""

from __future__ import annotations

from collections.abc import Sequence


def size(num_bytes: float) -> str:
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """The lines of a table: the first column left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines

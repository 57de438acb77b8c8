"""Figures in units for people, and tables with aligned columns."""

from __future__ import annotations

from collections.abc import Sequence


def seconds(value: float) -> str:
    if not value:
        return "0 s"
    for limit, unit, factor in ((1e-3, "µs", 1e6), (1.0, "ms", 1e3), (600.0, "s", 1.0)):
        if value < limit:
            return f"{value * factor:.3g} {unit}"
    return f"{value / 60:.3g} min"


def size(num_bytes: float) -> str:
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def number(value: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """The lines of a table: the first column left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines

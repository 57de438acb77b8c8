"""Figures in units for people, and results of simulations as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from quire.tools.commands.text import table

if TYPE_CHECKING:  # commands that measure and record need no simulation
    from quire_lab.simulation.latencies import Goals, Summary
    from quire_lab.simulation.result import ServedLoad
    from quire_lab.workload import Cut, TraceFacts


def seconds(value: float) -> str:
    if not value:
        return "0 s"
    for limit, unit, factor in ((1e-3, "µs", 1e6), (1.0, "ms", 1e3), (600.0, "s", 1.0)):
        if value < limit:
            return f"{value * factor:.3g} {unit}"
    return f"{value / 60:.3g} min"


def number(value: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def served(result: ServedLoad, cut: Cut, longest: int | None) -> str:
    """How many requests came to an end, and what of them had not fitted."""
    text = f"{result.num_finished:,} requests in {seconds(result.seconds)}"
    if result.num_refused:
        text += f", {result.num_refused:,} refused (the first: {result.first_refusal})"
    return text + (f"; to {longest:,} tokens, {cut}" if cut.tokens else "")


def described_trace(facts: TraceFacts | None) -> list[str]:
    """The format of a trace and its facts, in a line; empty for a workload that is drawn."""
    if facts is None:
        return []
    times = f"times in {facts.times}" if facts.times else "without times"
    line = f"trace: {facts.format}, {times}; {facts.requests:,} requests"
    if facts.times:
        line += f" in {seconds(facts.span)}"
        if facts.span:
            line += f", {number((facts.requests - 1) / facts.span)} a second"
    if facts.unanswered:
        line += f"; {facts.unanswered:,} more without output, left out"
    return [line]


def wanted(goals: Goals) -> str:
    """The goals that there are."""
    return " and ".join(
        f"{name.upper()} {seconds(value)}"
        for name, value in asdict(goals).items()
        if value is not None
    )


def latencies(rows: Sequence[tuple[str, Summary]]) -> list[str]:
    """A table of distributions in seconds."""
    cells = [["", "mean", "p50", "p90", "p99", "max"]]
    for name, one in rows:
        figures = (one.mean, one.p50, one.p90, one.p99, one.maximum)
        cells.append([name, *(seconds(figure) for figure in figures)])
    return table(cells)

"""Results of simulations as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from quire.tools.commands.text import number, seconds, table
from quire_lab.simulation.latencies import Goals, Summary
from quire_lab.simulation.result import ServedLoad
from quire_lab.workload import Cut, TraceFacts


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

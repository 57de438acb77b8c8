"""Writes fleets as a page: the answer, latency against load, the load over time, the costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire_lab.reports.curves import LoadCurveLine, latencies_against
from quire_lab.reports.fleet_load import load_over_time
from quire_lab.reports.page import Page
from quire_lab.simulation.export import write_json
from quire_lab.simulation.fleet import FleetResult
from quire_lab.simulation.latencies import Goals


@dataclass(frozen=True)
class FleetStory:
    """The content of the page.

    answer, advice: sentences. cards: three figures with their titles.
    lines: the results of several loads, if they were simulated; load: what varies in them.
    own_load: the one that was asked about. shown: the fleet whose replicas are drawn, by name.
    machines: the heads of the table and its rows. notes: below it. assumed: the assumptions.
    """

    title: str
    answer: str
    advice: str
    cards: Sequence[tuple[str, str]]
    goals: Goals
    lines: Sequence[LoadCurveLine]
    load: str
    own_load: float | None
    shown: tuple[str, FleetResult] | None
    machines: tuple[Sequence[str], Sequence[Sequence[str]]]
    notes: Sequence[str]
    assumed: Sequence[tuple[str, str]]


def write_fleets(directory: Path, story: FleetStory, values: Mapping[str, Any]) -> Path:
    """Write fleet.html, its pictures and fleet.json; the path of the page.

    Raises:
        ConfigError: the directory cannot be written, or matplotlib is missing.
    """
    page = Page(story.title)
    page.lead(story.answer)
    page.cards(story.cards)
    if story.advice:
        page.lead(story.advice)
    if story.lines:
        page.section("Waiting against the load")
        limits = [] if story.own_load is None else [(story.own_load, "the load asked about")]
        page.pair(latencies_against(story.load, story.lines, story.goals, limits=limits))
    if story.shown is not None:
        name, result = story.shown
        page.section(f"How loaded each replica was: {name}")
        page.picture(load_over_time(result))
        for note in _events(result):
            page.paragraph(note)
    page.section("Machines and what they cost")
    heads, rows = story.machines
    page.table(heads, rows, tuple(range(1, len(heads))))
    for note in story.notes:
        page.paragraph(note, note=True)
    page.section("What is assumed")
    page.table(("of", "taken to be"), story.assumed)
    path = page.write(directory, "fleet.html")
    write_json(directory / "fleet.json", values)
    return path


def _events(result: FleetResult) -> list[str]:
    """Failures in words."""
    failures = sum(one.num_failures for one in result.replicas)
    if not failures:
        return []
    tokens = sum(one.lost_tokens for one in result.replicas)
    times = "once" if failures == 1 else f"{failures:,} times"
    text = (
        f"A replica failed {times}. {result.num_resent:,} requests were lost and sent "
        f"again, with {tokens:,} tokens of their answers"
    )
    if result.resent_ttft.count:
        text += (
            f"; of those, 90 % had their first token within {result.resent_ttft.p90:.3g} s, "
            f"of all within {result.ttft.p90:.3g} s"
        )
    return [f"{text}."]

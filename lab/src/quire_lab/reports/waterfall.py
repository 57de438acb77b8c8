"""Requests as bars in time: waiting, prefill, decoding, and where they had to give way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from quire_lab.reports.style import BLUE, ORANGE, SKY, VERMILLION, Picture, draw, legend_below
from quire_lab.simulation.result import RequestRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 50
"""Requests that one waterfall shows."""

_COLOURS = {
    "waiting": ORANGE,
    "prefill": SKY,
    "decoding": BLUE,
    "swapped out": VERMILLION,
    "to recompute": VERMILLION,
}


class Phase(NamedTuple):
    """A phase of a request from one time to another, in seconds."""

    name: str
    start: float
    end: float


def phases(record: RequestRecord) -> list[Phase]:
    """A finished request's story in order, without overlaps. Empty if it was refused.

    While it is preempted it neither computes a prompt nor decodes.
    """
    metrics = record.metrics
    if metrics is None:
        return []
    finished = metrics.finished_time
    admitted = finished if record.admitted is None else record.admitted
    first = finished if metrics.first_token_time is None else metrics.first_token_time
    away = [
        Phase("swapped out" if one.by == "swap" else "to recompute", one.at, one.until or finished)
        for one in record.preemptions
    ]
    story = [
        Phase("waiting", metrics.arrival_time, admitted),
        *_around(Phase("prefill", admitted, first), away),
        *_around(Phase("decoding", first, finished), away),
        *away,
    ]
    return sorted((one for one in story if one.end > one.start), key=lambda one: one.start)


def choose_rows(records: Sequence[RequestRecord], most: int = MOST_ROWS) -> list[RequestRecord]:
    """Neighbours by arrival: where most were preempted or, failing that, waited longest."""
    served = sorted(
        (record for record in records if record.metrics is not None),
        key=lambda record: (_arrival(record), record.request_id),
    )
    if len(served) <= most:
        return served
    weights = [(len(record.preemptions), _waited(record)) for record in served]
    count, waited = (sum(column) for column in zip(*weights[:most], strict=True))
    best, start = (count, waited), 0
    for last in range(most, len(served)):
        count += weights[last][0] - weights[last - most][0]
        waited += weights[last][1] - weights[last - most][1]
        if (count, waited) > best:
            best, start = (count, waited), last - most + 1
    return served[start : start + most]


def draw_waterfall(records: Sequence[RequestRecord], total: int) -> Picture:
    """``total``: how many requests there were in all."""
    rows = choose_rows(records)

    def paint(figure: Figure) -> None:
        from matplotlib.patches import Patch

        axes = figure.add_subplot()
        for place, record in enumerate(rows):
            for phase in phases(record):
                axes.barh(
                    place, phase.end - phase.start, left=phase.start, height=0.74,
                    color=_COLOURS[phase.name], linewidth=0,
                    hatch="xx" if phase.name in ("swapped out", "to recompute") else None,
                    edgecolor="white",
                )  # fmt: skip
        axes.set_ylim(len(rows) - 0.4, -0.6)
        every = range(0, len(rows), 1 if len(rows) <= 25 else 2)
        axes.set_yticks(list(every), [rows[i].request_id for i in every], fontsize=8.5)
        axes.set_ylabel("request, in order of arrival")
        axes.set_xlabel("time (seconds since the first arrival)")
        axes.set_title("What each request was doing")
        axes.grid(axis="x")
        handles = [
            Patch(facecolor=ORANGE, label="waiting in line"),
            Patch(facecolor=SKY, label="prefill, to the first token"),
            Patch(facecolor=BLUE, label="decoding"),
            Patch(facecolor=VERMILLION, hatch="xx", edgecolor="white", label="preempted"),
        ]
        legend_below(figure, handles, columns=4)

    preempted = sum(bool(record.preemptions) for record in rows)
    note = f"{len(rows)} of {total:,} requests, {preempted} of which had to give way."
    if len(rows) < total:
        note += (
            f" They are neighbours by arrival, chosen among the {len(records):,} whose stories "
            "were kept: where most were preempted or, if none was, waited longest."
        )
    return draw("waterfall", "Requests in time", note, paint, 1.5 + 0.17 * max(8, len(rows)))


def _around(phase: Phase, away: Sequence[Phase]) -> list[Phase]:
    """The phase without the times of ``away``, which are in order."""
    pieces, start = [], phase.start
    for gap in away:
        if gap.end > start and gap.start < phase.end:
            pieces.append(Phase(phase.name, start, gap.start))
            start = gap.end
    return [*pieces, Phase(phase.name, start, phase.end)]


def _arrival(record: RequestRecord) -> float:
    assert record.metrics is not None
    return record.metrics.arrival_time


def _waited(record: RequestRecord) -> float:
    return 0.0 if record.admitted is None else record.admitted - _arrival(record)

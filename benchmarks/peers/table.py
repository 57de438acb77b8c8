"""From samples to the table: medians, how far rounds are apart, and who is faster."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.measure import Failure, Sample
from benchmarks.peers.systems.system import BITS
from benchmarks.peers.workloads import Workload

ALONE = 0.05  # cores that others may have had for a figure to count


@dataclass
class Row:
    """A system with one form of weights, and what came of it: by workload, round by round."""

    system: str
    title: str
    weights: str
    form: str
    rounds: dict[str, list[Sample | Failure]] = field(default_factory=dict)
    failure: Failure | None = None  # if it could not be set up

    @property
    def is_quire(self) -> bool:
        return self.system == "quire"

    def samples(self, workload: str) -> list[Sample]:
        return [one for one in self.rounds.get(workload, ()) if isinstance(one, Sample)]

    def failed(self, workload: str) -> Failure | None:
        """Why it has no figure, or not all."""
        came = self.rounds.get(workload, ())
        return self.failure or next((one for one in came if isinstance(one, Failure)), None)


def speed(row: Row, workload: str) -> float | None:
    """Output tokens a second, the median of the rounds."""
    rates = [sample.tokens_per_second for sample in row.samples(workload)]
    return statistics.median(rates) if rates else None


def measured(rows: Sequence[Row]) -> str:
    """In words, of how many rounds there are figures: fewer than were asked for, if interrupted."""
    counts = {len(row.samples(workload)) for row in rows for workload in row.rounds} - {0}
    if not counts:
        return "no rounds"
    least, most = min(counts), max(counts)
    return f"{most} round{'s' * (most > 1)}" if least == most else f"{least} to {most} rounds"


def spread(row: Row, workload: str) -> float | None:
    """Half of what the fastest and the slowest round are apart, as a share of the median."""
    rates = [sample.tokens_per_second for sample in row.samples(workload)]
    if len(rates) < 2:
        return None
    return (max(rates) - min(rates)) / 2 / statistics.median(rates)


def ratio(quire: Row, peer: Row, workload: str) -> float | None:
    """How many times as fast Quire is: the median over rounds in which both were measured.

    The machine's speed may change from round to round, which a round's ratio does not show.
    """
    pairs = zip(quire.rounds.get(workload, ()), peer.rounds.get(workload, ()), strict=False)
    ratios = [
        ours.tokens_per_second / theirs.tokens_per_second
        for ours, theirs in pairs
        if isinstance(ours, Sample) and isinstance(theirs, Sample)
    ]
    return statistics.median(ratios) if ratios else None


def rival(rows: Sequence[Row], peer: Row, workload: str) -> Row | None:
    """The fastest of Quire's rows whose weights have as many bits as the peer's."""
    alike = [row for row in rows if row.is_quire and BITS[row.weights] == BITS[peer.weights]]
    measured = [row for row in alike if speed(row, workload) is not None]
    return max(measured, key=lambda row: speed(row, workload) or 0.0, default=None)


def table(rows: Sequence[Row], workloads: Sequence[Workload]) -> str:
    """In Markdown: a row a system and form of weights, a column a workload."""
    heads = [_heading(workload) for workload in workloads]
    lines = [["", "weights / KV", *heads, "peak memory"], ["---"] * (len(heads) + 3)]
    for row in rows:
        title = f"**{row.title}**" if row.is_quire else row.title
        cells = [_cell(rows, row, workload) for workload in workloads]
        lines.append([title, row.form, *cells, _memory(row, workloads)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _heading(workload: Workload) -> str:
    return workload.name if workload.of_one_token else f"{workload.name}, tokens/s"


def _cell(rows: Sequence[Row], row: Row, workload: Workload) -> str:
    middle, apart = speed(row, workload.name), spread(row, workload.name)
    if middle is None:
        return "failed" if row.failed(workload.name) else "–"
    rate = f"{middle:,.{0 if middle >= 100 else 1}f}"
    text = f"{1 / middle:.2f} s" if workload.of_one_token else rate
    if apart is not None:
        text += f" ± {apart:.0%}"
    ours = None if row.is_quire else rival(rows, row, workload.name)
    times = None if ours is None else ratio(ours, row, workload.name)
    return text if times is None else f"{text} ({times:.2f})"


def _memory(row: Row, workloads: Sequence[Workload]) -> str:
    """The most that any run took."""
    peaks = [one.peak_rss_bytes for workload in workloads for one in row.samples(workload.name)]
    return f"{max(peaks) / 1e9:.2f} GB" if peaks else "–"


def remarks(rows: Sequence[Row]) -> Iterator[str]:
    """What must be known beside the table: what failed, and who was not alone."""
    for row in rows:
        reasons: dict[str, list[str]] = {}
        for workload in row.rounds:
            failure = row.failed(workload)
            if failure is not None:
                reasons.setdefault(failure.reason, []).append(workload)
        if row.failure is not None:
            reasons = {row.failure.reason: ["cannot be set up"]}
        for reason, where in reasons.items():
            yield f"{row.title}, {row.form}: {', '.join(where)}: {reason}"
    runs = [
        (sample.others, f"{row.title}, {row.form}, {workload}")
        for row in rows
        for workload in row.rounds
        for sample in row.samples(workload)
    ]
    crowded = [run for run in runs if run[0] > ALONE]
    if crowded:
        cores, worst = max(crowded)
        yield (
            f"warning: not alone on the machine in {len(crowded)} of {len(runs)} runs; others had "
            f"up to {cores:.2f} cores ({worst})"
        )


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "system": row.system,
            "title": row.title,
            "weights": row.weights,
            "form": row.form,
            "failure": row.failure.reason if row.failure else None,
            "workloads": {name: _figures(rows, row, name) for name in row.rounds},
        }
        for row in rows
    ]


def _figures(rows: Sequence[Row], row: Row, workload: str) -> Mapping[str, Any]:
    ours = None if row.is_quire else rival(rows, row, workload)
    failure = row.failed(workload)
    return {
        "tokens_per_second": speed(row, workload),
        "spread": spread(row, workload),
        "quire_is_times_as_fast": None if ours is None else ratio(ours, row, workload),
        "failure": failure.reason if failure else None,
        "rounds": [sample._asdict() for sample in row.samples(workload)],
    }

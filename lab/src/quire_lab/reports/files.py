"""A simulation's figures beside its page: JSON, CSV and a trace, for other programs."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from quire.core.protocol import Decision
from quire_lab.reports.chrome_trace import chrome_trace
from quire_lab.simulation.export import RecordWriter, summary_values, write_json, write_series
from quire_lab.simulation.result import SimulationResult


def write_files(directory: Path, result: SimulationResult, facts: Mapping[str, str]) -> None:
    """Write result.json, trace.json, series.csv, requests.csv and decisions.csv."""
    write_json(directory / "result.json", {"facts": dict(facts), **summary_values(result)})
    write_json(directory / "trace.json", chrome_trace(result))
    with (directory / "series.csv").open("w", encoding="utf-8", newline="") as file:
        write_series(file, result.series)
    with (directory / "requests.csv").open("w", encoding="utf-8", newline="") as file:
        write = RecordWriter(file)
        for record in result.records:
            write(record)
    with (directory / "decisions.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("time", *Decision._fields))
        for time, decision in result.decisions:
            writer.writerow((time, decision.what.value, *decision[1:]))

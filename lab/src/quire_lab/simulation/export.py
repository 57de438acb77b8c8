"""Results as JSON and CSV. The same run gives the same bytes."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any

from quire.core.errors import ConfigError
from quire.engine.metrics import RequestMetrics
from quire_lab.simulation.result import RequestRecord, SimulationResult
from quire_lab.simulation.series import Point

_METRICS = [field.name for field in fields(RequestMetrics)]
_DERIVED = ("ttft", "tpot", "e2e_latency", "normalized_latency", "num_preemptions")
_SUMMARIES = ("ttft", "tpot", "itl", "normalized_latency", "e2e_latency", "queueing")


def summary_values(result: SimulationResult) -> dict[str, Any]:
    """The figures of a run, without series, records, decisions and block map: plain JSON values."""
    values: dict[str, Any] = {
        name: getattr(result, name)
        for name in (
            "block_size", "num_blocks", "seconds", "busy_seconds", "num_steps", "num_finished",
            "num_refused", "num_met_goals", "num_missed_ttft", "num_missed_tpot",
            "goodput_share", "tokens_in", "tokens_out",
            "request_rate", "output_rate", "mean_running", "most_running", "most_held",
            "kv_efficiency", "saved_blocks_share", "first_refusal",
        )
    }  # fmt: skip
    values["latency"] = {name: asdict(getattr(result, name)) for name in _SUMMARIES}
    values["mean_usage"] = result.mean_usage._asdict()
    values["preemptions"] = result.preemptions._asdict()
    values["prefix_cache"] = result.prefix_cache._asdict()
    values["drafts"] = draft_values(result)
    values["decisions"] = dict(result.num_decisions)
    return values


def draft_values(result: SimulationResult) -> dict[str, Any]:
    """The results of speculation as JSON values."""
    return {**result.drafts._asdict(), "tokens_per_step": result.tokens_per_step}


def write_json(path: Path, values: Any) -> None:
    """ConfigError if the file cannot be written."""
    try:
        path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error


def write_series(file: IO[str], points: Iterable[Point]) -> None:
    """A row for each interval; the unit of the memory columns is slots (tokens)."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(Point._fields)
    writer.writerows(points)


class RecordWriter:
    """Writes each request as it ends: a ``Simulator``'s ``on_record``. Times in seconds."""

    def __init__(self, file: IO[str]) -> None:
        self._writer = csv.writer(file, lineterminator="\n")
        self._writer.writerow(
            ["request_id", "admitted", "refused", *_METRICS, *_DERIVED, "preemptions"]
        )

    def __call__(self, record: RequestRecord) -> None:
        values = record_values(record)
        metrics = values.pop("metrics") or {}
        story = ";".join(f"{p['by']}:{p['at']}:{p['until']}" for p in values.pop("preemptions"))
        facts = [values["request_id"], values["admitted"], values["refused"]]
        self._writer.writerow([*facts, *(metrics.get(n) for n in (*_METRICS, *_DERIVED)), story])


def record_values(record: RequestRecord) -> dict[str, Any]:
    metrics = record.metrics
    return {
        "request_id": record.request_id,
        "admitted": record.admitted,
        "refused": record.refused,
        "metrics": metrics
        and {**asdict(metrics), **{name: getattr(metrics, name) for name in _DERIVED}},
        "preemptions": [one._asdict() for one in record.preemptions],
    }

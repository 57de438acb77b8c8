"""A simulation's figures as JSON and CSV, for other programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quire.simulation.result import SimulationResult
from quire.simulation.series import Point

_LATENCIES = ("ttft", "tpot", "itl", "normalized_latency", "e2e_latency", "queueing")
_PARTS = ("mean_usage", "preemptions", "prefix_cache")
_LISTS = ("series", "records", "decisions", "block_map")


def summary(result: SimulationResult) -> dict[str, Any]:
    """All of a result but its lists. Times in seconds, memory in slots (tokens) or blocks."""
    values = {
        name: getattr(result, name)
        for name in result.__dataclass_fields__
        if name not in (*_LATENCIES, *_PARTS, *_LISTS)
    }
    values["num_decisions"] = dict(result.num_decisions)
    values.update({name: getattr(result, name)._asdict() for name in _PARTS})
    values.update({name: asdict(getattr(result, name)) for name in _LATENCIES})
    for name in ("kv_efficiency", "goodput_share", "request_rate", "output_rate"):
        values[name] = getattr(result, name)
    return values


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=False) + "\n", encoding="utf-8")


def write_series(path: Path, result: SimulationResult) -> None:
    _write_csv(path, Point._fields, result.series)


def write_records(path: Path, result: SimulationResult) -> None:
    """One row for each request whose story was kept."""
    columns = (
        "request_id", "arrival", "admitted", "first_token", "finished", "prompt_tokens",
        "output_tokens", "cached_tokens", "ttft", "tpot", "normalized_latency", "peak_blocks",
        "shared_blocks", "copied_blocks", "block_seconds", "swaps", "recomputes", "refused",
    )  # fmt: skip
    rows: list[Sequence[object]] = []
    for record in result.records:
        one = record.metrics
        if one is None:
            rows.append((record.request_id, *[None] * (len(columns) - 2), record.refused))
            continue
        rows.append(
            (
                record.request_id, one.arrival_time, record.admitted, one.first_token_time,
                one.finished_time, one.num_prompt_tokens, one.num_output_tokens,
                one.cached_tokens, one.ttft, one.tpot, one.normalized_latency, one.peak_blocks,
                one.shared_blocks, one.copied_blocks, one.block_seconds, one.num_swaps,
                one.num_recomputes, None,
            )  # fmt: skip
        )
    _write_csv(path, columns, rows)


def write_decisions(path: Path, result: SimulationResult) -> None:
    columns = (
        "time", "what", "request_id", "why", "needed", "free", "swap_seconds",
        "recompute_seconds", "remedy",
    )  # fmt: skip
    rows = (
        (time, one.what.value, one.request_id, one.why, one.needed, one.free, one.swap_seconds,
         one.recompute_seconds, one.remedy)
        for time, one in result.decisions
    )  # fmt: skip
    _write_csv(path, columns, rows)


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")

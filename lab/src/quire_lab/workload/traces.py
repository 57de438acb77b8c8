"""A trace file of any known format, and what can be expected of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from quire.core.errors import ConfigError
from quire.engine.traces.request import TraceRequest
from quire_lab.workload.columns import has_times, parse_columns, read_columns
from quire_lab.workload.csv_traces import AZURE_COLUMNS, BURSTGPT_COLUMNS, read_azure, read_burstgpt
from quire_lab.workload.jsonl_traces import read_hashed, read_mooncake, read_timed_trace
from quire_lab.workload.recording import read_recording
from quire_lab.workload.rows import json_rows, reading
from quire_lab.workload.server_logs import VLLM_LISTS, read_sglang, read_vllm_bench
from quire_lab.workload.sharegpt import read_sharegpt
from quire_lab.workload.units import MOONCAKE_BLOCK, TIMED_TRACE_BLOCK, UNITS, form_of


@dataclass(frozen=True)
class TraceFormat:
    """How a file is read. ``times``: their unit, and where it was found; "": none."""

    name: str
    read: Callable[[Path], Iterator[TraceRequest | None]]
    times: str = "seconds"
    shares_prefixes: bool = False  # tells which beginnings are equal

    @property
    def has_times(self) -> bool:
        return bool(self.times)


class TraceFacts(NamedTuple):
    """The content of a file. ``span``: seconds from the first request's arrival to the last's."""

    format: str
    times: str
    requests: int
    unanswered: int  # left out, for there is no output
    span: float

    @property
    def rate(self) -> float | None:
        """Requests per second; None: they come at one time."""
        return (self.requests - 1) / self.span if self.span else None


FORMATS: Mapping[str, TraceFormat] = {
    form.name: form
    for form in (
        TraceFormat("azure", read_azure, "dates"),
        TraceFormat("burstgpt", read_burstgpt),
        TraceFormat("mooncake", read_mooncake, "milliseconds", shares_prefixes=True),
        TraceFormat("timed-trace", read_timed_trace, shares_prefixes=True),
        TraceFormat("sglang", read_sglang, "dates"),
        TraceFormat("vllm-bench", read_vllm_bench),
        TraceFormat("quire", read_recording, shares_prefixes=True),
        TraceFormat("sharegpt", read_sharegpt, times="", shares_prefixes=True),
    )
}


@dataclass(frozen=True)
class Trace:
    """A trace file, which is read anew for each pass over its requests."""

    path: Path
    format: TraceFormat
    limit: int | None = None  # requests; None: all

    @classmethod
    def open(
        cls,
        path: Path,
        name: str | None = None,
        limit: int | None = None,
        unit: str | None = None,
    ) -> Trace:
        """The trace in a file, whose format is given by ``name`` or found in the file.

        unit: of the times in JSONL, of ``UNITS``; None: the format's, or what the file shows.

        Raises:
            ConfigError: there is no such format, the file's is unknown, or the unit of its times
        cannot be found.
        """
        named = name is not None
        if name is None:
            name = _format_of(path)
        if name not in FORMATS:
            raise ConfigError(f"trace format {name!r} is unknown; known: {', '.join(FORMATS)}")
        if unit not in (None, *UNITS):
            raise ConfigError(f"time unit must be one of {', '.join(UNITS)}, got {unit!r}")
        if name in _HASHED and (unit is not None or not named):
            return cls(path, _hashed_format(path, name if named else None, unit), limit)
        if unit is not None:
            raise ConfigError(f"time unit: {name} traces have their own ({FORMATS[name].times})")
        return cls(path, FORMATS[name], limit)

    @classmethod
    def of_columns(cls, path: Path, text: str, limit: int | None = None) -> Trace:
        """A CSV file whose columns are named. ConfigError: they are not understood."""
        columns = parse_columns(text)
        read = partial(read_columns, columns=columns)
        times = "milliseconds" if "time_ms" in columns else "seconds or dates"
        return cls(path, TraceFormat("columns", read, times if has_times(columns) else ""), limit)

    def facts(self) -> TraceFacts:
        """The content of the file, which is read for it."""
        requests, unanswered, first, last = 0, 0, None, 0.0
        for request in self.format.read(self.path):
            if request is None:
                unanswered += 1
                continue
            requests, last = requests + 1, request.arrival
            first = last if first is None else first
            if requests == self.limit:
                break
        span = 0.0 if first is None else last - first
        return TraceFacts(self.format.name, self.format.times, requests, unanswered, span)

    def __iter__(self) -> Iterator[TraceRequest]:
        """ConfigError: what is wrong in which line, or that there is no request at all."""
        answered = (request for request in self.format.read(self.path) if request is not None)
        requests = islice(answered, self.limit)
        first = next(requests, None)
        if first is None:
            raise ConfigError(f"{self.path} holds no request that was answered")
        yield first
        yield from requests


_HASHED = ("mooncake", "timed-trace")


def _hashed_format(path: Path, name: str | None, unit: str | None) -> TraceFormat:
    """The format of a JSONL trace whose unit or form must be found in its rows."""
    form = form_of(path, unit)
    if name is None:
        name = _HASHED[form.block_size != MOONCAKE_BLOCK]
    size = MOONCAKE_BLOCK if name == _HASHED[0] else TIMED_TRACE_BLOCK
    read = partial(read_hashed, block_size=size, unit=form.unit)
    return replace(FORMATS[name], read=read, times=f"{UNITS[form.unit]} ({form.why})")


def _format_of(path: Path) -> str:
    with reading(path) as file:
        start = file.readline(4096).lstrip()
        if not start and not file.read(1):
            raise ConfigError(f"{path} is empty")
    columns = start.strip().split(",")
    if set(AZURE_COLUMNS) <= set(columns):
        return "azure"
    if set(BURSTGPT_COLUMNS) <= set(columns):
        return "burstgpt"
    if start.startswith("["):
        return "sharegpt"
    if start.startswith("{"):
        row = next(json_rows(path))
        if "quire_trace" in row.values:
            return "quire"
        if all(name in row.values for name in VLLM_LISTS):
            return "vllm-bench"
        if str(row.values.get("event")).startswith("request."):
            return "sglang"
        if "timestamp" in row.values:
            return _HASHED[0]  # or the other one: all rows tell
    raise ConfigError(
        f"{path} is no trace of a known format ({', '.join(FORMATS)}); name the columns of any "
        f"other CSV (--columns); it begins with {start[:60]!r}"
    )

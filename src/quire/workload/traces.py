"""A trace file of any known format, and what can be expected of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from quire.errors import ConfigError
from quire.workload.columns import has_times, parse_columns, read_columns
from quire.workload.csv_traces import AZURE_COLUMNS, BURSTGPT_COLUMNS, read_azure, read_burstgpt
from quire.workload.jsonl_traces import MOONCAKE_BLOCK, read_mooncake, read_timed_trace
from quire.workload.recording import read_recording
from quire.workload.request import TraceRequest
from quire.workload.rows import json_rows, reading
from quire.workload.server_logs import VLLM_LISTS, read_sglang, read_vllm_bench
from quire.workload.sharegpt import read_sharegpt


@dataclass(frozen=True)
class TraceFormat:
    name: str
    read: Callable[[Path], Iterator[TraceRequest]]
    has_times: bool = True
    shares_prefixes: bool = False  # tells which beginnings are equal


FORMATS: Mapping[str, TraceFormat] = {
    form.name: form
    for form in (
        TraceFormat("azure", read_azure),
        TraceFormat("burstgpt", read_burstgpt),
        TraceFormat("mooncake", read_mooncake, shares_prefixes=True),
        TraceFormat("timed-trace", read_timed_trace, shares_prefixes=True),
        TraceFormat("sglang", read_sglang),
        TraceFormat("vllm-bench", read_vllm_bench),
        TraceFormat("quire", read_recording, shares_prefixes=True),
        TraceFormat("sharegpt", read_sharegpt, has_times=False, shares_prefixes=True),
    )
}


@dataclass(frozen=True)
class Trace:
    """A trace file, read anew each time it is asked for its requests."""

    path: Path
    format: TraceFormat
    limit: int | None = None  # requests; None: all

    @classmethod
    def open(cls, path: Path, name: str | None = None, limit: int | None = None) -> Trace:
        """The trace in a file, its format told by ``name`` or by how the file begins.

        Raises:
            ConfigError: there is no such format, or the file is of none that is known.
        """
        if name is None:
            name = _format_of(path)
        if name not in FORMATS:
            raise ConfigError(f"trace format {name!r} is unknown; known: {', '.join(FORMATS)}")
        return cls(path, FORMATS[name], limit)

    @classmethod
    def of_columns(cls, path: Path, text: str, limit: int | None = None) -> Trace:
        """A CSV file whose columns are named. ConfigError: they are not understood."""
        columns = parse_columns(text)
        read = partial(read_columns, columns=columns)
        return cls(path, TraceFormat("columns", read, has_times(columns)), limit)

    def __iter__(self) -> Iterator[TraceRequest]:
        """ConfigError: what is wrong in which line, or that there is no request at all."""
        requests = islice(self.format.read(self.path), self.limit)
        first = next(requests, None)
        if first is None:
            raise ConfigError(f"{self.path} holds no request that was answered")
        yield first
        yield from requests


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
            blocks = len(row.values.get("hash_ids") or ())
            wanted = -(-row.tokens("input_length", 1) // MOONCAKE_BLOCK)
            return "mooncake" if blocks <= wanted else "timed-trace"
    raise ConfigError(
        f"{path} is no trace of a known format ({', '.join(FORMATS)}); name the columns of any "
        f"other CSV (--columns); it begins with {start[:60]!r}"
    )

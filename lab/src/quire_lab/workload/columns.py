"""Any CSV with columns that the user names: lengths, and times if it has them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from quire.core.errors import ConfigError
from quire.engine.traces.request import TraceRequest
from quire_lab.workload.csv_traces import timestamp
from quire_lab.workload.rows import TraceClock, TraceRow, header_of, reading
from quire_lab.workload.units import checked_epoch

_KEYS = ("prompt", "output", "time", "time_ms")
_DELIMITERS = ",;\t"


def parse_columns(text: str) -> Mapping[str, str]:
    """The columns of ``prompt=NAME,output=NAME`` and ``time=NAME`` or ``time_ms=NAME``.

    Raises:
        ConfigError: a key is unknown or missing, or it or a column is there twice.
    """
    columns: dict[str, str] = {}
    for part in text.split(","):
        key, equals, name = part.partition("=")
        if key not in _KEYS or not equals or not name or key in columns:
            raise ConfigError(
                f"columns must be prompt=NAME,output=NAME and, where there are times, time=NAME "
                f"(seconds, or a date) or time_ms=NAME; got {part!r:.80}"
            )
        columns[key] = name
    if not {"prompt", "output"} <= columns.keys() or {"time", "time_ms"} <= columns.keys():
        raise ConfigError(
            f"columns must have prompt and output, and one time at the most; got {text!r:.80}"
        )
    if len(set(columns.values())) < len(columns):
        raise ConfigError(f"columns: one column cannot tell two things, got {text!r:.80}")
    if _are_counted(columns) and any(int(name) < 1 for name in columns.values()):
        raise ConfigError(f"columns are counted from 1, got {text!r:.80}")
    return columns


def _are_counted(columns: Mapping[str, str]) -> bool:
    return all(name.isdecimal() for name in columns.values())


def has_times(columns: Mapping[str, str]) -> bool:
    return "time" in columns or "time_ms" in columns


def read_columns(path: Path, columns: Mapping[str, str]) -> Iterator[TraceRequest | None]:
    """The requests of a CSV file; all arrive at 0 where no column has times.

    Columns that are all numbers are counted, in a file without a header.
    """
    clock, counted = TraceClock(), _are_counted(columns)
    if counted:
        columns = {key: f"column {int(number)}" for key, number in columns.items()}
    for row in _rows(path, columns, counted):
        arrival = 0.0
        if has_times(columns):
            arrival = clock.arrival(row, _time(row, columns))
        prompt, output = row.tokens(columns["prompt"], 1), row.outputs(columns["output"])
        yield TraceRequest(arrival, prompt, output) if output else None


def _time(row: TraceRow, columns: Mapping[str, str]) -> float:
    if "time_ms" in columns:
        return checked_epoch(row, columns["time_ms"], "ms") / 1e3
    try:
        float(row.get(columns["time"]))
    except ValueError:
        return timestamp(row, columns["time"])
    return checked_epoch(row, columns["time"], "s")


def _rows(path: Path, columns: Mapping[str, str], counted: bool) -> Iterator[TraceRow]:
    with reading(path) as file:
        first = file.readline()
        file.seek(0)
        reader = csv.reader(file, delimiter=max(_DELIMITERS, key=first.count))
        header = None if counted else next(reader, [])
        if header is not None:
            header_of(header, path, columns.values())
        for values in reader:
            if not values:  # an empty line
                continue
            names = header or [f"column {i}" for i in range(1, len(values) + 1)]
            row = TraceRow(dict(zip(names, values, strict=False)), path, reader.line_num)
            if header is not None and len(values) != len(header):
                raise row.error(f"the row must have {len(header)} columns")
            yield row

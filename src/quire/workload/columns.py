"""Any CSV whose columns are named by whoever has it: lengths, and times if it has them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from quire.errors import ConfigError
from quire.workload.csv_traces import timestamp
from quire.workload.request import TraceRequest
from quire.workload.rows import Clock, Row

_KEYS = ("prompt", "output", "time", "time_ms")
_DELIMITERS = ",;\t"


def parse_columns(text: str) -> Mapping[str, str]:
    """Of ``prompt=NAME,output=NAME`` and ``time=NAME`` or ``time_ms=NAME``: the column of each.

    Raises:
        ConfigError: a key is unknown, missing or there twice.
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
    return columns


def has_times(columns: Mapping[str, str]) -> bool:
    return "time" in columns or "time_ms" in columns


def read_columns(path: Path, columns: Mapping[str, str]) -> Iterator[TraceRequest]:
    """The requests of a CSV file; all arrive at 0 where no column has times.

    Columns that are all numbers are counted from 1, in a file without a header.
    """
    clock = Clock()
    for row in _rows(path, columns):
        arrival = 0.0
        if has_times(columns):
            arrival = clock.arrival(row, _time(row, columns))
        prompt, output = row.tokens(columns["prompt"], 1), row.tokens(columns["output"], 1)
        yield TraceRequest(arrival, prompt, output)


def _time(row: Row, columns: Mapping[str, str]) -> float:
    if "time_ms" in columns:
        return row.seconds(columns["time_ms"]) / 1e3
    try:
        float(row.get(columns["time"]))
    except ValueError:
        return timestamp(row, columns["time"])
    return row.seconds(columns["time"])


def _rows(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(_DELIMITERS, key=first.count))
            counted = all(name.isdecimal() for name in columns.values())
            header = None if counted else next(reader, [])
            for name in columns.values():
                if header is not None and name not in header:
                    text = f"column {name!r} is missing; there are: {', '.join(header)}"
                    raise Row({}, path, 1).error(text)
            for values in reader:
                names = header or [str(i) for i in range(1, len(values) + 1)]
                row = Row(dict(zip(names, values, strict=False)), path, reader.line_num)
                if header is not None and len(values) != len(header):
                    raise row.error(f"the row must have {len(header)} columns")
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error

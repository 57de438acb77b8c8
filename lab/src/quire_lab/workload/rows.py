"""Rows of trace files, one at a time, with errors that name file and line."""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from quire.core.errors import ConfigError
from quire.engine.traces.request import MOST_TOKENS

_EMPTY = ("", "none", "null", "nan", "na")


class TraceRow:
    """One row and its line, whose fields are read by name."""

    def __init__(self, values: Mapping[str, Any], path: Path, line: int) -> None:
        self.values = values
        self._path = path
        self._line = line

    def error(self, text: str) -> ConfigError:
        return ConfigError(f"{self._path}, line {self._line}: {text}")

    def within(self, values: Mapping[str, Any]) -> TraceRow:
        """A part of the row, in whose errors the line is the same."""
        return TraceRow(values, self._path, self._line)

    def get(self, name: str) -> Any:
        value = self.values.get(name)
        if value is None:
            raise self.error(f"{name} is missing")
        return value

    def tokens(self, name: str, least: int = 0) -> int:
        """A number of tokens."""
        value = self.get(name)
        try:
            number = float(value) if isinstance(value, str) else value
        except ValueError:
            number = None
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int):
            raise self.error(f"{name} must be a whole number of tokens, got {value!r}")
        if not least <= number <= MOST_TOKENS:
            raise self.error(f"{name} must be from {least} to {MOST_TOKENS:,} tokens, got {value}")
        return number

    def outputs(self, name: str) -> int:
        """A number of tokens that were written; an empty field is none, as programs write it."""
        empty = name in self.values and str(self.values[name]).strip().lower() in _EMPTY
        return 0 if empty else self.tokens(name)

    def seconds(self, name: str) -> float:
        value = self.get(name)
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number) or number < 0:
            raise self.error(f"{name} must be a time of at least 0, got {value!r}")
        return number

    def only(self, known: Iterable[str]) -> None:
        """Refuse a row with a column that would be passed over."""
        unknown = sorted(set(map(str, self.values)) - set(known))
        if unknown:
            raise self.error(f"unknown column {unknown[0]!r}; known: {', '.join(sorted(known))}")


_GZIP = b"\x1f\x8b"


@contextmanager
def reading(path: Path) -> Iterator[TextIO]:
    """A file's text, unpacked where it is gzip's. ConfigError: it cannot be read, or is no text."""
    try:
        with _binary(path) as file, TextIOWrapper(file, "utf-8-sig", newline="") as text:
            yield text
    except UnicodeDecodeError:
        where = f"{path}, line {_first_undecodable(path)}"
        raise ConfigError(f"{where}: not text in UTF-8") from None
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _binary(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
    return gzip.open(path) if packed else path.open("rb")  # type: ignore[return-value]


def _first_undecodable(path: Path) -> int:
    number = 0
    with suppress(OSError, EOFError, zlib.error, UnicodeDecodeError), _binary(path) as file:
        for line in file:
            number += 1
            line.decode()
    return number


def header_of(names: Iterable[str], path: Path, wanted: Iterable[str]) -> TraceRow:
    """The header of a CSV. ConfigError: a needed column is missing, or there twice."""
    found = list(names)
    header = TraceRow(dict.fromkeys(found), path, 1)
    for name in wanted:
        if name not in found:
            raise header.error(
                f"column {name!r} is missing; there are: {', '.join(found)[:200] or 'none'}"
            )
        if found.count(name) > 1:
            raise header.error(f"column {name!r} is there {found.count(name)} times")
    return header


def csv_rows(
    path: Path, columns: Iterable[str], optional: Iterable[str] = ()
) -> Iterator[TraceRow]:
    """The rows of a CSV file with these columns, its header being line 1."""
    wanted, known = list(columns), {*columns, *optional}
    with reading(path) as file:
        reader = csv.DictReader(file)
        header = header_of(reader.fieldnames or (), path, wanted)
        header.only(known)
        for values in reader:
            row = TraceRow(values, path, reader.line_num)
            if None in values or None in values.values():
                raise row.error(f"the row must have {len(header.values)} columns")
            yield row


def json_rows(path: Path) -> Iterator[TraceRow]:
    """The objects of a file with one JSON object a line; empty lines are passed over."""
    with reading(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                row = TraceRow({}, path, number)
                try:
                    row.values = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise row.error(f"not JSON: {error}") from None
                if not isinstance(row.values, dict):
                    raise row.error("not a JSON object")
                yield row


class TraceClock:
    """Turns a trace's times into seconds after its first request, and sees that none goes back."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._last = 0.0

    def arrival(self, row: TraceRow, seconds: float) -> float:
        if self._first is None:
            self._first = self._last = seconds
        if seconds < self._last:
            raise row.error(
                f"times must not go back: {seconds - self._first:.6f} s after "
                f"{self._last - self._first:.6f} s"
            )
        self._last = seconds
        return seconds - self._first

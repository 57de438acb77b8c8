"""Finds the units of a JSONL trace's times and hashes in its rows.

Mooncake's traces and vLLM's timed traces have the same fields. One has milliseconds and hashes of
512 tokens, the other seconds and hashes of 16. Other writers may mix them, or leave the hashes out;
a wrong guess simulates a trace 1,000 times too fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from quire.core.errors import ConfigError
from quire_lab.workload.rows import TraceRow, json_rows

MOONCAKE_BLOCK = 512
TIMED_TRACE_BLOCK = 16
UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
IN_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

_MOST_ROWS = 10_000  # that are looked at
_FEWEST_ROWS = 20  # from which a rate can be told
_MOST_TOKENS_A_SECOND = 1e6  # more come to no server
_FEWEST_TOKENS_A_SECOND = 10  # fewer are hardly worth a server
_EPOCH_SECONDS = 1e9  # of times since 1970, the least, and a hundredth of the most


class TraceForm(NamedTuple):
    """How to read a file. why: what has shown the unit."""

    block_size: int
    unit: str
    why: str


def form_of(path: Path, unit: str | None = None) -> TraceForm:
    """The form that a file's rows show. ``unit``: if it is known already.

    Raises:
        ConfigError: the rows do not tell seconds from milliseconds, or contradict themselves. Finer
    units are found by times since 1970 only.
    """
    rows = list(islice(json_rows(path), _MOST_ROWS))
    size = _block_size(rows)
    why = "as given"
    if unit is None:
        unit, why = _unit(path, rows, size)
    if size is None:
        size = TIMED_TRACE_BLOCK if unit == "s" else MOONCAKE_BLOCK
    return TraceForm(size, unit, why)


def _unit(path: Path, rows: Sequence[TraceRow], block_size: int | None) -> tuple[str, str]:
    """And why."""
    times = [row.seconds("timestamp") for row in rows]
    first, last = times[0], max(times)
    if (unit := _epoch_unit(first)) is not None:
        return unit, f"{UNITS[unit]} since 1970"
    if len(rows) < _MOST_ROWS and min(times) == last:
        return "s", "all are one"
    found = list(_evidence(rows, times, block_size))
    units = {unit for unit, _ in found}
    if units == {"s"} and len(rows) >= _FEWEST_ROWS:
        rate = sum(row.tokens("input_length", 1) for row in rows) / (last - first or 1.0)
        if rate < _FEWEST_TOKENS_A_SECOND:
            found.append(("ms", f"as seconds, {rate:.2g} tokens would come a second"))
            units.add("ms")
    if len(units) == 1:
        return units.pop(), "; ".join(why for _, why in found)
    told = "nothing in it tells"
    if units:
        told = ", but ".join(f"{why}: {UNITS[unit]}" for unit, why in found)
    raise ConfigError(
        f"{path}: its times may be seconds or milliseconds ({told}); say --time-unit s or ms, "
        "or us or ns"
    )


def _epoch_unit(time: float) -> str | None:
    """The unit of a time since 1970; None: it is not one."""
    for unit, seconds in IN_SECONDS.items():
        if _EPOCH_SECONDS <= time * seconds < 100 * _EPOCH_SECONDS:
            return unit
    return None


def _block_size(rows: Sequence[TraceRow]) -> int | None:
    """The larger one where both fit; None: no row has hashes."""
    if not any(row.values.get("hash_ids") for row in rows):
        return None
    for row in rows:
        names = row.values.get("hash_ids")
        count = len(names) if isinstance(names, list) else 0
        if count > -(-row.tokens("input_length", 1) // MOONCAKE_BLOCK):
            return TIMED_TRACE_BLOCK
    return MOONCAKE_BLOCK


def _evidence(
    rows: Sequence[TraceRow], times: Sequence[float], block_size: int | None
) -> Iterator[tuple[str, str]]:
    """Units, each with the fact that speaks for it."""
    hashed = [row.tokens("input_length", 1) for row in rows if row.values.get("hash_ids")]
    if block_size == TIMED_TRACE_BLOCK:
        yield "s", "hashes of 16 tokens"
    elif max(hashed, default=0) > TIMED_TRACE_BLOCK:
        yield "ms", "hashes of 512 tokens"
    first, last = times[0], max(times)
    if any(not time.is_integer() for time in times):
        yield "s", "fractions"
    tokens = sum(row.tokens("input_length", 1) for row in rows)
    if len(rows) >= _FEWEST_ROWS and last > first:
        rate = 1e3 * tokens / (last - first)
        if rate > _MOST_TOKENS_A_SECOND:
            yield "s", f"as milliseconds, {_rounded(rate):,} tokens would come a second"


def checked_epoch(row: TraceRow, name: str, unit: str) -> float:
    """A column's time. Refused is one since 1970 that is in another unit than ``unit``."""
    value = row.seconds(name)
    seen = _epoch_unit(value)
    if seen in (None, unit):
        return value
    columns = {"s": f"say time={name}", "ms": f"say time_ms={name}"}
    instead = columns.get(seen or "", "give milliseconds")
    raise row.error(f"{name} looks like {UNITS[seen or unit]} since 1970: {instead}")


def _rounded(number: float) -> int:
    """A figure rounded to two digits."""
    return int(round(number, 1 - math.floor(math.log10(number))))

"""Traces published as CSV: Azure's and BurstGPT's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from quire.engine.traces.request import TraceRequest
from quire_lab.workload.rows import TraceClock, TraceRow, csv_rows

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens")
_BURSTGPT_OTHERS = ("Total tokens", "Log Type", "Session ID", "Elapsed time")


def read_azure(path: Path) -> Iterator[TraceRequest | None]:
    """The requests of an Azure LLM inference trace (Azure Public Dataset, 2023 and 2024).

    None: one that was not answered, as in all readers.
    """
    clock = TraceClock()
    for row in csv_rows(path, AZURE_COLUMNS):
        arrival = clock.arrival(row, timestamp(row, "TIMESTAMP"))
        prompt, output = row.tokens("ContextTokens", 1), row.outputs("GeneratedTokens")
        yield TraceRequest(arrival, prompt, output) if output else None


def read_burstgpt(path: Path) -> Iterator[TraceRequest | None]:
    """The requests of a BurstGPT trace; failed ones have no response tokens."""
    clock = TraceClock()
    for row in csv_rows(path, BURSTGPT_COLUMNS, _BURSTGPT_OTHERS):
        arrival = clock.arrival(row, row.seconds("Timestamp"))
        prompt, output = row.tokens("Request tokens"), row.outputs("Response tokens")
        yield TraceRequest(arrival, prompt, output) if prompt and output else None


def timestamp(row: TraceRow, name: str) -> float:
    """Seconds of "2023-11-16 18:15:46.6805900", with any number of decimals, or with a zone."""
    text = str(row.get(name))
    whole, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :]
    try:
        time = datetime.fromisoformat(whole + zone)
        fraction = float(f"0.{digits}") if digits else 0.0
    except ValueError:
        raise row.error(f"{name} is not a time: {text!r}") from None
    if dot and not digits:
        raise row.error(f"{name} is not a time: {text!r}")
    if time.tzinfo is None:
        time = time.replace(tzinfo=timezone.utc)
    return time.timestamp() + fraction

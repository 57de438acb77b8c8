"""The traces that ``quire serve --record-trace`` writes (``quire.engine.traces``), read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.engine.traces.request import DraftCounts, Seen, TraceRequest
from quire.engine.traces.writer import VERSION
from quire_lab.workload.jsonl_traces import hashed_content
from quire_lab.workload.rows import TraceClock, TraceRow, json_rows

_HEADER = ("quire_trace", "block_size", "engine")
_FIELDS = (
    "arrival", "prompt_tokens", "output_tokens", "n", "beam_search", "max_tokens", "hash_ids"
)  # fmt: skip


def read_recording(path: Path) -> Iterator[TraceRequest]:
    """The requests of a trace that ``quire serve --record-trace`` wrote."""
    rows, clock = json_rows(path), TraceClock()
    block_size = _header(rows, path).tokens("block_size", 1)
    for row in rows:
        row.only((*_FIELDS, *DraftCounts._fields, "adapter", "seen"))
        yield _request(row, clock.arrival(row, row.seconds("arrival")), block_size)


def recorded_engine(path: Path) -> Mapping[str, Any]:
    """The limits of the recorded engine. ConfigError: the recording lacks them."""
    engine = _header(json_rows(path), path).values.get("engine")
    if not isinstance(engine, dict):
        raise ConfigError(
            f"{path} does not tell how the engine was set up: record it with this version"
        )
    return engine


def _header(rows: Iterator[TraceRow], path: Path) -> TraceRow:
    header = next(rows, None)
    if header is None or header.values.get("quire_trace") != VERSION:
        raise ConfigError(f"{path} is not a trace that quire recorded (version {VERSION})")
    header.only(_HEADER)
    return header


def _request(row: TraceRow, arrival: float, block_size: int) -> TraceRequest:
    prompt, output = row.tokens("prompt_tokens", 1), row.tokens("output_tokens", 1)
    beam_search, limit = row.get("beam_search"), None
    if not isinstance(beam_search, bool):
        raise row.error(f"beam_search must be true or false, got {beam_search!r}")
    if row.values.get("max_tokens") is not None:
        limit = row.tokens("max_tokens", output)
    content = hashed_content(row, row.get("hash_ids"), block_size, prompt + output)
    adapter = row.values.get("adapter")
    if not isinstance(adapter, str | None):
        raise row.error(f"adapter must be a text, got {adapter!r:.100}")
    number, drafts = row.tokens("n", 1), _drafts(row)
    return TraceRequest(
        arrival, prompt, output, number, beam_search, limit, content, drafts, adapter, _seen(row)
    )


def _drafts(row: TraceRow) -> DraftCounts | None:
    """The results of speculation; None: the trace was recorded without."""
    if not any(name in row.values for name in DraftCounts._fields):
        return None
    times, drafted, accepted = counts = DraftCounts(*map(row.tokens, DraftCounts._fields))
    if not max(times, accepted) <= drafted or (drafted and not times):
        raise row.error(f"{accepted} accepted of {drafted} drafts, in {times} steps, cannot be")
    return counts


def _seen(row: TraceRow) -> Seen | None:
    """What a request experienced; None: the recording does not say."""
    values = row.values.get("seen")
    if values is None:
        return None
    if not isinstance(values, dict):
        raise row.error(f"seen must be an object, got {values!r:.100}")
    seen = row.within(values)
    seen.only(Seen._fields)
    in_line, admitted, first, last = map(seen.seconds, Seen._fields[:4])
    output, cached, preemptions = map(seen.tokens, Seen._fields[4:])
    if not in_line <= admitted <= first <= last:
        raise row.error("in_line, admitted, first_token and finished must not go back")
    return Seen(in_line, admitted, first, last, output, cached, preemptions)

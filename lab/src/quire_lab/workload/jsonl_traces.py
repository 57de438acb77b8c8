"""Traces with one JSON object a line: Mooncake's, and vLLM's timed traces, which are like them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quire.engine.traces.request import Segment, TraceRequest
from quire_lab.workload.rows import TraceClock, TraceRow, json_rows
from quire_lab.workload.units import IN_SECONDS, MOONCAKE_BLOCK, TIMED_TRACE_BLOCK


def read_mooncake(path: Path) -> Iterator[TraceRequest]:
    """The requests of a Mooncake trace (FAST '25): milliseconds, and hashes of 512-token blocks."""
    return read_hashed(path, MOONCAKE_BLOCK, "ms")


def read_timed_trace(path: Path) -> Iterator[TraceRequest]:
    """The requests of a timed trace, as ``vllm bench serve --dataset-name timed_trace`` reads it.

    The fields are Mooncake's, with the defaults of vLLM: seconds, and hashes of 16-token blocks.
    """
    return read_hashed(path, TIMED_TRACE_BLOCK, "s")


def read_hashed(path: Path, block_size: int, unit: str) -> Iterator[TraceRequest]:
    """The requests of either, with times in ``unit``."""
    clock, seconds = TraceClock(), IN_SECONDS[unit]
    in_part = block_size == MOONCAKE_BLOCK  # a last block that is not full has a name as well
    for row in json_rows(path):
        arrival = clock.arrival(row, row.seconds("timestamp") * seconds)
        prompt = row.tokens("input_length", 1)
        names = row.values.get("hash_ids") or []
        content = hashed_content(row, names, block_size, prompt)
        wanted = -(-prompt // block_size) if in_part else prompt // block_size
        if names and len(names) < wanted:
            raise row.error(
                f"{len(names)} hash_ids are too few for {prompt} tokens in blocks of {block_size}: "
                f"give {wanted}, or none where nothing is known of the prompt"
            )
        # A request that gave nothing still computed its prompt, and the token after it.
        output = max(1, row.outputs("output_length"))
        yield TraceRequest(arrival, prompt, output, content=content)


def hashed_content(
    row: TraceRow, names: object, block_size: int, num_tokens: int
) -> tuple[Segment, ...]:
    """Content from the names of its blocks, the last of which may be partly filled."""
    if not isinstance(names, list) or not all(
        isinstance(name, (int, str)) and not isinstance(name, bool) for name in names
    ):
        raise row.error("hash_ids must be a list of numbers or texts")
    if len(names) * block_size >= num_tokens + block_size:
        raise row.error(
            f"{len(names)} hash_ids are too many for {num_tokens} tokens in blocks of {block_size}"
        )
    content = [Segment(name, block_size) for name in names]
    beyond = len(names) * block_size - num_tokens
    if beyond > 0:
        content[-1] = Segment(names[-1], block_size - beyond)
    return tuple(content)

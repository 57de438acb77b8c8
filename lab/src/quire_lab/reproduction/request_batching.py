"""Request-level batching: what served before Orca, and FasterTransformer in the paper's section 6.

A batch is taken from the line, computed to the end of its longest output, and only then comes the
next one. Each request has room for as many tokens as the model can take.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from quire.engine.traces.request import TraceRequest
from quire.engine.work import Work
from quire_lab.simulation.cost_model import CostModel, decoding


class Batched(NamedTuple):
    """The result: means over the requests, and of the batch over the time of all steps."""

    normalized_latency: float  # seconds per output token
    batch: float  # requests, including ended ones that keep their place
    busy_seconds: float


def serve_in_batches(workload: Iterable[TraceRequest], most: int, cost_model: CostModel) -> Batched:
    """Serve in batches of at most ``most`` requests: those that wait when one begins.

    A batch's outputs are returned together, when the longest is complete.
    """
    line = list(workload)
    now = busy = weighted = latencies = 0.0
    place = 0
    while place < len(line):
        now = max(now, line[place].arrival)
        batch = [one for one in line[place : place + most] if one.arrival <= now]
        place += len(batch)
        end = now + _seconds(batch, cost_model)
        latencies += sum((end - one.arrival) / one.output_tokens for one in batch)
        busy += end - now
        weighted += len(batch) * (end - now)
        now = end
    return Batched(latencies / len(line), weighted / busy, busy)


def _seconds(batch: list[TraceRequest], cost_model: CostModel) -> float:
    """The prompts in one step, then steps of the whole batch until its longest output."""
    prompts = [one.prompt_tokens for one in batch]
    count, context = len(batch), sum(prompts)
    pairs = sum(length * (length + 1) // 2 for length in prompts)
    seconds = cost_model.seconds(
        Work(prefill_tokens=context, prefill_pairs=pairs, prefill_context=context, samples=count)
    )
    for _ in range(max(one.output_tokens for one in batch) - 1):
        context += count
        seconds += cost_model.seconds(decoding(count, context))
    return seconds

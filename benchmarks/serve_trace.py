"""Replay the lengths and arrivals of a production trace against a running Quire server.

    quire serve --port 8000 &
    python benchmarks/serve_trace.py TRACE.csv --requests 200 --speed 10

Prompts are random token ids of the trace's lengths, clipped to the model's; each request generates
exactly the trace's number of tokens. Tells how many of the server's forecasts came true as well.
Exits with status 1 if a request is lost or comes out short.
"""

from __future__ import annotations

import asyncio
import json
import re
from itertools import islice
from pathlib import Path

import numpy as np
from common import flags_of

from quire_lab.bench.http_client import HttpClient
from quire_lab.bench.report import describe_times, percentiles
from quire_lab.bench.systems import BenchRun, Online
from quire_lab.bench.workloads import fill
from quire_lab.workload import read_azure


def slot_seconds(url: str) -> dict[str, float]:
    """The server's KV slots by state, integrated over time."""
    text = asyncio.run(HttpClient(url).get("/metrics"))
    found = re.findall(r'quire:kv_slot_seconds_total\{[^}]*state="(\w+)"[^}]*\} (\S+)', text)
    return {state: float(value) for state, value in found}


def forecasts(url: str) -> str:
    """What came of the latest forecasts, as the server grades them, of which 512 are kept."""
    state = json.loads(asyncio.run(HttpClient(url).get("/v1/quire/state")))
    text = asyncio.run(HttpClient(url).get("/metrics"))
    gave_way = re.findall(r'quire:decisions_total\{.*verdict="(?:swap|recompute)"\} (\S+)', text)
    grade = state["forecasts"]
    if not grade["count"]:
        return "forecasts: none"
    return (
        f"of {grade['count']} forecasts {grade['first_tokens']:.1%} of first tokens and "
        f"{grade['ends']:.1%} of ends came true to 20 % or 50 ms; "
        f"{sum(map(float, gave_way)):.0f} preemptions"
    )


def report(run: BenchRun, slots: dict[str, float]) -> None:
    lost = [outcome.error for outcome in run.outcomes if outcome.error]
    metrics = [outcome.metrics for outcome in run.outcomes if outcome.metrics]
    tokens_in = sum(one.num_prompt_tokens for one in metrics)
    tokens_out = sum(one.num_output_tokens for one in metrics)
    print(
        f"{len(run.outcomes)} requests, {tokens_in:,} tokens in, {tokens_out:,} out, "
        f"{run.seconds:.1f} s, {tokens_out / run.seconds:.0f} output tokens/s; lost: {len(lost)}"
    )
    print(*(f"  {error}" for error in lost[:5]), sep="\n", end="\n" if lost else "")
    print(*describe_times(percentiles(metrics)), sep="\n")
    taken = sum(slots[state] for state in ("used", "reserved", "internal", "external"))
    shares = ", ".join(
        f"{state} {slots[state] / taken:.1%}"
        for state in ("used", "reserved", "internal", "external")
    )
    print(f"KV memory taken from the pool, over time: {shares}")


def main() -> int:
    parser = flags_of(__doc__)
    parser.add_argument("trace", type=Path, help="CSV of an Azure LLM inference trace")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (%(default)s)")
    parser.add_argument("--requests", type=int, default=200, help="first N rows (%(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, help="arrivals this much faster")
    arguments = parser.parse_args()

    server = Online(arguments.url)
    lengths = islice(read_azure(arguments.trace), arguments.requests)
    trace = fill(lengths, np.random.default_rng(0))
    requests = [
        request._replace(arrival=request.arrival / arguments.speed).cut(server.max_model_len)
        for request in trace
    ]
    before = slot_seconds(arguments.url)
    run = server.run(requests)
    after = slot_seconds(arguments.url)
    report(run, {state: after[state] - before[state] for state in after})
    print(forecasts(arguments.url))
    return int(any(outcome.error for outcome in run.outcomes))


if __name__ == "__main__":
    raise SystemExit(main())

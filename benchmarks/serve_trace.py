"""Replay the lengths and arrivals of a production trace against a running Quire server.

    quire serve --port 8000 &
    python benchmarks/serve_trace.py TRACE.csv --requests 200 --speed 10

Prompts are random token ids of the trace's lengths, clipped to the model's; each request generates
exactly the trace's number of tokens. Exits with status 1 if a request is lost or comes out short.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import httpx
import numpy as np

from quire.workload import TraceRequest, read_azure


@dataclass
class Outcome:
    """What one request gave."""

    tokens: int = 0
    ttft: float = 0.0  # seconds
    latency: float = 0.0  # seconds
    error: str | None = None


async def replay(
    client: httpx.AsyncClient, model: str, request: TraceRequest, started: float, speed: float
) -> Outcome:
    """Wait for the request's turn, send it, and read its stream to the end."""
    await asyncio.sleep(max(0.0, started + request.arrival / speed - time.perf_counter()))
    prompt = random.Random(repr(request)).choices(range(100, 2000), k=request.prompt_tokens)
    body = {
        "model": model, "prompt": prompt, "max_tokens": request.output_tokens,
        "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    outcome, sent = Outcome(), time.perf_counter()
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                return Outcome(error=(await response.aread()).decode())
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return Outcome(error=str(event["error"]))
                outcome.ttft = outcome.ttft or time.perf_counter() - sent
                if event.get("usage"):
                    outcome.tokens = event["usage"]["completion_tokens"]
    except httpx.HTTPError as error:
        return Outcome(error=repr(error))
    outcome.latency = time.perf_counter() - sent
    if outcome.tokens != request.output_tokens:
        outcome.error = f"{outcome.tokens} of {request.output_tokens} tokens came"
    return outcome


async def slot_seconds(client: httpx.AsyncClient) -> dict[str, float]:
    """The server's KV slots by state, integrated over time."""
    text = (await client.get("/metrics")).text
    found = re.findall(r'quire:kv_slot_seconds_total\{[^}]*state="(\w+)"[^}]*\} (\S+)', text)
    return {state: float(value) for state, value in found}


async def run(arguments: argparse.Namespace) -> int:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=arguments.url, timeout=None, limits=limits) as client:
        model = (await client.get("/v1/models")).json()["data"][0]
        trace = islice(read_azure(arguments.trace), arguments.requests)
        requests = [request.clipped(model["max_model_len"]) for request in trace]
        before, started = await slot_seconds(client), time.perf_counter()
        outcomes = await asyncio.gather(
            *(replay(client, model["id"], r, started, arguments.speed) for r in requests)
        )
        seconds = time.perf_counter() - started
        after = await slot_seconds(client)
    report(requests, outcomes, seconds, {k: after[k] - before[k] for k in after})
    return int(any(outcome.error for outcome in outcomes))


def report(
    requests: list[TraceRequest], outcomes: list[Outcome], seconds: float, slots: dict[str, float]
) -> None:
    lost = [outcome.error for outcome in outcomes if outcome.error]
    tokens_in = sum(request.prompt_tokens for request in requests)
    tokens_out = sum(outcome.tokens for outcome in outcomes)
    print(
        f"{len(requests)} requests, {tokens_in:,} tokens in, {tokens_out:,} out, {seconds:.1f} s, "
        f"{tokens_out / seconds:.0f} output tokens/s; lost: {len(lost)}"
    )
    for error in lost[:5]:
        print(f"  {error}")
    for name in ("ttft", "latency"):
        values = [getattr(outcome, name) for outcome in outcomes if not outcome.error]
        if values:
            p50, p90, p99 = np.percentile(values, [50, 90, 99])
            print(f"{name:8} p50 {p50:.3f} s, p90 {p90:.3f} s, p99 {p99:.3f} s")
    taken = sum(slots[state] for state in ("used", "reserved", "internal", "external"))
    shares = ", ".join(
        f"{state} {slots[state] / taken:.1%}"
        for state in ("used", "reserved", "internal", "external")
    )
    print(f"KV memory taken from the pool, over time: {shares}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path, help="CSV of an Azure LLM inference trace")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (%(default)s)")
    parser.add_argument("--requests", type=int, default=200, help="first N rows (%(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, help="arrivals this much faster")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(main())

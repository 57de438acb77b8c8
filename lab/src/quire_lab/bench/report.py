"""From a run to a report: throughput, and latencies as the metrics define them."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import psutil

from quire.core.version import __version__
from quire.engine.metrics import RequestMetrics
from quire.tools.doctor.machine import cpu_model
from quire_lab.bench.systems import BenchRun, ServingSystem
from quire_lab.bench.workloads import BenchRequest, one_request

_WARM_UP = (32, 8)  # tokens in and out of a request before the first that counts
_WARM_UP_SEED = 10**6  # its prompt must share nothing with what is measured
_TIMES = ("ttft", "tpot", "e2e_latency")
_NAMES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e_latency": "latency of a request",
}


def throughput(system: ServingSystem, requests: Sequence[BenchRequest]) -> dict[str, Any]:
    """Serve requests, cut to the model's length; tokens per second and latencies."""
    _warm_up(system)
    run = system.run([request.cut(system.max_model_len) for request in requests])
    facts, read = system.facts(), system.bytes_read(run.steps, run.all_metrics())
    reading = {} if read is None else _reading(read / run.seconds, facts)
    return {**_heading("throughput", system), **summary(run), **facts, **reading}


def latency(system: ServingSystem, requests: Sequence[BenchRequest]) -> dict[str, Any]:
    """Serve requests of the same lengths, cut to the model's, one after another."""
    _warm_up(system)
    runs = [system.run([request.cut(system.max_model_len)]) for request in requests]
    metrics = [one for run in runs for one in run.all_metrics()]
    facts, drafts = system.facts(), drafting(runs)
    result = {
        **_heading("latency", system),
        "input_len": metrics[0].num_prompt_tokens,
        "output_len": metrics[0].num_output_tokens,
        "num_iters": len(metrics),
        **percentiles(metrics),
        **drafts,
        **facts,
    }
    tpot = result["tpot"]["p50"] if result["tpot"] else None
    result["output_tokens_per_second"] = None if tpot is None else 1 / tpot
    steps = result["output_len"] - 1  # after the prompt's
    read = system.bytes_read(steps, metrics[:1])
    if tpot is not None and read is not None and not drafts:
        result |= _reading(read / (steps * tpot), facts)
    return result


def _reading(rate: float, facts: dict[str, Any]) -> dict[str, float]:
    """Bytes read a second, and as a share of what the machine reads, where that is known."""
    figures = {"bytes_read_per_second": rate}
    if facts["read_bandwidth"]:
        figures["share_of_read_bandwidth"] = rate / facts["read_bandwidth"]
    return figures


def summary(run: BenchRun) -> dict[str, Any]:
    """Tokens, tokens per second and percentiles of a run in which no request was lost."""
    metrics, seconds = run.all_metrics(), run.seconds
    tokens_in = sum(one.num_prompt_tokens for one in metrics)
    tokens_out = sum(one.num_output_tokens for one in metrics)
    return {
        "requests": len(metrics),
        "prompt_tokens": tokens_in,
        "cached_tokens": sum(one.cached_tokens for one in metrics),
        "output_tokens": tokens_out,
        "seconds": seconds,
        "output_tokens_per_second": tokens_out / seconds,
        "total_tokens_per_second": (tokens_in + tokens_out) / seconds,
        **percentiles(metrics),
        **drafting([run]),
    }


def drafting(runs: Sequence[BenchRun]) -> dict[str, Any]:
    """Figures of speculation; empty if nothing was drafted.

    mean_acceptance_length: tokens per step of a sequence with drafts, as in vLLM.
    """
    told = [run.drafts for run in runs if run.drafts is not None]
    drafts = sum(one.num_drafts for one in told)
    drafted = sum(one.num_draft_tokens for one in told)
    accepted = sum(one.num_accepted_tokens for one in told)
    if not drafts:
        return {}
    return {
        "num_drafts": drafts,
        "num_draft_tokens": drafted,
        "num_accepted_tokens": accepted,
        "acceptance_rate": accepted / drafted,
        "mean_acceptance_length": 1 + accepted / drafts,
    }


def percentiles(metrics: Sequence[RequestMetrics]) -> dict[str, dict[str, float] | None]:
    """p50, p90 and p99 of each time, in seconds; None if no request has it."""
    found: dict[str, dict[str, float] | None] = {}
    for name in _TIMES:
        values = [value for one in metrics if (value := getattr(one, name)) is not None]
        points = np.percentile(values, [50, 90, 99]).tolist() if values else None
        found[name] = (
            None if points is None else dict(zip(("p50", "p90", "p99"), points, strict=True))
        )
    return found


def describe(result: dict[str, Any]) -> str:
    """A report for people."""
    lines = [f"{result['benchmark']} of {result['model']}"]
    if result["benchmark"] == "throughput":
        lines[0] += (
            f": {result['requests']} requests, "
            f"{result['prompt_tokens']:,} tokens in, {result['output_tokens']:,} out"
        )
        lines.append(
            f"{result['output_tokens_per_second']:,.1f} output tokens/s "
            f"({result['total_tokens_per_second']:,.1f} with the prompts'), "
            f"{result['seconds']:.2f} s"
        )
    else:
        lines[0] += f", one request alone: {result['input_len']} tokens in, "
        lines[0] += f"{result['output_len']} out, {result['num_iters']} times"
        if result["output_tokens_per_second"] is not None:
            lines.append(f"{result['output_tokens_per_second']:,.1f} output tokens/s")
    lines += describe_times(result)
    if result.get("num_drafts"):
        lines.append(
            f"{result['num_accepted_tokens']:,} of {result['num_draft_tokens']:,} drafts were "
            f"right ({result['acceptance_rate']:.1%}), "
            f"{result['mean_acceptance_length']:.2f} tokens a step that had some"
        )
    if result.get("bytes_read_per_second"):
        lines.append(f"weights and KV read at {result['bytes_read_per_second'] / 1e9:.1f} GB/s")
    if result.get("share_of_read_bandwidth"):
        lines[-1] += (
            f", {result['share_of_read_bandwidth']:.0%} of the "
            f"{result['read_bandwidth'] / 1e9:.1f} that a plain sum reads here"
        )
    if result.get("peak_rss_bytes"):
        lines.append(f"peak resident memory {result['peak_rss_bytes'] / 2**20:,.0f} MiB")
    return "\n".join(lines)


def describe_times(times: dict[str, Any]) -> list[str]:
    """A line for each latency of ``percentiles``."""
    lines = []
    for name, text in _NAMES.items():
        if times[name] is not None:
            points = ", ".join(f"{p} {value * 1e3:,.1f} ms" for p, value in times[name].items())
            lines.append(f"{text:22} {points}")
    return lines


def _heading(benchmark: str, system: ServingSystem) -> dict[str, Any]:
    return {
        "benchmark": benchmark,
        "model": system.model,
        "quire": __version__,
        "machine": machine_facts(),
    }


def _warm_up(system: ServingSystem) -> None:
    request = one_request(*_WARM_UP, seed=_WARM_UP_SEED)
    system.run([request.cut(system.max_model_len)]).all_metrics()


def machine_facts() -> dict[str, Any]:
    """The facts without which figures cannot be compared."""
    process = psutil.Process()
    cores = len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else os.cpu_count()
    return {
        "cpu": cpu_model(),
        "cores": cores,
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "torch": version("torch"),
    }

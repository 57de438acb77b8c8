"""What a simulation costs: simulated output tokens per second, and an hour of a trace.

    python benchmarks/simulator.py [TRACE]

Batch: ShareGPT lengths, 64 sequences running, others in line, with and without skipping ahead, in
turns; median of five. Trace: the whole of it for Llama-3-8B on one H100; memory is the most that
the process had, after half of the trace and after all of it.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from quire.simulation import MODELS, Deployment, SimulationResult, Simulator, find_machine
from quire.workload import DATASETS, Synthetic, Trace, TraceRequest

DEPLOYMENT = Deployment(MODELS["llama-3-8b"], find_machine("h100"))


def simulate(
    workload: Iterable[TraceRequest], skip_ahead: bool = True, **changes: object
) -> tuple[SimulationResult, float]:
    """The result, and the seconds of processor time that it took."""
    limits = DEPLOYMENT.configured(**changes).limits()
    simulator = Simulator(limits, DEPLOYMENT.cost_model(16), skip_ahead=skip_ahead)
    longest = limits.max_model_len or DEPLOYMENT.model.max_positions
    start = time.process_time()
    result = simulator.run(request.clipped(longest) for request in workload)
    return result, time.process_time() - start


def batch(skip_ahead: bool) -> float:
    """Output tokens per second at a batch of 64."""
    workload = Synthetic(600, *DATASETS["sharegpt"])
    result, seconds = simulate(workload, skip_ahead, max_num_seqs=64)
    return result.tokens_out / seconds


def memory() -> float:
    """MiB that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="?", type=Path, help="a trace of any known format")
    arguments = parser.parse_args()
    rounds = [(batch(True), batch(False)) for _ in range(5)]
    for name, rates in zip(
        ("skipping ahead", "step by step"), zip(*rounds, strict=True), strict=True
    ):
        print(f"batch of 64, {name:16} {statistics.median(rates):10,.0f} output tokens/s")
    if arguments.trace is None:
        return
    trace = Trace.open(arguments.trace)
    caching = trace.format.shares_prefixes
    count = sum(1 for _ in trace)
    for part in (count // 2, count):
        result, seconds = simulate(islice(trace, part), enable_prefix_caching=caching)
        print(
            f"{part:,} requests of {arguments.trace.name}: {seconds:.1f} s, "
            f"{result.tokens_out / seconds:,.0f} output tokens/s, "
            f"{result.num_steps:,} steps, {memory():.0f} MiB"
        )


if __name__ == "__main__":
    main()

"""What a simulation costs: simulated output tokens per second, and an hour of a trace.

    python benchmarks/simulator.py [TRACE] [--replicas N]

Batch: ShareGPT lengths, 64 sequences running, others in line, with and without skipping ahead, in
turns; median of five. Trace: the whole of it for Llama-3-8B on one H100; memory is the most that
the process had, after half of the trace and after all of it. With --replicas a fleet of N instead:
the memory as its requests double in number, with short outputs, so that all that can be remembered
is soon full; then output tokens per second of all its engines together, beside one engine, in turns
and with as many requests for each, and a quarter of the fleet.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from quire.engine.traces.request import TraceRequest
from quire_lab.simulation import MODELS, Deployment, SimulationResult, Simulator, find_machine
from quire_lab.simulation.fleet import FleetSetup, FleetSimulator, ReplicaKind
from quire_lab.workload import DATASETS, Lengths, Synthetic, Trace

DEPLOYMENT = Deployment(MODELS["llama-3-8b"], find_machine("h100"))
TEXT, SHORT = DATASETS["sharegpt"][1], Lengths.parse("8")
EACH = 300  # requests of each engine that is compared with others: as a batch fills and empties


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


def batch(skip_ahead: bool, requests: int = 600) -> float:
    """Output tokens per second at a batch of 64."""
    workload = Synthetic(requests, *DATASETS["sharegpt"])
    result, seconds = simulate(workload, skip_ahead, max_num_seqs=64)
    return result.tokens_out / seconds


def fleet(replicas: int, requests: int, rate: float | None = None, output: Lengths = TEXT) -> float:
    """Output tokens per second of so many engines together, routed by prefixes."""
    pool = None if rate is None else 4 << 30  # soon full of what can be found again
    deployment = DEPLOYMENT.configured(max_num_seqs=64, kv_cache_memory_bytes=pool)
    simulator = FleetSimulator(FleetSetup((ReplicaKind(deployment),) * replicas))
    longest = DEPLOYMENT.model.max_positions
    workload = Synthetic(requests, DATASETS["sharegpt"][0], output, rate=rate)
    start = time.process_time()
    result = simulator.run(request.clipped(longest) for request in workload)
    return result.tokens_out / (time.process_time() - start)


def fleets(replicas: int) -> None:
    """Memory; a batch of 64 in each; and a load that they are up to, with batches of 30 or so."""
    for requests in (200 * replicas, 400 * replicas, 800 * replicas):
        fleet(replicas, requests, 30.0 * replicas, SHORT)
        print(f"{requests:,} requests with short outputs: {memory():.0f} MiB")
    sizes = sorted({1, max(1, replicas // 4), replicas})
    rounds = [(batch(True, EACH), *(fleet(size, EACH * size) for size in sizes)) for _ in range(3)]
    names = ["an engine", *(f"a fleet of {size}" for size in sizes)]
    for name, rates in zip(names, zip(*rounds, strict=True), strict=True):
        print(f"{name:16} {statistics.median(rates):10,.0f} output tokens/s")
    speed = fleet(replicas, 100 * replicas, 9.0 * replicas)
    print(f"{100 * replicas:,} requests in time: {speed:,.0f} output tokens/s")


def memory() -> float:
    """MiB that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="?", type=Path, help="a trace of any known format")
    parser.add_argument("--replicas", type=int, metavar="N", help="a fleet of so many")
    arguments = parser.parse_args()
    if arguments.replicas is not None:
        fleets(arguments.replicas)
        return
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

"""Predicted against measured: a trace through the real engine in real time, then simulated.

    quire calibrate --out costs.json --kv-cache-memory-bytes 16MiB
    python benchmarks/prediction.py TRACE --costs costs.json --requests 200 --speed 2

The engine runs in this process and sleeps until the next request is due; prompts are random token
ids of the trace's lengths, cut to the model's. It records what it serves, and the recording is
simulated with the calibrated costs and the engine's own settings.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import islice
from pathlib import Path
from random import Random

from quire.threads import wait_passively

wait_passively()  # before torch is loaded

from quire.build import Capacity, build_engine  # noqa: E402
from quire.config import EngineConfig  # noqa: E402
from quire.engine import Engine  # noqa: E402
from quire.metrics import Distribution, RequestMetrics  # noqa: E402
from quire.scheduling import SamplingParams  # noqa: E402
from quire.simulation import Settings, SimulationResult, Simulator  # noqa: E402
from quire.simulation.calibrated import Calibration, read_calibration  # noqa: E402
from quire.workload import Trace, TraceRequest  # noqa: E402


def serve(engine: Engine, requests: list[TraceRequest], speed: float) -> list[RequestMetrics]:
    """What each request saw, on the wall clock."""
    random, done, number = Random(0), [], 0
    started = engine.clock()
    while number < len(requests) or engine.has_work:
        now = engine.clock() - started
        if not engine.has_work:
            time.sleep(max(0.0, requests[number].arrival / speed - now))
        while number < len(requests) and started + requests[number].arrival / speed <= (
            engine.clock()
        ):
            one = requests[number]
            vocabulary = engine.intake.vocab_size
            prompt = [random.randrange(vocabulary) for _ in range(one.prompt_tokens)]
            params = SamplingParams(max_tokens=one.output_tokens, ignore_eos=True)
            engine.add_request(str(number), prompt, params, started + one.arrival / speed)
            number += 1
        done += [delta.final.metrics for delta in engine.step() if delta.final is not None]
    return done


def simulate(
    path: Path, config: EngineConfig, capacity: Capacity, calibration: Calibration
) -> SimulationResult:
    (lane,) = capacity.lanes
    settings = Settings(
        num_blocks=lane.num_blocks,
        max_model_len=capacity.max_model_len,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_prefix_caching=capacity.prefix_caching,
        preemption_mode=config.preemption_mode,
        num_host_blocks=lane.num_host_blocks,
    )
    return Simulator(settings, calibration.costs).run(Trace.open(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--costs", type=Path, required=True, help="written by quire calibrate")
    parser.add_argument("--requests", type=int, default=200, help="first N (%(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, help="arrivals this much faster")
    parser.add_argument("--kv-cache-memory-bytes", default="16MiB")
    parser.add_argument("--max-model-len", type=int, default=2048)
    arguments = parser.parse_args()
    calibration = read_calibration(arguments.costs)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.jsonl"
        options = {
            "kv_cache_memory_bytes": arguments.kv_cache_memory_bytes,
            "max_model_len": arguments.max_model_len,
            "record_trace": str(path),
        }
        config = EngineConfig.create(options)
        engine, capacity = build_engine(config)
        trace = islice(Trace.open(arguments.trace), arguments.requests)
        requests = [request.clipped(capacity.max_model_len) for request in trace]
        serve(engine, requests[:4], 1e9)  # warm up
        engine.close()
        engine, capacity = build_engine(config)
        measured = serve(engine, requests, arguments.speed)
        engine.close()
        predicted = simulate(path, config, capacity, calibration)
    report(measured, predicted)


def report(measured: list[RequestMetrics], predicted: SimulationResult) -> None:
    print(f"{'':24}{'measured':>12}{'predicted':>12}{'off by':>9}")
    for name, simulated in (("ttft", predicted.ttft), ("tpot", predicted.tpot)):
        seen = Distribution()
        for one in measured:
            value = getattr(one, name)
            if value is not None:
                seen.add(value)
        real = seen.summary()
        for figure in ("mean", "p90"):
            a, b = getattr(real, figure), getattr(simulated, figure)
            print(f"{f'{name} {figure}, ms':24}{a * 1e3:12.2f}{b * 1e3:12.2f}{b / a - 1:9.1%}")
    preemptions = sum(one.num_preemptions for one in measured)
    simulated = sum(predicted.preemptions[:2])
    print(f"{'preemptions':24}{preemptions:12}{simulated:12}")


if __name__ == "__main__":
    main()

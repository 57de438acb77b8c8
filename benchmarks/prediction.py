"""Predicted against measured: calibrate, serve a trace with the real engine, simulate it.

    python benchmarks/prediction.py TRACE

The engine runs in this process and sleeps until the next request is due; prompts are random token
ids of the trace's lengths, cut to the model's. It records what it serves, and the recording is
simulated with the calibrated costs and the engine's own settings (as quire compare does). Run it
while nothing else runs: it says how much of the machine others had. Where others use the machine,
--unit cpu has clock and costs in processor time of one thread.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

from quire.kernels.threads import wait_briefly

wait_briefly()  # before torch is loaded

from quire.engine.config import EngineConfig  # noqa: E402
from quire.tools.bench.machine import OthersShare, machine_facts  # noqa: E402
from quire_lab.calibration.calibrate import calibrate  # noqa: E402
from quire_lab.calibration.prediction import predict  # noqa: E402
from quire_lab.calibration.steps import UNITS  # noqa: E402
from quire_lab.commands.compare import describe  # noqa: E402
from quire_lab.simulation.calibrated import read_calibration  # noqa: E402
from quire_lab.workload import Trace  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--model", help="directory or name (default: the demonstration)")
    parser.add_argument("--costs", type=Path, help="of quire calibrate (default: calibrate now)")
    parser.add_argument(
        "--loads", type=load, nargs="+", default=[(1.0, 150), (10.0, 300)], metavar="SPEED:N",
        help="the trace's first N requests, so much faster (default: 1:150 10:300)",
    )  # fmt: skip
    parser.add_argument("--kv-cache-memory-bytes", default="8MiB")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--unit", choices=UNITS, default="wall")
    arguments = parser.parse_args()
    config = EngineConfig.create(
        {
            "model": arguments.model,
            "kv_cache_memory_bytes": arguments.kv_cache_memory_bytes,
            "max_model_len": arguments.max_model_len,
            "threads": 1 if arguments.unit == "cpu" else None,
        }
    )
    machine = machine_facts()
    print(f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}")
    others = OthersShare()
    if arguments.costs is None:
        start = time.perf_counter()
        calibration = calibrate(config, lambda text: None, arguments.unit)
        print(f"calibrated in {time.perf_counter() - start:.0f} s; ", end="")
    else:
        calibration = read_calibration(arguments.costs)
    print(
        f"others had {others.so_far():.0%} of the machine; steps that were held out: together "
        f"{calibration.total_error:+.1%}, half of them to {calibration.median_error:.1%}"
    )
    for speed, count in arguments.loads:
        trace = islice(Trace.open(arguments.trace), count)
        requests = [replace(one, arrival=one.arrival / speed) for one in trace]
        others = OthersShare()
        found, drifts = predict(config, calibration, requests)
        print(
            f"\n{len(requests)} requests in {requests[-1].arrival:.0f} s, {speed:g} times as fast "
            f"as in the trace; others had {others.so_far():.0%} of the machine; steps took "
            f"{drifts[0]:.2f} times as long as calibrated before, {drifts[1]:.2f} after"
        )
        print("\n".join(describe(found, "calibrated here, and stretched by that")), flush=True)


def load(text: str) -> tuple[float, int]:
    speed, count = text.split(":")
    return float(speed), int(count)


if __name__ == "__main__":
    main()

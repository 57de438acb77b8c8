"""Predicted against measured: calibrate, serve traces with the real engine, simulate them.

    python benchmarks/prediction.py TRACE [TRACE...] --time-limit 120

A trace is PATH[,requests=N][,skip=N][,speed=X][,shorter=X]: so many requests (150) after those that
are skipped (0), so much faster than they came (1), with so many times fewer tokens (1). The engine
runs in this process and sleeps until the next request is due; prompts are random token ids of the
trace's lengths, cut to the model's. It records what it serves, and the recording is simulated with
the calibrated costs and the engine's own settings (as quire compare does). Run it while nothing
else runs: it says how much of the machine others had. Where others use the machine, --unit cpu has
clock and costs in processor time of one thread. In the end a table has what decides, of each trace.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from common import flags_of

from quire.kernels.threads import wait_briefly

wait_briefly()  # before torch is loaded

from quire.engine.config import EngineConfig  # noqa: E402
from quire.engine.traces.request import TraceRequest  # noqa: E402
from quire.tools.doctor.machine import OthersShare  # noqa: E402
from quire_lab.bench.report import machine_facts  # noqa: E402
from quire_lab.calibration.calibrate import calibrate  # noqa: E402
from quire_lab.calibration.prediction import predict  # noqa: E402
from quire_lab.calibration.steps import UNITS  # noqa: E402
from quire_lab.commands.compare import describe  # noqa: E402
from quire_lab.commands.text import table  # noqa: E402
from quire_lab.simulation.calibrated import Calibration, read_calibration  # noqa: E402
from quire_lab.workload import Trace  # noqa: E402

_SHOWN = ("TTFT, mean", "TPOT, mean", "end to end, mean", "preemptions", "time in steps")


class Load(NamedTuple):
    """A part of a trace, and how it is changed."""

    path: Path
    requests: int = 150
    skip: int = 0
    speed: float = 1.0
    shorter: float = 1.0

    @classmethod
    def of(cls, text: str) -> Load:
        """As the command line has it. ValueError: it is written otherwise."""
        path, *changes = text.split(",")
        values = dict(change.split("=") for change in changes)
        whole = {name: int(values.pop(name)) for name in ("requests", "skip") if name in values}
        if values.keys() - {"speed", "shorter"}:
            raise ValueError(f"unknown: {', '.join(values)}")
        found = cls(Path(path), **whole, **{name: float(x) for name, x in values.items()})
        if found.requests < 1 or found.skip < 0 or found.speed <= 0 or found.shorter <= 0:
            raise ValueError("requests, speed and shorter must be above 0, skip not below")
        return found

    def open(self) -> Iterator[TraceRequest]:
        start = None
        for one in islice(Trace.open(self.path), self.skip, self.skip + self.requests):
            start = one.arrival if start is None else start
            yield replace(
                one,
                arrival=(one.arrival - start) / self.speed,
                prompt_tokens=max(1, round(one.prompt_tokens / self.shorter)),
                output_tokens=max(1, round(one.output_tokens / self.shorter)),
                content=(),  # prompts are random
            )

    @property
    def title(self) -> str:
        changes = (("speed", self.speed), ("shorter", self.shorter))
        told = "".join(f", {name} {x:g}" for name, x in changes if x != 1)
        return f"{self.path.stem}, {self.requests} from {self.skip}{told}"


def main() -> None:
    parser = flags_of(__doc__)
    parser.add_argument("traces", type=Load.of, nargs="+", metavar="TRACE")
    parser.add_argument("--model", help="directory or name (default: the demonstration)")
    parser.add_argument("--costs", type=Path, help="of quire calibrate (default: calibrate now)")
    parser.add_argument("--time-limit", type=float, help="seconds that calibrating takes at most")
    parser.add_argument("--kv-cache-memory-bytes", default="8MiB")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--threads", type=int, help="that compute (default: the engine's)")
    parser.add_argument("--unit", choices=UNITS, default="wall")
    arguments = parser.parse_args()
    config = EngineConfig.create(
        {
            "model": arguments.model,
            "kv_cache_memory_bytes": arguments.kv_cache_memory_bytes,
            "max_model_len": arguments.max_model_len,
            "threads": 1 if arguments.unit == "cpu" else arguments.threads,
        }
    )
    machine = machine_facts()
    print(f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}")
    calibration = _calibrated(config, arguments)
    rows = [["", *(name.removesuffix(", mean") for name in _SHOWN), "steps took", "others had"]]
    for load in arguments.traces:
        others = OthersShare()
        requests = [*load.open()]
        found, drifts = predict(config, calibration, requests)
        had = f"{others.so_far():.0%}"
        print(
            f"\n{load.title}: {len(requests)} requests in {requests[-1].arrival:.0f} s; others had "
            f"{had} of the machine; steps took {drifts[0]:.2f} times as long as calibrated "
            f"before, {drifts[1]:.2f} after"
        )
        print("\n".join(describe(found, "calibrated here, and stretched by that")), flush=True)
        off = (f"{found.figure(name).off or 0.0:+.1%}" for name in _SHOWN)
        rows.append([load.title, *off, f"{drifts[0]:.2f}, {drifts[1]:.2f}", had])
    print("\nsimulated over measured, off by:", *table(rows, ""), sep="\n")


def _calibrated(config: EngineConfig, arguments: argparse.Namespace) -> Calibration:
    others = OthersShare()
    if arguments.costs is None:
        start, limit = time.perf_counter(), arguments.time_limit
        found = calibrate(config, lambda text, share: None, arguments.unit, limit)
        print(f"calibrated in {time.perf_counter() - start:.0f} s; ", end="")
    else:
        found = read_calibration(arguments.costs)
    print(
        f"others had {others.so_far():.0%} of the machine; steps that were held out: together "
        f"{found.total_error:+.1%}, half of them to {found.median_error:.1%}",
        flush=True,
    )
    return found


if __name__ == "__main__":
    main()

"""``--report``: a simulation's result as a page with charts, and files beside it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from quire.core.errors import ConfigError
from quire.engine.capacity import describe_kv_groups
from quire.execution.kv_bytes import bytes_of_pool
from quire.tools.commands.text import size
from quire_lab.commands.setup import Setup, describe_machine
from quire_lab.commands.text import described_trace, number
from quire_lab.contiguous import name_of
from quire_lab.simulation import Instant, SimulationResult, Simulator
from quire_lab.simulation.sample import WorkloadSample
from quire_lab.workload import Trace

if TYPE_CHECKING:
    from quire_lab.reports.curves import Panel

_SPEEDS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Times the workload's own rate, for the chart of latency against rate."""


def add_report(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--report", metavar="DIRECTORY", help="write a page with charts there, with PNG, CSV "
        "and JSON files and a trace for Perfetto",
    )  # fmt: skip
    group.add_argument(
        "--map-at", type=float, metavar="SECONDS", help="moment that the report's block map "
        "shows (default: when most of the memory was used, which takes a second run)",
    )  # fmt: skip


def check_report(arguments: argparse.Namespace) -> None:
    """ConfigError, before anything is simulated, if no report can be written."""
    if arguments.report is not None:
        from quire_lab.reports.style import require_matplotlib

        require_matplotlib()
    elif arguments.map_at is not None:
        raise ConfigError("map_at does nothing without a report: give --report DIRECTORY")


def fullest_moment(result: SimulationResult) -> float:
    """The middle, in seconds, of the interval in which most of the pool was used."""
    _taken, start, seconds = max(
        (
            (p.used + p.reserved + p.internal + p.external, -p.start, p.seconds)
            for p in result.series
        ),
        default=(0.0, 0.0, 0.0),
    )
    return -start + seconds / 2


def write(
    arguments: argparse.Namespace, setup: Setup, result: SimulationResult, moment: Instant | None
) -> Path:
    """Write the report; the path of its page."""
    from quire_lab.reports import write_report

    deployment, model = setup.deployment, setup.deployment.kept
    limits, pool = setup.limits, bytes_of_pool(setup.limits, deployment.cache)
    blocks = describe_kv_groups(limits, sum(deployment.cache.state_bytes))
    machine = describe_machine(deployment.machine, deployment.tensor_parallel)
    lengths = f"{arguments.input} in, {arguments.output} out"
    trace = arguments.trace and Path(arguments.trace).name
    workload = trace or arguments.dataset or lengths
    arrives = "; ".join([_how_it_arrives(arguments), *described_trace(setup.trace)])
    facts = {
        "model": f"{model.name}: {size(model.weight_bytes)} of weights in "
        f"{model.weight_form.name}, {size(deployment.kv_bytes_per_token)} of keys and values a "
        "token",
        "machine": machine,
        "workload": f"{workload}, {arrives}",
        "KV pool": f"{size(pool)}: {blocks}, {name_of(limits)}",
        "prefix caching": "on" if limits.enable_prefix_caching else "off",
        "limits": f"{limits.max_num_seqs} sequences at once, "
        f"{limits.max_num_batched_tokens:,} tokens a step, {limits.max_model_len:,} tokens a "
        "sequence",
        "preemption": limits.preemption_mode,
    }
    return write_report(
        Path(arguments.report),
        result,
        title=f"{model.name} on {machine}, simulated",
        facts=facts,
        bytes_per_token=pool // (limits.num_blocks * limits.block_size),
        rates=_rates(arguments, setup),
        moment=moment,
    )


def _how_it_arrives(arguments: argparse.Namespace) -> str:
    if arguments.users is not None:
        return f"{arguments.users} users with one request at a time each"
    if arguments.rate is not None:
        return f"{number(arguments.rate)} requests/s"
    return "at its own times" if arguments.trace is not None else "all at once"


def _rates(arguments: argparse.Namespace, setup: Setup) -> list[Panel]:
    """Results of the workload's first requests at several rates; empty if it has no rate."""
    from tqdm import tqdm

    from quire_lab.reports.curves import Curve, Panel

    sample = WorkloadSample.take(
        setup.workload, setup.limits.max_model_len, shares_prefixes=setup.shares_prefixes,
        has_times=isinstance(setup.workload, Trace) and setup.has_times, seed=arguments.seed,
    )  # fmt: skip
    own = sample.rate if sample.rate is not None else arguments.rate
    if own is None or arguments.users is not None:
        return []
    results = []
    for speed in tqdm(_SPEEDS, desc="rates", disable=not sys.stderr.isatty()):
        simulator = Simulator(
            setup.limits, setup.deployment.cost_model(setup.limits.block_size), seed=arguments.seed,
            drafting=setup.deployment.drafting,
        )  # fmt: skip
        results.append((own * speed, simulator.run(sample.at_rate(own * speed))))

    def panel(title: str, unit: str, scale: float, name: str) -> Panel:
        curves = tuple(
            Curve(
                label,
                tuple((r, scale * getattr(getattr(one, name), field)) for r, one in results),
            )
            for label, field in (("median", "p50"), ("90th percentile", "p90"))
        )
        return Panel(title, "request rate (req/s)", unit, curves)

    return [
        panel("TTFT", "time to first token (s)", 1.0, "ttft"),
        panel("TPOT", "time per further token (ms)", 1e3, "tpot"),
        panel("normalised latency", "latency per output token (ms)", 1e3, "normalized_latency"),
    ]

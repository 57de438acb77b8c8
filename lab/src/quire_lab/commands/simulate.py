"""``quire simulate``: runs a workload through the real scheduler on a virtual clock."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import IO, Any

from quire.core.errors import ConfigError
from quire.core.limits import EngineLimits
from quire.engine.capacity import describe_kv_groups
from quire.engine.config import EngineConfig
from quire.engine.traces.request import TraceRequest
from quire.execution.kv_bytes import bytes_of_pool
from quire.models.shape import ModelShape
from quire.tools.commands.command import Command
from quire.tools.commands.text import size, table
from quire_lab.commands import report
from quire_lab.commands.fleet import (
    add_fleet,
    describe_fleet,
    fleet_of,
    fleet_values,
    simulate_fleet,
)
from quire_lab.commands.fleet_report import report_run
from quire_lab.commands.setup import Setup, add_flags, describe_machine
from quire_lab.commands.text import described_trace, latencies, number, percent, seconds, served
from quire_lab.recording import RecordingHeader, Writer
from quire_lab.reports import KEPT_DECISIONS, KEPT_RECORDS
from quire_lab.simulation import (
    ClosedLoop,
    Deployment,
    Instant,
    OpenLoop,
    SimulationResult,
    Simulator,
)
from quire_lab.simulation.catalogue.engines import ErrorBar
from quire_lab.simulation.export import RecordWriter, summary_values, write_series
from quire_lab.simulation.fleet import FleetSetup
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.result import RequestRecord
from quire_lab.workload import Clipping, Cut, arrival_times


def add_simulate(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "For instance: quire simulate llama-3-8b --machine h100 --dataset sharegpt --rate 8 "
        "--report out. Names that are unknown are answered with those that are known."
    )
    add_flags(parser, EngineConfig())
    add_fleet(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print the figures as JSON")
    group.add_argument("--requests-out", metavar="FILE", help="CSV with a row per request")
    group.add_argument("--series-out", metavar="FILE", help="CSV of memory and batch over time")
    group.add_argument(
        "--page-out", metavar="FILE", help="recording of what the server's page would have shown, "
        "at most an hour, for quire replay",
    )  # fmt: skip
    report.add_report(group)


def simulate(arguments: argparse.Namespace) -> int:
    setup = Setup(arguments)
    report.check_report(arguments)
    if setup.acceptance is not None and setup.deployment.drafting is None:
        raise ConfigError(
            "acceptance does nothing without speculation: give --speculative-config "
            """'{"method": "auto"}' too"""
        )
    fleet = fleet_of(arguments, setup)
    if fleet is not None:
        workload = Clipping(setup.workload, setup.max_model_len)
        return _simulate_fleet(arguments, setup, fleet, workload)
    workload = Clipping(setup.workload, setup.limits.max_model_len)
    with contextlib.ExitStack() as files:
        on_record = None
        if arguments.requests_out is not None:
            on_record = RecordWriter(files.enter_context(_writing(arguments.requests_out)))
        page = None
        if arguments.page_out is not None:
            header = RecordingHeader("simulation", setup.deployment.model.name, 0.0)
            page = files.enter_context(Writer(Path(arguments.page_out), header))
        result, moment = _run(arguments, setup, workload, on_record, page)
        if arguments.series_out is not None:
            write_series(files.enter_context(_writing(arguments.series_out)), result.series)
    if page is not None and page.full is not None:
        print(f"{arguments.page_out} has the first {seconds(page.seconds)}", file=sys.stderr)
    if not result.num_finished:
        raise ConfigError(f"no request could be served: {result.first_refusal or 'there is none'}")
    if arguments.report is not None:
        print(f"written: {report.write(arguments, setup, result, moment)}", file=sys.stderr)
    if arguments.json:
        values = {"setup": setup_values(setup, setup.limits), **summary_values(result)}
        print(json.dumps({**values, **cut_values(workload.cut)}, indent=1))
    else:
        print("\n".join(describe(setup, result, workload.cut)))
    return 0


def _simulate_fleet(
    arguments: argparse.Namespace, setup: Setup, fleet: FleetSetup, workload: Clipping
) -> int:
    with contextlib.ExitStack() as files:
        on_record = None
        if arguments.requests_out is not None:
            on_record = RecordWriter(files.enter_context(_writing(arguments.requests_out)))
        arrivals = _arrivals(arguments, setup, workload)
        result = simulate_fleet(fleet, setup, arguments.seed, arrivals, on_record)
    if not result.num_finished:
        raise ConfigError(f"no request could be served: {result.first_refusal or 'there is none'}")
    values = {**fleet_values(fleet, setup, result), **cut_values(workload.cut)}
    if arguments.report is not None:
        page = report_run(arguments, setup, fleet, result, values)
        print(f"written: {page}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(values, indent=1))
    else:
        print("\n".join(describe_fleet(fleet, setup, result, workload.cut)))
    return 0


def _run(
    arguments: argparse.Namespace,
    setup: Setup,
    workload: Clipping,
    on_record: Callable[[RequestRecord], None] | None,
    page: Writer | None,
) -> tuple[SimulationResult, Instant | None]:
    """``page``: where a recording goes. The moment is for a report."""
    limits, costs = setup.limits, setup.deployment.cost_model(setup.limits.block_size)
    drafting = setup.deployment.drafting
    reported, map_at = arguments.report is not None, arguments.map_at
    if reported and map_at is None:
        before = Simulator(limits, costs, seed=arguments.seed, drafting=drafting).serve(
            _arrivals(arguments, setup, workload)
        )
        map_at = report.fullest_moment(before)
    simulator = Simulator(
        limits,
        costs,
        KeptResults(setup.goals, *((KEPT_RECORDS, KEPT_DECISIONS) if reported else (0, 0))),
        seed=arguments.seed,
        drafting=drafting,
        on_record=on_record,
    )
    if page is None and map_at is None:
        return simulator.serve(_arrivals(arguments, setup, workload)), None
    from quire_lab.recorded import Look, MomentRecording, SimulationRecording

    look, kept = Look(simulator.engine, setup.deployment.model.name), None
    if page is not None:
        SimulationRecording(simulator.engine, look, page)
    if map_at is not None:
        kept = MomentRecording(simulator.engine, look, map_at)
    result = simulator.serve(_arrivals(arguments, setup, workload))
    return result, None if kept is None else kept.moment


def _arrivals(
    arguments: argparse.Namespace, setup: Setup, workload: Clipping
) -> OpenLoop | ClosedLoop:
    from tqdm import tqdm

    shown = tqdm(
        workload, desc="requests", total=setup.num_requests, leave=False,
        disable=not sys.stderr.isatty(),
    )  # fmt: skip
    if arguments.users is not None:
        return ClosedLoop(shown, arguments.users)
    if setup.trace is not None and arguments.rate is not None:
        own = setup.trace.rate if setup.has_times else None
        return OpenLoop(_at_rate(shown, arguments, own))
    return OpenLoop(shown)


def _at_rate(
    workload: Iterable[TraceRequest], arguments: argparse.Namespace, own: float | None
) -> Iterator[TraceRequest]:
    """A trace at another rate than its ``own``: its times, stretched; None: a process of the flags,
    for it has none.
    """
    times = arrival_times(Random(arguments.seed), arguments.rate, arguments.burstiness)
    first: float | None = None
    for request, time in zip(workload, times, strict=False):
        first = request.arrival if first is None else first
        stretched = time if own is None else (request.arrival - first) * own / arguments.rate
        yield replace(request, arrival=stretched)


@contextlib.contextmanager
def _writing(name: str) -> Iterator[IO[str]]:
    try:
        with Path(name).open("w", encoding="utf-8", newline="") as file:
            yield file
    except BrokenPipeError:  # it is no file, and its reader has gone
        raise
    except OSError as error:
        raise ConfigError(f"{name} cannot be written: {error.strerror}") from error


def setup_values(setup: Setup, limits: EngineLimits) -> dict[str, Any]:
    """The simulated setup as plain JSON values."""
    deployment = setup.deployment
    return {
        "model": asdict(deployment.model),
        "draft_model": None if deployment.draft is None else asdict(deployment.draft.shape),
        "machine": asdict(deployment.machine),
        "tensor_parallel": deployment.tensor_parallel,
        "engine": deployment.engine and deployment.engine.name,
        "error": deployment.error and deployment.error._asdict(),
        "division": deployment.division._asdict(),
        "kv_bytes_per_token": deployment.kv_bytes_per_token,
        "weight_bytes": deployment.kept.weight_bytes,
        "kv_bytes": bytes_of_pool(limits, deployment.cache),
        "settings": {
            **asdict(limits),
            "num_blocks": limits.num_blocks,
            "num_host_blocks": limits.num_host_blocks,
        },
        "goals": asdict(setup.goals),
        "trace": setup.trace and setup.trace._asdict(),
    }


def cut_values(cut: Cut) -> dict[str, int]:
    """The cut as JSON values."""
    return {"num_clipped": cut.requests, "tokens_cut": cut.tokens, "tokens": cut.of_tokens}


def _describe_experts(model: ModelShape) -> str:
    if model.experts is None:
        return ""
    num, chosen = model.experts.count, model.experts.chosen
    return f" (experts: {num}, {chosen} a token, which reads {size(model.weight_bytes_read(1))})"


def _describe_draft(deployment: Deployment) -> list[str]:
    if deployment.draft is None:
        return []
    draft = deployment.draft.shape
    return [
        f"  {draft.name} drafts: {size(draft.weight_bytes)} of weights more, and "
        f"{size(draft.kv_bytes_per_token)} of that KV cache"
    ]


def describe_deployment(setup: Setup, limits: EngineLimits) -> list[str]:
    """The division of memory, and the assumptions about the model."""
    deployment, model = setup.deployment, setup.deployment.kept
    kept = ""
    if deployment.copies > 1:
        kept = f", kept {deployment.copies} times, since there are fewer KV heads than machines"
    engine, machines = deployment.engine, deployment.tensor_parallel
    by = "" if engine is None else f", by {engine.title}"
    return [
        f"{model.name} on {describe_machine(deployment.machine, machines)}{by}",
        f"  {size(model.weight_bytes)} of weights in {model.weight_form.name}"
        f"{_describe_experts(model)}, {size(deployment.kv_bytes_per_token)} of KV cache a token; "
        f"the KV pool is {size(bytes_of_pool(limits, deployment.cache))}{kept}: "
        f"{describe_kv_groups(limits, sum(deployment.cache.state_bytes))}",
        *_describe_draft(deployment),
        *(f"  ({note})" for note in model.notes),
        *([] if engine is None else [f"  (not measured: {', '.join(engine.not_measured)})"]),
    ]


def describe_error(error: ErrorBar, rate: float | None = None) -> str:
    """How far off a simulation may be. rate: the most that it found, of requests per second."""
    found = f"ends within {percent(error.rate)}"
    if rate:
        found = "{} to {} requests/s".format(*map(number, error.range(rate)))
    first = percent(error.first_token)
    return f"{found}, first tokens within {first}, for four of five ({error.basis})"


def describe(setup: Setup, result: SimulationResult, cut: Cut) -> list[str]:
    """The run for a person at a terminal."""
    lines = [*describe_deployment(setup, setup.limits), *described_trace(setup.trace), ""]
    error = setup.deployment.error
    rows = [
        ["served", served(result, cut, setup.max_model_len)],
        ["rate", f"{number(result.request_rate)} requests/s, {number(result.output_rate)} "
         "output tokens/s"],
        *([] if error is None else [["error bar", describe_error(error)]]),
        ["tokens", f"{result.tokens_in:,} in, {result.tokens_out:,} out"],
        ["running", f"{result.mean_running:.1f} sequences on average, at most "
         f"{result.most_running}"],
        ["preempted", f"{result.preemptions.swaps:,} times by swap, "
         f"{result.preemptions.recomputes:,} by recompute"],
    ]  # fmt: skip
    if setup.limits.enable_prefix_caching:
        cache = result.prefix_cache
        hits = cache.hits / cache.queries if cache.queries else 0.0
        lost = cache.evicted / cache.queries if cache.queries else 0.0
        rows.append(["prefix hits", f"{percent(hits)} of prompt tokens; {percent(lost)} had "
                     "been evicted"])  # fmt: skip
    if setup.deployment.drafting is not None:
        rows.append(["drafts", _drafts(result)])
    if setup.goals != Goals():
        rows.append(["goals met", f"by {percent(result.goodput_share)} of the requests"])
    lines += [f"  {name:<12}{text}" for name, text in rows]
    lines += ["", "latency", *latencies(
        [("TTFT", result.ttft), ("TPOT", result.tpot), ("between tokens", result.itl),
         ("per token, e2e", result.normalized_latency), ("end to end", result.e2e_latency),
         ("queue time", result.queueing)]
    )]  # fmt: skip
    usage = result.mean_usage
    capacity = usage.capacity or 1
    cells = [["KV memory, mean", *usage._fields], ["tokens", *(f"{slots:,}" for slots in usage)],
             ["share", *(percent(slots / capacity) for slots in usage)]]  # fmt: skip
    lines += ["", *table(cells, ""), ""]
    lines.append(
        f"{percent(result.kv_efficiency)} of the memory that was taken held tokens; at the worst "
        f"moment {percent(result.most_held / capacity)} of the pool was taken"
    )
    return lines


def _drafts(result: SimulationResult) -> str:
    times, drafted, accepted = result.drafts
    if not times:
        return "none: they would not have paid"
    return (
        f"{drafted:,} verified, {drafted / times:.1f} at a time; {percent(accepted / drafted)} "
        f"were right: {result.tokens_per_step:.2f} tokens of an output a step"
    )


COMMAND = Command(add_simulate, simulate)

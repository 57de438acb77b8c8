"""``quire plan``: how many users fit, how fast, what the limit is, and what would move it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig
from quire.tools.commands.command import Command
from quire_lab.commands.machines import add_machines, asks_for_machines, plan_machines
from quire_lab.commands.plan_text import describe, describe_assumed, describe_sample
from quire_lab.commands.plan_values import plan_values
from quire_lab.commands.prices import prices_of
from quire_lab.commands.setup import Setup, add_flags
from quire_lab.commands.text import described_trace
from quire_lab.reports import write_plan
from quire_lab.reports.style import require_matplotlib
from quire_lab.simulation import SimulatedDrafting
from quire_lab.simulation.planning.changes import next_faster, priced
from quire_lab.simulation.planning.curve import LoadCurve
from quire_lab.simulation.planning.plan import Plan
from quire_lab.simulation.planning.planner import Planner
from quire_lab.simulation.planning.speculation import try_drafts
from quire_lab.simulation.planning.starting import manifest_of, start_of
from quire_lab.simulation.sample import MOST_REQUESTS, MOST_SAMPLE_TOKENS, PARTS, WorkloadSample

_MOST_SEQS = 1024  # usually more than fit, since the plan is to find how many do


def add_plan(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "For instance: quire plan llama-3-8b --machine h100 --users 50 --input 600 --output 300 "
        "--ttft 0.5 --tpot 0.05. Names that are unknown are answered with those that are known."
    )
    add_flags(parser, EngineConfig(max_num_seqs=_MOST_SEQS))
    group = parser.add_argument_group("plan")
    group.add_argument(
        "--part", choices=PARTS, default="busiest", help="part of a trace with more than "
        f"{MOST_REQUESTS:,} requests or {MOST_SAMPLE_TOKENS:,} tokens: the part with most tokens "
        "per second, the first part, or the whole, which takes longer (default: %(default)s)",
    )  # fmt: skip
    add_machines(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print the plan as JSON")
    group.add_argument(
        "--report", metavar="DIRECTORY", help="write the plan there, as a page with charts"
    )
    group.add_argument(
        "--manifest", metavar="FILE", help="write a manifest for Kubernetes, of the cheapest that "
        "is enough, with --engine",
    )  # fmt: skip


def plan(arguments: argparse.Namespace) -> int:
    if arguments.report is not None:
        require_matplotlib()  # before anything is simulated
    of_machines = asks_for_machines(arguments)
    setup = Setup(arguments)
    sample = WorkloadSample.take(
        setup.workload,
        setup.max_model_len if of_machines else setup.limits.max_model_len,
        shares_prefixes=setup.shares_prefixes,
        has_times=setup.has_times,
        seed=arguments.seed,
        part=arguments.part,
    )
    if of_machines:
        told = described_trace(setup.trace) + describe_sample(sample, setup.max_model_len)
        return plan_machines(arguments, setup, sample, told, _progress)
    machine = setup.deployment.machine
    faster = next_faster(machine)
    prices = prices_of(arguments, [one.name for one in (machine, faster) if one is not None])
    deployment = replace(setup.deployment, machine=priced(machine, prices))
    planner = Planner(deployment, sample, setup.goals, _progress, prices)
    found = planner.plan(arguments.users, arguments.rate)
    if setup.acceptance is not None or setup.deployment.drafting is not None:
        drafting = setup.deployment.drafting or SimulatedDrafting(acceptance=setup.acceptance)
        trials = try_drafts(planner, drafting, arguments.users, arguments.rate, found.saturation)
        found = replace(found, speculation=trials)
    curve = None
    if arguments.report is not None:
        curve = LoadCurve.of(planner, found, arguments.users)
    _progress("")
    if curve is not None:
        assumed, values = describe_assumed(setup, found), plan_values(setup, found)
        page = write_plan(Path(arguments.report), found, curve, assumed, values)
        print(f"written: {page}", file=sys.stderr)
    if arguments.manifest is not None:
        _write_manifest(Path(arguments.manifest), setup, found)
    if arguments.json:
        print(json.dumps(plan_values(setup, found), indent=1))
    else:
        print("\n".join(describe(setup, found)))
    return 0


def _write_manifest(path: Path, setup: Setup, plan: Plan) -> None:
    start = start_of(plan.best, setup.model_name, setup.is_stored_rounded)
    text = manifest_of(plan.best, start, plan.enough[0].replicas if plan.enough else 1)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"manifest: {error}") from error
    print(f"written: {path}", file=sys.stderr)


def _progress(what: str) -> None:
    """Show what is being simulated: on one line of a terminal, or as lines of a log."""
    line = f"simulating: {what}" if what else ""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
    elif line:
        print(line, file=sys.stderr, flush=True)


COMMAND = Command(add_plan, plan)

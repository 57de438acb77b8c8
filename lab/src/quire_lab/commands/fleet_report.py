"""``--report`` of fleets: what ``simulate --replicas`` and ``plan --fewest-machines`` put on it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quire_lab.commands.setup import Setup
from quire_lab.commands.text import described_trace, number, percent, seconds, wanted
from quire_lab.reports import FleetStory, write_fleets
from quire_lab.reports.curves import LoadCurveLine
from quire_lab.simulation import Arrivals, ClosedLoop, Machine, OpenLoop
from quire_lab.simulation.fleet import Failures, FleetResult, FleetSetup, FleetSimulator
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.planning.fewest import LASTS, MachineSearch, Option
from quire_lab.simulation.planning.plan import GOAL_SHARE
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.sample import WorkloadSample
from quire_lab.workload import Trace

_SHARES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
"""Of the load that was asked about."""

_HEADS = ("machine", "replicas", "machines", "met by", "TTFT p90", "TPOT p90", "in steps", "$/h",
          "$/M tokens", "watts")  # fmt: skip

_KEPT_UP = 0.95  # of the rate that came, from which on it counts as served
_MOST_FAILURES = 5  # that are told


def report_run(
    arguments: argparse.Namespace,
    setup: Setup,
    fleet: FleetSetup,
    result: FleetResult,
    values: dict[str, Any],
) -> Path:
    """Write the report of ``simulate --replicas``; the path of the page."""
    together = _together(fleet)
    lines, load, own = _lines(arguments, setup, fleet)
    asked = "the load" if own is None else f"{number(own)} requests/s"
    if arguments.users is not None:
        asked = f"{arguments.users:,} users"
    came = own if arguments.users is None else None
    dollars = result.dollars
    cards = [(f"{number(result.request_rate)} /s", "requests served, on average")]
    if setup.goals != Goals():
        told = f"of the requests within {wanted(setup.goals)}"
        cards = [(percent(result.goodput_share), told)]
    cards.append((seconds(result.ttft.p90), "to the first token, for 90 % of the requests"))
    if dollars is not None and result.tokens:
        cards.append((f"${dollars / result.tokens * 1e6:,.3g}", "a million tokens, in and out"))
    else:
        cards.append((percent(result.utilisation), "of the time in steps"))
    story = FleetStory(
        title=f"{setup.deployment.model.name} on {together}",
        answer=_verdict(together, asked, came, setup.goals, result),
        advice=_spread(result),
        cards=cards,
        goals=setup.goals,
        lines=lines,
        load=load,
        own_load=own,
        shown=(together, result),
        machines=(_HEADS, _kinds(fleet, result)),
        notes=_notes(arguments, result, own),
        assumed=_assumed(
            setup, [kind.deployment.machine for kind in fleet.kinds], fleet.routing, fleet
        ),
    )
    return write_fleets(Path(arguments.report), story, values)


def report_search(
    arguments: argparse.Namespace,
    setup: Setup,
    finder: MachineSearch,
    options: Sequence[Option],
    said: tuple[list[str], list[str]],
    values: dict[str, Any],
) -> Path:
    """Write the report of ``plan --fewest-machines``. said: the terminal's verdict and notes."""
    found = [one for one in options if one.result is not None]
    best = min(found, key=_expense, default=None)
    lines = [
        LoadCurveLine(name_of(one), "p90", [finder.at(one, share) for share in _SHARES])
        for one in found
    ]
    verdict, notes = said
    cards: list[tuple[str, str]] = []
    if best is not None and best.result is not None:
        cards = [(f"{best.machines:,}", f"{best.deployment.machine.name} machines do")]
        goals = f"to the first token, for 90 % of the requests; the goals: {wanted(setup.goals)}"
        cards.append((seconds(best.result.ttft.p90), goals))
        if best.price is not None and best.per_million_tokens is not None:
            told = f"a million tokens, in and out; ${best.price:,.3g} an hour"
            cards.append((f"${best.per_million_tokens:,.3g}", told))
        else:
            cards.append((percent(best.result.utilisation), "of the time in steps"))
    users = finder.users is not None
    asked = float(finder.users or finder.rate or 0.0)
    load = f"{asked:,.0f} users" if users else f"{number(asked)} requests/s"
    story = FleetStory(
        title=f"Machines for {setup.deployment.model.name} and {load}",
        answer=" ".join(verdict),
        advice="",
        cards=cards,
        goals=setup.goals,
        lines=lines,
        load="users, each with one request at a time" if users else "requests per second",
        own_load=asked,
        shown=None if best is None or best.result is None else (name_of(best), best.result),
        machines=(_HEADS, [_option(one) for one in found]),
        notes=notes,
        assumed=_assumed(setup, [one.deployment.machine for one in options], finder.routing, None),
    )
    return write_fleets(Path(arguments.report), story, values)


def name_of(option: Option) -> str:
    return f"{option.replicas:,} × {option.deployment.name}"


def _expense(one: Option) -> tuple[float, float]:
    """Dollars where they are known."""
    return (math.inf if one.price is None else one.price, one.machines)


def _together(fleet: FleetSetup) -> str:
    counts: dict[str, int] = {}
    for kind in fleet.kinds:
        counts[str(kind)] = counts.get(str(kind), 0) + 1
    return ", ".join(f"{count:,} × {name}" for name, count in counts.items())


def _verdict(
    together: str, asked: str, own: float | None, goals: Goals, result: FleetResult
) -> str:
    """own: requests per second that came; None: they were not asked for by a rate."""
    waited = f"90 % had their first token within {seconds(result.ttft.p90)}"
    if goals == Goals():
        served = f"{number(result.request_rate)} requests/s"
        if own is not None and result.request_rate < _KEPT_UP * own:
            return f"{together} served {served} of the {number(own)} that came; {waited}."
        return f"{together} served {asked}, {served} on average; {waited}."
    enough = result.goodput_share >= GOAL_SHARE
    begin = f"{together} {'are enough' if enough else 'are not enough'} for {asked}"
    share = f"{percent(result.goodput_share)} of the requests were within the goals"
    return f"{begin}: {share}, where 90 % are wanted."


def _spread(result: FleetResult) -> str:
    """How evenly the load was spread."""
    means = sorted(
        one.result.mean_running * one.result.busy_seconds / one.served_seconds
        for one in result.replicas
        if one.served_seconds
    )
    if len(means) < 2:
        return ""
    return (
        f"The least loaded replica ran {means[0]:.1f} sequences on average, the most loaded "
        f"{means[-1]:.1f}."
    )


def _notes(arguments: argparse.Namespace, result: FleetResult, own: float | None) -> list[str]:
    notes = []
    if result.dollars is None:
        notes.append("No price is known of all: give --price NAME=DOLLARS_AN_HOUR.")
    count = result.num_finished + result.num_refused
    if own is not None and arguments.users is None and count / own < LASTS:
        lasts = f"all {count:,} requests have come after {seconds(count / own)}"
        notes.append(f"At this rate {lasts}: fewer machines may do for that long than for ever.")
    return notes


def _kinds(fleet: FleetSetup, result: FleetResult) -> list[list[str]]:
    """A row for each kind of replica, and one for all."""
    rows = []
    for name in dict.fromkeys(one.kind for one in result.replicas):
        ours = [one for one in result.replicas if one.kind == name]
        kind = next(kind for kind in fleet.kinds if str(kind) == name)
        served = sum(one.served_seconds for one in ours)
        busy = sum(one.result.busy_seconds for one in ours)
        watts, dollars = kind.deployment.machine.watts, kind.deployment.dollars
        machines = sum(one.num_machines for one in ours)
        rows.append(
            [name, f"{len(ours):,}", f"{machines:,}", "", "", "",
             percent(busy / served if served else 0.0),
             "-" if dollars is None else f"{dollars * len(ours):,.3g}", "",
             "-" if watts is None else f"{watts * machines:,.0f}"]
        )  # fmt: skip
    dollars = result.dollars
    hours = result.seconds / 3600
    each = "-" if dollars is None or not hours else f"{dollars / hours:,.3g}"
    million = "-"
    if dollars is not None and result.tokens:
        million = f"{dollars / result.tokens * 1e6:,.3g}"
    machines = sum(one.num_machines for one in result.replicas)
    rows.append(
        ["all", f"{len(result.replicas):,}", f"{machines:,}", percent(result.goodput_share),
         seconds(result.ttft.p90), seconds(result.tpot.p90), percent(result.utilisation), each,
         million, ""]
    )  # fmt: skip
    return rows


def _option(one: Option) -> list[str]:
    result = one.result
    assert result is not None, "it was found"
    prices = ("-" if price is None else f"{price:,.3g}" for price in
              (one.price, one.per_million_tokens))  # fmt: skip
    return [
        one.deployment.name, f"{one.replicas:,}", f"{one.machines:,}",
        percent(result.goodput_share), seconds(result.ttft.p90), seconds(result.tpot.p90),
        percent(result.utilisation), *prices,
        "-" if one.watts is None else f"{one.watts:,.0f}",
    ]  # fmt: skip


def _assumed(
    setup: Setup, machines: Sequence[Machine], routing: str, fleet: FleetSetup | None
) -> list[tuple[str, str]]:
    base = setup.deployment
    times = "as calibrated"
    if base.costs is None:
        paced = (replace(base, machine=machine).paced for machine in machines)
        each = dict.fromkeys(map(_peaks, paced))
        times = f"a roofline: {'; '.join(each)}"
    config = base.config
    rows = [
        ("routing", routing),
        ("seconds of a step", times),
        ("settings", f"max_num_batched_tokens {config.max_num_batched_tokens:,}, max_num_seqs "
         f"{config.max_num_seqs:,}, block size {config.block_size}"),
        ("prices", "as given; for the time of the run, its end included"),
        ("other loads", "the workload's first requests, faster and slower; without failures"),
    ]  # fmt: skip
    rows += [("workload", line) for line in described_trace(setup.trace)]
    if fleet is not None:
        failures = (
            "; ".join(
                f"replica {one.replica} after {seconds(one.at)}"
                + (
                    ""
                    if one.restart_after is None
                    else f", back {seconds(one.restart_after)} later"
                )
                for one in fleet.failures.at[:_MOST_FAILURES]
            )
            or "none"
        )
        more = len(fleet.failures.at) - _MOST_FAILURES
        failures += f"; and {more:,} more" if more > 0 else ""
        if fleet.failures.mtbf is not None:
            failures += f", and at random every {seconds(fleet.failures.mtbf)} on average"
        rows.append(("failures", failures))
        if fleet.autoscaling is not None:
            few, many = fleet.autoscaling.fewest, fleet.autoscaling.most
            rows.append(("replicas", f"{len(fleet.kinds)} at first, then from {few} to {many}"))
        rows.append(("start of a replica", seconds(fleet.start_seconds)))
    return rows


def _peaks(machine: Machine) -> str:
    return (
        f"{machine.name} attains {percent(machine.compute_share)} of "
        f"{machine.flops / 1e12:,.0f} TFLOP/s and {percent(machine.bandwidth_share)} of "
        f"{machine.bandwidth / 1e9:,.0f} GB/s, with {seconds(machine.step_seconds)} a step"
    )


def _lines(
    arguments: argparse.Namespace, setup: Setup, fleet: FleetSetup
) -> tuple[list[LoadCurveLine], str, float | None]:
    """The results of other loads, what varies in them, and the load itself."""
    has_times = isinstance(setup.workload, Trace) and setup.has_times
    sample = WorkloadSample.take(
        setup.workload, setup.max_model_len, shares_prefixes=setup.shares_prefixes,
        has_times=has_times, seed=arguments.seed,
    )  # fmt: skip
    users = arguments.users
    own = users or arguments.rate or sample.rate
    if own is None:
        return [], "", None
    calm = replace(fleet, failures=Failures())

    def run(load: float) -> FleetResult:
        arrivals: Arrivals
        if users is None:
            arrivals = OpenLoop(sample.at_rate(load))
        else:
            arrivals = ClosedLoop(sample.repeated(max(len(sample.requests), 2 * users)), int(load))
        return FleetSimulator(calm, KeptResults(setup.goals), seed=arguments.seed).serve(arrivals)

    loads = [share * own for share in _SHARES]
    if users is not None:
        loads = [float(max(1, round(load))) for load in loads]
    points = [(load, run(load)) for load in dict.fromkeys(loads)]
    lines = [
        LoadCurveLine("90th percentile", "p90", points),
        LoadCurveLine("median", "p50", points),
    ]
    what = "requests per second" if users is None else "users, each with one request at a time"
    return lines, what, float(own)

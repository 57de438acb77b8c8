"""``quire plan --fewest-machines``: which machines, how many, at what price."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from quire.core.errors import ConfigError
from quire.tools.commands.text import table
from quire_lab.commands.fleet import add_routing
from quire_lab.commands.fleet_report import report_search
from quire_lab.commands.prices import add_price, prices_of
from quire_lab.commands.setup import Setup
from quire_lab.commands.text import number, percent, seconds, wanted
from quire_lab.simulation import Deployment, Machine, find_machine
from quire_lab.simulation.planning.changes import priced
from quire_lab.simulation.planning.fewest import LASTS, MachineSearch, Option
from quire_lab.simulation.sample import WorkloadSample
from quire_lab.workload import Synthetic


def add_machines(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machines", "how many replicas the load needs")
    group.add_argument(
        "--fewest-machines", action="store_true", help="only find the fewest machines with which "
        "90 %% of the requests meet the goals",
    )  # fmt: skip
    group.add_argument(
        "--machines", metavar="LIST", help="machines to compare, separated by commas (default: "
        "--machine)",
    )  # fmt: skip
    add_price(group)
    group.add_argument(
        "--budget", type=float, metavar="DOLLARS", help="dollars per hour: show what they would buy"
    )
    add_routing(group)


def asks_for_machines(arguments: argparse.Namespace) -> bool:
    """Whether --fewest-machines is given. ConfigError for a flag that does nothing without it."""
    if not arguments.fewest_machines:
        for name in ("machines", "budget", "routing"):
            if getattr(arguments, name) is not None:
                raise ConfigError(f"{name} does nothing without fewest_machines")
    if arguments.budget is not None and not arguments.budget > 0:
        raise ConfigError(f"budget must be above 0 dollars an hour, got {arguments.budget:g}")
    return bool(arguments.fewest_machines)


def plan_machines(
    arguments: argparse.Namespace,
    setup: Setup,
    sample: WorkloadSample,
    told: list[str],
    progress: Callable[[str], None],
) -> int:
    """Search and print. told: the description of the sample."""
    workload = setup.workload
    if isinstance(workload, Synthetic) and workload.turns == workload.burstiness == 1:
        sample = replace(sample, has_times=False)  # it can be drawn for as long as is wanted
    finder, options = _search(arguments, setup, sample, progress)
    trace = setup.trace and setup.trace._asdict()
    values = {"machines": machine_values(options), "trace": trace}
    doubt = _doubt(arguments, sample)
    if arguments.report is not None:
        notes = [*_notes(options, arguments.budget), *doubt]
        said = _verdict([one for one in options if one.result is not None]), notes
        page = report_search(arguments, setup, finder, options, said, values)
        print(f"written: {page}", file=sys.stderr)
    progress("")
    if arguments.json:
        print(json.dumps(values, indent=1))
        return 0
    load = f"{arguments.users} users"
    if arguments.users is None:
        load = f"{number(arguments.rate or sample.rate or 0)} requests/s"
    lines = [f"{setup.deployment.model.name} for {load} within {wanted(setup.goals)}", *told, ""]
    lines += describe_machines(options, arguments.budget)
    print("\n".join([*lines, *doubt]))
    return 0


def _doubt(arguments: argparse.Namespace, sample: WorkloadSample) -> list[str]:
    """A note if the load ends before a queue has grown."""
    rate = arguments.rate or sample.rate
    if arguments.users is not None or not sample.has_times or rate is None:
        return []
    lasts = len(sample.requests) / rate
    if lasts >= LASTS:
        return []
    return [
        f"At this rate the load is over in {seconds(lasts)}: fewer machines may do for that "
        "long than for ever; take the whole trace (--part whole), or a longer one."
    ]


def _search(
    arguments: argparse.Namespace,
    setup: Setup,
    sample: WorkloadSample,
    progress: Callable[[str], None],
) -> tuple[MachineSearch, list[Option]]:
    """The search, and its options for each named machine."""
    machines = _machines(arguments, setup.deployment)
    prices = prices_of(arguments, [one.name for one in machines])
    machines = [priced(one, prices) for one in machines]
    rate = arguments.rate or (sample.rate if arguments.users is None else None)
    routing = arguments.routing or "prefix-aware"
    if arguments.budget is not None and all(one.price_per_hour is None for one in machines):
        raise ConfigError("budget needs prices: give --price NAME=DOLLARS_AN_HOUR for a machine")
    finder = MachineSearch(
        setup.deployment, sample, setup.goals, routing, arguments.users, rate, progress
    )
    return finder, [
        finder.option(replace(setup.deployment, machine=machine), arguments.budget)
        for machine in machines
    ]


def _machines(arguments: argparse.Namespace, base: Deployment) -> list[Machine]:
    if arguments.machines is None:
        return [base.machine]
    if base.costs is not None:
        raise ConfigError("machines: measured step times (cost_model) are of one machine")
    names = dict.fromkeys(name.strip() for name in arguments.machines.split(","))
    return [find_machine(name) for name in names]


# -- for people ---------------------------------------------------------------------------------


def describe_machines(options: list[Option], budget: float | None) -> list[str]:
    found = [one for one in options if one.result is not None]
    lines: list[str] = []
    if found:
        heads = ["machine", "fewest", "replicas", "met by", "TTFT p90", "TPOT p90", "in steps",
                 "$/h", "$/M tokens", "$/M out", "$/h a user", "watts"]  # fmt: skip
        lines += [*table([heads, *map(_row, found)], ""), ""]
    return [*lines, *_notes(options, budget), *_verdict(found)]


def _notes(options: list[Option], budget: float | None) -> list[str]:
    """Notes: impossible machines, unknown facts, and what the budget buys."""
    found = [one for one in options if one.result is not None]
    lines = [
        f"not with {one.deployment.machine.name}: {one.refused}" for one in options if one.refused
    ]
    unpriced = [one.deployment.machine.name for one in found if one.price is None]
    if unpriced:
        hint = " ".join(f"--price {name}=DOLLARS_AN_HOUR" for name in unpriced)
        lines.append(f"no price is known of {', '.join(unpriced)}: say {hint}")
    if budget is not None:
        lines += [_afforded(one, budget) for one in found if one.afforded is not None]
    return lines


def _row(one: Option) -> list[str]:
    result, parallel = one.result, one.deployment.tensor_parallel
    assert result is not None, "it was found"
    apart = f"{one.replicas:,} x {parallel}"
    watts = "-" if one.watts is None else f"{one.watts:,.0f}"
    prices = (one.price, one.per_million_tokens, one.per_million_outputs, one.per_user)
    return [
        one.deployment.machine.name, f"{one.machines:,}", apart, percent(result.goodput_share),
        seconds(result.ttft.p90), seconds(result.tpot.p90), percent(result.utilisation),
        *("-" if price is None else f"{price:,.3g}" for price in prices), watts,
    ]  # fmt: skip


def _afforded(one: Option, budget: float) -> str:
    machine, count = one.deployment.machine.name, one.afforded or 0
    machines = count * one.deployment.tensor_parallel
    if not count:
        return f"${budget:g} an hour pays for no {machine}"
    enough = "enough" if count >= one.replicas else "not enough"
    rate = ""
    if one.afforded_rate is not None:
        rate = f", which take {number(one.afforded_rate)} requests/s within the goals"
    return f"${budget:g} an hour pays for {machines:,} {machine}{rate}: {enough}"


def _verdict(found: list[Option]) -> list[str]:
    """The last words: fewest, and cheapest where prices are known."""
    if not found:
        return ["None of these machines meets the goals."]
    fewest = min(found, key=lambda one: one.machines)
    lines = [f"Fewest: {fewest.machines:,} x {fewest.deployment.machine.name}."]
    prices = [(one.price, one) for one in found if one.price is not None]
    if len(prices) > 1:
        price, cheapest = min(prices, key=lambda pair: pair[0])
        lines.append(
            f"Cheapest: {cheapest.machines:,} x {cheapest.deployment.machine.name}, "
            f"${price:,.3g} an hour."
        )
    return lines


# -- for programs -------------------------------------------------------------------------------


def machine_values(options: list[Option]) -> list[dict[str, Any]]:
    return [
        {
            "machine": one.deployment.machine.name,
            "machines": one.machines or None,
            "replicas": one.replicas or None,
            "tensor_parallel": one.deployment.tensor_parallel,
            "refused": one.refused,
            "goodput_share": one.result and one.result.goodput_share,
            "ttft_p90": one.result and one.result.ttft.p90,
            "tpot_p90": one.result and one.result.tpot.p90,
            "utilisation": one.result and one.result.utilisation,
            "dollars_per_hour": one.price,
            "dollars_per_million_tokens": one.per_million_tokens,
            "dollars_per_million_output_tokens": one.per_million_outputs,
            "dollars_per_hour_and_user": one.per_user,
            "watts": one.watts,
            "afforded_replicas": one.afforded,
            "afforded_requests_per_second": one.afforded_rate,
        }
        for one in options
    ]

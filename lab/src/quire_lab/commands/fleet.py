"""``quire simulate --replicas``: simulates several engines behind a router."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from quire.core.errors import ConfigError
from quire.tools.commands.text import size, table
from quire_cluster.config import DeployConfig
from quire_lab.commands.prices import add_price, prices_of
from quire_lab.commands.setup import Setup
from quire_lab.commands.text import described_trace, latencies, number, percent, seconds, served
from quire_lab.simulation import Arrivals, Deployment, find_machine
from quire_lab.simulation.export import summary_values
from quire_lab.simulation.fleet import (
    ROUTINGS,
    Autoscaling,
    Failure,
    Failures,
    FleetResult,
    FleetSetup,
    FleetSimulator,
    ReplicaKind,
    ReplicaResult,
    Role,
    TransferCosts,
)
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.planning.changes import priced
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.result import RequestRecord
from quire_lab.workload import Cut

_GROUP = re.compile(r"(\d+)(?:x([^:,]+))?(?::(\d+))?(?::(both|prefill|decode))?")
_SCALING = ("target_wait", "target_kv_usage", "upscale_delay", "downscale_delay")
_OF_FLEETS = (
    "price", "fail_at", "mtbf", "start_seconds", "min_replicas", "max_replicas", *_SCALING,
    "transfer_gb", "transfer_ms", "pairing", "max_local_prefill_length",
)  # fmt: skip
PAIRINGS = ("deploy", "proxy")
_ROWS = 16  # replicas that are printed; JSON has them all


def add_routing(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--routing", choices=ROUTINGS, help="which replica gets a request: round-robin, each in "
        "turn; least-loaded, the one with least to do; shortest-wait, the one predicted to start "
        "it first; prefix-aware, the one with least to do, less what it has cached of the prompt. "
        "quire deploy calls the first, second and last round_robin, load and prefix (default: "
        "prefix-aware)",
    )  # fmt: skip


def add_fleet(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("fleet", "several engines behind a router")
    group.add_argument(
        "--replicas", metavar="GROUPS", help="number of engines, or groups of them, separated by "
        "commas: COUNT[xMACHINE][:TENSOR_PARALLEL][:ROLE], where a role is prefill or decode. "
        "Such as 8, or 4xh100,8xl40s, or 2xh100:2:prefill,6:decode",
    )  # fmt: skip
    add_routing(group)
    add_price(group)
    group.add_argument(
        "--fail-at", action="append", metavar="SECONDS:REPLICA[:AFTER]", help="a replica, "
        "counted from 0, fails at this time, and serves again AFTER seconds later, or never; may "
        "be repeated",
    )  # fmt: skip
    group.add_argument(
        "--mtbf", type=float, metavar="SECONDS", help="mean time between failures: replicas "
        "fail at random, and are started again",
    )  # fmt: skip
    group.add_argument(
        "--start-seconds", type=float, metavar="SECONDS", help="time that a replica needs to "
        "start, for it loads the weights (default: 60)",
    )  # fmt: skip
    defaults = DeployConfig()
    group.add_argument(
        "--min-replicas",
        type=int,
        metavar="N",
        help="fewest replicas; with --max-replicas (default: 1)",
    )
    group.add_argument(
        "--max-replicas", type=int, metavar="N", help="most replicas: their number follows the "
        "load, as with quire deploy",
    )  # fmt: skip
    for name in _SCALING:
        group.add_argument(
            f"--{name.replace('_', '-')}", type=float,
            metavar="SHARE" if name == "target_kv_usage" else "SECONDS",
            help=f"as with quire deploy (default: {getattr(defaults, name):g})",
        )  # fmt: skip
    group.add_argument(
        "--transfer-gb", type=float, metavar="GB/S", help="rate at which a replica sends or "
        "receives the KV blocks of prompts, in 10^9 bytes per second (default: its machine's "
        "network)",
    )  # fmt: skip
    group.add_argument(
        "--transfer-ms",
        type=float,
        metavar="MILLISECONDS",
        help="latency of such a transfer (default: 1)",
    )
    group.add_argument(
        "--pairing", choices=PAIRINGS, help="which prompts prefill replicas compute: deploy, those "
        "for which it pays, as with quire deploy --prefill-replicas; proxy, every prompt, as "
        "behind a proxy in front of quire serve --role (default: deploy)",
    )  # fmt: skip
    group.add_argument(
        "--max-local-prefill-length", type=int, metavar="TOKENS", help="with --pairing deploy, "
        "uncached tokens up to which a prompt is computed where it is answered "
        f"(default: {defaults.max_local_prefill_length})",
    )  # fmt: skip


def fleet_of(arguments: argparse.Namespace, setup: Setup) -> FleetSetup | None:
    """The fleet of the flags; None: one engine. ConfigError for contradictions."""
    if arguments.replicas is None:
        for name in ("routing", *_OF_FLEETS):
            if getattr(arguments, name) is not None:
                raise ConfigError(f"{name} is for several engines: give --replicas too")
        return None
    for name in ("map_at", "series_out"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"{name} is for one engine: leave out --replicas, or this")
    given = {name: getattr(arguments, name) for name in _OF_FLEETS}
    transfer = TransferCosts(
        None if given["transfer_gb"] is None else given["transfer_gb"] * 1e9,
        (1.0 if given["transfer_ms"] is None else given["transfer_ms"]) / 1e3,
    )
    kinds = kinds_of(arguments.replicas, setup.deployment)
    prices = prices_of(arguments, [kind.deployment.machine.name for kind in kinds])
    return FleetSetup(
        tuple(_priced(kinds, prices)),
        arguments.routing or "prefix-aware",
        Failures(tuple(map(Failure.parse, given["fail_at"] or ())), given["mtbf"]),
        60.0 if given["start_seconds"] is None else given["start_seconds"],
        _autoscaling(given),
        transfer,
        _most_local(given, any(kind.role is not Role.BOTH for kind in kinds)),
    )


def _most_local(given: dict[str, Any], is_apart: bool) -> int | None:
    """Uncached tokens up to which prompts are computed locally; None: behind a proxy."""
    pairing, most = given["pairing"], given["max_local_prefill_length"]
    for name in ("pairing", "max_local_prefill_length"):
        if given[name] is not None and not is_apart:
            raise ConfigError(f"{name} is of prefill and decode apart: give replicas roles")
    if pairing == "proxy":
        if most is not None:
            raise ConfigError("max_local_prefill_length: a proxy sends every prompt to prefill")
        return None
    return DeployConfig().max_local_prefill_length if most is None else most


def _priced(kinds: Iterable[ReplicaKind], prices: Mapping[str, float]) -> Iterator[ReplicaKind]:
    """Kinds that are one stay one."""
    known: dict[int, Deployment] = {}
    for kind in kinds:
        base = kind.deployment
        if id(base) not in known:
            known[id(base)] = replace(base, machine=priced(base.machine, prices))
        yield replace(kind, deployment=known[id(base)])


def _autoscaling(given: dict[str, Any]) -> Autoscaling | None:
    if given["max_replicas"] is None:
        for name in ("min_replicas", *_SCALING):
            if given[name] is not None:
                raise ConfigError(f"{name} does nothing without max_replicas")
        return None
    told = {name: given[name] for name in _SCALING if given[name] is not None}
    checked = DeployConfig(
        min_replicas=given["min_replicas"], max_replicas=given["max_replicas"], **told
    )
    rest = {name: getattr(checked, name) for name in _SCALING}
    span = checked.answering
    return Autoscaling(span.fewest, span.most, **rest)


def kinds_of(text: str, base: Deployment) -> tuple[ReplicaKind, ...]:
    """The replicas that ``--replicas`` describes."""
    kinds: list[ReplicaKind] = []
    for group in text.split(","):
        found = _GROUP.fullmatch(group.strip())
        if found is None:
            raise ConfigError(
                "replicas must be groups of COUNT[xMACHINE][:TENSOR_PARALLEL][:ROLE], such as 8 or "
                f"2xh100:2:prefill,6:decode; got {group!r:.80}"
            )
        count, machine, parallel, role = found.groups()
        changes: dict[str, Any] = {}
        if machine is not None:
            if base.costs is not None:
                raise ConfigError(
                    f"replicas: {machine}: measured step times (cost_model) are of one machine"
                )
            changes["machine"] = find_machine(machine)
        if parallel is not None:
            changes["tensor_parallel"] = int(parallel)
        kind = ReplicaKind(replace(base, **changes), Role(role or "both"))
        kinds += [kind] * min(int(count), 10_000)
    return tuple(kinds)


def simulate_fleet(
    fleet: FleetSetup,
    setup: Setup,
    seed: int,
    arrivals: Arrivals,
    on_record: Callable[[RequestRecord], None] | None,
) -> FleetResult:
    simulator = FleetSimulator(fleet, KeptResults(setup.goals), seed=seed, on_record=on_record)
    return simulator.serve(arrivals)


# -- for people ---------------------------------------------------------------------------------


def describe_fleet(fleet: FleetSetup, setup: Setup, result: FleetResult, cut: Cut) -> list[str]:
    """The run for a person at a terminal."""
    groups = dict.fromkeys(map(str, fleet.kinds))
    counts = {name: sum(str(kind) == name for kind in fleet.kinds) for name in groups}
    together = ", ".join(f"{count} ({name})" for name, count in counts.items())
    lines = [f"{setup.deployment.model.name}, replicas: {together}; routed {fleet.routing}"]
    if fleet.is_apart:
        most = fleet.max_local_prefill_length
        told = "every prompt goes to prefill first"
        if most is not None:
            told = f"prefill is asked for prompts with over {most:,} new tokens"
        lines[0] += f"; {told}"
    if fleet.autoscaling is not None:
        few, many = fleet.autoscaling.fewest, fleet.autoscaling.most
        lines[0] += f"; from {few} to {many}, each {seconds(fleet.start_seconds)} to start"
    lines += described_trace(setup.trace)
    rows = [
        ["served", served(result, cut, setup.max_model_len)],
        ["rate", f"{number(result.request_rate)} requests/s, {number(result.output_rate)} output "
         f"tokens/s; {number(result.mean_under_way)} requests under way on average"],
        ["replicas", f"in steps for {percent(result.utilisation)} of the time; at most "
         f"{result.most_serving} served at once; {result.machine_seconds / 3600:,.3g} hours of "
         "machines"],
        ["preempted", f"{result.num_preemptions:,} times"],
    ]  # fmt: skip
    if result.dollars is not None and result.tokens:
        each = result.dollars / result.tokens * 1e6
        rows.append(["cost", f"${result.dollars:,.3g}; ${each:,.3g} a million tokens"])
    if any(one.result.prefix_cache.queries for one in result.replicas):
        rows.append(["prefix hits", f"{percent(result.hit_share)} of prompt tokens"])
    if setup.goals != Goals():
        rows.append(["goals met", f"by {percent(result.goodput_share)} of the requests"])
    if result.transfers.count:
        took = result.transfers
        rows.append(
            [
                "handed over",
                f"{took.count:,} prompts, {size(result.transferred_bytes)}; "
                f"each took {seconds(took.mean)} on average, p99 {seconds(took.p99)}",
            ]
        )
    lost = [("TTFT", result.ttft), ("TPOT", result.tpot), ("end to end", result.e2e_latency)]
    if any(one.num_failures for one in result.replicas):
        rows.append(["failures", _failures(result)])
        lost += [("sent again: TTFT", result.resent_ttft), ("end to end", result.resent_e2e)]
    lines += ["", *(f"  {name:<12}{text}" for name, text in rows)]
    lines += ["", "latency", *latencies([one for one in lost if one[1].count])]
    return [*lines, "", *_replicas(result)]


def _failures(result: FleetResult) -> str:
    times = sum(one.num_failures for one in result.replicas)
    tokens = sum(one.lost_tokens for one in result.replicas)
    return (
        f"{times:,}; {result.num_resent:,} requests were lost and sent again "
        f"({result.num_lost:,} times), with {tokens:,} tokens of their answers"
    )


def _replicas(result: FleetResult) -> list[str]:
    rows = [["replica", "", "sent", "lost", "in steps", "running", "hits", "preempted", "TTFT p90",
             "TPOT p90"]]  # fmt: skip
    rows += [_row(one) for one in result.replicas[:_ROWS]]
    lines = table(rows, "")
    if len(result.replicas) > _ROWS:
        lines.append(f"and {len(result.replicas) - _ROWS:,} more, which --json tells of")
    return lines


def _row(one: ReplicaResult) -> list[str]:
    result = one.result
    cache, gave_way = result.prefix_cache, result.preemptions
    return [
        f"{one.slot}",
        one.kind,
        f"{one.num_sent:,}",
        f"{one.num_lost:,}",
        percent(one.utilisation),
        f"{result.mean_running:.1f}",
        percent(cache.hits / cache.queries) if cache.queries else "-",
        f"{gave_way.swaps + gave_way.recomputes:,}",
        seconds(result.ttft.p90) if result.ttft.count else "-",
        seconds(result.tpot.p90) if result.tpot.count else "-",
    ]


# -- for programs -------------------------------------------------------------------------------

_FIGURES = (
    "seconds", "num_finished", "num_refused", "num_met_goals", "goodput_share", "tokens_in",
    "tokens_out", "request_rate", "output_rate", "mean_under_way", "utilisation", "hit_share",
    "num_preemptions", "num_lost", "num_resent", "transferred_bytes", "most_serving",
    "machine_seconds", "dollars", "first_refusal",
)  # fmt: skip
_LATENCIES = (
    "ttft", "tpot", "normalized_latency", "e2e_latency", "resent_ttft", "resent_e2e", "transfers",
)  # fmt: skip


def fleet_values(fleet: FleetSetup, setup: Setup, result: FleetResult) -> dict[str, Any]:
    """The figures, as plain JSON values."""
    return {
        "model": asdict(setup.deployment.model),
        "routing": fleet.routing,
        "goals": asdict(setup.goals),
        "trace": setup.trace and setup.trace._asdict(),
        **{name: getattr(result, name) for name in _FIGURES},
        "latency": {name: asdict(getattr(result, name)) for name in _LATENCIES},
        "replicas": [_replica_values(one) for one in result.replicas],
    }


def _replica_values(one: ReplicaResult) -> dict[str, Any]:
    values = {name: value for name, value in vars(one).items() if name != "result"}
    return {**values, "utilisation": one.utilisation, **summary_values(one.result)}

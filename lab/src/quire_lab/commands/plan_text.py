"""A plan as text for a terminal."""

from __future__ import annotations

from quire.tools.commands.text import size, table
from quire_lab.commands.setup import Setup
from quire_lab.commands.simulate import describe_deployment, describe_error
from quire_lab.commands.speculation import describe_trials
from quire_lab.commands.text import described_trace, number, percent, seconds, wanted
from quire_lab.contiguous import PAGED, name_of
from quire_lab.simulation import SimulationResult
from quire_lab.simulation.baselines import POLICY_NAMES
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.planning.advice import (
    BINDS,
    alike,
    answers,
    best_rate,
    idle,
    more_than_its_share,
    per_million,
    ranked,
    too_few,
)
from quire_lab.simulation.planning.plan import Plan, Saturation, UserLoad
from quire_lab.simulation.planning.search import CLOSE
from quire_lab.simulation.planning.starting import start_of
from quire_lab.simulation.sample import WorkloadSample

_FAR = 0.5
"""Share of what memory holds, below which something else binds."""


def describe(setup: Setup, plan: Plan) -> list[str]:
    lines = [*describe_deployment(setup, plan.limits), *described_trace(setup.trace)]
    doubt = too_few(plan)
    lines += [*_sample(plan), "", *answers(plan), *([] if doubt is None else [doubt])]
    lines += [*_start(setup, plan), ""]
    if plan.user_load is not None:
        lines += [*_users(plan.user_load), ""]
    lines += [*_answers(plan), ""]
    lines += [*_changes(plan), "", *_without_paging(plan), "", *_other_work(plan)]
    if plan.speculation is not None:
        lines += ["", *describe_trials(plan.speculation)]
    return lines


def _start(setup: Setup, plan: Plan) -> list[str]:
    """How the engine that was asked about is started."""
    start = start_of(plan.best, setup.model_name, setup.is_stored_rounded)
    if start is None:
        return []
    lines = ["", "started as", f"  {start.command}"]
    if start.file:
        lines += ["  config.yaml:", *(f"    {line}" for line in start.file.splitlines())]
    return [*lines, *(f"  {note}" for note in start.notes)]


def describe_assumed(setup: Setup, plan: Plan) -> list[tuple[str, str]]:
    """The assumptions behind the answers."""
    deployment, *memory = describe_deployment(setup, plan.limits)
    machine, goals = plan.deployment.paced, plan.goals
    rows = [("deployment", deployment), ("memory", " ".join(line.strip() for line in memory))]
    workload = [*described_trace(setup.trace), *_sample(plan)]
    rows.append(("workload", "; ".join(line.strip() for line in workload)))
    if goals != Goals():
        rows.append(("goals", f"{wanted(goals)} for 90 % of the requests"))
    if plan.deployment.costs is not None:
        times = f"as calibrated on {machine.name}"
    else:
        times = (
            f"a roofline: {percent(machine.compute_share)} of {machine.flops / 1e12:,.0f} TFLOP/s, "
            f"{percent(machine.bandwidth_share)} of {machine.bandwidth / 1e9:,.0f} GB/s, and "
            f"{seconds(machine.step_seconds)} a step"
        )
    rows.append(("seconds of a step", times))
    if (error := plan.deployment.error) is not None:
        rows.append(("error bar", describe_error(error, plan.goodput.rate)))
    start = start_of(plan.best, setup.model_name, setup.is_stored_rounded)
    if start is not None:
        rows.append(("started as", "; ".join((start.command, *start.notes))))
    limits = plan.limits
    settings = (
        f"max_num_batched_tokens {limits.max_num_batched_tokens:,}, max_num_seqs "
        f"{limits.max_num_seqs:,}, block size {limits.block_size}, prefix caching "
        f"{'on' if limits.enable_prefix_caching else 'off'}"
    )
    accuracy = "rates within 2 %, those with a change within 5 %"
    return [*rows, ("settings", settings), ("found", accuracy)]


def _sample(plan: Plan) -> list[str]:
    return describe_sample(plan.sample, plan.limits.max_model_len)


def describe_sample(sample: WorkloadSample, longest: int | None) -> list[str]:
    """The requests that the plan is for."""
    prompt, output = sample.mean_tokens
    taken = f"{len(sample.requests):,}"
    if sample.part == "whole":
        which = f"all {taken} requests of the workload"
    else:
        row = "the busiest" if sample.part == "busiest" else "the first"
        which = f"{row} {taken} of {sample.num_all:,} requests"
        if sample.rate is not None:
            start = sample.requests[0].arrival
            which += f", from {seconds(start)} to {seconds(sample.requests[-1].arrival)}"
    text = f"  {which}: {prompt:,.0f} tokens in and {output:,.0f} out on average"
    if sample.rate is not None:
        text += f", {number(sample.rate)} requests/s"
        if sample.own_rate is not None and sample.part != "whole":
            text += f" (over the whole {number(sample.own_rate)})"
    lines = [text]
    if sample.cut.tokens:
        lines.append(f"  to {longest:,} tokens, {sample.cut}")
    return lines


def _answers(plan: Plan) -> list[str]:
    saturation, goals, goodput = plan.saturation, plan.goals, plan.goodput
    rows = [["fit at once", _fit(plan)]]
    if plan.most_users is not None:
        users, ((_, result),) = plan.most_users
        rows.append(["most users", f"{users:,} at once meet the goals ({_story(result)})"])
    if goals == Goals():
        rows.append(["highest rate", f"{number(goodput.rate)} requests/s, "
                     f"{number(saturation.output_rate)} output tokens/s; above that the queue "
                     "grows without end"])  # fmt: skip
    else:
        named = wanted(goals)
        text = f"{number(goodput.rate)} requests/s with {named} for 90 %"
        if goodput.at is not None:
            text += f" ({_story(goodput.at)})"
        if goodput.poisson is not None:
            text = (
                f"none: this workload's own bursts miss {named} for 90 % however slowly it is "
                f"played; evenly spread (Poisson), {number(goodput.poisson)} requests/s meet them"
            )
        rows.append(["goodput", text])
    if (error := plan.deployment.error) is not None:
        rows.append(["error bar", describe_error(error, goodput.rate)])
    rows.append(["what binds", f"{plan.binds.value}: {BINDS[plan.binds]}"])
    if plan.memory_need is not None:
        need = plan.memory_need
        share = need.num_bytes / plan.kv_bytes
        text = f"{need.load} need {size(need.num_bytes)} of KV cache at the worst moment"
        rows.append(["memory", f"{text} if no request waits for it: {percent(share)} of this pool"])
    best = plan.best_block_size
    same = ", as it is" if best == plan.limits.block_size else ""
    rows.append(["block size", f"{best}: the largest within 2 % of the best{same}"])
    return [f"{name:<14}{text}" for name, text in rows]


def _fit(plan: Plan) -> str:
    """What memory holds, and what runs; if fewer run, memory is not the limit."""
    saturation, room = plan.saturation, plan.room
    if saturation.all_at_once:
        text = f"all {saturation.most_running:,} requests of the workload run at once"
    else:
        text = (
            f"{number(saturation.running)} requests run at once while others wait (at most "
            f"{saturation.most_running:,})"
        )
    text += f"; memory holds {room:,} of mean length to their ends"
    if not saturation.all_at_once and saturation.running < _FAR * room:
        text += ", so memory is not the limit"
    return text


def _story(result: SimulationResult) -> str:
    return (
        f"p90: TTFT {seconds(result.ttft.p90)}, TPOT {seconds(result.tpot.p90)}; "
        f"{result.mean_running:.1f} run on average"
    )


def _users(load: UserLoad) -> list[str]:
    rows = [["", "run at once", "at most", "wait", "requests/s", "TTFT p90", "TPOT p90"]]
    for policy, result in load.results:
        waiting = sum(point.waiting * point.seconds for point in result.series)
        rows.append(
            [
                POLICY_NAMES[policy],
                f"{result.mean_running:.1f}",
                f"{result.most_running}",
                f"{waiting / (result.busy_seconds or 1):.1f}",
                number(result.request_rate),
                seconds(result.ttft.p90),
                seconds(result.tpot.p90),
            ]
        )
    return [f"{load.users} users, each with one request at a time", *table(rows)]


def _changes(plan: Plan) -> list[str]:
    """The changes that raise the highest rate, ranked; then those that do not."""
    measure = "requests/s" if plan.goals == Goals() else "goodput"
    best, now = best_rate(plan), plan.deployment.dollars
    rows = [["what would change it", measure, "", "paid with", "$/h", "$/M tokens"]]
    rows.append(["as it is", number(best), "x 1.00", "", *_dollars(plan, now, best)])
    for one in ranked(plan):
        change, gain = one.change, f"x {one.gain:.2f}"
        dollars = _dollars(plan, change.dollars, one.rate)
        rows.append([change.name, number(one.rate), gain, change.price.value, *dollars])
    if all(row[-1] == "-" for row in rows[1:]):
        rows = [row[:-2] for row in rows]  # no price is known
    same = [one for one in idle(plan) if one.gain]
    worse = ", ".join(one.change.name for one in idle(plan) if not one.gain or one.gain < 1 - CLOSE)
    lines = table(rows, "")
    for one in ranked(plan):
        if (reason := more_than_its_share(plan, one)) is not None:
            lines.append(f"{one.change.name}: {reason}")
    if any(one.gain >= 1 - CLOSE for one in same):
        names = ", ".join(
            f"{one.change.name} ({one.change.same})" if one.change.same else one.change.name
            for one in same
            if one.gain >= 1 - CLOSE
        )
        lines.append(f"no change: {names}")
    if worse:
        lines.append(f"less: {worse}")
    lines += [f"as good as {one.like}: {one.change.name}" for one in alike(plan)]
    lines += [
        f"not possible: {one.change.name}: {one.refused}" for one in plan.changed if one.refused
    ]
    return lines


def _dollars(plan: Plan, dollars: float | None, rate: float) -> list[str]:
    """Dollars per hour, and per million tokens."""
    if dollars is None or not rate:
        return ["-", "-"]
    return [f"{dollars:,.3g}", f"{per_million(plan, dollars, rate):,.3g}"]


def _without_paging(plan: Plan) -> list[str]:
    base = plan.saturation
    rows = [["without paging", "fit at once", "output tokens/s", "", "preempted"]]
    rows.append(
        ["paged, as it is" if (name_of(plan.limits) == PAGED) else "as it is", *_cells(base, base)]
    )
    refused = []
    for variant in plan.without_paging:
        if variant.saturation is None:
            refused.append(f"  {variant.name}: {variant.refused}")
        else:
            rows.append([variant.name, *_cells(variant.saturation, variant.base)])
    return [*table(rows, ""), *refused]


def _other_work(plan: Plan) -> list[str]:
    """Variants in which each request has more work; only the number of requests counts."""
    rows = [["other work, no improvement", "fit at once", "requests/s", ""]]
    for variant in plan.other_work:
        found = variant.saturation
        if found is None:
            rows.append([variant.name, "-", "-", variant.refused or ""])
            continue
        change = found.request_rate / variant.base.request_rate
        rate = number(found.request_rate)
        rows.append([variant.name, f"{found.running:,.1f}", rate, f"x {change:.2f}"])
    return table(rows, "")


def _cells(saturation: Saturation, base: Saturation) -> list[str]:
    preemptions = saturation.result.preemptions
    change = saturation.output_rate / base.output_rate
    return [
        f"{saturation.running:,.1f}"
        if not saturation.all_at_once
        else f"all {saturation.running:,.0f}",
        number(saturation.output_rate),
        f"x {change:.2f}",
        f"{preemptions.swaps + preemptions.recomputes:,}",
    ]

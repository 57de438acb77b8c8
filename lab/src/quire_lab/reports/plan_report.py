"""Writes a plan as a page: the answer, what the load does, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quire_lab.reports.curves import LoadCurveLine, latencies_against
from quire_lab.reports.over_time import memory_over_time
from quire_lab.reports.page import Page
from quire_lab.reports.pairs import FigurePair, draw_pairs
from quire_lab.reports.style import Picture
from quire_lab.simulation.baselines import POLICY_NAMES
from quire_lab.simulation.export import write_json
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.planning.advice import (
    answers,
    best_rate,
    cost,
    idle,
    ranked,
    too_few,
)
from quire_lab.simulation.planning.changes import Changed
from quire_lab.simulation.planning.curve import LoadCurve
from quire_lab.simulation.planning.plan import Plan
from quire_lab.simulation.planning.search import CLOSE


def write_plan(
    directory: Path,
    plan: Plan,
    curve: LoadCurve,
    assumed: Sequence[tuple[str, str]],
    values: Mapping[str, Any],
) -> Path:
    """Write plan.html, its pictures and plan.json; the path of the page.

    assumed: what the answers rest on, each with its name. values: the plan as plain JSON values.

    Raises:
        ConfigError: the directory cannot be written, or matplotlib is missing.
    """
    many = f"{plan.tensor_parallel} × " if plan.tensor_parallel > 1 else ""
    page = Page(f"{plan.model.name} on {many}{plan.machine.name}")
    first, *rest = answers(plan)
    page.lead(first)
    page.cards(_cards(plan, curve))
    for text in rest:
        page.lead(text)
    if (doubt := too_few(plan)) is not None:
        page.paragraph(doubt, note=True)
    page.section("Waiting against the rate")
    page.pair(_latencies(plan, curve))
    for picture in _users(plan):
        page.picture(picture)
    page.section(f"Memory, with {curve.load}")
    slots = plan.limits.num_blocks * plan.limits.block_size
    page.picture(memory_over_time(curve.result, plan.kv_bytes // slots))
    page.section("What would change it")
    _changes(page, plan)
    page.section("What is assumed")
    page.table(("of", "taken to be"), assumed)
    path = page.write(directory, "plan.html")
    write_json(directory / "plan.json", values)
    return path


def _cards(plan: Plan, curve: LoadCurve) -> list[tuple[str, str]]:
    """Three figures."""
    goals = "" if plan.goals == Goals() else ", 90 % of them within the goals"
    cards = [(f"{best_rate(plan):.3g} /s", f"requests, at the most{goals}")]
    if plan.most_users is not None:
        cards.append((f"{plan.most_users.users:,}", "users at once within the goals"))
    else:
        cards.append((f"{plan.saturation.running:,.0f}", "requests run at once"))
    share = curve.result.most_held / (plan.limits.num_blocks * plan.limits.block_size)
    cards.append((f"{share:.0%}", f"of the KV memory at the worst moment, with {curve.load}"))
    return cards


def _latencies(plan: Plan, curve: LoadCurve) -> list[Picture]:
    """TTFT and TPOT against the rate, with the goals and the two ends."""
    limits = [(curve.compute_rate, "compute ends it")]
    ends = f"compute alone would end it at {curve.compute_rate:.3g} requests/s"
    if curve.pool_rate < (1 - CLOSE) * curve.compute_rate:
        limits.insert(0, (curve.pool_rate, "the pool ends it"))
        ends = f"the pool ends it at {curve.pool_rate:.3g} requests/s, {ends}"
    else:
        ends += ", and the pool is large enough for that"
    lines = [
        LoadCurveLine("90th percentile", "p90", curve.points),
        LoadCurveLine("median", "p50", curve.points),
    ]
    load = "requests per second"
    return latencies_against(load, lines, plan.goals, f" In the end {ends}.", limits)


def _users(plan: Plan) -> list[Picture]:
    """How many of the users' requests run, by allocator."""
    load = plan.user_load
    if load is None:
        return []
    pairs = [
        FigurePair(POLICY_NAMES[policy], (load.users,), result.mean_running)
        for policy, result in load.results
    ]
    return [
        draw_pairs(
            "users", f"{load.users} users, each with one request at a time",
            "The other users wait.", "requests on average", pairs,
            ("all users", "requests that run"),
        )
    ]  # fmt: skip


def _changes(page: Page, plan: Plan) -> None:
    rows = [
        (one.change.name, f"{one.rate:.3g}", f"× {one.gain:.2f}", _paid_with(plan, one),
         one.change.why)
        for one in ranked(plan)
    ]  # fmt: skip
    if rows:
        columns = ("change, made alone", "requests/s", "", "paid with", "because")
        page.table(
            columns, [("as it is", f"{best_rate(plan):.3g}", "× 1.00", "", ""), *rows], (1, 2)
        )
    else:
        page.paragraph("Nothing that was tried gives more.")
    tried = ", ".join(one.change.name for one in idle(plan))
    if tried:
        page.paragraph(f"Tried too, and no better: {tried}.", note=True)


def _paid_with(plan: Plan, one: Changed) -> str:
    told = cost(plan, one.change, one.rate)
    return one.change.price.value if told is None else f"{one.change.price.value}: {told}"

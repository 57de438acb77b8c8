"""Writes a plan as a page: the answers, what each change would do, and where the memory goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quire.reports.over_time import batch_over_time, memory_over_time
from quire.reports.page import Page
from quire.reports.pairs import Pair, draw_pairs
from quire.reports.style import Picture
from quire.simulation.baselines import POLICY_NAMES
from quire.simulation.export import write_json
from quire.simulation.planning.plan import Plan


def write_plan(directory: Path, plan: Plan, text: Sequence[str], values: Mapping[str, Any]) -> Path:
    """Write plan.html, its pictures and plan.json; the path of the page.

    text: the plan as a terminal shows it. values: the plan as plain JSON values.

    Raises:
        ConfigError: the directory cannot be written, or matplotlib is missing.
    """
    page = Page(f"{plan.model.name} on {plan.tensor_parallel} × {plan.machine.name}: how many fit")
    page.section("The answers")
    page.preformatted("\n".join(text))
    page.section("What would change them")
    for picture in (*_variants(plan), *_users(plan)):
        page.picture(picture)
    full = plan.saturation.result
    slots = plan.limits.num_blocks * plan.limits.block_size
    page.section("When everybody comes at once")
    page.picture(memory_over_time(full, plan.kv_bytes // slots))
    page.picture(batch_over_time(full))
    path = page.write(directory, "plan.html")
    write_json(directory / "plan.json", values)
    return path


def _variants(plan: Plan) -> list[Picture]:
    """What each change would do; a change is measured against the same requests without it."""
    found = [(one.name, one.base, one.saturation) for one in plan.variants if one.saturation]
    if not found:
        return []
    names = ("without the change", "with it")
    running = [Pair(name, (base.running,), with_it.running) for name, base, with_it in found]
    rates = [Pair(name, (base.output_rate,), with_it.output_rate) for name, base, with_it in found]
    note = "All requests come at once; each change is made alone."
    return [
        draw_pairs(
            "fit-at-once", "Requests that run at once while others wait", note, "requests",
            running, names,
        ),
        draw_pairs("output-rate", "Output", note, "tokens per second", rates, names),
    ]  # fmt: skip


def _users(plan: Plan) -> list[Picture]:
    """How many of the users' requests run, by allocator."""
    load = plan.user_load
    if load is None:
        return []
    pairs = [
        Pair(POLICY_NAMES[policy], (load.users,), result.mean_running)
        for policy, result in load.results
    ]
    return [
        draw_pairs(
            "users", f"{load.users} users, each with one request at a time",
            "The other users wait in line.", "requests in the mean", pairs,
            ("all users", "requests that run"),
        )
    ]  # fmt: skip

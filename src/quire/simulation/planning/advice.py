"""A plan in two sentences: whether it is enough, and what to do."""

from __future__ import annotations

from quire.metrics import Goals
from quire.simulation.planning.changes import Change, Changed, Price
from quire.simulation.planning.plan import Binding, Plan
from quire.simulation.planning.search import CLOSE
from quire.simulation.planning.trials import WORTH

BINDS = {
    Binding.MEMORY: "the KV pool is full while requests wait for blocks",
    Binding.COMPUTE: "prompts wait for their turn in steps that are full",
    Binding.LATENCY: "steps take longer than the goal for a token",
    Binding.SEQUENCES: "more sequences may not run at once",
}


_LASTING = 1.1
"""Times what a line that never empties gets: what is above that cannot last."""


def ranked(plan: Plan) -> tuple[Changed, ...]:
    """The changes that change something for the better, the best first; drafts if weighed."""
    found = [one for one in plan.changed if one.gain >= 1 + CLOSE]
    trials = plan.speculation
    if trials is not None and trials.measure == "goodput" and trials.gain(trials.chosen) >= WORTH:
        found.append(_speculation(plan, trials.gain(trials.chosen)))
    return tuple(sorted(found, key=lambda one: -one.gain))


def idle(plan: Plan) -> tuple[Changed, ...]:
    """The changes that change nothing, or for the worse."""
    return tuple(one for one in plan.changed if one.gain < 1 + CLOSE and one.refused is None)


def answer(plan: Plan) -> str:
    """Whether it is enough for what was asked about."""
    many = f"{plan.tensor_parallel} x " if plan.tensor_parallel > 1 else ""
    machine, model = f"{many}{plan.machine.name}", plan.model.name
    most, asked = best_rate(plan), plan.asked_rate
    meets = "" if plan.goals == Goals() else " within the goals"
    even = ", if they come evenly" if plan.goodput.poisson is not None else ""
    takes = f"{machine} takes {most:.3g} requests/s of {model}{meets}{even}"
    if asked is None:
        return f"{takes}."
    if asked <= most:
        return f"Enough: {takes}; {asked:.3g} come."
    return f"Not enough: {takes}, but {asked:.3g} come."


def advice(plan: Plan) -> str:
    """What to do, because of what."""
    best, because = ranked(plan), BINDS[plan.binds]
    free = [one for one in best if one.change.price is Price.NOTHING]
    bought = [one for one in best if one.change.price is not Price.NOTHING]
    if free:
        first = free[0]
        more = [one for one in bought if one.gain > first.gain]
        beyond = f"; more than that takes {_gain(_cheapest(more))}" if more else ""
        return f"Do this: {_gain(first)}, because {because}, and so {first.change.why}{beyond}."
    if bought:
        one = _cheapest(bought)
        return f"No setting gives more, because {because}: {_gain(one)} does, for {one.change.why}."
    return f"Nothing that was tried gives more: {because}."


def too_few(plan: Plan) -> str | None:
    """Where the workload is over before its line has grown; None where it is long enough."""
    lasting = plan.saturation.request_rate
    if plan.goals == Goals() or best_rate(plan) <= _LASTING * lasting:
        return None
    return (
        f"{len(plan.sample.requests):,} requests are over before a line has grown: for ever, no "
        f"more than some {lasting:.3g} requests/s can be served; give a longer workload."
    )


def best_rate(plan: Plan) -> float:
    """Requests per second that it takes; evenly strewn where its own bursts are too much."""
    even = plan.goodput.poisson
    return plan.goodput.rate if even is None else even


def _cheapest(found: list[Changed]) -> Changed:
    """The best that costs accuracy, if it gives half of what machines do; else the best."""
    accurate = [one for one in found if one.change.price is Price.ACCURACY]
    if accurate and accurate[0].gain - 1 >= (found[0].gain - 1) / 2:
        return accurate[0]
    return found[0]


def _gain(one: Changed) -> str:
    price = (
        "" if one.change.price is Price.NOTHING else f", at the price of {one.change.price.value}"
    )
    return f"{one.change.name} ({one.rate:.3g} requests/s, {one.gain - 1:+.0%}{price})"


def _speculation(plan: Plan, gain: float) -> Changed:
    name, why = "speculation, as many drafts as the engine chooses", "a step gives several tokens"
    change = Change("speculative_config", name, Price.NOTHING, why, plan.deployment)
    return Changed(change, gain * best_rate(plan), gain)

"""A plan in two sentences: whether it is enough, and what to do."""

from __future__ import annotations

from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.planning.changes import Change, Changed, Price
from quire_lab.simulation.planning.plan import Binding, Plan
from quire_lab.simulation.planning.search import CLOSE
from quire_lab.simulation.planning.trials import WORTH

BINDS = {
    Binding.MEMORY: "the KV pool is full while requests wait for blocks",
    Binding.COMPUTE: "prompts wait for their turn in steps that are full",
    Binding.LATENCY: "steps take longer than the goal for a token",
    Binding.SEQUENCES: "more sequences may not run at once",
}


_SHARE = 1.05
"""Of as many times as there are machines, from which on it is more than that."""

_LASTING = 1.1
"""Times the rate of a queue that never empties: a rate above that cannot last."""


def ranked(plan: Plan) -> tuple[Changed, ...]:
    """The changes that change something for the better, the best first; drafts if weighed."""
    found = [one for one in plan.changed if one.gain >= 1 + CLOSE and one.like is None]
    trials = plan.speculation
    if trials is not None and trials.measure == "goodput" and trials.gain(trials.chosen) >= WORTH:
        found.append(_speculation(plan, trials.gain(trials.chosen)))
    return tuple(sorted(found, key=lambda one: -one.gain))


def idle(plan: Plan) -> tuple[Changed, ...]:
    """The changes that change nothing, or for the worse."""
    return tuple(one for one in plan.changed if one.gain < 1 + CLOSE and one.refused is None)


def alike(plan: Plan) -> tuple[Changed, ...]:
    """Other routings that are as good as the best ones."""
    return tuple(one for one in plan.changed if one.gain >= 1 + CLOSE and one.like is not None)


def answers(plan: Plan) -> list[str]:
    """Whether it is enough, and what would be."""
    lines = [answer(plan), *([] if plan.enough else [advice(plan)])]
    for one in plan.enough:
        loss = "" if one is plan.enough[0] else ", without loss of accuracy"
        paid = "" if one.dollars is None else f", ${one.dollars:,.3g} an hour"
        lines.append(f"The cheapest that is enough{loss}: {one.name}{paid}.")
    return [line for line in lines if line is not None]


def answer(plan: Plan) -> str:
    """Whether the plan meets the load that was asked about."""
    model, meets = plan.model.name, "" if plan.goals == Goals() else " within the goals"
    name, users = plan.deployment.name, plan.user_load
    if users is not None and plan.most_users is not None:
        takes = f"{name} serves {plan.most_users.users:,} users of {model} at once{meets}"
        if is_enough(plan):
            return f"Enough: {takes}; {users.users:,} come."
        return f"Not enough: {takes}, but {users.users:,} come."
    most, asked = best_rate(plan), plan.asked_rate
    even = ", if they come evenly" if plan.goodput.poisson is not None else ""
    takes = f"{name} takes {most:.3g} requests/s of {model}{meets}{even}"
    if asked is None:
        return f"{takes}."
    if is_enough(plan):
        return f"Enough: {takes}; {asked:.3g} come."
    return f"Not enough: {takes}, but {asked:.3g} come."


def is_enough(plan: Plan) -> bool:
    """Whether the load that was asked about is met as it is."""
    if plan.user_load is not None:
        return plan.most_users is not None and plan.user_load.users <= plan.most_users.users
    return plan.asked_rate is not None and plan.asked_rate <= best_rate(plan)


def advice(plan: Plan) -> str | None:
    """What to do, with the reason; None: nothing, for what comes can be served as it is."""
    if is_enough(plan):
        return None
    best, because = ranked(plan), BINDS[plan.binds]
    free = [one for one in best if one.change.price is Price.NOTHING]
    bought = [one for one in best if one.change.price is not Price.NOTHING]
    if free:
        first = free[0]
        more = [one for one in bought if one.gain > first.gain]
        beyond = f"; more than that takes {_choice(plan, more)}" if more else ""
        return (
            f"Do this: {_gain(plan, first)}, since {first.change.why}; more is needed because "
            f"{because}{beyond}."
        )
    if bought:
        return f"No setting gives more, because {because}; this does: {_choice(plan, bought)}."
    return f"Nothing that was tried gives more: {because}."


def too_few(plan: Plan) -> str | None:
    """A note if the workload ends before its queue has grown; None: it is long enough."""
    lasting = plan.saturation.request_rate
    if plan.goals == Goals() or best_rate(plan) <= _LASTING * lasting:
        return None
    return (
        f"{len(plan.sample.requests):,} requests end before a queue has grown: in the long run no "
        f"more than some {lasting:.3g} requests/s can be served; give a longer workload."
    )


def best_rate(plan: Plan) -> float:
    """Requests per second that it takes; spread evenly if its own bursts are too much."""
    even = plan.goodput.poisson
    return plan.goodput.rate if even is None else even


def per_million(plan: Plan, dollars: float, rate: float) -> float:
    """Dollars per million tokens, of prompts and outputs together, served at this rate.

    dollars: an hour.
    """
    return dollars / (rate * sum(plan.sample.mean_tokens) * 3600) * 1e6


def cost(plan: Plan, change: Change, rate: float) -> str | None:
    """Dollars per hour, and per million tokens; None: the price is unknown."""
    if change.dollars is None or not rate:
        return None
    million = per_million(plan, change.dollars, rate)
    return f"${change.dollars:,.3g} an hour, ${million:,.3g} a million tokens"


def _choice(plan: Plan, found: list[Changed]) -> str:
    """The best of the changes that cost something: what to take, and the alternatives."""
    accurate = next((one for one in found if one.change.price is Price.ACCURACY), None)
    machines = _machines(plan, [one for one in found if one.change.price is Price.MONEY])
    if accurate is None or machines is None:
        return _gain(plan, accurate or machines or found[0])
    enough = _is_enough(plan, accurate) or not _is_enough(plan, machines)
    if enough and accurate.gain - 1 >= (machines.gain - 1) / 2:
        return f"{_gain(plan, accurate)}; or {_gain(plan, machines)}"
    return _gain(plan, machines)


def _machines(plan: Plan, found: list[Changed]) -> Changed | None:
    """The best of the bought changes: of those that are enough the cheapest; if nothing has to be
    enough, no more than twice the machines.
    """
    enough = [one for one in found if _is_enough(plan, one)]
    if plan.asked_rate is None:
        few = 2 * plan.tensor_parallel
        return next((one for one in found if one.change.machines <= few), None)
    if not enough:
        return found[0] if found else None
    dollars = [one.change.dollars for one in enough]
    if all(each is not None for each in dollars):
        return min(enough, key=lambda one: (one.change.dollars or 0.0, -one.rate))
    return min(enough, key=lambda one: (one.change.machines, -one.rate))


def _is_enough(plan: Plan, one: Changed) -> bool:
    """Whether it is enough for the load that was asked about."""
    return plan.asked_rate is not None and one.rate >= plan.asked_rate


def _gain(plan: Plan, one: Changed) -> str:
    change = one.change
    price = "" if change.price is Price.NOTHING else f", at the price of {change.price.value}"
    told = cost(plan, change, one.rate) if change.price is Price.MONEY else None
    price += "" if told is None else f": {told}"
    text = f"{change.name} ({one.rate:.3g} requests/s, {one.gain - 1:+.0%}{price})"
    if change.price is Price.NOTHING:
        return text
    reason = more_than_its_share(plan, one)
    return f"{text}, since {change.why}" + ("" if reason is None else f"; {reason}")


def more_than_its_share(plan: Plan, one: Changed) -> str | None:
    """Why some machines serve more than as many times what one does; None: they do not."""
    many = one.change.machines / plan.tensor_parallel
    if many == 1 or one.gain <= _SHARE * many:
        return None
    begin = f"more than {many:g} times as much, for"
    times = one.change.deployment.kv_bytes / plan.kv_bytes
    if one.change.replicas == 1 and times > many:
        return f"{begin} the pool is {times:.3g} times as large"
    if plan.binds is Binding.MEMORY:
        return f"{begin} requests wait less for each other's blocks"
    return f"{begin} what is too much for one at times is shared"


def _speculation(plan: Plan, gain: float) -> Changed:
    name, why = "speculation, as many drafts as the engine chooses", "a step gives several tokens"
    change = Change("speculative_config", name, Price.NOTHING, why, plan.deployment)
    return Changed(change, gain * best_rate(plan), gain)

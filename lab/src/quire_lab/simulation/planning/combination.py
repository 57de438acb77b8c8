"""The cheapest combination of changes that is enough for the rate that was asked about.

What a step costs bounds what each combination can serve; those that may be enough are simulated,
the cheapest first, until one is.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from quire.core.errors import ConfigError
from quire_lab.simulation.planning.changes import Change, Price, next_faster, priced
from quire_lab.simulation.planning.deployment import Deployment
from quire_lab.simulation.planning.ranking import ChangeRanking
from quire_lab.simulation.planning.replicas import ROUTINGS

_MOST = 16  # replicas
_MOST_RUNS = 24
_HOPE = 1.6
"""Times what a step's cost and the pool say, up to which a combination is tried: bursts are shared,
requests unlike."""

_CHUNKS = (1, 1 / 2, 2)  # times the tokens of a step

_Option = tuple[Deployment, float]
"""A combination, and the requests per second up to which it is tried."""


def cheapest(ranking: ChangeRanking) -> tuple[Change, ...]:
    """The cheapest that is enough; and the cheapest that loses no accuracy, if that is another.

    Empty: nothing is enough, or no rate was asked about.
    """
    asked, base, best = ranking.asked_rate, ranking.deployment, ranking.base
    if asked is None or not best or base.costs is not None:
        return ()
    known: dict[tuple[int, int], bool] = {}

    def is_enough(change: Change) -> bool:
        key = id(change.deployment), change.replicas
        if key not in known and len(known) < _MOST_RUNS:
            ranking.progress(change.name)
            known[key] = ranking.is_enough(change, asked)
        return known.get(key, False)

    options = [(each, best * _hope(ranking, each)) for each in _deployments(base, ranking.prices)]
    found = _first(options, base, asked, is_enough)
    if found is None:
        return ()
    if not losses(found.deployment, base):
        return (found,)
    exact = [(each, hope) for each, hope in options if not losses(each, base)]
    without = _first(exact, base, asked, is_enough)
    return (found,) if without is None else (found, without)


def losses(deployment: Deployment, base: Deployment) -> int:
    """How many of weights and cache are rounded that were not."""
    rounds = deployment.model.form != base.model.form
    return rounds + (deployment.model.kv_dtype != base.model.kv_dtype)


def _first(
    options: list[_Option],
    base: Deployment,
    asked: float,
    is_enough: Callable[[Change], bool],
) -> Change | None:
    """The cheapest of them, with as many replicas as are enough; of equals what rounds least.

    Of so many machines the most hopeful form is tried first: if that is not enough, none is.
    """
    by_dollars = all(each.dollars is not None for each, _ in options)
    groups: dict[str, list[_Option]] = {}
    for option in options:
        groups.setdefault(option[0].name, []).append(option)
    queue: list[tuple[float, float, str, int]] = []

    def put(name: str, replicas: int) -> None:
        each, hope = groups[name][0]
        cost = (each.dollars or 0.0) if by_dollars else float(each.tensor_parallel)
        if replicas <= _MOST:
            heapq.heappush(queue, (cost * replicas, -hope, name, replicas))

    def tried(found: Iterable[_Option], replicas: int) -> Change | None:
        changes = (
            _change(each, base, replicas)
            for each, hope in found
            if hope * replicas >= asked and (replicas > 1 or each != base)  # that is not enough
        )
        return next(filter(is_enough, changes), None)

    for name, group in groups.items():
        group.sort(key=lambda option: -option[1])
        put(name, max(1, math.ceil(asked / group[0][1])))
    while queue:
        *_, name, replicas = heapq.heappop(queue)
        group = groups[name]
        champion = [option for option in group if option[0].model == group[0][0].model]
        if tried(champion, replicas) is not None:
            gentle = sorted(group, key=lambda option: _roughness(option[0], base))
            return tried(gentle, replicas)
        put(name, replicas + 1)
    return None


def _roughness(each: Deployment, base: Deployment) -> tuple[int, bool]:
    return losses(each, base), each.config != base.config


def _deployments(base: Deployment, prices: Mapping[str, float]) -> Iterator[Deployment]:
    """Every combination but replicas."""
    machines = [base.machine]
    faster = next_faster(base.machine)
    if faster is not None and base.dollars is not None:
        faster = priced(faster, prices)
        machines += [faster] if faster.price_per_hour is not None else []
    for machine in machines:
        for parallel in (1, 2, 4, 8):
            try:
                wider = replace(
                    base, machine=machine, tensor_parallel=base.tensor_parallel * parallel
                )
                yield from _formed(wider)
            except ConfigError:
                continue


def _formed(wider: Deployment) -> Iterator[Deployment]:
    """By forms of weights and of the cache, and by tokens of a step."""
    model, engine, machine = wider.model, wider.engine, wider.machine
    models = [model]
    if model.form is None:
        names = machine.forms if engine is None else engine.possible(machine)
        models += [wider.rounded(name) for name in names]
    eight = "fp8" if engine is None or "fp8" in engine.kv else "int8"
    if (
        model.kv_dtype is None
        and wider.kept.stored_kv != "fp8"
        and (engine is None or engine.keeps_kv(eight, machine))
    ):
        models += [replace(one, kv_dtype=eight) for one in models]
    for one in models:
        for share in _CHUNKS:
            tokens = max(1, int(wider.config.max_num_batched_tokens * share))
            each = replace(wider, model=one).configured(max_num_batched_tokens=tokens)
            try:
                if each.kv_bytes > 0:
                    yield each
            except ConfigError:
                continue


def _hope(ranking: ChangeRanking, each: Deployment) -> float:
    """How many times as much as without changes it can serve at the most."""
    own = ranking.deployment
    pool = each.slots / max(1, own.slots)
    return _HOPE * max(ranking.faster(each), 1 / 8) * max(1.0, min(pool, 4.0))


def _change(each: Deployment, base: Deployment, replicas: int) -> Change:
    loss = losses(each, base)
    many = each.tensor_parallel * replicas > base.tensor_parallel or each.machine != base.machine
    price = Price.MONEY if many else Price.ACCURACY if loss else Price.NOTHING
    routing = ROUTINGS[0] if replicas > 1 else None
    name = ", ".join(_names(each, base, replicas))
    return Change("combination", name, price, "together", each, replicas, routing)


def _names(each: Deployment, base: Deployment, replicas: int) -> Iterator[str]:
    yield each.name if replicas == 1 else f"{replicas} replicas ({each.name}), {ROUTINGS[0]}"
    if each.model.form != base.model.form:
        yield f"weights in {each.model.weight_form.name}"
    if each.model.kv_dtype != base.model.kv_dtype:
        yield "KV cache in 8 bits"
    if each.config != base.config:
        yield f"max_num_batched_tokens {each.config.max_num_batched_tokens:,}"

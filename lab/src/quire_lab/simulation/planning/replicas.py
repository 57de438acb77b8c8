"""More machines than one, each with an engine of its own behind one door, as changes of a plan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from quire.core.errors import ConfigError
from quire_lab.simulation.planning.changes import Change, Price
from quire_lab.simulation.planning.deployment import Deployment

ROUTINGS = ("prefix-aware", "round-robin", "shortest-wait")
"""That are tried; of those that give as much, the first is proposed."""

_MOST = 8  # replicas; for more there is --fewest-machines


def pairs(base: Deployment) -> Iterator[Change]:
    """Two of them, by each routing."""
    yield from (replicated(base, 2, routing) for routing in ROUTINGS)


def halves(base: Deployment) -> Change | None:
    """The machines that share a model, in two groups that share nothing; None: there is one."""
    if base.tensor_parallel % 2 or base.costs is not None:
        return None
    try:
        half = replace(base, tensor_parallel=base.tensor_parallel // 2)
    except ConfigError:
        return None
    name = f"2 replicas of {half.tensor_parallel} x {base.machine.name}, {ROUTINGS[0]}"
    why = "no machine waits for the others' part of each step"
    return Change("replicas", name, Price.NOTHING, why, half, 2, ROUTINGS[0])


def numbers(each: float, asked: float | None) -> Iterator[int]:
    """Numbers of replicas above two to try, if each serves this many requests per second: three,
    and as many as the load needs.
    """
    yield 3
    if asked is not None and each:
        enough = math.ceil(asked / each)
        if 3 < enough <= _MOST:
            yield enough


def replicated(base: Deployment, count: int, routing: str) -> Change:
    parallel, machine = base.tensor_parallel, base.machine.name
    each = machine if parallel == 1 else f"{parallel} x {machine} each"
    name = f"{count} replicas ({each}), {routing}"
    why = {
        "prefix-aware": "each request goes where least is to be computed for it",
        "round-robin": "each gets every second request" if count == 2 else "each gets its share",
        "shortest-wait": "each request goes where its prompt is computed first",
    }[routing]
    return Change("replicas", name, Price.MONEY, why, base, count, routing)

"""A plan's results against the rate, and the load that was asked about, for its page."""

from __future__ import annotations

from dataclasses import dataclass

from quire_lab.simulation.planning.advice import best_rate
from quire_lab.simulation.planning.plan import Plan
from quire_lab.simulation.planning.planner import BIG_POOL, Planner
from quire_lab.simulation.result import SimulationResult

_SHARES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25)


@dataclass(frozen=True)
class LoadCurve:
    """The results of the workload at several rates.

    pool_rate: the rate at which a queue that is never empty is served; compute_rate: the same with
        unlimited memory. load: the one asked about, or the highest rate; result: its result.
    """

    points: tuple[tuple[float, SimulationResult], ...]
    pool_rate: float
    compute_rate: float
    load: str
    result: SimulationResult

    @classmethod
    def of(cls, planner: Planner, plan: Plan, users: int | None) -> LoadCurve:
        points = []
        for share in _SHARES:
            rate = share * best_rate(plan)
            planner.progress(f"{rate:.3g} requests/s, for the page")
            points.append((rate, planner.load(plan.limits, None, rate)))
        planner.progress("a pool without end, for the page")
        endless = plan.limits.with_blocks(BIG_POOL // plan.limits.block_size)
        compute = planner.load(endless, None, None).request_rate
        load = (
            f"{users} users" if users is not None else f"{plan.asked_rate or rate:.3g} requests/s"
        )
        result = planner.load(plan.limits, users, plan.asked_rate or best_rate(plan))
        return cls(tuple(points), plan.saturation.request_rate, compute, load, result)

"""What a plan finds by suppositions and runs that give up, against searches with neither."""

from __future__ import annotations

import math
from functools import cache
from random import Random

import pytest

from quire.core.limits import EngineLimits
from quire.engine.traces.request import TraceRequest
from quire_lab.simulation import MACHINES, MODELS, Deployment
from quire_lab.simulation.arrivals import Arrivals, ClosedLoop, OpenLoop
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.planning.plan import GOAL_SHARE
from quire_lab.simulation.planning.planner import Planner
from quire_lab.simulation.planning.search import highest_count, highest_rate
from quire_lab.simulation.result import SimulationResult
from quire_lab.simulation.sample import WorkloadSample

_DEPLOYMENT = Deployment(MODELS["llama-3-8b"], MACHINES["l40s"])


def _planner(blocks: int, seed: int) -> tuple[Planner, EngineLimits]:
    """A trace of 60 chats, as recordings have them: lengths with a tail, bursts of arrivals."""
    drawn, now, chats = Random(seed), 0.0, []
    for _ in range(60):
        now += drawn.expovariate(1.0) if drawn.random() < 0.7 else 0.0
        chats.append(
            TraceRequest(now, round(drawn.lognormvariate(6.0, 0.8)) + 1, drawn.randint(10, 80))
        )
    sample = WorkloadSample.take(chats, 4096, shares_prefixes=False, has_times=True, seed=0)
    deployment = _DEPLOYMENT.configured(max_num_seqs=64, max_model_len=8192)
    planner = Planner(deployment, sample, Goals(ttft=1.5, tpot=0.1))
    return planner, deployment.limits().with_blocks(blocks)


def _whole(planner: Planner, limits: EngineLimits, arrivals: Arrivals) -> SimulationResult:
    return planner.simulator(limits).serve(arrivals)


def _figures(result: SimulationResult) -> tuple[object, ...]:
    return (
        result.num_finished, result.num_met_goals, result.num_steps, result.preemptions,
        result.ttft.p90, result.tpot.p90, result.mean_running, result.e2e_latency.mean,
    )  # fmt: skip


@pytest.mark.parametrize(("blocks", "seed"), [(4000, 1), (520, 2)], ids=["plenty", "scarce"])
def test_a_plan_finds_the_rate_and_the_users_of_the_plain_searches(blocks: int, seed: int) -> None:
    planner, limits = _planner(blocks, seed)
    saturation = planner.saturation(limits)

    @cache
    def at(rate: float) -> SimulationResult:
        return _whole(planner, limits, OpenLoop(planner.sample.at_rate(rate)))

    @cache
    def loop(users: int) -> SimulationResult:
        count = max(len(planner.sample.requests), 4 * users)
        return _whole(planner, limits, ClosedLoop(planner.sample.repeated(count), users))

    guess = 0.7 * saturation.request_rate
    low, high = highest_rate(
        lambda rate: at(rate).goodput_share >= GOAL_SHARE, [guess], guess / 70, 30 * guess
    )
    assert 0 < low < high < math.inf
    found = planner.goodput(limits, saturation)
    assert (found.rate, found.beyond_rate) == (low, high)
    assert found.at is not None and found.beyond is not None
    assert _figures(found.at) == _figures(at(low))
    assert _figures(found.beyond) == _figures(at(high))

    hint = max(2, round(low * at(low).e2e_latency.mean))
    users = highest_count(
        lambda users: loop(users).goodput_share >= GOAL_SHARE,
        hint, max(2, 2 * saturation.most_running),
    )  # fmt: skip
    most = planner.most_users(limits, saturation, found)
    assert most is not None and most.users == users
    assert _figures(most.results[0][1]) == _figures(loop(users))

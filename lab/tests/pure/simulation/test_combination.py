"""The cheapest combination that is enough: none that is cheaper is."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from quire.engine.config import EngineConfig
from quire.engine.traces.request import TraceRequest
from quire_lab.simulation import MACHINES, MODELS, Deployment
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.planning.changes import Change, Price
from quire_lab.simulation.planning.combination import cheapest, losses
from quire_lab.simulation.planning.planner import Planner
from quire_lab.simulation.planning.ranking import ChangeRanking
from quire_lab.simulation.planning.replicas import replicated
from quire_lab.simulation.sample import WorkloadSample

GOALS = Goals(ttft=1.0, tpot=0.08)
MODEL = MODELS["gpt-32x32x128"]
ROUNDED = replace(MODEL.rounded("w8a8"), kv_dtype="fp8")  # nothing is left to be rounded
BASE = Deployment(MODEL, MACHINES["a100-80"], config=EngineConfig(max_num_seqs=64))


def ranked(deployment: Deployment, times: float, goals: Goals = GOALS) -> ChangeRanking:
    """A ranking for so many times the rate that is served without changes."""
    drawn = Random(7)
    chats = [
        TraceRequest(i / 4, round(drawn.lognormvariate(7.2, 0.6)), drawn.randint(20, 60))
        for i in range(60)
    ]
    sample = WorkloadSample.take(chats, 4096, shares_prefixes=False, has_times=True, seed=0)
    planner = Planner(deployment, sample, goals)
    limits = deployment.limits()
    saturation = planner.saturation(limits)
    found = planner.goodput(limits, saturation)
    asked = times * found.rate
    said: list[Any] = []
    return ChangeRanking(
        deployment, sample, goals, saturation, found, planner.simulator, said.append, asked, {}
    )


@pytest.mark.parametrize("times", [1.3, 2.4])
def test_nothing_cheaper_is_enough(times: float) -> None:
    """Of all numbers of machines, divided in all ways, and of all chunks."""
    base = replace(BASE, model=ROUNDED)
    ranking = ranked(base, times)
    assert ranking.asked_rate is not None
    (found,) = cheapest(ranking)
    assert ranking.is_enough(found, ranking.asked_rate)
    for parallel in (1, 2, 4, 8):
        for replicas in range(1, 5):
            if parallel * replicas >= found.machines:
                continue
            for tokens in (1024, 2048, 4096):
                one = replace(base, tensor_parallel=parallel)
                one = one.configured(max_num_batched_tokens=tokens)
                change = replicated(one, replicas, "prefix-aware")
                if replicas == 1:
                    change = Change("", "", Price.NOTHING, "", one)
                assert not ranking.is_enough(change, ranking.asked_rate), change


def test_the_cheapest_that_rounds_nothing_is_told_beside_one_that_does() -> None:
    ranking = ranked(BASE, 1.8)
    rounding, exact = cheapest(ranking)
    assert losses(rounding.deployment, BASE) and not losses(exact.deployment, BASE)
    assert rounding.machines == 1 < exact.machines
    assert rounding.name.startswith("a100-80, weights in ")


def test_a_setting_is_the_cheapest_if_it_is_enough() -> None:
    (found,) = cheapest(ranked(BASE, 1.05))
    assert found.price is Price.NOTHING and found.machines == 1
    assert found.name == "a100-80, max_num_batched_tokens 1,024"


def test_without_a_rate_nothing_is_sought() -> None:
    ranking = ranked(BASE, 1.8)
    assert cheapest(replace(ranking, asked_rate=None)) == ()
    assert not replace(ranking, asked_rate=None).is_served
    assert replace(ranking, asked_rate=ranking.base).is_served


def test_without_goals_enough_is_what_is_served() -> None:
    (first, *_) = cheapest(ranked(replace(BASE, model=ROUNDED), 1.8, Goals()))
    assert first.machines == 2


def test_nothing_is_bought_where_there_is_enough() -> None:
    ranking = ranked(BASE, 0.5)
    assert ranking.is_served
    tried = ranking.changed()
    assert tried and {one.change.price for one in tried} == {Price.NOTHING}

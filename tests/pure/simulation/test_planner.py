from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from quire.errors import ConfigError
from quire.metrics import Goals
from quire.simulation import MACHINES, MODELS, Deployment
from quire.simulation.baselines import BASELINES
from quire.simulation.planning.advice import advice, ranked
from quire.simulation.planning.plan import Binding, binding
from quire.simulation.planning.planner import Planner
from quire.simulation.sample import WorkloadSample
from quire.workload import Lengths, Segment, Synthetic, TraceRequest

COPILOT = Synthetic(150, Lengths.parse("625-1025"), Lengths.parse("100-500"))
DEPLOYMENT = Deployment(MODELS["gpt-32x32x128"], MACHINES["a100-40"])


def planner(
    workload: Synthetic = COPILOT,
    deployment: Deployment = DEPLOYMENT,
    goals: Goals | None = None,
    **changes: Any,
) -> Planner:
    sample = WorkloadSample.take(
        workload, 4096, shares_prefixes=workload.shares_prefixes,
        has_times=workload.rate is not None, seed=0,
    )  # fmt: skip
    deployment = deployment.configured(**{"max_num_seqs": 1024, **changes})
    return Planner(deployment, sample, goals or Goals())


def test_fifty_copilot_users() -> None:
    """8 to 12 fit before paging, 40 to 50 after."""
    plan = planner(replace(COPILOT, num_requests=300))
    limits = plan.deployment.limits()
    running = {policy: result.mean_running for policy, result in plan.user_load(50).results}
    assert 8 <= running["max"] <= 12
    assert 40 <= running["paged"] <= 50
    assert running["max"] < running["pow2"] <= running["oracle"] < running["paged"]
    saturation = plan.saturation(limits)
    assert 40 <= saturation.running <= 50
    assert binding(saturation.result, limits) is Binding.MEMORY
    need = plan.memory_need(limits, 50, None)
    assert need is not None
    assert need.num_bytes > DEPLOYMENT.kv_bytes  # that is why some wait


@pytest.mark.slow
def test_changes_are_ranked_by_what_they_give() -> None:
    plan = planner().plan(None, None)
    gains = {one.change.name: one.gain for one in plan.changed}
    assert gains["KV cache in 8 bits"] > 1.2
    assert gains["block size 128"] < gains["block size 8"]
    assert gains["max_num_seqs 2,048"] == 1.0  # so many never run
    assert [*gains.values()] == sorted(gains.values(), reverse=True)
    sizes = {16: 1.0} | {size: gains[f"block size {size}"] for size in (8, 32, 64, 128)}
    near = [size for size, gain in sizes.items() if gain >= 0.98 * max(sizes.values())]
    assert plan.best_block_size == max(near)
    two = plan.other_work[0].saturation
    assert two is not None and plan.saturation.running / 2 < two.running < plan.saturation.running


def chats() -> list[TraceRequest]:
    """Long prompts among long outputs: whole prompts in one step keep everybody waiting."""
    drawn = Random(7)
    return [
        TraceRequest(i / 4, round(drawn.lognormvariate(7.2, 0.6)), drawn.randint(100, 300))
        for i in range(120)
    ]


def test_a_plan_names_the_knob_that_binds() -> None:
    """Tokens take too long because prompts share their steps: smaller steps are the cure."""
    sample = WorkloadSample.take(chats(), 4096, shares_prefixes=False, has_times=True, seed=0)
    goals = Goals(ttft=2.0, tpot=0.055)
    plan = Planner(PLENTY, sample, goals).plan(None, None)
    first = ranked(plan)[0]
    assert advice(plan).startswith("Do this: max_num_batched_tokens 1,024"), advice(plan)


def test_baselines_reserve_what_the_paper_says() -> None:
    request = TraceRequest(0.0, 1000, 300, max_tokens=900)
    asked = {
        one.key: next(one.asks([request], 4096)).max_tokens
        for one in BASELINES
        if one.kv_allocator == "oracle"
    }
    assert asked == {"pow2": 512, "oracle": None}  # None: just what it will need
    (tight,) = BASELINES[1].asks([request], 1400)
    assert tight.max_tokens == 400


FEW = replace(COPILOT, num_requests=100, rate=1.0)
PLENTY = replace(
    DEPLOYMENT,
    machine=replace(DEPLOYMENT.machine, memory=240 * 2**30),
).configured(kv_cache_memory_bytes=200 * 2**30)


@pytest.mark.parametrize(
    ("deployment", "goals", "changes", "binds"),
    [
        (DEPLOYMENT, Goals(ttft=1.0), {}, Binding.MEMORY),
        (PLENTY, Goals(tpot=0.02), {}, Binding.LATENCY),
        (PLENTY, Goals(ttft=0.5), {}, Binding.COMPUTE),
        (PLENTY, Goals(ttft=1.0), {"max_num_seqs": 4}, Binding.SEQUENCES),
    ],
)
def test_the_highest_rate_meets_the_goals_and_the_next_shows_what_binds(
    deployment: Deployment, goals: Goals, changes: dict[str, Any], binds: Binding
) -> None:
    plan = planner(FEW, deployment, goals, **changes)
    limits = plan.deployment.limits()
    found = plan.goodput(limits, plan.saturation(limits))
    assert found.at is not None and found.beyond is not None
    assert found.at.goodput_share >= 0.9 > found.beyond.goodput_share
    assert binding(found.beyond, limits) is binds


def test_the_most_users_who_meet_the_goals() -> None:
    plan = planner(FEW, goals=Goals(ttft=1.0, tpot=0.03))
    limits = plan.deployment.limits()
    saturation = plan.saturation(limits)
    goodput = plan.goodput(limits, saturation)
    found = plan.most_users(limits, saturation, goodput, plan.alone(limits))
    assert found is not None
    ((_, result),) = found.results
    assert 1 < found.users == result.most_running
    assert result.goodput_share >= 0.9


def test_bursts_that_no_rate_helps_against_are_told() -> None:
    burst = [TraceRequest(float(i // 50), 2000, 5) for i in range(100)]
    sample = WorkloadSample.take(burst, 4096, shares_prefixes=False, has_times=True, seed=0)
    plan = Planner(DEPLOYMENT, sample, Goals(ttft=0.5))
    limits = DEPLOYMENT.limits()
    found = plan.goodput(limits, plan.saturation(limits))
    assert found.rate == 0.0
    assert found.poisson is not None and found.poisson > 0.5


def test_goals_that_nobody_can_meet() -> None:
    plan = planner(goals=Goals(tpot=1e-4))
    with pytest.raises(ConfigError, match="a user who is alone has a TTFT of"):
        plan.plan(None, None)


def test_a_workload_that_no_request_of_can_be_served() -> None:
    tiny = DEPLOYMENT.configured(kv_cache_memory_bytes=100 * 512 * 1024)
    with pytest.raises(ConfigError, match="no request of this workload can be served"):
        planner(deployment=tiny).plan(None, None)


def test_a_sample_keeps_the_shape_of_its_arrivals() -> None:
    requests = [TraceRequest(time, 10, 5) for time in (3.0, 4.0, 8.0)]
    sample = WorkloadSample.take(requests, 100, shares_prefixes=False, has_times=True, seed=0)
    assert sample.rate == pytest.approx(0.4)
    assert [r.arrival for r in sample.at_rate(0.8)] == pytest.approx([0.0, 0.5, 2.5])
    with pytest.raises(ConfigError, match="holds no request"):
        WorkloadSample.take([], 100, shares_prefixes=False, has_times=True, seed=0)


def test_a_repeated_sample_shares_only_within_a_round() -> None:
    content = (Segment("system", 5),)
    requests = [TraceRequest(0.0, 10, 5, content=content), TraceRequest(0.0, 9, 5, content=content)]
    sample = WorkloadSample.take(requests, 100, shares_prefixes=True, has_times=False, seed=0)
    a, b, c, d = sample.repeated(4)
    assert a.content == b.content != c.content == d.content
    assert c.prompt_tokens == 10


def test_a_window_lets_more_run_at_once() -> None:
    """Long prompts, with a window of 256: a sequence holds less than a third."""
    model = replace(DEPLOYMENT.model, windows=(256,) * 32)
    windowed = planner(deployment=replace(DEPLOYMENT, model=model), max_num_batched_tokens=256)
    plain = planner(max_num_batched_tokens=256)
    few, many = (plan.saturation(plan.deployment.limits()) for plan in (plain, windowed))
    assert many.most_running > 1.5 * few.most_running


def test_a_length_that_the_model_does_not_allow() -> None:
    with pytest.raises(ConfigError, match="max_model_len is 5000; this model allows 1 to 4096"):
        DEPLOYMENT.configured(max_model_len=5000).limits()

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from random import Random
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.core.limits import EngineLimits
from quire.core.memory import Demand
from quire.engine.traces.request import Segment, TraceRequest
from quire_lab.simulation import MACHINES, MODELS, Deployment
from quire_lab.simulation.baselines import BASELINES
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.planning.advice import advice, answers, ranked, too_few
from quire_lab.simulation.planning.changes import Change, Changed, Price, changes
from quire_lab.simulation.planning.nameless import OnStep
from quire_lab.simulation.planning.plan import (
    GOAL_SHARE,
    Binding,
    Goodput,
    Plan,
    Saturation,
    UserLoad,
    binding,
    most_missed_of,
)
from quire_lab.simulation.planning.planner import Planner
from quire_lab.simulation.planning.ranking import ChangeRanking
from quire_lab.simulation.planning.replicas import replicated
from quire_lab.simulation.planning.search import foreseen, highest_count, highest_rate
from quire_lab.simulation.sample import WorkloadSample
from quire_lab.simulation.simulator import Simulator
from quire_lab.workload import Lengths, Synthetic

COPILOT = Synthetic(150, Lengths.parse("625-1025"), Lengths.parse("100-500"))
DEPLOYMENT = Deployment(MODELS["gpt-32x32x128"], MACHINES["a100-40"])


FEW = replace(COPILOT, num_requests=100, rate=1.0)
PLENTY = replace(
    DEPLOYMENT,
    machine=replace(DEPLOYMENT.machine, memory=240 * 2**30),
).configured(kv_cache_memory_bytes=200 * 2**30)


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


@pytest.mark.parametrize("model", ["gpt-32x32x128", "qwen3.5-9b"])
def test_a_pool_holds_as_many_requests_as_an_allocator_lets_in(model: str) -> None:
    deployment = Deployment(MODELS[model], DEPLOYMENT.machine)
    own = planner(deployment=deployment)
    limits, tokens = own.deployment.limits(), math.ceil(sum(own.sample.mean_tokens))
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in fields(Plan))
    plan = Plan(**nothing | {"limits": limits, "sample": own.sample})
    allocator = limits.allocator()
    let_in = 0
    while allocator.admit(let_in, Demand(tokens)) is not None:
        let_in += 1
    assert plan.room == let_in > 10


@pytest.mark.slow
def test_changes_are_ranked_by_what_they_give() -> None:
    plan = planner(replace(COPILOT, num_requests=80)).plan(None, None)
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


@pytest.fixture(scope="module")
def chat_plan() -> Plan:
    """Tokens take too long, because whole prompts share their steps."""
    drawn = Random(7)
    chats = [
        TraceRequest(i / 4, round(drawn.lognormvariate(7.2, 0.6)), drawn.randint(20, 60))
        for i in range(40)
    ]
    sample = WorkloadSample.take(chats, 4096, shares_prefixes=False, has_times=True, seed=0)
    return Planner(PLENTY, sample, Goals(ttft=3.0, tpot=0.12)).plan(None, 14.0)


def test_a_plan_names_the_knob_that_binds(chat_plan: Plan) -> None:
    plan = chat_plan
    assert plan.binds is Binding.LATENCY
    served = replace(plan, asked_rate=4.0, enough=())  # what comes can be served
    assert advice(served) is None and len(answers(served)) == 1
    said = answers(plan)
    assert said[0].startswith("Not enough: a100-40 takes")
    assert said[1] == "The cheapest that is enough: a100-40, max_num_batched_tokens 1,024."
    told = advice(replace(plan, asked_rate=None)) or "nothing"
    assert told.startswith("Do this: max_num_batched_tokens 1,024"), told
    assert "because steps take longer than the goal for a token" in told
    most = plan.most_users
    assert most is not None
    asked = replace(plan, asked_rate=None, enough=(), user_load=UserLoad(most.users + 1, ()))
    users = f"a100-40 serves {most.users} users of gpt-32x32x128 at once within the goals"
    assert answers(asked)[0] == f"Not enough: {users}, but {most.users + 1} come."
    asked = replace(asked, user_load=UserLoad(most.users, ()))
    assert answers(asked) == [f"Enough: {users}; {most.users} come."]
    gains = {one.change.name: one.gain for one in plan.changed}
    assert gains["max_num_batched_tokens 1,024"] > 1.5 > gains["max_num_batched_tokens 4,096"]
    assert gains["2 replicas (a100-40), prefix-aware"] > 1.9
    assert "40 requests end before a queue has grown" in (too_few(plan) or "")


def with_replicas(
    chats: list[TraceRequest], ttft: float, asked: float
) -> tuple[float, dict[tuple[int, str | None], Changed]]:
    """What one takes, and what several do; asked: times what one takes."""
    sample = WorkloadSample.take(chats, 4096, shares_prefixes=True, has_times=True, seed=0)
    machine = replace(PLENTY.machine, price_per_hour=2.0)
    priced = replace(PLENTY, machine=machine).configured(max_num_batched_tokens=256)
    plan = Planner(priced, sample, Goals(ttft=ttft))
    saturation = plan.saturation(priced.limits())
    goodput = plan.goodput(priced.limits(), saturation)
    ranking = ChangeRanking(
        priced, sample, plan.goals, saturation, goodput, plan.simulator, plan.progress,
        asked * goodput.rate, {},
    )  # fmt: skip
    found = {(one.change.replicas, one.change.routing): one for one in ranking.replicas()}
    return goodput.rate, found


def test_more_machines_are_weighed_by_how_requests_are_routed() -> None:
    """Chats that begin alike meet in one replica by one of the routings, and it takes more."""
    drawn = Random(3)
    chats = [
        TraceRequest(i / 10, drawn.randint(300, 400), 4,
                     content=(Segment(f"{drawn.randint(0, 3)}", 280),))
        for i in range(60)
    ]  # fmt: skip
    alone, found = with_replicas(chats, 0.06, 2.5)
    assert found[2, "prefix-aware"].gain > 1.1 * found[2, "round-robin"].gain > 1.5
    assert found[3, "prefix-aware"].rate > 2.5 * alone > found[2, "prefix-aware"].rate
    assert [one.change.dollars for one in found.values()] == [4.0, 4.0, 4.0, 6.0]


def test_more_machines_are_flattered_by_no_load_that_is_soon_over() -> None:
    """As long for many as for one: prompts that share nothing are served by two twice as fast."""
    drawn = Random(3)
    chats = [TraceRequest(i / 10, drawn.randint(300, 400), 4) for i in range(40)]
    _, found = with_replicas(chats, 0.3, 4.0)
    for (count, _), one in found.items():
        assert one.gain == pytest.approx(count, rel=0.1)
    assert {count for count, _ in found} == {2, 3, 4}


@pytest.mark.parametrize(("blocks", "again"), [(2500, False), (120, True)])
def test_names_of_blocks_count_only_where_somebody_gives_way(blocks: int, again: bool) -> None:
    """Nobody finds a block but who comes back to his own, so trials go without names first."""
    named: list[bool] = []

    def simulator(
        limits: EngineLimits, deployment: Deployment, spare: int | None, on_step: OnStep | None
    ) -> Simulator:
        named.append(limits.enable_prefix_caching)
        return plan.simulator(limits, deployment, spare, on_step)

    size = blocks * 16 * DEPLOYMENT.model.kv_bytes_per_token
    plan = planner(
        replace(COPILOT, num_requests=12, rate=2.0), goals=Goals(ttft=30.0),
        kv_cache_memory_bytes=size, max_model_len=1600,
    )  # fmt: skip
    change = Change("knob", "as it is", Price.NOTHING, "", plan.deployment)
    whole = plan.simulator(plan.deployment.limits()).run(plan.sample.at_once())
    found = Goodput(1.0, None, None)
    base = Saturation.of(whole, width=1)
    ranking = ChangeRanking(
        plan.deployment, plan.sample, plan.goals, base, found, simulator, plan.progress, None, {}
    )
    at = plan.simulator(plan.deployment.limits(), most_missed=1).run(plan.sample.at_rate(2.0))
    assert (ranking._strain(change)(2.0) <= 1) == (at.goodput_share >= GOAL_SHARE)
    assert named == ([False, True] if again else [False])


@pytest.mark.parametrize("blocks", [2500, 120])
def test_a_plan_by_runs_without_names_is_that_by_runs_with_them(blocks: int) -> None:
    """In the smaller pool requests give way, and find their own blocks when they come back."""
    plan = planner(
        replace(COPILOT, num_requests=12, rate=2.0), goals=Goals(ttft=30.0), max_model_len=1600,
        kv_cache_memory_bytes=blocks * 16 * DEPLOYMENT.model.kv_bytes_per_token,
    )  # fmt: skip
    limits = plan.deployment.limits()
    named = plan.simulator(limits).run(plan.sample.at_once())
    assert (named.preemptions.recomputes > 0) == (blocks == 120)
    found = plan.saturation(limits).result
    assert (found.seconds, found.num_steps) == (named.seconds, named.num_steps)
    assert found.num_decisions == named.num_decisions


def test_what_is_proposed_is_enough_and_costs_least(chat_plan: Plan) -> None:
    plan = replace(chat_plan, deployment=PLENTY)
    own = plan.goodput.rate
    slow = replace(PLENTY, machine=replace(PLENTY.machine, price_per_hour=2.0))
    fast = replace(PLENTY, machine=replace(MACHINES["h100"], price_per_hour=9.0))
    two, three = (replicated(slow, count, "round-robin") for count in (2, 3))
    other = Change("machine", "h100 for a100-40", Price.MONEY, "its steps are shorter", fast)
    changed = (
        Changed(three, 2.9 * own, 2.9), Changed(other, 2.5 * own, 2.5), Changed(two, 2 * own, 2.0),
        Changed(two._replace(routing="shortest-wait"), 2 * own, 2.0, like="round-robin"),
    )  # fmt: skip

    def told(asked: float | None, *without: Changed) -> str:
        left = tuple(one for one in changed if one not in without)
        rate = None if asked is None else asked * own
        return advice(replace(plan, changed=left, asked_rate=rate)) or "nothing"

    assert f"3 replicas (a100-40), round-robin ({2.9 * own:.3g} requests/s, +190%" in told(2.2)
    assert "at the price of hardware: $6 an hour, $" in told(2.2)
    assert "h100 for a100-40" in told(2.2, changed[0])
    assert "2 replicas" in told(1.5) and "$4 an hour" in told(1.5)
    assert "h100 for a100-40" in told(None)  # nothing has to be enough: the most of what is no more
    assert told(0.5) == told(1.0) == "nothing"  # it is enough as it is
    assert len(ranked(replace(plan, changed=changed))) == 3


def test_more_than_as_many_times_as_much_has_a_reason(chat_plan: Plan) -> None:
    """The pool grows by more than the machines where they divide the weights among themselves."""
    plan = replace(chat_plan, asked_rate=None)
    own = plan.goodput.rate
    two = replicated(PLENTY, 2, "round-robin")
    halves = replace(DEPLOYMENT, tensor_parallel=2)
    divided = Change("tensor_parallel_size", "in two", Price.MONEY, "2 share each step", halves)

    def told(change: Change, gain: float) -> str:
        changed = (Changed(change, gain * own, gain),)
        return advice(replace(plan, kv_bytes=DEPLOYMENT.kv_bytes, changed=changed)) or ""

    assert told(two, 2.0).endswith("since each gets every second request.")
    assert told(two, 2.74).endswith(
        "; more than 2 times as much, for what is too much for one at times is shared."
    )
    grown = halves.kv_bytes / DEPLOYMENT.kv_bytes
    assert grown > 2
    assert told(divided, 3.66).endswith(f"for the pool is {grown:.3g} times as large.")


@pytest.mark.parametrize(
    ("machine", "forms"),
    [
        ("h100", ["int8", "int4", "w8a8", "fp8"]),
        ("b200", ["int8", "int4", "w8a8", "fp8", "nvfp4"]),
        ("b300", ["int8", "int4", "fp8", "nvfp4"]),  # int8 is slower than 16 bits there
        ("a100-80", ["int8", "int4", "w8a8"]),
        ("xeon-8480", ["int8", "int4", "w8a8", "w4a8"]),
        ("cpu", ["int8", "int4"]),
        ("tpu-v6e", ["w8a8"]),
    ],
)
def test_forms_are_those_that_the_machine_s_engines_have(
    machine: str, forms: list[str], chat_plan: Plan
) -> None:
    base, beyond = Deployment(MODELS["llama-3-8b"], MACHINES[machine]), chat_plan.saturation.result
    found = [one for one in changes(base, beyond, False, {}) if one.knob == "quantization"]
    assert [one.name.removeprefix("weights in ") for one in found] == forms


def test_a_change_that_cannot_matter_is_not_simulated() -> None:
    plan = planner(FEW, PLENTY, Goals(ttft=1.0))
    limits = plan.deployment.limits()
    beyond = plan.simulator(limits).run(plan.sample.at_rate(4.0))
    same = {one.name: one.same for one in changes(plan.deployment, beyond, False, {})}
    assert same["64 GiB of swap space"] == "no request is preempted"
    assert same["block size 32"] == "no request waits for a block"
    assert same["weights in int8"] is None
    for name, other in (("block size 32", {"block_size": 32}), ("swap", {"swap_space": 64.0})):
        turned = plan.deployment.configured(**other)
        found = plan.simulator(turned.limits(), turned).run(plan.sample.at_rate(4.0))
        assert found.ttft == beyond.ttft and found.tpot == beyond.tpot, name


def test_a_run_gives_up_with_the_first_request_too_many() -> None:
    plan = planner(FEW, goals=Goals(ttft=1.0, tpot=0.03))
    limits = plan.deployment.limits()
    whole = plan.simulator(limits).run(plan.sample.at_rate(6.0))
    missed = whole.num_finished - whole.num_met_goals
    assert 0 < missed < 100
    assert plan.simulator(limits, most_missed=missed).run(plan.sample.at_rate(6.0)) == whole
    early = plan.simulator(limits, most_missed=missed // 2).run(plan.sample.at_rate(6.0))
    assert early.num_finished < whole.num_finished
    assert 0 < early.num_finished - early.num_met_goals - missed // 2 < 5
    assert [most_missed_of(n) for n in (1, 9, 10, 70, 1000)] == [0, 0, 1, 7, 100]


@pytest.mark.parametrize("true", [0.5, 3.0, 7.0, 7.1, 12.0, 900.0])
def test_searches_find_what_bisection_would(true: float) -> None:
    tried: list[float] = []

    def meets(rate: float) -> bool:
        tried.append(rate)
        return rate <= true

    low, high = highest_rate(meets, [7.0], 0.1, 1000.0)
    assert low <= true < high and high - low <= 0.02 * high
    assert len(tried) == len(set(tried)) <= 16
    count = max(1, int(true))
    for hint in (1, 7, 500):
        assert highest_count(lambda n: n <= count, hint, 1000) == count
    assert highest_rate(lambda _: False, [7.0], 0.1, 1000.0)[0] == 0.0
    assert highest_rate(lambda _: True, [7.0], 0.1, 1000.0)[1] == math.inf


@pytest.mark.parametrize("true", [0.05, 0.5, 7.0, 12.3, 640.0, 5000.0])
def test_a_search_on_a_supposition_ends_where_the_plain_one_does(true: float) -> None:
    def search(meets: Callable[[float], bool]) -> tuple[float, float]:
        return highest_rate(meets, [10.0], 0.1, 1000.0, 0.05)

    tried: list[float] = []

    expected = search(lambda rate: rate <= true)
    for power in (0.05, 1.0, 30.0):  # how soon it hurts

        def strain(rate: float, power: float = power) -> float:
            tried.append(rate)
            return (rate / true) ** power

        for off, most in ((1.0, 2), (0.99, 3), (1.05, 3), (0.7, 6), (30.0, 20), (0.0, 20)):
            tried.clear()
            assert foreseen(search, strain, true * off) == expected
            assert len(tried) == len(set(tried)) <= most


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
    found = plan.most_users(limits, saturation, goodput)
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
    longer = replace(sample, has_times=True, requests=(a, replace(b, arrival=2.0))).lengthened(3)
    assert [one.arrival for one in longer.requests] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert longer.rate == 0.5 and longer.requests[2].content == c.content


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

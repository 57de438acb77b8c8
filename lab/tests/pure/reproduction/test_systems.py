"""The compared systems: what they reserve, how they batch, and which rate they sustain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.core.protocol import RecoveryCosts
from quire.engine.traces.request import TraceRequest
from quire.engine.work import Work
from quire_lab.reproduction.experiment import QUICK
from quire_lab.reproduction.request_batching import serve_in_batches
from quire_lab.reproduction.slow_steps import SlowSteps, slow_deployment
from quire_lab.reproduction.systems import (
    ORCA_MAX,
    ORCA_ORACLE,
    ORCA_POW2,
    PAGED,
    READABLE,
    SYSTEMS,
    MemorySystem,
    deployment,
    requests,
    serve,
    sustained,
)
from quire_lab.reproduction.technique_figures import HostBehind, techniques
from quire_lab.simulation.cost_model import decoding


class Costs:
    """A second for every step, and a hundredth for every token of a prompt."""

    def seconds(self, work: Work) -> float:
        return 1.0 + 0.01 * work.prefill_tokens

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        return RecoveryCosts(1.0, 1.0)


def test_a_batch_runs_to_its_longest_output_before_the_next_begins() -> None:
    workload = [TraceRequest(0.0, 100, 2), TraceRequest(0.0, 100, 4), TraceRequest(1.0, 100, 1)]
    # Two in the first batch: 3 s of prompts and 3 further steps; then the third alone: 2 s.
    batched = serve_in_batches(workload, 2, Costs())
    assert batched.normalized_latency == pytest.approx((6 / 2 + 6 / 4 + 7 / 1) / 3)
    assert batched.batch == pytest.approx((2 * 6 + 1 * 2) / 8)


def test_a_batch_takes_only_who_has_come() -> None:
    workload = [TraceRequest(0.0, 100, 1), TraceRequest(10.0, 100, 1)]
    assert serve_in_batches(workload, 2, Costs()).normalized_latency == pytest.approx(2.0)


def test_what_does_not_fit_crosses_the_link_in_every_step() -> None:
    behind = HostBehind(Costs(), slots=1000, seconds_per_token=0.001)
    assert behind.seconds(decoding(10, 1000)) == 1.0
    assert behind.seconds(decoding(10, 3000)) == pytest.approx(1.0 + 2.0)
    assert behind.seconds(Work(prefill_tokens=100, prefill_context=1500)) == pytest.approx(2.5)


def test_paging_serves_most_and_the_host_s_memory_least() -> None:
    found = {one.what: one.ours for one in techniques(replace(QUICK, fewest=100)).findings}
    names = (*(system.name for system in SYSTEMS), "host memory behind the machine's")
    at_once, gains = (
        [found[f"{name}: {what}"] for name in names]
        for what in (
            "requests that run at once",
            "output tokens a second, over one request at a time",
        )
    )
    assert at_once == sorted(at_once), "the host's memory lets most run"
    assert gains[:4] == sorted(gains[:4]) and 1 < gains[4] < gains[3]


@pytest.mark.parametrize("first", [1.0, 8.0, 100.0])
def test_the_sustained_rate_is_found_from_either_side(first: float) -> None:
    limit = 8.0

    def latency(rate: float) -> float:
        return READABLE * (rate / limit) ** 3

    rate, curve = sustained(latency, first, 3)
    assert rate == pytest.approx(limit)
    assert list(curve) == sorted(curve) and all(y == latency(x) for x, y in curve)


@pytest.mark.parametrize(
    ("system", "slots"), [(ORCA_MAX, 2048), (ORCA_POW2, 512), (ORCA_ORACLE, 256)]
)
def test_what_orca_reserves_for_a_request(system: MemorySystem, slots: int) -> None:
    """100 tokens in and 129 out: 2,048; 100 + 256 rounded up to a region of 512; and 228 in 256."""
    where = deployment("opt-13b")
    result = serve(where, system, [TraceRequest(0.0, 100, 129)])
    usage = result.mean_usage
    assert usage.used + usage.reserved + usage.internal == pytest.approx(slots, abs=2)


def test_paging_holds_no_more_than_a_block_too_much() -> None:
    usage = serve(deployment("opt-13b"), PAGED, [TraceRequest(0.0, 100, 129)]).mean_usage
    assert usage.used + usage.internal <= 228 + 16


def test_pools_are_those_of_table_1() -> None:
    for model, slots in (("opt-13b", 15_700), ("opt-66b", 9_700), ("opt-175b", 60_100)):
        assert deployment(model).slots == pytest.approx(slots, rel=0.1)


def test_a_workload_is_the_same_for_all_systems_and_fits_the_model() -> None:
    drawn = list(requests("sharegpt", 2.0, 3000, 1))
    assert drawn == list(requests("sharegpt", 2.0, 3000, 1))
    assert max(one.prompt_tokens + one.output_tokens for one in drawn) <= 2048
    assert sum(one.output_tokens for one in drawn) / 3000 == pytest.approx(338, rel=0.08)


def test_slow_steps_take_what_the_papers_batches_imply() -> None:
    slow = SlowSteps(Costs())
    # 30.42 requests at 2 a second, 338 tokens each: 45 ms; 132.44 at 30, 58 each: 76 ms.
    assert slow.per_sequence == pytest.approx((0.07611 - 0.04500) / (132.44 - 30.42), rel=1e-3)
    assert slow.per_step == 0.0  # a second is more than the paper's step took
    assert slow.seconds(decoding(100, 5000)) == pytest.approx(1 + 100 * slow.per_sequence)
    where = slow_deployment("opt-13b")
    whole = where.cost_model(16).seconds(decoding(1, 1)) - slow.per_sequence
    assert whole == pytest.approx(0.0450 - 30.42 * slow.per_sequence, rel=1e-3)

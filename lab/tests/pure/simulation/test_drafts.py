"""Speculation on the virtual clock: right as often as told, at the times of what is verified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.core.protocol import RecoveryCosts
from quire.engine.traces.request import DraftCounts, TraceRequest
from quire_lab.simulation import (
    MACHINES,
    MODELS,
    AcceptanceProfile,
    ClosedLoop,
    Deployment,
    SimulatedDrafting,
    SimulationResult,
    Simulator,
    Work,
)
from quire_lab.simulation.cost_model import CostsWithDraft
from quire_lab.simulation.drafting import SmallerModel
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.planning.planner import Planner
from quire_lab.simulation.planning.speculation import try_drafts
from quire_lab.simulation.planning.trials import WORTH, DraftTrials
from quire_lab.simulation.recorder import KeptResults
from quire_lab.simulation.sample import WorkloadSample
from support.limits import make_limits


class RowCosts:
    """A row costs a tenth of a step, and what it sees a little."""

    def seconds(self, work: Work) -> float:
        rows = work.prefill_tokens + work.decode_seqs + work.draft_tokens
        return 0.01 + 1e-3 * rows + 1e-7 * (work.decode_context + work.draft_pairs)

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        return RecoveryCosts()


def simulate(
    drafting: SimulatedDrafting | None, *requests: TraceRequest, **options: Any
) -> SimulationResult:
    limits = make_limits(**{"num_blocks": 800, "max_model_len": 8192, **options})
    simulator = Simulator(
        limits,
        RowCosts(),
        KeptResults(records=None, decisions=None),
        drafting=drafting,
        skip_ahead=False,
    )
    return simulator.run(requests)


def always(most: int, *chances: float, coverage: float = 1.0) -> SimulatedDrafting:
    return SimulatedDrafting("ngram", most, AcceptanceProfile(chances, coverage), chooses=False)


@pytest.mark.parametrize(
    ("most", "chances", "coverage"),
    [(1, (0.7,), 1.0), (4, (0.7,), 1.0), (16, (0.9,), 1.0), (8, (0.3,), 1.0), (4, (1.0,), 1.0),
     (4, (0.0,), 1.0), (6, (0.5, 0.8, 0.9), 1.0), (4, (0.7,), 0.25)],
)  # fmt: skip
def test_as_many_drafts_are_accepted_as_was_told(
    most: int, chances: tuple[float, ...], coverage: float
) -> None:
    drafting = always(most, *chances, coverage=coverage)
    result = simulate(drafting, *[TraceRequest(0.0, 10, 1000) for _ in range(8)])
    expected, together = 1.0, coverage
    for place in range(most):
        together *= chances[min(place, len(chances) - 1)]
        expected += together
    if len(chances) == 1 and chances[0] < 1 and coverage == 1:
        assert expected == pytest.approx((1 - chances[0] ** (most + 1)) / (1 - chances[0]))
    assert result.tokens_out == 8000
    assert result.tokens_per_step == pytest.approx(expected, rel=0.07)
    told = [record.metrics for record in result.records if record.metrics is not None]
    assert result.drafts == DraftCounts(
        sum(one.num_drafts for one in told), sum(one.num_draft_tokens for one in told),
        sum(one.num_accepted_tokens for one in told),
    )  # fmt: skip


def test_steps_take_as_long_as_what_they_verify() -> None:
    """Held against the arithmetic of one text, step by step."""
    prompt, output, most = 40, 300, 5
    drafting = always(most, 0.6, coverage=0.7)
    result = simulate(drafting, TraceRequest(0.0, prompt, output))
    assert drafting.acceptance is not None
    seconds, known = 0.01 + 1e-3 * prompt, 1  # the step of the prompt gives the first token
    while known < output:
        drafts = min(most, output - known - 1)
        right = drafting.acceptance.num_right("0,0,0", known, most)
        drafts = 0 if right is None else drafts
        start = prompt + known - 1  # of the step's first row
        seen = [start + 1 + row for row in range(1 + drafts)]
        seconds += 0.01 + 1e-3 * len(seen) + 1e-7 * (seen[-1] + sum(seen[1:]))
        known += 1 + min(drafts, right or 0)
    assert result.busy_seconds == pytest.approx(seconds, rel=1e-9)


def test_who_never_drafts_changes_nothing() -> None:
    requests = [TraceRequest(0.01 * i, 30 + i, 50 + 7 * i, n=1 + i % 3) for i in range(9)]
    plain = simulate(None, *requests, num_blocks=40, max_model_len=400)
    assert plain.preemptions.recomputes > 0
    for chooses in (False, True):
        silent = SimulatedDrafting("auto", 8, AcceptanceProfile((0.9,), 0.0), chooses)
        assert simulate(silent, *requests, num_blocks=40, max_model_len=400) == plain


def test_texts_do_not_depend_on_drafts_though_some_give_way() -> None:
    requests = [TraceRequest(0.01 * i, 30 + i, 50 + 7 * i, n=1 + i % 3) for i in range(9)]
    plain = simulate(None, *requests, num_blocks=40, max_model_len=400)
    drafted = simulate(always(7, 0.8), *requests, num_blocks=40, max_model_len=400)
    assert drafted.preemptions.recomputes > 0 and drafted.drafts.num_accepted_tokens > 100
    assert (drafted.num_finished, drafted.tokens_out) == (plain.num_finished, plain.tokens_out)
    assert drafted.seconds < plain.seconds
    assert drafted == simulate(always(7, 0.8), *requests, num_blocks=40, max_model_len=400)


def test_a_recording_tells_how_well_each_request_was_drafted_for() -> None:
    """Counts of a run with known rates lead back to them."""
    for rate, coverage in ((0.85, 1.0), (0.4, 0.3)):
        served = simulate(always(6, rate, coverage=coverage), TraceRequest(0.0, 10, 3000))
        steps = served.num_steps - 1
        found = AcceptanceProfile.recorded(served.drafts, steps)
        assert found.chances[0] == pytest.approx(rate, abs=0.03)
        assert found.coverage == pytest.approx(coverage, abs=0.03)
    own = [TraceRequest(0.0, 10, 2000, drafts=served.drafts),
           TraceRequest(0.0, 10, 2000, drafts=DraftCounts(0, 0, 0))]  # fmt: skip
    result = simulate(SimulatedDrafting("ngram", 6, None, chooses=False), *own)
    accepted = {r.request_id: r.metrics and r.metrics.num_accepted_tokens for r in result.records}
    assert accepted["1"] == 0 < (accepted["0"] or 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [("1.2", "acceptance must be from 0 to 1, got 1.2"), ("0.5,-1", "acceptance must be from 0"),
     ("nan", "acceptance must be from 0"), ("often", "acceptance must be a rate from 0 to 1, or"),
     ("", "acceptance must be a rate from 0 to 1, or")],
)  # fmt: skip
def test_rates_out_of_range_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AcceptanceProfile.parse(text)


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ConfigError, match="coverage must be from 0 to 1, got 2"):
        AcceptanceProfile((0.5,), 2.0)
    with pytest.raises(ConfigError, match="acceptance: say how often drafts are right"):
        simulate(SimulatedDrafting(), TraceRequest(0.0, 10, 10))


GIB = 2**30
LARGE, SMALL = MODELS["llama-3-70b"], MODELS["llama-3-8b"]
BY_MODEL = SimulatedDrafting("draft", 4, AcceptanceProfile((0.7,)), model=SmallerModel(SMALL))


@pytest.mark.parametrize("machines", [1, 4])
def test_the_pool_has_room_for_both_models(machines: int) -> None:
    """By hand, of published configs: 80 layers and 32, 8 KV heads of 128, in 16 bits."""
    each = replace(MACHINES["h100"], memory=640 * GIB // machines)
    plain = Deployment(LARGE, each, machines)
    both = replace(plain, drafting=BY_MODEL)
    target, draft = 2 * 2 * 8 * 128 * 80, 2 * 2 * 8 * 128 * 32
    assert both.kv_bytes_per_token == target + draft == 458_752
    assert len(both.limits().kv_groups[0].layers) == 112
    # The draft model is on one machine, and no other has more blocks than that one.
    left = 0.9 * 640 * GIB - LARGE.weight_bytes - machines * plain.working_bytes
    assert plain.slots == pytest.approx(left / target, rel=1e-6)
    left -= machines * 2 * 8_030_261_248
    assert both.slots == pytest.approx(left / (target + machines * draft), rel=1e-6)
    small = replace(both, machine=replace(each, memory=160 * GIB // machines))
    with pytest.raises(ConfigError, match=r"those of llama-3-8b, which drafts, 16.1 GB"):
        small.limits()


def test_passes_take_what_steps_of_the_smaller_model_do() -> None:
    """One text, step by step: the prompt passes through both, and each draft takes a pass."""
    prompt, output, most = 40, 120, 3
    deployment = Deployment(LARGE, MACHINES["h200"], 2, drafting=BY_MODEL.always(most))
    costs = deployment.cost_model(16)
    simulator = Simulator(deployment.limits(), costs, drafting=deployment.drafting)
    result = simulator.run([TraceRequest(0.0, prompt, output)])
    assert isinstance(costs, CostsWithDraft)

    def one(context: int) -> Work:
        return Work(0, 0, 0, 1, context, 1, 0, 0)

    whole = Work(prompt, prompt * (prompt + 1) / 2, prompt, samples=1, woken=1)
    seconds = costs.seconds(whole) + costs.pass_seconds(whole._replace(samples=0, woken=0))
    known, behind = 1, 0
    while known < output:
        drafts = min(most, output - known - 1)
        right = BY_MODEL.acceptance and BY_MODEL.acceptance.num_right("0,0,0,model", known, drafts)
        start = prompt + known - 1
        pairs = sum(range(start + 2, start + drafts + 2))
        verified = Work(0, 0, 0, 1, start + 1 + drafts, 1 + drafts, 0, 0, 0, drafts, pairs)
        seconds += costs.seconds(verified)
        if drafts and behind:  # two tokens at once
            first = Work(2, 2 * start + 1, start + 1, samples=1)
            seconds += costs.pass_seconds(first)
        elif drafts:
            seconds += costs.pass_seconds(one(start + 1))
        seconds += sum(costs.pass_seconds(one(start + 1 + i)) for i in range(1, drafts))
        behind = right == drafts
        known += 1 + (right or 0)
    assert result.busy_seconds == pytest.approx(seconds, rel=1e-9)


WORKLOAD = [TraceRequest(0.0, 60, 60 + i % 9) for i in range(32)]


def trials(
    flops: float, users: int, goals: Goals | None = None, num_requests: int = 32
) -> DraftTrials:
    """Of a 7B model on a machine of A100's memory, with so much arithmetic."""
    machine = replace(MACHINES["a100-80"], flops=flops)
    deployment = Deployment(MODELS["llama-2-7b"], machine)
    requests = WORKLOAD[:num_requests]
    sample = WorkloadSample.take(requests, 4096, shares_prefixes=False, has_times=False, seed=0)
    planner = Planner(deployment, sample, goals or Goals())
    base = planner.saturation(deployment.limits())
    drafting = SimulatedDrafting(acceptance=AcceptanceProfile((0.8,)))
    return try_drafts(planner, drafting, users, None, base)


def test_drafts_help_who_is_alone_where_memory_binds() -> None:
    found = trials(312e12, 1, num_requests=6)
    assert found.measure == "output_rate"
    assert (found.best.drafts or 0) >= 8
    assert found.gain(found.best) > 3 and found.gain(found.chosen) > 2.5
    gains = [found.gain(one) for one in found.fixed]
    assert gains == sorted(gains)
    assert found.gain(found.without) == 1.0


def test_drafts_help_nobody_where_arithmetic_binds() -> None:
    found = trials(4e12, 16)
    assert found.gain(found.best) < WORTH
    assert found.gain(found.fixed[-1]) < 0.5
    assert found.gain(found.chosen) > 0.98


def test_drafts_raise_the_rate_that_meets_the_goals() -> None:
    found = trials(312e12, 2, Goals(tpot=0.008), 6)
    assert found.measure == "goodput" and found.without.goodput == 0.0
    assert (found.best.goodput or 0) > 1


def test_users_see_the_same_with_and_without_skipping() -> None:
    """Nothing is skipped where drafts are verified."""
    limits = make_limits(num_blocks=200, max_model_len=512)
    ahead, plain = (
        Simulator(limits, RowCosts(), drafting=always(4, 0.7), skip_ahead=skip).serve(
            ClosedLoop(WORKLOAD, 4)
        )
        for skip in (True, False)
    )
    assert ahead == plain and ahead.drafts.num_accepted_tokens > 0

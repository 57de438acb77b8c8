"""Serving in real time and simulating it: the same requests, settings and preemptions."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest

from quire.calibration import Comparison, compare
from quire.config import EngineConfig
from quire.errors import ConfigError
from quire.simulation import MODELS, Work
from quire.simulation.calibrated import CalibratedCosts, Calibration
from quire.workload import TraceRequest

COSTS = CalibratedCosts(
    knots=(1, 512),
    token_seconds=(1e-3, 5e-3),
    per_seq=1e-5,
    context_knots=(0,),
    per_context=(1e-8,),
    per_prefill_pair=0.0,
    per_draft=0.0,
    per_draft_pair=0.0,
    per_wake=0.0,
    per_woken_token=0.0,
    per_copied_block=0.0,
    per_swapped_block=0.0,
)


def served(requests: list[TraceRequest], costs: CalibratedCosts = COSTS) -> Comparison:
    config = EngineConfig.create({"kv_cache_memory_bytes": "1MiB", "max_model_len": 400})
    calibration = Calibration(MODELS["opt-125m"], "here", 16, 2**20, costs, 0.0, 0.0)
    return compare(config, calibration, requests)


def test_a_load_is_measured_and_predicted() -> None:
    # All at once, so that preemptions do not depend on how long steps take.
    found = served([TraceRequest(0.0, 100 + number, 120) for number in range(8)])
    measured, predicted = found.measured, found.predicted
    assert len(measured) == predicted.num_finished == 8
    assert sum(one.num_output_tokens for one in measured) == predicted.tokens_out == 8 * 120
    figures = found.figures()
    assert figures["preemptions"][0] == figures["preemptions"][1] > 0
    assert all(real > 0 and simulated > 0 for real, simulated in figures.values())


def test_costs_are_stretched_by_the_machines_drift() -> None:
    requests = [TraceRequest(0.0, 50, 20)] * 4
    one, other = served(requests), served(requests, COSTS.times(2.0))
    assert all(drift > 0 for drift in (*one.drifts, *other.drifts))
    for name in ("TTFT, mean", "TPOT, mean", "all steps", "the steps as measured"):
        before, twice = (found.figures()[name][1] / fmean(found.drifts) for found in (one, other))
        assert twice == pytest.approx(2 * before, rel=1e-6)


def test_every_cost_is_stretched() -> None:
    work = Work(40, 900, 60, 3, 5000, 10, 7, 9, 1, 6, 9000)
    costs = CalibratedCosts((1, 512), (1e-3, 5e-3), 1e-5, (0, 10), (1e-8, 1e-9), *[1e-6] * 7)
    assert costs.times(3.0).seconds(work) == pytest.approx(3 * costs.seconds(work))


def test_arrivals_are_those_that_the_engine_saw() -> None:
    found = served([TraceRequest(0.3 * number, 10, 2) for number in range(3)])
    arrivals = sorted(metrics.arrival_time for metrics in found.measured)
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    assert gaps == [pytest.approx(0.3), pytest.approx(0.3)]
    # Nobody waits: each has long ended when the next one comes.
    assert found.predicted.queueing.maximum == pytest.approx(0.0, abs=1e-9)


def test_no_requests_are_refused() -> None:
    with pytest.raises(ConfigError, match="requests must be at least one"):
        served([])

"""Serving in real time and simulating it: the same requests, settings and preemptions."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest

from quire.core.errors import ConfigError
from quire.engine.config import EngineConfig
from quire.engine.traces.request import TraceRequest
from quire_lab.calibration import prediction
from quire_lab.calibration.prediction import PredictedRun, predict
from quire_lab.simulation import MODELS, Work
from quire_lab.simulation.calibrated import CalibratedCosts, Calibration

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


@pytest.fixture(autouse=True)
def _few_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast the machine is now tells a test nothing."""
    monkeypatch.setattr(prediction, "_PROBES", 2)
    monkeypatch.setattr(prediction, "_PASSES", 1)


def served(
    requests: list[TraceRequest], costs: CalibratedCosts = COSTS, unit: str = "wall"
) -> PredictedRun:
    config = EngineConfig.create({"kv_cache_memory_bytes": "1MiB", "max_model_len": 400})
    model = MODELS["opt-125m"]
    calibration = Calibration(model, "here", 16, 2**20, costs, 0.0, 0.0, unit=unit)
    return predict(config, calibration, requests)


def test_a_load_is_measured_and_predicted() -> None:
    # All at once, so that preemptions do not depend on how long steps take.
    requests = [TraceRequest(0.0, 100 + number, 120) for number in range(8)]
    found = served(requests).comparison
    assert len(found.recording.requests) == found.result.num_finished == 8
    tokens = sum(one.seen.output_tokens for one in found.recording.requests)
    assert tokens == found.result.tokens_out == 8 * 120
    preemptions = found.figure("preemptions")
    assert preemptions.real == preemptions.simulated > 0
    assert found.figure("steps").off == 0.0 and found.decides_alike
    assert all(one.real > 0 for one in found.figures if one.name.startswith(("TTFT", "TPOT")))


def test_costs_are_stretched_by_the_machines_drift() -> None:
    requests = [TraceRequest(0.0, 50, 20)] * 4
    one, other = served(requests), served(requests, COSTS.times(2.0))
    assert all(drift > 0 for drift in (*one.drifts, *other.drifts))
    for name in ("TTFT, mean", "TPOT, mean", "time in steps"):
        before, twice = (
            found.comparison.figure(name).simulated / fmean(found.drifts) for found in (one, other)
        )
        assert twice == pytest.approx(2 * before, rel=1e-6)


def test_every_cost_is_stretched() -> None:
    work = Work(40, 900, 60, 3, 5000, 10, 7, 9, 1, 6, 9000)
    costs = CalibratedCosts((1, 512), (1e-3, 5e-3), 1e-5, (0, 10), (1e-8, 1e-9), *[1e-6] * 7)
    assert costs.times(3.0).seconds(work) == pytest.approx(3 * costs.seconds(work))


def test_arrivals_are_those_of_the_trace() -> None:
    requests = [TraceRequest(0.3 * number, 10, 2) for number in range(3)]
    found = served(requests, unit="cpu").comparison
    assert found.recording.unit == "cpu"
    arrivals = [one.seen.in_line for one in found.recording.requests]
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    assert gaps == [pytest.approx(0.3, abs=1e-5), pytest.approx(0.3, abs=1e-5)]
    # Nobody waits: each has long ended when the next one comes.
    assert found.result.queueing.maximum == pytest.approx(0.0, abs=1e-9)
    assert [step.work.woken for step in found.recording.steps] == [1, 0] * 3


def test_no_requests_are_refused() -> None:
    with pytest.raises(ConfigError, match="requests must be at least one"):
        served([])

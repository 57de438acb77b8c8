from __future__ import annotations

import csv
import io
from dataclasses import fields
from typing import Any

import pytest

from quire.core.protocol import RecoveryCosts, Verdict
from quire.engine.traces.request import Segment, TraceRequest
from quire_lab.simulation import ClosedLoop, SimulationResult, Simulator, Work
from quire_lab.simulation.export import RecordWriter, write_series
from quire_lab.simulation.latencies import Goals
from quire_lab.simulation.recorder import KeptResults
from quire_lab.workload import Lengths, Synthetic
from support.limits import make_limits


class TenMilliseconds:
    """Every step takes the same."""

    def seconds(self, work: Work) -> float:
        return 0.01

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        return RecoveryCosts(swap_per_block=1e-3, recompute_per_token=1.0)


def simulate(workload: Any, users: int | None = None, **options: Any) -> SimulationResult:
    kept = KeptResults(
        **{f.name: options.pop(f.name) for f in fields(KeptResults) if f.name in options}
    )
    on_record = options.pop("on_record", None)
    facts = {"num_blocks": 64, "max_model_len": 512, "enable_prefix_caching": False, **options}
    simulator = Simulator(make_limits(**facts), TenMilliseconds(), kept, on_record=on_record)
    if users is not None:
        return simulator.serve(ClosedLoop(workload, users))
    return simulator.run(workload)


def test_latencies_of_a_request_that_is_alone() -> None:
    result = simulate([TraceRequest(5.0, 20, 4)], records=None)
    (record,) = result.records
    assert record.metrics is not None and record.admitted == 5.0
    assert record.metrics.ttft == pytest.approx(0.01)
    assert record.metrics.tpot == pytest.approx(0.01)
    assert record.metrics.e2e_latency == pytest.approx(0.04)
    assert record.metrics.peak_blocks == 2
    assert (result.num_steps, result.seconds) == (4, pytest.approx(0.04))
    assert (result.tokens_in, result.tokens_out) == (20, 4)


def test_a_request_that_comes_during_a_step_waits_for_its_end() -> None:
    result = simulate([TraceRequest(0.0, 20, 4), TraceRequest(0.005, 20, 1)], records=None)
    early = result.records[0]
    assert early.request_id == "1" and early.admitted == pytest.approx(0.01)


def test_blocks_that_a_trace_calls_equal_are_found() -> None:
    content = (Segment("system", 64), Segment("own", 16))
    other = (Segment("system", 64), Segment("another", 16))
    workload = [TraceRequest(0.0, 80, 2, content=content), TraceRequest(1.0, 80, 2, content=other)]
    result = simulate(workload, enable_prefix_caching=True, records=None)
    assert [r.metrics and r.metrics.cached_tokens for r in result.records] == [0, 64]
    assert result.prefix_cache.hits == 64


def test_the_next_turn_of_a_chat_finds_the_answer_to_the_last() -> None:
    history = (Segment("question", 24), Segment("answer", 40))
    workload = [
        TraceRequest(0.0, 24, 40, content=history),
        TraceRequest(9.0, 80, 2, content=(*history, Segment("next", 16))),
    ]
    result = simulate(workload, enable_prefix_caching=True, records=None)
    # The last token of an answer is never computed, so its block is not there.
    assert [r.metrics and r.metrics.cached_tokens for r in result.records] == [0, 48]


def test_preemptions_are_told_and_change_no_facts() -> None:
    workload = [TraceRequest(0.0, 100, 100, n=1) for _ in range(8)]
    plenty = simulate(workload, num_blocks=400, records=None)
    for mode in ("recompute", "swap"):
        result = simulate(
            workload, preemption_mode=mode, num_host_blocks=200, records=None,
            decisions=None,
        )  # fmt: skip
        gave_way = [record for record in result.records if record.preemptions]
        assert gave_way and {p.by for r in gave_way for p in r.preemptions} == {mode}
        for record in gave_way:
            for one in record.preemptions:
                assert one.until is not None and one.until > one.at
        assert result.preemptions.swaps + result.preemptions.recomputes == sum(
            len(record.preemptions) for record in result.records
        )
        assert (result.tokens_in, result.tokens_out) == (plenty.tokens_in, plenty.tokens_out)
        whys = [one.decision for one in result.decisions if one.decision.what.preempts]
        assert whys and all("could not grow" in decision.why for decision in whys)


def test_what_cannot_be_served_is_refused_with_the_reason() -> None:
    workload = [TraceRequest(0.0, 600, 5), TraceRequest(0.0, 20, 4, n=500), TraceRequest(0.0, 9, 1)]
    result = simulate(workload, records=None, decisions=None)
    assert (result.num_finished, result.num_refused) == (1, 2)
    assert (
        result.first_refusal is not None and "more than max_model_len, 512" in result.first_refusal
    )
    assert [record.refused is not None for record in result.records] == [True, True, False]
    assert [one.decision.what for one in result.decisions[:2]] == [Verdict.REFUSE] * 2


def test_users_send_their_next_request_when_they_have_an_answer() -> None:
    workload = Synthetic(30, Lengths("fixed", 16), Lengths("fixed", 10))
    result = simulate(workload, users=3, records=None)
    assert result.most_running == 3 and result.num_finished == 30
    assert result.seconds == pytest.approx(1.0)  # ten rounds of ten steps
    assert result.ttft.maximum == pytest.approx(0.01)
    arrivals = sorted({round(r.metrics.arrival_time, 6) for r in result.records if r.metrics})
    assert arrivals == [pytest.approx(0.1 * i) for i in range(10)]


def test_goals_are_counted_request_by_request() -> None:
    workload = [TraceRequest(0.0, 16, 10) for _ in range(4)]
    goals = Goals(ttft=0.05)
    result = simulate(workload, goals=goals, max_num_seqs=1)
    assert (result.num_met_goals, result.num_missed_ttft, result.num_missed_tpot) == (1, 3, 0)
    assert result.goodput_share == 0.25


def test_the_series_adds_up_and_stays_small() -> None:
    workload = Synthetic(400, Lengths("fixed", 50), Lengths("uniform", 60, 50), rate=20.0)
    result = simulate(workload)
    assert 100 < len(result.series) <= 512
    assert sum(point.num_steps for point in result.series) == result.num_steps
    assert sum(point.seconds for point in result.series) == pytest.approx(result.num_steps * 0.01)
    for point in result.series:
        slots = (point.used, point.reserved, point.internal, point.external, point.cached)
        assert sum(slots) + point.free == pytest.approx(64 * 16)
        assert point.running <= point.most_running
    # Each token but the last of each request is in memory for its steps.
    tokens = sum(point.used * point.seconds for point in result.series) / result.busy_seconds
    assert result.mean_usage.used == pytest.approx(tokens, abs=1)


def test_results_are_written_the_same_each_time() -> None:
    def written() -> str:
        workload = Synthetic(50, Lengths("fixed", 50), Lengths("uniform", 60, 50), rate=40.0)
        records, series = io.StringIO(), io.StringIO()
        result = simulate(workload, on_record=RecordWriter(records), records=None, decisions=None)
        write_series(series, result.series)
        return repr(result) + records.getvalue() + series.getvalue()

    assert written() == written()
    records = io.StringIO()
    simulate([TraceRequest(0.0, 10, 3), TraceRequest(0.0, 999, 3)], on_record=RecordWriter(records))
    refused, served = csv.DictReader(io.StringIO(records.getvalue()))
    assert refused["refused"] and served["num_output_tokens"] == "3"
    assert float(served["ttft"]) == pytest.approx(0.01)


def test_who_waits_for_too_long_is_refused() -> None:
    workload = [TraceRequest(0.0, 16, 200), *(TraceRequest(0.0, 16, 5) for _ in range(3))]
    result = simulate(workload, max_num_seqs=1, max_queue_time=0.5, records=None)
    assert (result.num_finished, result.num_refused) == (1, 3)
    assert result.first_refusal is not None and "max_queue_time is 0.5 s" in result.first_refusal


def test_a_window_lets_texts_go_on_beyond_the_pool() -> None:
    workload = [TraceRequest(0.0, 100, 400)]
    whole = simulate(workload, num_blocks=10, max_num_batched_tokens=64)
    assert whole.first_refusal is not None and "can never fit" in whole.first_refusal
    windowed = simulate(
        workload, num_blocks=10, max_num_batched_tokens=64, windows=(48,), records=None
    )
    (record,) = windowed.records
    assert record.metrics is not None
    assert record.metrics.num_output_tokens == 400 and record.metrics.peak_blocks <= 8

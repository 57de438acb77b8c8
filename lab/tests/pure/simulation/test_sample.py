"""Which requests of a workload a plan is made of, and what is said of them and of those cut."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from quire.engine.traces.request import TraceRequest
from quire.tools.cli import main
from quire_lab.simulation.sample import MOST_REQUESTS, WorkloadSample
from quire_lab.workload import Clipping


def trace(calm: int, busy: int, after: int) -> list[TraceRequest]:
    """One a second; then ten a second; then one a second again."""
    times = [1.0] * calm + [0.1] * busy + [1.0] * after
    now, requests = 0.0, []
    for gap in times:
        requests.append(TraceRequest(now, 100, 10))
        now += gap
    return requests


def take(requests: list[TraceRequest], part: str, has_times: bool = True) -> WorkloadSample:
    return WorkloadSample.take(
        requests, 4096, shares_prefixes=False, has_times=has_times, seed=0, part=part
    )


def test_the_busiest_part_of_a_trace_is_taken_and_of_how_many_is_said() -> None:
    requests = trace(800, 1500, 700)
    busiest = take(requests, "busiest")
    assert len(busiest.requests) == MOST_REQUESTS and busiest.num_all == 3000
    assert busiest.requests[0].arrival >= 800 - 1 and busiest.rate == pytest.approx(10)
    assert busiest.own_rate == pytest.approx(2999 / requests[-1].arrival)
    first, whole = take(requests, "first"), take(requests, "whole")
    assert first.requests == tuple(requests[:MOST_REQUESTS]) and first.part == "first"
    assert whole.requests == tuple(requests) and whole.part == "whole"
    assert take(requests, "busiest", has_times=False).requests == first.requests
    assert take(requests[:50], "busiest").part == "whole"


def test_long_requests_make_a_part_busy_too() -> None:
    requests = trace(3000, 0, 0)
    requests[2000:2500] = [replace(one, prompt_tokens=2000) for one in requests[2000:2500]]
    arrivals = [one.arrival for one in take(requests, "busiest").requests]
    assert arrivals[0] <= 2000 and arrivals[-1] >= 2499


def test_a_limit_that_is_lowered_cuts_nothing() -> None:
    asked = [TraceRequest(0.0, 100, 10, max_tokens=8000)] * 120
    clipping = Clipping(asked, 2048)
    assert {one.max_tokens for one in clipping} == {1948}
    assert clipping.cut == (0, 0, 120 * 110)
    clipping = Clipping([*asked, TraceRequest(0.0, 3000, 148)], 2048)
    assert sum(1 for _ in clipping) == 121
    assert clipping.cut == (1, 1100, 120 * 110 + 3148)
    assert str(clipping.cut) == "1 cut, which loses 6.7% of all tokens"


FLAGS = ["--machine", "h100", "--kv-cache-memory-bytes", "8GiB"]


def test_a_plan_says_of_how_many_and_what_memory_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of 4,000 tokens and short answers: steps are full long before the pool is."""
    monkeypatch.setattr("quire_lab.simulation.sample.MOST_REQUESTS", 12)
    path = tmp_path / "trace.csv"
    rows = [f"2024-05-10 00:00:{i:02}.0,4000,4" for i in range(20)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    assert main(["plan", "qwen2.5-0.5b", *FLAGS, "--trace", str(path)]) == 0
    out = capsys.readouterr().out
    assert "the busiest 12 of 20 requests, from 0 s to 11 s: 4,000 tokens in and 4 out" in out
    assert "memory holds 174 of mean length to their ends, so memory is not the limit" in out
    changes, work = out.split("other work, no improvement")
    assert "n = 4 outputs" in work and "n = 4 outputs" not in changes
    assert main(["plan", "qwen2.5-0.5b", *FLAGS, "--trace", str(path), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["workload"]["of_requests"] == 20 and values["fit"]["memory_holds"] == 174
    rates = [one["fit"]["request_rate"] for one in values["other_work"][:2]]
    assert 1.01 * values["fit"]["request_rate"] > rates[0] >= rates[1]

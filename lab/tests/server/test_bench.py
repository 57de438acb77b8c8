"""``quire bench --url`` against a live server."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from quire.core.errors import ConfigError, EngineError
from quire.core.protocol import Step
from quire.tools.cli import main
from quire_lab.bench.systems import Online
from quire_lab.bench.workloads import BenchRequest, make_workload
from support.drafting import foreseen
from support.live_server import MAX_MODEL_LEN, LiveServer


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["bench", *arguments, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_throughput_counts_every_token(
    shared: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    shared.executor.script = None
    report = bench(capsys, "throughput", "--url", shared.url, "--num-prompts", "6")
    requests = [request.cut(MAX_MODEL_LEN) for request in make_workload("sharegpt", 6)]
    assert report["requests"] == 6
    assert report["prompt_tokens"] == sum(len(request.prompt) for request in requests)
    assert report["output_tokens"] == sum(request.max_tokens for request in requests)
    assert 0 < report["ttft"]["p50"] <= report["e2e_latency"]["p50"] <= report["seconds"]
    assert report["output_tokens_per_second"] == report["output_tokens"] / report["seconds"]


def test_latency_is_of_one_request_at_a_time(
    shared: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    shared.executor.script = None
    lengths = ("--input-len", "8", "--output-len", "5", "--num-iters", "2")
    report = bench(capsys, "latency", "--url", f"{shared.url}/v1", *lengths)
    assert (report["input_len"], report["output_len"], report["num_iters"]) == (8, 5, 2)
    assert report["tpot"]["p50"] * 4 <= report["e2e_latency"]["p99"]


def test_what_speculation_brought(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.script("the dog and the fox and the dog and the fox and the dog")
    lengths = ("--url", server.url, "--input-len", "8", "--output-len", "12", "--num-iters", "3")
    assert "num_drafts" not in bench(capsys, "latency", *lengths)
    with foreseen(server) as drafts:
        report = bench(capsys, "latency", *lengths)
        assert 0 < report["num_accepted_tokens"] < report["num_draft_tokens"] < drafts.drafted
        assert main(["bench", "latency", *lengths]) == 0
    counted = report["num_accepted_tokens"], report["num_draft_tokens"], report["num_drafts"]
    assert all(count % 3 == 0 for count in counted), "the warm-up is left out"
    assert report["acceptance_rate"] == counted[0] / counted[1]
    assert report["mean_acceptance_length"] == 1 + counted[0] / counted[2]
    assert "{} of {} drafts were right".format(*counted) in capsys.readouterr().out


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_requests_run_at_once_than_asked_for(server: LiveServer, most: int) -> None:
    running = []

    def linger(step: Step) -> None:
        running.append(len(step.chunks))
        time.sleep(0.005)  # longer than it takes to send the next request

    server.executor.fail = linger
    requests = [BenchRequest([5], 40)] * (most + 2)
    Online(server.url, max_concurrency=most).run(requests).all_metrics()
    assert max(running) == most


def test_requests_are_sent_when_they_arrive(shared: LiveServer) -> None:
    run = Online(shared.url).run([BenchRequest([5], 1, arrival) for arrival in (0.0, 0.1)])
    first, second = run.all_metrics()
    assert second.arrival_time - first.arrival_time >= 0.09


def test_a_lost_request_is_an_error(shared: LiveServer) -> None:
    run = Online(shared.url).run([BenchRequest([5], 2), BenchRequest([5] * MAX_MODEL_LEN, 2)])
    assert [outcome.error is None for outcome in run.outcomes] == [True, False]
    with pytest.raises(EngineError, match="1 of 2 requests failed: status 400"):
        run.all_metrics()


def test_a_failing_step_is_an_error(server: LiveServer) -> None:
    def fail(step: object) -> None:
        raise RuntimeError("planted")

    server.executor.fail = fail
    with pytest.raises(EngineError, match="1 of 1 requests failed"):
        Online(server.url).run([BenchRequest([5], 2)]).all_metrics()


def test_what_would_do_nothing_is_refused(
    shared: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, message in {
        ("--url", shared.url, "--block-size", "4"): "block_size does nothing with a url",
        ("--max-concurrency", "2"): "max_concurrency does nothing without a url",
        ("no-such-model", "--url", shared.url): "has no model no-such-model",
        ("--url", "http://127.0.0.1:9"): "does not list its models",
        ("--url", shared.url, "--num-prompts", "0"): "num_prompts must be at least 1",
    }.items():
        assert main(["bench", "throughput", *flags]) == 1
        assert message in capsys.readouterr().err
    with pytest.raises(ConfigError, match="max_concurrency"):
        Online(shared.url, max_concurrency=0)

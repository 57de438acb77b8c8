"""What operators are told: spans, profiles, metrics by convention, logs. And what they are not."""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from scripts.dashboard import GRAFANA, OF_PROMETHEUS, dashboard, metrics_in, queries

from quire.blocks.store import DiskStore, StoreCounts
from quire.core.errors import ConfigError
from quire.engine.tracing import spans as spans_module
from quire.http.config.server import ServerConfig
from quire.http.serving import JSONLines
from support.live_server import LiveServer, eventually, live_server
from support.trace_collector import Collector, attributes, collector

TRACE, PARENT = "a1" * 16, "b2" * 8
SECRET = "xyzzy-plugh"


@contextmanager
def traced(
    engine: dict[str, Any] | None = None, path: str = "", **options: Any
) -> Iterator[tuple[LiveServer, Collector]]:
    with collector() as kept:
        with live_server(engine, otlp_traces_endpoint=kept.url + path, **options) as server:
            yield server, kept
        server.engine.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans_module, "_GATHERING", 0.01)


def fail(step: object) -> None:
    raise RuntimeError("the device is gone")


def works(step: object) -> None:
    """As ever."""


def slowly(step: object) -> None:
    time.sleep(0.003)


def together(server: LiveServer, *bodies: dict[str, Any]) -> None:
    """So that all of them run at once."""
    server.executor.fail = slowly
    threads = [threading.Thread(target=server.complete, kwargs=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_span_tells_the_story_of_a_request() -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b", "x-request-id": "me"}
    with traced() as (server, kept):
        body = {"model": "demo", "prompt": list(range(9)), "max_tokens": 5, "temperature": 0.5}
        server.http.post("/v1/completions", json=body)
        server.http.post("/v1/completions", json=body, headers=headers)
        server.chat(max_tokens=2, n=2)
        server.http.post("/v1/embeddings", json={"model": "demo", "input": "a"})
        server.complete(prompt=[])
    first, second, chat, vector = kept.spans  # the refused one was no request
    assert kept.paths == {"/v1/traces"}
    assert first.trace_id != second.trace_id and not first.parent_span_id
    assert second.trace_id.hex() == TRACE and second.parent_span_id.hex() == PARENT
    assert second.trace_state == "a=b"
    names = [event.name for event in second.events]
    assert names == ["queued", "admitted", "first token", "finished"]
    assert attributes(second.events[1])["quire.why"] == "8 of 9 tokens cached"
    times = [event.time_unix_nano for event in second.events]
    assert times == sorted(times) and second.start_time_unix_nano == times[0]
    assert times[-1] == second.end_time_unix_nano
    told = attributes(second)
    expected = {
        "gen_ai.operation.name": "text_completion", "gen_ai.request.model": "demo",
        "gen_ai.provider.name": "quire", "gen_ai.system": "quire", "quire.request_id": "me",
        "gen_ai.usage.input_tokens": 9, "gen_ai.usage.prompt_tokens": 9,
        "gen_ai.usage.output_tokens": 5, "gen_ai.usage.completion_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 8, "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5, "gen_ai.response.finish_reasons": ["length"],
        "server.address": "127.0.0.1",
    }  # fmt: skip
    assert {name: told.get(name) for name in expected} == expected
    assert 0 < told["gen_ai.latency.time_in_queue"] <= told["gen_ai.latency.time_to_first_token"]
    assert [one.name for one in kept.spans] == [
        "text_completion demo", "text_completion demo", "chat demo", "embeddings demo",
    ]  # fmt: skip
    assert attributes(chat)["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert "gen_ai.request.max_tokens" not in attributes(vector)


def test_a_span_tells_of_preemption_failure_and_leaving() -> None:
    with traced({"num_blocks": 24, "max_num_seqs": 4}) as (server, kept):
        together(server, *[{"prompt": [i] * 8, "max_tokens": 60} for i in (1, 2, 3)])
        server.executor.fail = fail
        server.complete(prompt=[7], max_tokens=5)
    preempted = next(one for one in kept.spans if "preempted" in [e.name for e in one.events])
    story = [event.name for event in preempted.events]
    assert story.index("preempted") < story.index("resumed")
    event = next(event for event in preempted.events if event.name == "preempted")
    assert attributes(event)["quire.verdict"] == "recompute" and attributes(event)["quire.why"]
    assert attributes(preempted)["quire.preemptions.recomputes"] >= 1
    for span in kept.spans:
        events = [(event.name, attributes(event).get("quire.why")) for event in span.events]
        assert all(one != two for one, two in pairwise(events)), "that it still waits"
    failed = kept.spans[-1]
    assert failed.status.code == 2 and attributes(failed)["error.type"] == "EngineError"
    assert attributes(failed)["gen_ai.response.finish_reasons"] == ["error"]


def test_a_collector_that_is_down_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with traced() as (server, kept):
        kept.status = 400
        for count in (1, 2, 3):
            assert server.complete(prompt=[1], max_tokens=2).status_code == 200
            eventually(lambda count=count: server.metric("quire:spans_dropped_total") == count)
        kept.status = 200
        server.complete(prompt=[1], max_tokens=2)
        eventually(lambda: server.metric("quire:spans_sent_total") == 1)
    told = [
        one for one in caplog.records if one.name.startswith(("quire.engine.tracing", "opentel"))
    ]
    assert [one.levelname for one in told] == ["WARNING", "INFO"]


def test_a_profile_of_what_a_server_does(server: LiveServer) -> None:
    answers: list[Any] = []

    def profile(seconds: str) -> None:
        answers.append(server.http.post("/v1/quire/profile", params={"seconds": seconds}))

    first = threading.Thread(target=profile, args=("0.5",))
    first.start()
    eventually(lambda: server.engine.parts.listener)
    profile("0.2")
    server.complete(prompt=[5] * 8, max_tokens=6)
    server.executor.hold()
    last = threading.Thread(target=server.complete, kwargs={"prompt": [6], "max_tokens": 4})
    last.start()
    eventually(lambda: server.engine.scheduler.has_work)
    server.executor.release()
    first.join()
    last.join()
    refused, taken = answers
    assert (refused.status_code, taken.status_code) == (409, 200)
    assert not server.engine.parts.listener
    trace = taken.json()
    bars = [one for one in trace["traceEvents"] if one["ph"] == "X"]
    steps = [one for one in bars if one["name"] == "step"]
    for name in ("plan", "update"):
        parts = [one for one in bars if one["name"] == name]
        assert len(parts) >= 6
        for part in parts:
            assert any(step["ts"] <= part["ts"] and part["ts"] + part["dur"] <=
                       step["ts"] + step["dur"] + 0.01 for step in steps)  # fmt: skip
    phases = [one["name"] for one in bars if one["pid"] == 3]
    assert {"waiting", "prefill", "decoding"} <= {*phases}
    whole = next(one for one in bars if one["name"].startswith("request "))
    assert whole["args"]["output tokens"] == 6 and whole["args"]["over"] is True
    for wrong in ("0", "61", "nan", "soon"):
        answers.clear()
        profile(wrong)
        assert answers[0].status_code == 400 and "from 0.1 to 60" in answers[0].text


def test_metrics_by_the_conventions(server: LiveServer) -> None:
    server.complete(prompt=[1], max_tokens=3)
    server.chat(max_tokens=1)
    lines = server.http.get("/metrics").text
    for name, operation, error, count in (
        ("request_duration", "text_completion", 'error_type="",', 1),
        ("request_duration", "chat", 'error_type="",', 1),
        ("time_to_first_token", "chat", "", 1),
        ("time_per_output_token", "text_completion", "", 1),
    ):
        labels = f'{error}gen_ai_operation_name="{operation}",gen_ai_provider_name="quire"'
        line = f'gen_ai_server_{name}_seconds_count{{{labels},gen_ai_request_model="demo"}} {count}'
        assert line in lines


def test_dashboard_and_alerts_name_metrics_that_there_are() -> None:
    assert json.loads((GRAFANA / "quire.json").read_text()) == dashboard(), "make it anew"
    with traced() as (server, _):
        server.complete(prompt=[1], max_tokens=3)
        eventually(server.is_idle)
        engine = server.engine
        store = MagicMock(spec=DiskStore, counts=StoreCounts(), num_bytes=0, quiet=False)
        speculation: Any = SimpleNamespace(num_bytes=0)
        engine.capabilities = engine.capabilities._replace(speculation=speculation, store=store)
        lines = server.http.get("/metrics").text.splitlines()
    there = {line.partition("{")[0] for line in lines if not line.startswith("#")}
    asked = set().union(*map(metrics_in, queries()))
    assert len(asked) > 20 and asked - there == OF_PROMETHEUS


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """What a server with --log-format json writes."""
    written, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(written), root.level
    handler.setFormatter(JSONLines())
    handler.addFilter(lambda record: not record.name.startswith("httpx"))  # the client's own
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield written
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def test_nothing_that_is_secret_is_told(tmp_path: Path) -> None:
    path = tmp_path / f"{SECRET}-keys"
    path.write_text(f"{SECRET}-key\n{SECRET}-other\n")
    path.chmod(0o600)
    spoken = {"prompt": f"{SECRET} says", "stop": [SECRET], "user": SECRET, "max_tokens": 40}
    headers = {"authorization": f"Bearer {SECRET}-key", "traceparent": f"00-{SECRET}-{PARENT}-01"}
    small, place = {"num_blocks": 24}, f"/{SECRET}?key={SECRET}"
    with logged() as logs, traced(small, place, api_key_file=str(path)) as (server, kept):
        ask = server.http
        ask.headers.update(headers)
        sent = threading.Thread(target=together, args=(server, *[spoken] * 3))
        kept.status = 400
        sent.start()
        profile = ask.post(f"/v1/quire/profile?seconds=0.4&{SECRET}=1")
        sent.join()
        server.chat(messages=[{"role": "user", "content": SECRET}], max_tokens=3)
        server.complete(prompt=SECRET, cache_salt=SECRET, temperature=-1)
        ask.post("/v1/completions", content=f'{{"{SECRET}":'.encode())
        ask.get("/v1/models", headers={"authorization": f"Bearer {SECRET}-wrong"})
        server.executor.fail = fail
        server.complete(**spoken)
        eventually(lambda: "takes no traces" in logs.getvalue())
        kept.status = 200
        server.executor.fail = works
        server.complete(**spoken)
        metrics = ask.get("/metrics").text
    assert profile.status_code == 200 and b"decoding" in profile.content
    assert kept.spans
    lines = [json.loads(line) for line in logs.getvalue().splitlines()]
    assert any("exception" in line for line in lines), "the step that failed"
    served = next(line for line in lines if line["logger"] == "quire.access")
    assert served["method"] and served["status"] and served["duration_ms"]
    gave_way = next(line for line in lines if line["message"].startswith("recompute"))
    assert gave_way["request_id"] in [one.get("request_id") for one in lines if "status" in one]
    for where in (logs.getvalue(), metrics, profile.text, *map(repr, kept.bodies)):
        assert SECRET not in where


@pytest.mark.parametrize(
    ("options", "message"),
    [({"otlp_traces_endpoint": "localhost:4317"}, "must be a URL"),
     ({"otlp_traces_endpoint": "grpc://localhost:4317"}, "gRPC"),
     ({"otlp_traces_endpoint": "http://"}, "must be a URL"),
     ({"otlp_traces_endpoint": "http://a:b/"}, "must be a URL"),
     ({"log_format": "xml"}, "log_format must be one of text, json")],
)  # fmt: skip
def test_settings_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerConfig(**options)


def test_the_packages_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ServerConfig(otlp_traces_endpoint="http://a").otlp_traces_endpoint == (
        "http://a/v1/traces"
    )
    monkeypatch.setattr("quire.http.config.otlp._SDK", "no_such_package.sdk")
    with pytest.raises(ConfigError, match=r"pip install 'quire-llm\[otel\]'"):
        ServerConfig(otlp_traces_endpoint="http://a")

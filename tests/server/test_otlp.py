"""OpenTelemetry's protocol by HTTP and by gRPC: spans, and the metrics of /metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from quire.core.errors import ConfigError
from quire.engine.tracing import spans as spans_module
from quire.http.config import otlp
from quire.http.config.server import ServerConfig
from support.live_server import LiveServer, eventually, live_server
from support.trace_collector import Collector, attributes, collector, grpc_collector

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")
MakeCollector = Callable[[], AbstractContextManager[Collector]]
BY_PROTOCOL: dict[str, MakeCollector] = {"http/protobuf": collector, "grpc": grpc_collector}


@pytest.fixture(params=[*BY_PROTOCOL])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector, and an environment that names it."""
    monkeypatch.setattr(spans_module, "_GATHERING", 0.01)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", request.param)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=mine")
    with BY_PROTOCOL[request.param]() as kept:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", kept.url)
        yield kept


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "30")


def test_spans_go_either_way(kept: Collector) -> None:
    with live_server(otlp_traces_endpoint=kept.url) as server:
        server.complete(prompt=[1], max_tokens=3)
        server.chat(max_tokens=2)
        server.engine.close()
    assert [span.name for span in kept.spans] == ["text_completion demo", "chat demo"]
    assert kept.headers["x-tenant"] == "mine"
    assert kept.paths <= {"/v1/traces", "grpc traces"}, "metrics were not asked for"


def test_a_protocol_of_traces_alone_goes_before(
    kept: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = {"/v1/traces": "http/protobuf", "grpc traces": "grpc"}
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    with collector() as other, live_server(otlp_traces_endpoint=other.url) as server:
        server.complete(prompt=[1], max_tokens=3)
        server.engine.close()
        assert {protocol[path] for path in other.paths} == {"http/protobuf"}
    assert not kept.paths


def values(server: LiveServer) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Of /metrics: counters and gauges by name and labels."""
    found = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            if family.type in ("counter", "gauge") and not sample.name.endswith("_created"):
                labels = frozenset((k, v) for k, v in sample.labels.items() if v)
                found[sample.name.replace("quire:", "quire."), labels] = sample.value
    return found


def sent(kept: Collector) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for name, metric in kept.metrics().items():
        kind = metric.WhichOneof("data")
        if kind == "sum":
            assert metric.sum.is_monotonic and metric.sum.aggregation_temporality == 2, "cumulative"
            name += "_total"
        for point in getattr(metric, kind).data_points if kind != "histogram" else ():
            value = getattr(point, point.WhichOneof("value"))
            found[name, frozenset(attributes(point).items())] = value
    return found


@pytest.mark.usefixtures("sending")
def test_metrics_are_those_of_prometheus_by_the_names_of_the_conventions(
    kept: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_METRIC_EXPORT_INTERVAL")  # so that they come at the end
    with live_server() as server:
        server.complete(prompt=[1], max_tokens=3)
        server.chat(max_tokens=2)
        server.complete(prompt=[2], max_tokens=3)
        eventually(server.is_idle)
        there = values(server)
        server.engine.close()
    told = sent(kept)
    assert len(there) > 30 and told == there
    metrics = kept.metrics()
    duration = metrics["gen_ai.server.request.duration"]
    assert duration.unit == "s"
    points = {
        attributes(one)["gen_ai.operation.name"]: one for one in duration.histogram.data_points
    }
    facts = {"gen_ai.provider.name": "quire", "gen_ai.request.model": "demo"}
    assert attributes(points["chat"]) == {"gen_ai.operation.name": "chat", **facts}
    point = points["text_completion"]
    assert point.count == 2 == sum(point.bucket_counts) and point.sum > 0
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert list(point.explicit_bounds)[:2] == [0.01, 0.02]
    assert 0 < point.start_time_unix_nano < point.time_unix_nano
    tokens = metrics["quire.request_generation_tokens"].histogram.data_points[0]
    at_most_4 = tokens.bucket_counts[: list(tokens.explicit_bounds).index(4.0) + 1]
    assert tokens.sum == 8 and tokens.count == 3 == sum(at_most_4)
    for name in ("time_to_first_token", "time_per_output_token"):
        assert metrics[f"gen_ai.server.{name}"].unit == "s"
    assert kept.headers["x-tenant"] == "mine"


@pytest.mark.usefixtures("sending")
def test_what_a_collector_has_missed_comes_with_the_next(
    kept: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def said() -> list[str]:
        names = ("quire.engine.tracing", "opentel", "grpc")
        return [one.levelname for one in caplog.records if one.name.startswith(names)]

    kept.status = 400
    with live_server() as server:
        server.complete(prompt=[1], max_tokens=3)
        eventually(lambda: said() == ["WARNING"])
        assert server.complete(prompt=[2], max_tokens=3).status_code == 200
        kept.status = 200
        eventually(lambda: said() == ["WARNING", "INFO"])
        server.engine.close()
    points = kept.metrics()["quire.generation_tokens"].sum.data_points
    assert [point.as_double for point in points] == [6.0]


@pytest.mark.usefixtures("sending")
def test_without_the_packages_it_serves_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("quire.http.config.otlp._SDK", "no_such_package.sdk")
    with live_server() as server:
        assert server.complete(prompt=[1], max_tokens=3).status_code == 200
    assert "metrics are not sent" in caplog.text and "pip install" in caplog.text


@pytest.mark.parametrize("interval", ["soon", "0", "-5", "inf"])
def test_a_wrong_interval_is_a_line_in_the_log(
    interval: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from quire.http.otlp_metrics import _interval

    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", interval)
    assert _interval() == 60.0 and interval in caplog.text


@pytest.mark.parametrize(
    ("protocol", "endpoint", "message"),
    [
        ("http/json", "http://a", "OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf or grpc"),
        ("", "grpc://localhost:4317", "set OTEL_EXPORTER_OTLP_PROTOCOL=grpc"),
        ("grpc", "localhost:4317", "must be a URL"),
        ("grpc", "ftp://localhost:4317", "must be a URL"),
    ],
)
def test_wrong_settings_are_refused(
    protocol: str, endpoint: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    with pytest.raises(ConfigError, match=message):
        ServerConfig(otlp_traces_endpoint=endpoint)


@pytest.mark.usefixtures("sending")
def test_a_wrong_protocol_of_metrics_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "carrier pigeon")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_METRICS_PROTOCOL must be"):
        ServerConfig()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert ServerConfig()


def test_by_grpc_an_endpoint_has_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    for endpoint in ("http://a:4317", "https://a:4317", "grpc://a:4317"):
        config: Any = ServerConfig(otlp_traces_endpoint=endpoint)
        assert config.otlp_traces_endpoint == endpoint
    monkeypatch.setitem(otlp.EXPORTERS, "grpc", "no.such")
    with pytest.raises(ConfigError, match=r"pip install 'quire.*\[otel\]'"):
        ServerConfig(otlp_traces_endpoint="http://a:4317")

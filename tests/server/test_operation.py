"""What an operator asks for: models, health, version, metrics."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from quire.http import serving
from quire.http.answers import rendering
from quire.http.app import create_app
from quire.http.config.server import ServerConfig
from quire.http.metrics import ServerMetrics, StepHistogram
from quire.http.serving import Server, run_server
from support.live_server import (
    MAX_MODEL_LEN,
    MODEL,
    LiveServer,
    Post,
    eventually,
    live_server,
    scripted_engine,
)


def test_models(shared: LiveServer) -> None:
    (model,) = shared.openai.models.list().data
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "quire")
    assert shared.http.get("/v1/models").json()["data"][0]["max_model_len"] == MAX_MODEL_LEN
    assert shared.openai.models.retrieve(MODEL).id == MODEL


def test_health_and_version(shared: LiveServer) -> None:
    assert shared.http.get("/health").status_code == 200
    assert shared.http.get("/version").json() == {"version": version("quire-llm")}


def test_metrics_of_known_traffic(server: LiveServer) -> None:
    prompt = list(range(100, 121))
    for _ in range(2):  # the second time its 5 full blocks of 4 are found
        server.complete(prompt=prompt, max_tokens=5, temperature=0)
    server.complete(prompt=[7], n=2, max_tokens=3)
    server.complete(prompt=[])
    tokens = server.script("The end")
    server.complete(prompt=[9, 9], max_tokens=50)
    generated = 5 + 5 + 2 * 3 + len(tokens) + 1
    assert server.metric("quire:request_success_total", finished_reason="length") == 3
    assert server.metric("quire:request_success_total", finished_reason="stop") == 1
    assert server.metric("quire:prompt_tokens_total") == 21 + 21 + 1 + 2
    assert server.metric("quire:generation_tokens_total") == generated
    assert server.metric("quire:prefix_cache_queries_total") == 21 + 21 + 1 + 2
    assert server.metric("quire:prefix_cache_hits_total") == 20
    assert server.metric("quire:num_preemptions_total") == 0
    assert server.metric("quire:time_to_first_token_seconds_count") == 4
    assert server.metric("quire:e2e_request_latency_seconds_count") == 4
    assert server.metric("quire:inter_token_latency_seconds_count") == generated - 5
    assert server.metric("quire:request_prompt_tokens_sum") == 45
    assert server.metric("quire:request_generation_tokens_sum") == generated
    assert server.metric("quire:request_prompt_tokens_bucket", le="1.0") == 1
    used = server.metric("quire:kv_slot_seconds_total", state="used")
    assert used == server.engine.stats.slot_seconds["used"] > 0


def test_a_histogram_of_steps_says_what_prometheus_says() -> None:
    bounds, values = (0.25, 0.5, 4.0), [0.0, 0.25, 0.375, 0.5, 4.0, 4.5, 0.125]
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    one = Histogram("quire:x_seconds", "Told.", ["model_name"], registry=theirs, buckets=bounds)
    steps = StepHistogram("quire:x_seconds", "Told.", {"model_name": "m"}, bounds, ours)
    for value in values:
        one.labels("m").observe(value)
    for step in (values[:3], [], values[3:]):
        steps.observe(step)
    told = [generate_latest(registry).decode().splitlines() for registry in (theirs, ours)]
    expected, found = ([line for line in lines if "_created{" not in line] for lines in told)
    assert found == expected and len(told[0]) == len(told[1])


def test_prompts_of_requests_that_were_aborted_count(server: LiveServer) -> None:
    """But not of those that never ran."""
    before = server.metric("quire:prompt_tokens_total")
    server.executor.hold()
    ask = {"model": MODEL, "prompt": list(range(200, 221)), "max_tokens": 100, "stream": True}
    with Post(server, ask) as stream:
        server.step_until(lambda: bool(server.engine.scheduler.running))
        server.executor.let(steps=2)
        stream.read_until(b"data: ")
    server.step_until(lambda: not server.engine.has_work)  # the server hears of it on the way
    server.executor.release()
    eventually(lambda: server.metric("quire:prompt_tokens_total") == before + 21)
    told = f'quire:request_success_total{{finished_reason="abort",model_name="{MODEL}"}} 1.0'
    eventually(lambda: told in httpx.get(f"{server.url}/metrics").text)


def test_nobody_waits_while_metrics_are_rendered(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on, rendering = threading.Event(), threading.Event()
    render, begun = ServerMetrics.exposition, []

    def slowly(metrics: ServerMetrics) -> bytes:
        begun.append(1)
        rendering.set()
        assert going_on.wait(60)
        return render(metrics)

    ask, asking = ServerMetrics.rendered, []

    async def noted(metrics: ServerMetrics) -> bytes:
        asking.append(1)
        return await ask(metrics)

    monkeypatch.setattr(ServerMetrics, "exposition", slowly)
    monkeypatch.setattr(ServerMetrics, "rendered", noted)
    told: list[str] = []

    def scrape() -> None:
        told.append(httpx.get(f"{server.url}/metrics", timeout=60).text)

    scrapers = [threading.Thread(target=scrape) for _ in range(6)]
    for scraper in scrapers:
        scraper.start()
    assert rendering.wait(60)
    assert server.http.get("/health").status_code == 200
    assert server.complete(prompt=[5, 6], max_tokens=5).status_code == 200
    eventually(lambda: len(asking) == 6)
    going_on.set()
    for scraper in scrapers:
        scraper.join()
    assert len(told) == 6 and all("quire:num_requests_running" in text for text in told)
    assert len(begun) <= 2, "those who wait are told the same"


@pytest.mark.parametrize("names", ["vllm", "both"])
def test_metrics_by_the_names_that_routers_read(names: str) -> None:
    with live_server(metrics_names=names) as server:
        server.complete(prompt=list(range(100, 121)), max_tokens=5, temperature=0)
        for name, value in (
            ("num_requests_waiting", 0),
            ("num_requests_running", 0),
            ("kv_cache_usage_perc", 0),
            ("prefix_cache_queries_total", 21),
            ("prefix_cache_hits_total", 0),
            ("prompt_tokens_total", 21),
            ("generation_tokens_total", 5),
            ("time_to_first_token_seconds_count", 1),
            ("inter_token_latency_seconds_count", 4),
            ("request_time_per_output_token_seconds_count", 1),
            ("request_prompt_tokens_sum", 21),
        ):
            assert server.metric(f"vllm:{name}") == value
            told = f"quire:{name}" in server.http.get("/metrics").text
            assert told == (names == "both"), "one source, one name or two"
        assert server.metric("vllm:request_success_total", finished_reason="length") == 1
        num_blocks = server.engine.scheduler.allocator.usage().capacity // 4
        facts = {
            "block_size": "4",
            "num_gpu_blocks": str(num_blocks),
            "enable_prefix_caching": "True",
        }
        assert server.metric("vllm:cache_config_info", **facts) == 1
        assert server.metric("quire:integrity_faults_total") == 0, "which vLLM does not have"


def test_a_reset_prefix_cache_is_empty(server: LiveServer) -> None:
    for found in (0, 20, 0):
        before = server.metric("quire:prefix_cache_hits_total")
        server.complete(prompt=list(range(100, 121)), max_tokens=5)
        assert server.metric("quire:prefix_cache_hits_total") - before == found
        if found:
            assert server.http.post("/reset_prefix_cache").status_code == 200
            assert server.metric("quire:kv_cache_slots", state="cached") == 0


def test_gauges_tell_the_present() -> None:
    with live_server({"num_blocks": 32, "max_num_seqs": 1}) as server:
        assert server.metric("quire:kv_cache_usage_perc") == 0
        assert server.metric("quire:kv_cache_slots", state="free") == 32 * 4
        server.executor.hold()
        ask = {"prompt": [[5] * 9, [6] * 9], "max_tokens": 100}
        client = threading.Thread(target=lambda: server.complete(**ask))
        client.start()
        eventually(lambda: server.metric("quire:num_requests_running") == 1)
        assert server.metric("quire:kv_cache_usage_perc") == 3 / 32
        server.step_until(lambda: server.metric("quire:num_requests_waiting") == 1)
        slots = {
            state: server.metric("quire:kv_cache_slots", state=state)
            for state in ("used", "reserved", "internal", "external", "cached", "free")
        }
        assert sum(slots.values()) == 32 * 4 and slots["used"] >= 9
        taken = server.metric("quire:kv_cache_usage_perc")
        assert taken == 1 - (slots["free"] + slots["cached"]) / (32 * 4)
        server.executor.release()
        client.join()
        assert server.metric("quire:num_requests_running") == 0
        assert server.metric("quire:kv_cache_slots", state="cached") >= 27 * 4  # the second's
        assert server.metric("quire:kv_cache_usage_perc") == 0


def test_preemptions_are_counted_and_change_no_text() -> None:
    ask = {"prompt": [[5] * 9, [6] * 9, [7] * 9], "max_tokens": 40, "seed": 1}
    with live_server() as roomy, live_server({"num_blocks": 15}) as tight:
        answer = tight.complete(**ask, include_metrics=True).json()
        assert answer["choices"] == roomy.complete(**ask).json()["choices"]
        preemptions = tight.metric("quire:num_preemptions_total")
        assert preemptions > 0
        assert sum(story["num_preemptions"] for story in answer["metrics"]) == preemptions
        eventually(tight.is_idle)


def test_time_beside_the_model_is_told(server: LiveServer) -> None:
    ask = {"prompt": [5] * 9, "max_tokens": 60, "ignore_eos": True, "include_metrics": True}
    plain = server.complete(**ask).json()["metrics"][0]
    assert plain["beside_seconds"] == plain["grammar_seconds"] == 0
    assert server.metric("quire:beside_seconds_total") == 0
    server.executor.fail = lambda step: time.sleep(0.02)  # so that somebody can look
    with ThreadPoolExecutor(1) as threads:
        searching = threads.submit(server.complete, **ask, stop=["§"])
        eventually(lambda: told(server) > 0)
        story = searching.result().json()["metrics"][0]
    assert server.metric("quire:beside_seconds_total") == story["beside_seconds"] > 0


def test_what_was_expected_is_told_with_what_came(server: LiveServer) -> None:
    ask = {"prompt": [5] * 9, "max_tokens": 30, "ignore_eos": True, "include_metrics": True}
    server.executor.fail = lambda step: time.sleep(0.005)
    unseen = server.complete(**ask)
    first = unseen.json()["metrics"][0]
    assert first["expected_ttft"] is first["expected_e2e_latency"] is None, "no step was seen"
    assert "x-quire-expected" not in unseen.headers
    answer = server.complete(**ask)
    second = answer.json()["metrics"][0]
    assert 0 < second["expected_ttft"] < second["expected_e2e_latency"] < 5
    figures = second["expected_ttft"], second["expected_e2e_latency"]
    assert answer.headers["x-quire-expected"] == "first-token={:.3f}, end={:.3f}".format(*figures)
    stream = server.complete(prompt=[5] * 9, max_tokens=30, stream=True)
    assert re.fullmatch(r"first-token=0\.\d+, end=\d\.\d+", stream.headers["x-quire-expected"])
    assert server.http.get("/v1/quire/state").json()["forecasts"]["count"] == 2
    assert "quire:forecasts_true_ratio" in server.http.get("/metrics").text


def told(server: LiveServer) -> float:
    """Of those that run, as the page has it."""
    running = server.http.get("/v1/quire/state").json()["requests"]["running"]
    return sum(row["beside_seconds"] for row in running)


@pytest.fixture
def own_thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("own_thresholds")
def test_what_is_loaded_is_not_looked_through_for_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = []
    monkeypatch.setattr(Server, "run", lambda *_: frozen.append(gc.get_freeze_count()))
    config = ServerConfig()
    run_server(create_app(scripted_engine()[0], [MODEL], config), config, [])
    assert frozen[0] > 10_000
    assert gc.get_threshold()[2] >= 1_000, "Python would look through all in the midst of a flood"


def test_all_that_lives_is_looked_through_while_that_is_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, counts, most = list[int](), [700, 10, 10], 1_000
    own = SimpleNamespace(
        get_count=lambda: counts,
        get_threshold=lambda: (700, 10, most),
        collect=lambda: looks.append(threading.get_ident()),  # other tests' servers look as well
    )
    monkeypatch.setattr(serving, "gc", own)
    serving.collect(living=1_000)
    assert looks.count(threading.get_ident()) == 0
    serving.collect(living=3)
    assert looks.count(threading.get_ident()) == 1
    counts[2] = 9  # it is not due
    serving.collect(living=3)
    counts[2], most = 10, 10  # Python does it
    serving.collect(living=3)
    assert looks.count(threading.get_ident()) == 1


def test_what_runs_lives_as_well_as_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many prompts of one body have a single connection, and wait no more once they run.

    Who has hung up has none; the tasks that answer him are cancelled one after the other.
    """
    told: list[int] = []
    monkeypatch.setattr("quire.http.serving.collect", told.append)
    config = ServerConfig()
    app = create_app(scripted_engine()[0], [MODEL], config)
    server = Server(app, config)
    queue = SimpleNamespace(num_waiting=30, num_running_seqs=200)
    scheduler = SimpleNamespace(queue=queue)
    server._engine = SimpleNamespace(engine=SimpleNamespace(scheduler=scheduler), healthy=True)
    server.server_state.tasks.update(object() for _ in range(1_000))  # type: ignore[arg-type,misc]
    asyncio.run(server.on_tick(1))
    assert 1_230 in told  # other servers of these tests may tell of theirs


def test_what_few_have_made_of_what_they_were_sent_lives_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fifty outputs with log-probabilities came to 180,000 objects, and a pause of 120 ms: while
    they ran, and while the answer was made of them.
    """
    told: list[int] = []
    monkeypatch.setattr("quire.http.serving.collect", told.append)
    config = ServerConfig()
    server = Server(create_app(scripted_engine()[0], [MODEL], config), config)
    queue = SimpleNamespace(num_waiting=0, num_running_seqs=1)
    engine = SimpleNamespace(scheduler=SimpleNamespace(queue=queue))
    server._engine = SimpleNamespace(engine=engine, healthy=True)
    made = [[number] for number in range(1_000, 100_000)]
    asyncio.run(server.on_tick(1))
    assert any(100 < one < 1_000 for one in told)  # other servers of these tests may tell of theirs
    told.clear()
    queue.num_running_seqs = 0
    asyncio.run(server.on_tick(2))
    assert 0 in told, "nobody waits for it"
    queue.num_running_seqs = 1
    asyncio.run(server.on_tick(3))
    assert len(made) and min(told[1:]) < 10, "what stays keeps nobody from looking"


def test_large_answers_are_rendered_with_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    clock = SimpleNamespace(perf_counter=iter(range(10_000)).__next__, sleep=rests.append)
    monkeypatch.setattr(rendering, "time", clock)
    answer = {"a": [{"b": n} for n in range(9)], "c": 1}
    response = asyncio.run(rendering.json_response(lambda: answer, large=True))
    assert response.body == rendering.encode(answer) and len(rests) == 10
    asyncio.run(rendering.json_response(lambda: answer, large=False))
    assert len(rests) == 10

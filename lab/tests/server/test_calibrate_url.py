"""``quire calibrate --url`` against a live server: what is asked, and what cannot be timed."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import quire
from quire.core.errors import ConfigError
from quire.core.protocol import Request
from quire.engine.events import Watcher
from quire.tools.cli import main
from quire_lab.calibration.client.asking import Target, TimedServer, cache_config, look_at
from quire_lab.calibration.client.probes import ClientProbe
from quire_lab.calibration.client.served import _send
from quire_lab.simulation.calibrated import read_calibration
from support.live_server import MAX_MODEL_LEN, MODEL, LiveServer

DEMO = str(Path(quire.__file__).parent / "models/demo")


def test_a_server_is_timed_and_its_costs_are_taken(
    server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.executor.fail = lambda step: time.sleep(0.002)  # or all is over before others come
    out = tmp_path / "costs.json"
    command = ["calibrate", DEMO, "--url", server.url, "--out", str(out), "--max-num-seqs", "4"]
    assert main(command) == 0
    told = capsys.readouterr()
    assert "a client waits" in told.out and f"timings of {server.url} by a client" in told.out
    assert "one user, prompts of 8 tokens" in told.err and "2 users, prompts of" in told.err
    found = read_calibration(out)
    assert (found.block_size, found.unit, found.unknown) == (4, "wall", ("swap", "drafts"))
    assert found.pool_bytes == 128 * 4 * found.model.kv_bytes_per_token, "as its /metrics tells"
    assert main(["simulate", "--cost-model", str(out), "--dataset", "alpaca", "--rate", "1",
                 "--requests", "5", "--json"]) == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out)["num_finished"] == 5


def test_streams_are_as_long_as_asked_and_a_newcomer_comes_while_others_decode(
    shared: LiveServer,
) -> None:
    shared.executor.script = None
    server = TimedServer(Target(shared.url), MODEL)
    streams = asyncio.run(_send(server, ClientProbe(2, 16, 64)))
    assert [len(one.times) for one in streams] == [64, 64, 2]
    assert [one.prompt_tokens for one in streams] == [16, 16, 64]
    assert all(one.times[0] < streams[2].sent for one in streams[:2])
    assert all(list(one.times) == sorted(one.times) for one in streams)


def test_it_is_told_when_a_request_was_ready_to_be_queued(shared: LiveServer) -> None:
    seen: list[Request] = []

    class Listener(Watcher):
        def began(self, request: Request) -> None:
            seen.append(request)

    listener = Listener()
    shared.engine.events.add(listener)
    shared.complete(prompt="a dog " * 50, max_tokens=1).raise_for_status()
    shared.engine.events.remove(listener)
    assert seen[0].ready is not None and seen[0].ready > seen[0].arrival


def test_pools_are_read_as_vllm_tells_them() -> None:
    text = (
        "# TYPE vllm:cache_config_info gauge\n"
        'vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="27461"} 1.0\n'
    )
    assert cache_config(text)["num_gpu_blocks"] == "27461"
    assert cache_config("vllm:num_requests_running 1\n") == {}


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A server that gives each connection the next of these answers, the last one for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for number in range(100):
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answers[min(number, len(answers) - 1)])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def reply(status: str, body: str, kind: str = "application/json") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    ).encode()


MODELS = reply("200 OK", '{"data": [{"id": "m", "max_model_len": 256}]}')
NO_METRICS = reply("404 Not Found", "{}")
EVENTS = "text/event-stream"


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([reply("503 Service Unavailable", "loading")], "does not list its models: .*503: loading"),
        ([reply("200 OK", "<html>")], "does not list its models"),
        ([b""], "does not list its models"),
        ([MODELS, NO_METRICS, reply("401 Unauthorized", "no key")], "answered 401: no key"),
        ([MODELS, NO_METRICS, reply("200 OK", "{}")], "answers no stream of events"),
        ([MODELS, NO_METRICS, reply("400 Bad Request", "no, thanks")], "refuses to be asked: .*no"),
        ([MODELS, NO_METRICS, reply("200 OK", "data: [DONE]\n\n", EVENTS)], "without a token"),
        ([MODELS, NO_METRICS, reply("200 OK", 'data: {"choices": []}\n\n', EVENTS)], "ended"),
        ([MODELS, NO_METRICS, reply("200 OK", 'data: {"error": "out of memory"}\n\n', EVENTS)],
         "failed: .*out of memory"),
        ([MODELS, NO_METRICS, reply("200 OK", 'data: {"choices": [{"text": "abc"}], '
          '"usage": {"completion_tokens": 8, "prompt_tokens": 1}}\n\ndata: [DONE]\n\n', EVENTS)],
         "sends 8.0 tokens at a time"),
    ],
)  # fmt: skip
def test_a_server_that_cannot_be_timed_is_told_so(
    answers: list[bytes], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(*answers) as url:
        assert main(["calibrate", DEMO, "--url", url, "--num-blocks", "100"]) == 1
    error = capsys.readouterr().err
    assert re.search(message, error), error


def test_what_is_not_there_or_not_told_is_refused(
    shared: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ["--url", shared.url]
    for flags, message in (
        (["--url", "http://127.0.0.1:9"], "does not list its models"),
        ([*url, "--served-model-name", "x"], f"served_model_name: {shared.url} has {MODEL}, not x"),
        ([*url, "--unit", "cpu"], "unit must be wall with a url"),
        ([*url, "--threads", "2"], "threads does nothing with a url"),
        ([*url, "--time-limit", "0"], "time_limit must be from 1 to 86,400 seconds, got 0"),
        (["--time-limit", "0"], "time_limit must be from 1 to 86,400 seconds, got 0"),
        (["--steps", "x.csv", "--time-limit", "9"], "time_limit does nothing with steps"),
        (["--url", "ftp://x"], "url must be like http://host:port"),
    ):
        assert main(["calibrate", DEMO, *flags]) == 1
        assert message in capsys.readouterr().err
    with answering(MODELS, NO_METRICS) as other:
        assert main(["calibrate", DEMO, "--url", other]) == 1
        assert "does not show the size of its KV pool" in capsys.readouterr().err
    assert look_at(Target(shared.url)).max_model_len == MAX_MODEL_LEN
    with pytest.raises(ConfigError, match=r"http://127.0.0.1:9 does not list"):
        look_at(Target("http://user:secret@127.0.0.1:9"))

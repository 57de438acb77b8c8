"""Clients that leave, steps that fail, engines that die, shutdowns in mid-stream."""

from __future__ import annotations

import gc
import logging
import threading
from typing import Any

import httpx
import openai
import pytest

from quire.core.protocol import Step
from quire.http import serving
from support.live_server import MODEL, PATIENCE, LiveServer, Post, eventually, live_server

LONG = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 200}
FLOOD: dict[str, Any] = {  # some 8 MB
    "model": MODEL, "prompt": [[5]] * 16, "max_tokens": 250, "logprobs": 100, "stream": True,
}  # fmt: skip


@pytest.mark.parametrize("extra", [{}, {"n": 2}, {"prompt": [[5, 6], [7], [8, 9]]}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_its_blocks(
    server: LiveServer, stream: bool, extra: dict[str, Any]
) -> None:
    num_prompts = len(extra["prompt"]) if "prompt" in extra else 1
    server.executor.hold()
    with Post(server, {**LONG, "stream": stream, **extra}) as post:
        server.step_until(lambda: len(server.engine.scheduler.running) == num_prompts)
        server.executor.let(steps=1)
        if stream:
            post.read_until(b"data: ")
        assert not server.is_idle()
    eventually(lambda: server.num_aborted == num_prompts)
    server.executor.let(steps=1)  # the one that was under way
    eventually(server.is_idle)
    assert server.executor.num_steps < LONG["max_tokens"]


def test_a_client_that_hangs_up_while_it_waits_leaves_the_queue() -> None:
    with live_server({"max_num_seqs": 1}) as server:
        server.executor.hold()
        with Post(server, LONG):
            eventually(lambda: len(server.engine.scheduler.running) == 1)
            with Post(server, LONG):
                server.step_until(lambda: len(server.engine.scheduler.waiting) == 1)
            eventually(lambda: server.num_aborted == 1)
            server.executor.let(steps=1)
            eventually(lambda: not server.engine.scheduler.waiting)
            assert len(server.engine.scheduler.running) == 1
        server.executor.release()
        eventually(server.is_idle)


def test_a_client_that_hangs_up_does_not_touch_the_others(server: LiveServer) -> None:
    expected = server.complete(prompt="Once", seed=1, max_tokens=30).json()["choices"]
    server.executor.hold()
    with Post(server, {**LONG, "stream": True}) as leaver:
        eventually(lambda: len(server.engine.scheduler.running) == 1)
        answers: list[httpx.Response] = []
        ask = {"prompt": "Once", "seed": 1, "max_tokens": 30}
        stayer = threading.Thread(target=lambda: answers.append(server.complete(**ask)))
        stayer.start()
        server.step_until(lambda: len(server.engine.scheduler.running) == 2)
        leaver.read_until(b"data: ")
    eventually(lambda: server.num_aborted == 1)
    server.executor.release()
    stayer.join(PATIENCE)
    assert answers[0].json()["choices"] == expected


def _fail_once(server: LiveServer) -> None:
    def fail(step: object) -> None:
        server.executor.fail = lambda step: None
        raise RuntimeError("the device is on fire")

    server.executor.fail = fail


def test_a_failed_step_is_a_server_error_and_the_engine_lives_on(server: LiveServer) -> None:
    for path in ("completions", "chat"):
        for stream in (False, True):
            _fail_once(server)
            ask = server.complete if path == "completions" else server.chat
            prompt = {"prompt": "Once"} if path == "completions" else {}
            response = ask(**prompt, stream=stream)
            assert response.status_code == 500
            assert response.json()["error"]["type"] == "server_error"
            eventually(server.is_idle)
            assert server.http.get("/health").status_code == 200
            assert ask(**prompt, stream=stream).status_code == 200
    assert server.metric("quire:request_success_total", finished_reason="error") == 4


def test_a_step_that_fails_in_mid_stream_ends_the_stream_with_the_error(
    server: LiveServer,
) -> None:
    server.executor.hold()
    with Post(server, {**LONG, "stream": True}) as post:
        server.executor.let(steps=2)
        post.read_until(b"data: ")
        _fail_once(server)
        server.executor.release()
        rest = post.read_until(b"0\r\n\r\n")  # the end of a chunked answer
    assert b'data: {"error":{"message":' in rest and b"[DONE]" not in rest
    server.executor.hold()
    server.executor.let(steps=2)
    with server.openai.completions.create(**LONG, stream=True) as stream:
        next(stream)
        _fail_once(server)
        server.executor.release()
        with pytest.raises(openai.APIError, match="step"):
            list(stream)


def test_a_dead_engine_is_unavailable_and_then_ends_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def die(now: float) -> Step:
        raise RuntimeError("the scheduler has lost its mind")

    monkeypatch.setattr(serving, "_DEAD", PATIENCE)
    with live_server() as server:
        server.executor.hold()
        with Post(server, {**LONG, "stream": True}) as stream:
            eventually(lambda: len(server.engine.scheduler.running) == 1)
            with Post(server, LONG) as whole:
                server.step_until(lambda: len(server.engine.scheduler.running) == 2)
                stream.read_until(b"data: ")
                server.engine.scheduler.schedule = die  # type: ignore[method-assign]
                server.executor.release()
                stream.read_until(
                    b'data: {"error":{"message":"the engine died: the scheduler has lost'
                )
                assert whole.read_until(b"has lost its mind").startswith(b"HTTP/1.1 503 ")
        health = server.http.get("/health")
        assert health.status_code == 503
        assert health.json()["error"]["code"] == "engine_unavailable"
        for stream_or_not in (False, True):
            assert server.complete(prompt="Once", stream=stream_or_not).status_code == 503
            assert server.chat(stream=stream_or_not).status_code == 503
        assert server.http.get("/metrics").status_code == 200
        eventually(lambda: server.server.exit_status == 1)  # it has noticed
        server.server._deadline = 0.0
        eventually(lambda: not server.is_running)
        assert server.server.exit_status == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_shutdown_ends_what_runs(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="quire.http")
    with live_server() as server:
        server.executor.hold()
        with Post(server, {**LONG, "stream": stream}) as post:
            server.executor.let(steps=3)
            if stream:
                post.read_until(b"data: ")
            eventually(lambda: server.executor.num_steps == 3)
            server.server.should_exit = True
            server.step_until(lambda: "KV memory" in caplog.text)
            assert server.executor.num_steps < LONG["max_tokens"]
            answer = post.read_until(b"the engine has been stopped")
            assert stream or answer.startswith(b"HTTP/1.1 503 ")
            assert post.socket.recv(100) in (b"", b"0\r\n\r\n", b"\r\n0\r\n\r\n", b"\r\n")
    assert "% was waste" in caplog.text


def test_a_shutdown_does_not_wait_for_a_client_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "_SLOWEST_CLIENT", 0.5)  # so that the test need not wait
    with live_server() as server, Post(server, FLOOD) as post:
        post.read_until(b"data: ")
        eventually(server.is_idle)
        assert server.server.server_state.tasks, "the flood fits into the sockets' buffers"
        server.server.should_exit = True
        eventually(lambda: not server.is_running)
    gc.collect()  # complains of sockets left open, now and not in some later test


def test_a_client_that_does_not_read_does_not_stall_the_others(server: LiveServer) -> None:
    with Post(server, FLOOD) as slow:
        received = slow.read_until(b"data: ")
        eventually(server.is_idle)
        assert server.complete(prompt="Once").status_code == 200
        assert server.server.server_state.tasks, "the flood fits into the sockets' buffers"
        received += slow.read_until(b"[DONE]")
    assert received.count(b'"finish_reason":"length"') == len(FLOOD["prompt"])

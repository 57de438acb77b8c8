"""An operator ends a request: its client is told, its blocks are free, the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from openai import APIStatusError

from support.live_server import MODEL, PATIENCE, LiveServer, eventually, live_server

LONG = {"max_tokens": 100, "ignore_eos": True}
SHORT = {**LONG, "max_tokens": 70}


@contextmanager
def held(server: LiveServer) -> Iterator[ThreadPoolExecutor]:
    """Its engine takes no step but those that ``during`` lets it take."""
    server.executor.hold()
    with ThreadPoolExecutor(8) as threads:
        try:
            yield threads
        finally:
            server.executor.release()


def during(server: LiveServer, condition: Callable[[], bool]) -> None:
    """Step until the condition holds, but not so fast that requests end meanwhile."""
    server.step_until(condition)


def end(server: LiveServer, threads: ThreadPoolExecutor, request_id: str) -> httpx.Response:
    answer = threads.submit(server.http.delete, f"/v1/quire/requests/{request_id}")
    during(server, answer.done)
    return answer.result()


def names(server: LiveServer) -> list[str]:
    return [*server.engine._requests]


def begun(server: LiveServer) -> bool:
    """Whether tokens have come of somebody."""
    return any(one.branches[0].output.token_ids for one in [*server.engine._requests.values()])


def check_told(answer: Future[httpx.Response]) -> None:
    told = answer.result(PATIENCE)
    assert told.status_code == 410, "a status after which clients do not ask again"
    assert told.json()["error"]["code"] == "request_aborted"


@pytest.mark.parametrize(
    "body", [{"prompt": "one"}, {"prompt": "one", "n": 3}, {"prompt": ["one", "two"]}]
)
def test_its_client_is_told_and_its_blocks_are_free(shared: LiveServer, body: Any) -> None:
    before = shared.num_aborted
    with held(shared) as threads:
        answer = threads.submit(shared.complete, **LONG, **body)
        during(shared, lambda: begun(shared))
        first, *others = names(shared)
        done = end(shared, threads, first)
        assert done.json() == {"object": "quire.request", "id": first, "aborted": True}
        check_told(answer)
        during(shared, shared.is_idle)
        assert end(shared, threads, first).status_code == 404
    assert shared.num_aborted == before + 1 + len(others)


def test_a_stream_ends_with_the_error(shared: LiveServer) -> None:
    ask = {"model": MODEL, "prompt": "one", "stream": True, **LONG}
    with held(shared) as threads:
        answer = threads.submit(shared.http.post, "/v1/completions", json=ask)
        during(shared, lambda: begun(shared))
        assert end(shared, threads, names(shared)[0]).status_code == 200
        *before, last = answer.result(PATIENCE).text.strip().split("\n\n")
        assert before and "request_aborted" in last and "[DONE]" not in last
        during(shared, shared.is_idle)


def test_openais_client_raises_and_does_not_ask_again(shared: LiveServer) -> None:
    asking = shared.openai.with_options(max_retries=2)
    told = shared.engine.scheduler.stats.decisions
    before = told["admit"]
    with held(shared) as threads:
        answer = threads.submit(asking.completions.create, model=MODEL, prompt="x", max_tokens=100)
        during(shared, lambda: begun(shared))
        end(shared, threads, names(shared)[0])
        with pytest.raises(APIStatusError, match="has ended the request"):
            answer.result(PATIENCE)
        assert told["admit"] == before + 1


@pytest.mark.parametrize("kind", ["waiting", "swapped"])
def test_who_waits_may_be_ended_while_others_run(kind: str) -> None:
    tight = {"num_blocks": 24, "num_host_blocks": 50, "max_num_seqs": 2}
    if kind == "waiting":
        tight["max_num_seqs"] = 1
    with live_server(tight) as server, held(server) as threads:
        answers = [threads.submit(server.complete, prompt=f"a {i}", **SHORT) for i in range(2)]
        scheduler = server.engine.scheduler
        during(server, lambda: [g.begun for g in scheduler.waiting] == [kind == "swapped"])
        waiting = scheduler.waiting[0].request.request_id
        if kind == "swapped":
            assert scheduler.allocator.host.num_held
        assert end(server, threads, waiting).status_code == 200
        assert not scheduler.allocator.host.num_held
        server.executor.release()
        statuses = sorted(one.result(PATIENCE).status_code for one in answers)
        assert statuses == [200, 410]
        eventually(server.is_idle)


def test_a_session_keeps_what_its_turn_has_said(shared: LiveServer) -> None:
    path = "/v1/sessions/" + shared.http.post("/v1/sessions", json={"model": MODEL}).json()["id"]
    shared.http.post(f"{path}/append", json={"input": "The town"})
    with held(shared) as threads:
        turn = threads.submit(shared.http.post, f"{path}/generate", json=LONG)
        during(shared, lambda: begun(shared))
        end(shared, threads, names(shared)[0])
        check_told(turn)
    assert not shared.http.get(path).json()["busy"]
    again = shared.http.post(f"{path}/generate", json={"max_tokens": 3})
    assert again.json()["usage"]["completion_tokens"] == 3
    shared.http.delete(path)


def test_with_several_keys_it_takes_the_one_that_the_request_came_with() -> None:
    def by(key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    with live_server(api_key=["anna", "bert"]) as server, held(server) as threads:
        body = {"model": MODEL, "prompt": "one", **LONG}
        post = server.http.post
        answer = threads.submit(post, "/v1/completions", json=body, headers=by("anna"))
        during(server, lambda: begun(server))
        path = f"/v1/quire/requests/{names(server)[0]}"
        for key, status in (("bert", 404), ("anna", 200)):
            ended = threads.submit(server.http.delete, path, headers=by(key))
            during(server, ended.done)
            assert ended.result().status_code == status
        check_told(answer)


def test_it_takes_a_key() -> None:
    with live_server(api_key=["key-of-the-house"]) as server:
        assert server.http.delete("/v1/quire/requests/x").status_code == 401

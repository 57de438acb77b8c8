"""Why a prompt was read again: in the answer, at /v1/quire and in the log."""

from __future__ import annotations

import gc
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from quire.core.protocol import Request
from support.live_server import PATIENCE, LiveServer, live_server

HEADERS = "cc_version=2.1.a3f", "cc_version=2.1.b7c"
REST = "; The tools of this agent are many, and each of them has a text of its own." * 2
KEYS = ["key-of-anna", "key-of-bert"]


def ask(server: LiveServer, header: str, **body: Any) -> Any:
    """Why no more was found of a prompt that begins with a header."""
    answer = server.complete(
        prompt=f"{header}{REST}", include_metrics=True, **{"max_tokens": 1} | body
    )
    assert answer.status_code == 200, answer.text
    (metrics,) = answer.json()["metrics"]
    return metrics.get("miss", "nothing is told")


def test_nothing_of_an_ended_request_is_held(shared: LiveServer) -> None:
    """Who tells of misses, the page or the log keeps what it tells, and no prompt as a request."""
    first = 3000
    for number in range(12):
        shared.complete(prompt=[first, *range(first + number, first + 40)], max_tokens=2, n=2)
    gc.collect()
    held = [one for one in gc.get_objects() if isinstance(one, Request)]
    held = [one for one in held if one.prompt_token_ids[0] == first]
    assert len(held) <= 1, "the last one may be a step's"


def test_an_answer_says_what_was_lost_and_text_only_where_texts_are_shown() -> None:
    for shown in (False, True):
        with live_server(dashboard_show_text=shown) as server:
            assert ask(server, HEADERS[0])["reason"] == "new"
            miss = ask(server, HEADERS[1])
            assert miss["reason"] == "differed" and miss["lost_tokens"] > 32
            assert miss["lost_seconds"] > 0
            assert miss["text"].startswith(f"{miss['lost_tokens']} cached tokens lost at token ")
            if shown:
                assert (miss["stood"], miss["stands"]) == HEADERS
                assert HEADERS[0] in miss["text"] and HEADERS[1] in miss["text"]
            else:
                assert "a3f" not in json.dumps(miss) and "b7c" not in json.dumps(miss)
            assert ask(server, HEADERS[1]) is None


def test_a_stream_ends_with_it(shared: LiveServer) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    body = {"prompt": "A text that nobody else sends" + REST, "max_tokens": 1, **options}
    answer = shared.complete(**body, include_metrics=True).text
    assert '"miss":{"text":"nothing like it was sent before' in answer


def test_keys_learn_nothing_of_each_other() -> None:
    for shared_cache in (False, True):
        with live_server(api_key=KEYS, cache_salt_by_key=shared_cache) as server:
            told = []
            for key, header in ((0, 0), (1, 1), (0, 1)):
                server.http.headers["authorization"] = f"Bearer {KEYS[key]}"
                told.append(ask(server, HEADERS[header]))
            assert [one and one["reason"] for one in told][:2] == ["new", "new"]


def test_it_is_told_where_cached_tokens_are() -> None:
    with live_server(enable_prompt_tokens_details=False) as server:
        assert ask(server, HEADERS[0]) == "nothing is told"


@pytest.mark.parametrize("shown", [False, True])
def test_those_who_watch_and_the_log_say_it_too(
    shown: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        live_server(dashboard_show_text=shown, uvicorn_log_level="debug") as server,
        caplog.at_level(logging.DEBUG, "quire.http.live.state"),
    ):
        ask(server, HEADERS[0])
        server.executor.hold()
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(partial(ask, max_tokens=60), server, HEADERS[1])
            server.step_until(lambda: bool(server.engine._requests))
            (name,) = server.engine._requests
            found = thread_of(server, f"/v1/quire/requests/{name}")
            server.executor.release()
            miss = done.result(PATIENCE)
        assert found["request"]["miss"]["position"] == miss["position"]
        assert (HEADERS[0] in json.dumps(found["request"])) is shown
    (line,) = (one.getMessage() for one in caplog.records if "lost at token" in one.getMessage())
    assert line == f"request {name}: {miss['text']}"


def thread_of(server: LiveServer, path: str) -> Any:
    """An answer from between two steps of a held engine, in which the one request was let in."""
    with ThreadPoolExecutor(1) as thread:
        while True:
            asked = thread.submit(server.http.get, path)
            server.step_until(asked.done)
            told = asked.result().json()
            if told.get("request", {}).get("miss"):
                return told

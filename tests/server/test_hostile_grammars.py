"""Grammars that crash, loop or stall what follows them cost their own request, and nobody else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.server_process import ServerProcess
from support.slow import random_runs

AMBIGUOUS = "start: e\ne: e e e | e e | /[a-z ]/"


@pytest.fixture(scope="module")
def served() -> Iterator[ServerProcess]:
    with ServerProcess("-m", "quire", "serve", "--port", "0", "--served-model-name", "demo") as one:
        assert one.url
        yield one


def chain(links: int, how: str) -> dict[str, Any]:
    """A schema that refers to one that refers to the next."""
    definitions: dict[str, Any] = {}
    for number in range(links):
        link = {"$ref": f"#/$defs/d{number + 1}"}
        shapes = {"items": {"type": "array", "items": link}, "allOf": {"allOf": [link]}}
        definitions[f"d{number}"] = shapes.get(how, link)
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{links}": {"type": "string"}}}


def doors(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Bodies by path, for all that take a schema."""
    hello, named = [{"role": "user", "content": "Hi"}], {"name": "x", "schema": schema}
    tool = {"name": "f", "parameters": schema}
    return {
        "/v1/completions": {"prompt": "Hi", "structured_outputs": {"json": schema}},
        "/v1/chat/completions": {
            "messages": hello,
            "response_format": {"type": "json_schema", "json_schema": named},
        },
        "/v1/chat/completions?tools": {
            "messages": hello,
            "tools": [{"type": "function", "function": tool}],
            "tool_choice": "required",
        },
        "/v1/responses": {"input": "Hi", "text": {"format": {"type": "json_schema", **named}}},
        "/v1/messages": {
            "messages": hello,
            "max_tokens": 5,
            "tools": [{"name": "f", "input_schema": schema}],
            "tool_choice": {"type": "any"},
        },
        "/api/chat": {"messages": hello, "format": schema},
        "/api/generate": {"prompt": "Hi", "format": schema},
        "/completion": {"prompt": "Hi", "json_schema": schema},
    }


@pytest.mark.parametrize(
    ("links", "how"), [(3_000, "references"), (1_101, "items"), (1_101, "allOf")]
)
def test_a_chain_of_references_is_refused_at_every_door(
    served: ServerProcess, links: int, how: str
) -> None:
    for path, body in doors(chain(links, how)).items():
        answer = httpx.post(f"{served.url}{path}", json={"model": "demo", **body}, timeout=60)
        assert answer.status_code == 400, (path, answer.text[:300])
        assert served.process.poll() is None
    assert served.complete(model="demo").status_code == 200


def longest_gap(served: ServerProcess) -> float:
    """The most seconds between two pieces of a stream, or before its first."""
    body = {"model": "demo", "prompt": "Hi", "max_tokens": 200, "stream": True, "ignore_eos": True}
    longest, last = 0.0, time.monotonic()
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as stream:
        for _ in stream.iter_raw():
            now = time.monotonic()
            longest, last = max(longest, now - last), now
    return longest


@pytest.mark.timeout(900)
@pytest.mark.parametrize("n", [8, 64] if random_runs(0) else [64])
def test_an_ambiguous_grammar_stalls_nobody(served: ServerProcess, n: int) -> None:
    """Its own request ends with a reason; streams and the health check of others go on.

    The worker that follows it leaves the cores to others, so on a busy machine it takes minutes.
    """
    answers = list[httpx.Response]()

    def attack() -> None:
        fields = {"structured_outputs": {"grammar": AMBIGUOUS}, "n": n, "temperature": 1.0}
        body = {"prompt": "x", "max_tokens": 300, **fields}
        url = f"{served.url}/v1/completions"
        answers.append(httpx.post(url, json={"model": "demo", **body}, timeout=800))

    usual = longest_gap(served)
    attacker = threading.Thread(target=attack)
    attacker.start()
    longest = 0.0
    while attacker.is_alive():
        longest = max(longest, longest_gap(served))
    assert httpx.get(f"{served.url}/health", timeout=60).status_code == 200
    error = json.loads(answers[0].content)["error"]
    assert answers[0].status_code == 400 and error["param"] == "structured_outputs", error
    assert "the grammar has become too complex" in error["message"]
    # It was 5 and 9; a quarter of a second on a machine of one's own.
    assert longest < 2.0 + 10 * usual, (longest, usual)

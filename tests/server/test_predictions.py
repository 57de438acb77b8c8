"""What is told of speculation: to the request that sends a prediction, and in /metrics."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.protocol import Request
from support.drafting import foreseen
from support.live_server import LiveServer, events

TEXT = "The quick brown fox jumps over the lazy dog, and then once more over the dog."
PREDICTION = {"type": "content", "content": TEXT}


def details(answer: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = answer["usage"]["completion_tokens_details"]
    return {name: found[name] for name in found if name.endswith("_prediction_tokens")}


def told(accepted: int, rejected: int) -> dict[str, int]:
    return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}


@pytest.mark.parametrize("content", [TEXT, [{"type": "text", "text": one} for one in (TEXT, "!")]])
def test_a_prediction_reaches_its_request_as_tokens(shared: LiveServer, content: Any) -> None:
    seen: list[Request] = []
    shared.executor.fail = lambda step: seen.extend(one.request for one in step.opened)
    body = {"prediction": {"type": "content", "content": content}, "max_tokens": 1}
    shared.chat(**body)
    shared.complete(prompt=["Once", "Twice"], **body)
    session = shared.http.post("/v1/sessions", json={}).json()["id"]
    shared.http.post(f"/v1/sessions/{session}/append", json={"input": "Once"})
    shared.http.post(f"/v1/sessions/{session}/generate", json=body)
    shared.http.delete(f"/v1/sessions/{session}")
    shared.executor.fail = lambda step: None
    text = content if isinstance(content, str) else TEXT + "!"
    expected = tuple(shared.tokenizer.encode(text, add_special_tokens=False))
    assert [one.prediction for one in seen] == [expected] * 4


def test_usage_tells_what_came_of_a_prediction(server: LiveServer) -> None:
    server.script(TEXT)
    with foreseen(server) as drafts:
        answers = [
            server.chat(prediction=PREDICTION, n=2).json(),
            server.complete(prompt="Once", prediction=PREDICTION, n=2, max_tokens=99).json(),
        ]
        streamed = {"stream": True, "stream_options": {"include_usage": True}, "n": 2}
        answers.append(events(server.chat(prediction=PREDICTION, **streamed))[-1])
        metrics = server.chat(include_metrics=True, n=2).json()["metrics"][0]
    (accepted, rejected), rest = divmod(drafts.accepted, 4), drafts.drafted % 4
    assert rest == rejected == 0 and accepted > 10
    rejected = drafts.drafted // 4 - accepted
    assert [details(answer) for answer in answers] == [told(accepted, rejected)] * 3
    assert metrics["num_accepted_tokens"] == accepted
    assert metrics["num_draft_tokens"] == accepted + rejected
    assert details(server.chat(prediction=PREDICTION).json()) == told(0, 0)
    assert details(server.chat().json()) == told(0, 0)
    assert "completion_tokens_details" not in server.complete(prompt="Once").json()["usage"]


def test_what_is_right_beyond_the_end_is_not_accepted(server: LiveServer) -> None:
    tokens = server.script(TEXT)
    stop = server.tokenizer.decode(tokens[:9]).removeprefix(server.tokenizer.decode(tokens[:8]))
    with foreseen(server) as drafts:
        answer = server.chat(prediction=PREDICTION, stop=stop).json()
    usage, counts = answer["usage"], details(answer)
    accepted = counts["accepted_prediction_tokens"]
    assert 0 < accepted < drafts.accepted and accepted < usage["completion_tokens"]
    assert sum(counts.values()) == drafts.drafted


def test_metrics_tell_of_drafts_where_there_are_any(server: LiveServer) -> None:
    prefix = "quire:spec_decode_"
    tokens = server.script(TEXT)
    server.chat()
    assert prefix not in server.http.get("/metrics").text
    with foreseen(server) as drafts:
        assert server.metric(f"{prefix}num_drafts_total") == 0
        assert server.metric(f"{prefix}num_accepted_tokens_per_pos_total", position="15") == 0
        server.chat(n=2)
        counts = {
            name: server.metric(f"{prefix}num_{name}_total")
            for name in ("drafts", "draft_tokens", "accepted_tokens")
        }
        by_position = [
            server.metric(f"{prefix}num_accepted_tokens_per_pos_total", position=str(position))
            for position in range(16)
        ]
        assert server.metric(f"{prefix}drafter_bytes") == drafts.num_bytes == 12345
        assert counts["draft_tokens"] == drafts.drafted
        assert counts["accepted_tokens"] == sum(by_position) == drafts.accepted
        assert counts["drafts"] >= by_position[0] > by_position[4] > by_position[5] == 0
    name = "quire:inter_token_latency_seconds_count"
    generated = 3 * (len(tokens) + 1)
    assert server.metric(name) == generated - drafts.accepted - 3  # those that came together: once

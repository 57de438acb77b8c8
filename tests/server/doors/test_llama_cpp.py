"""llama.cpp's own API: POST /completion, /props and /slots."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.live_server import MAX_MODEL_LEN, MODEL, LiveServer, eventually


def complete(server: LiveServer, **body: Any) -> Any:
    response = server.http.post("/completion", json={"prompt": "hello", **body})
    assert response.status_code == 200, response.text
    return response.json()


def encoded(server: LiveServer, text: str) -> list[int]:
    return server.tokenizer.encode(text, add_special_tokens=False)


def stream(server: LiveServer, **body: Any) -> list[Any]:
    response = server.http.post("/completion", json={"prompt": "hello", "stream": True, **body})
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line[6:]) for line in response.text.splitlines() if line]


def test_a_stream_says_what_the_whole_answer_says(server: LiveServer) -> None:
    tokens = server.script("A short tale.")
    whole = complete(server, return_tokens=True)
    assert whole["content"] == "A short tale." and whole["stop"] is True
    assert whole["tokens"][: len(tokens)] == tokens and whole["tokens_evaluated"] == 2
    assert (whole["stop_type"], whole["stopping_word"]) == ("eos", "")
    assert complete(server)["tokens"] == []
    *events, last = stream(server)
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [token for event in events for token in event["tokens"]] == whole["tokens"]
    assert {event["stop"] for event in events} == {False} and last["stop"] is True
    assert last.keys() == whole.keys() and last["timings"]["predicted_n"] == len(tokens) + 1
    assert complete(server, n_predict=1)["stop_type"] == "limit"
    stopped = complete(server, stop=["tale"])
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", "tale")


def test_several_prompts_have_a_list_of_answers(server: LiveServer) -> None:
    tokens = server.tokenizer.encode("hello", add_special_tokens=False)
    answers = complete(server, prompt=["hello", tokens], n_predict=4, seed=3)
    assert [answer["index"] for answer in answers] == [0, 1]
    assert answers[0]["content"] == answers[1]["content"]
    assert complete(server, prompt=tokens, n_predict=4, seed=3)["content"] == answers[0]["content"]
    streamed = stream(server, prompt=["hello", tokens], n_predict=4, seed=3)
    assert sorted(event["index"] for event in streamed if event["stop"]) == [0, 1]


def test_options_at_their_defaults_pass_and_others_reach_the_engine(server: LiveServer) -> None:
    seen = []
    server.executor.fail = lambda step: seen.extend(one.request.params for one in step.opened)
    defaults = {
        "dry_multiplier": 0.0, "dry_base": 1.75, "dynatemp_range": 0.0, "xtc_probability": 0.0,
        "xtc_threshold": 0.1, "mirostat": 0, "typical_p": 1.0, "n_keep": 0, "grammar": "",
        "id_slot": -1, "cache_prompt": True, "min_keep": 0, "t_max_predict_ms": 0, "seed": -1,
        "repeat_last_n": 64, "repeat_penalty": 1.0, "n_probs": 0, "logit_bias": [], "stop": [],
    }  # fmt: skip
    complete(server, **defaults, n_predict=2)
    complete(server, ignore_eos=True, logit_bias=[[7, 2], [8, False]], n_predict=2, min_p=0.1)
    complete(server, logit_bias={"7": 2}, n_predict=2, grammar='root ::= "a"')
    complete(server, json_schema={"type": "object"}, n_predict=2)
    complete(server, logit_bias=[["hello", -5], ["7", 2]], n_predict=2)
    told = complete(server, logit_bias={"hello": -5, "7": 2}, n_predict=2)["generation_settings"]
    plain, edited, mapped, structured, *texts = seen
    assert mapped.structured_outputs.grammar and structured.structured_outputs.json
    assert plain.seed is None and plain.logit_bias is None and plain.logprobs is None
    assert edited.ignore_eos and edited.logit_bias == {7: 2.0, 8: -100.0} and edited.min_p == 0.1
    assert mapped.logit_bias == {7: 2.0}
    hello, seven = ([*encoded(server, text)] for text in ("hello", "7"))
    assert texts[0].logit_bias == dict.fromkeys(hello, -5.0) | dict.fromkeys(seven, 2.0)
    assert texts[1].logit_bias == dict.fromkeys(hello, -5.0) | {7: 2.0}
    assert told["logit_bias"] == [{"token": 7, "bias": 2.0}] + [
        {"token": token, "bias": -5.0} for token in hello
    ]


def test_probabilities(server: LiveServer) -> None:
    tokens = server.script("A tale.")
    ask = {"n_predict": len(tokens), "n_probs": 2}
    told = complete(server, **ask)["completion_probabilities"]
    assert [entry["id"] for entry in told] == tokens
    assert [len(entry["top_logprobs"]) for entry in told] == [2] * len(tokens)
    streamed = [
        entry for event in stream(server, **ask)
        for entry in event.get("completion_probabilities", [])
    ]  # fmt: skip
    assert streamed == told


def test_probabilities_of_what_is_drawn_from(server: LiveServer) -> None:
    tokens = server.script("A tale.")
    ask = {"n_predict": len(tokens), "n_probs": 2, "post_sampling_probs": True}
    seen = []
    server.executor.fail = lambda step: seen.extend(one.request.params for one in step.opened)
    told = complete(server, **ask)["completion_probabilities"]
    assert [entry["id"] for entry in told] == tokens and seen[0].logprobs_of_draw
    for entry in told:
        assert entry.keys() == {"id", "token", "prob", "bytes", "top_probs"}
        assert 0 < entry["prob"] <= 1 and all(0 < one["prob"] <= 1 for one in entry["top_probs"])
        assert all(one.keys() == {"id", "token", "prob", "bytes"} for one in entry["top_probs"])
    streamed = [
        entry for event in stream(server, **ask)
        for entry in event.get("completion_probabilities", [])
    ]  # fmt: skip
    assert streamed == told


@pytest.mark.parametrize("prompt", ["hello", [5, "hello", 6]])
def test_timings_of_each_event(server: LiveServer, prompt: Any) -> None:
    events = stream(server, prompt=prompt, n_predict=3, timings_per_token=True)
    told = [event["timings"] for event in events]
    assert [one["predicted_n"] for one in told] == [1, 2, 3, 3]
    assert {one["prompt_n"] for one in told} == {events[-1]["tokens_evaluated"]}
    for name in ("prompt_ms", "predicted_ms"):
        times = [one[name] for one in told]
        assert times == sorted(times) and times[-1] > 0
    assert not any("timings" in event for event in stream(server, n_predict=3)[:-1])


def test_a_prompt_may_be_an_object(server: LiveServer) -> None:
    ask: dict[str, Any] = {"n_predict": 4, "seed": 3}
    text = {"prompt_string": "hello", "multimodal_data": []}
    plain = complete(server, **ask)["content"]
    assert complete(server, prompt=text, **ask)["content"] == plain
    answers = complete(server, prompt=[encoded(server, "hello"), text], **ask)
    assert [answer["content"] for answer in answers] == [plain, plain]


def test_what_a_text_has_run_into(server: LiveServer) -> None:
    full = complete(server, prompt=[5] * 250, n_predict=-1)
    assert (full["stop_type"], full["truncated"], full["tokens_predicted"]) == ("limit", True, 6)
    few = complete(server, prompt=[5] * 250, n_predict=2)
    assert (few["stop_type"], few["truncated"], few["has_new_line"]) == ("limit", False, False)
    server.script("A tale.\nAnother.")
    ended = complete(server)
    assert (ended["stop_type"], ended["truncated"], ended["has_new_line"]) == ("eos", False, True)


def test_timings_are_of_what_was_computed(server: LiveServer) -> None:
    ask: dict[str, Any] = {"prompt": [*range(5, 25)], "n_predict": 16}
    first, again = (complete(server, **ask)["timings"] for _ in range(2))
    assert (first["cache_n"], first["prompt_n"]) == (0, 20)
    assert again["cache_n"] >= 16 and again["cache_n"] + again["prompt_n"] == 20
    assert again["predicted_per_second"] == pytest.approx(15_000 / again["predicted_ms"])
    one = complete(server, n_predict=1)["timings"]
    assert one["predicted_n"] == 1
    assert one["predicted_per_second"] == one["predicted_per_token_ms"] == 0.0
    assert all(value is not None and value >= 0 for value in one.values())


def test_props_and_slots(server: LiveServer) -> None:
    props = server.http.get("/props").json()
    slots = server.http.get("/slots").json()
    assert props["default_generation_settings"]["n_ctx"] == slots[0]["n_ctx"] == MAX_MODEL_LEN
    assert props["total_slots"] == len(slots) == 16
    assert props["default_generation_settings"]["params"]["speculative.n_max"] == 0
    assert not any(slot["is_processing"] or slot["speculative"] for slot in slots)
    server.executor.hold()
    server.executor.let(steps=1)
    with server.http.stream("POST", "/completion", json={"prompt": "hello", "stream": True}):
        busy = server.http.get("/slots").json()
        assert [slot["is_processing"] for slot in busy].count(True) == 1
        assert not any("prompt" in slot for slot in busy), "they are other clients'"
    server.executor.release()
    eventually(server.is_idle)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [5, ["mixed"]]}, "prompt"),
        ({"prompt": {"prompt_string": 5}}, "prompt"),
        ({"prompt": {"prompt_string": "x", "multimodal_data": ["iVBORw0K"]}}, "prompt"),
        ({"prompt": [5, {"prompt_string": "x"}]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [[5]] * 2049}, "prompt"),
        ({"n_predict": 0}, "n_predict"),
        ({"n_predict": "many"}, "n_predict"),
        ({"n_probs": 101}, "n_probs"),
        ({"temperature": -1}, "temperature"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"dry_multiplier": 0.8}, "dry_multiplier"),
        ({"samplers": ["top_k"]}, "samplers"),
        ({"mirostat": 1}, "mirostat"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"logit_bias": [["hello", "much"]]}, "logit_bias"),
        ({"logit_bias": [[None, 1]]}, "logit_bias"),
        ({"logit_bias": [[str(n), 1] for n in range(257)]}, "logit_bias"),
        ({"response_fields": ["content"]}, "response_fields"),
        ({"logit_bias": [[5, "much"]]}, "logit_bias.5"),
        ({"logit_bias": 5}, "logit_bias"),
        ({"json_schema": {"not": {}}}, "json_schema"),
        ({"json_schema": "x"}, "json_schema"),
        ({"grammar": "root :="}, "grammar"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "grammar"),
        ({"n": 2}, "n"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_bad_bodies(shared: LiveServer, body: Any, named: str, stream: bool) -> None:
    body = {"prompt": "hello", "stream": stream, **body}
    path = "/completions" if stream else "/completion"
    response = shared.http.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error.keys() == {"code", "message", "type"} and error["code"] == 400
    assert named in error["message"] and "max_tokens" not in error["message"]


def test_unknown_models_are_not_found(shared: LiveServer) -> None:
    assert complete(shared, model=MODEL, n_predict=1)["model"] == MODEL
    response = shared.http.post("/completion", json={"model": "gpt-9", "prompt": "x"})
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"

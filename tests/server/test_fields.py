"""Fields beside the sampling parameters: what each does, which pass, and which are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.live_server import (
    MAX_MODEL_LEN,
    MODEL,
    LiveServer,
    Post,
    events,
    eventually,
    live_server,
)

ASK = {"seed": 7, "max_tokens": 4}
ASSISTANT = {"role": "assistant", "content": "Once upon a"}
ENDING_IN_OURS = [{"role": "user", "content": "Tell me a story"}, ASSISTANT]

# Of both endpoints: what changes nothing about the text.
PASSES: list[dict[str, Any]] = [
    {"metadata": {"run": "7"}, "store": True, "service_tier": "flex"},
    {"prompt_cache_key": "a", "prompt_cache_retention": "24h", "safety_identifier": "b"},
    {"prediction": {"type": "content", "content": "x"}},
    {"prediction": {"type": "content", "content": [{"type": "text", "text": "x"}]}},
    {"prediction": {"type": "content", "content": ""}},
    {"detokenize": True, "spaces_between_special_tokens": True, "documents": []},
    {"kv_transfer_params": {}, "mm_processor_kwargs": {}, "vllm_xargs": {}, "functions": []},
    {
        "kv_transfer_params": {  # as vLLM's proxies send it where nothing is handed over
            "do_remote_decode": False,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        }
    },
    {"logits_processors": [], "cache_prompt": True, "parallel_tool_calls": True},
    {"add_special_tokens": None, "truncate_prompt_tokens": None, "truncation_side": "left"},
    {"truncate_prompt_tokens": 200, "echo": False, "return_token_ids": False},
]
CHATS_PASS: list[dict[str, Any]] = [
    {"add_generation_prompt": True, "continue_final_message": False, "verbosity": "low"},
    {"add_special_tokens": False, "chat_template": None, "echo": True},
    {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]}]},
    {"max_tokens": 250, "max_completion_tokens": 4},  # the newer name counts
]  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"store": 1}, "store", "store must be true or false"),
    ({"detokenize": False}, "detokenize", "return_token_ids"),
    ({"logits_processors": ["x"]}, "logits_processors", "no code of a request's"),
    ({"kv_transfer_params": {"do_remote_decod": True}}, "kv_transfer_params.do_remote_decod",
     "is not supported"),
    ({"kv_transfer_params": {"remote_port": True}}, "kv_transfer_params", "must be a number"),
    ({"kv_transfer_params": {"do_remote_decode": 1}}, "kv_transfer_params", "true or false"),
    ({"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": True}},
     "kv_transfer_params", "cannot be given together"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1, or -1"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "from -1 to"),
    ({"truncation_side": "middle"}, "truncation_side", "'left' or 'right'"),
    ({"request_id": "two words"}, "request_id", "pattern"),
    ({"request_id": "x" * 129}, "request_id", "at most 128"),
    ({"prediction": "x"}, "prediction", "dictionary"),
    ({"prediction": {"type": "text", "content": "x"}}, "prediction.type", "'content'"),
    ({"prediction": {"type": "content"}}, "prediction.content", "required"),
    ({"prediction": {"type": "content", "content": [{"type": "image_url"}]}},
     "prediction.content", "parts of type text"),
    ({"prediction": {"type": "content", "content": " a" * 300}}, "prediction",
     "with max_model_len 256 it may have at most 255"),
    ({"prediction": {"type": "content", "content": "x"}, "use_beam_search": True, "n": 2},
     "prediction", "cannot be combined with use_beam_search"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}},
     "stream_options.include_obfuscation", "chunks are as long as they are"),
]  # fmt: skip
CHATS_REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"chat_template": "{{ 1 }}"}, "chat_template", "--trust-request-chat-template"),
    ({"documents": [{"text": "x"}]}, "documents", "takes no documents"),
    ({"documents": ["x"]}, "documents[0]", "dict"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message",
     "cannot both be true"),
    ({"verbosity": "loud"}, "verbosity", "'low', 'medium' or 'high'"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "from 1"),
]  # fmt: skip


def name(value: Any) -> str:
    return str(value)[:40]


@pytest.mark.parametrize("fields", PASSES, ids=name)
def test_what_asks_for_nothing_passes(shared: LiveServer, fields: dict[str, Any]) -> None:
    for ask in (shared.chat, shared.complete):
        prompt = {} if ask == shared.chat else {"prompt": "Once"}
        plain, padded = ask(**prompt, **ASK), ask(**prompt, **ASK, **fields)
        assert padded.json()["choices"] == plain.json()["choices"]


@pytest.mark.parametrize("fields", CHATS_PASS, ids=name)
def test_a_chat_s_fields_that_ask_for_nothing(shared: LiveServer, fields: dict[str, Any]) -> None:
    plain, padded = shared.chat(**ASK), shared.chat(**{**ASK, **fields})
    assert padded.json()["choices"] == plain.json()["choices"]


@pytest.mark.parametrize(("fields", "param", "words"), [*REFUSED, *CHATS_REFUSED], ids=name)
def test_what_cannot_be_done_is_refused_by_name(
    shared: LiveServer, fields: dict[str, Any], param: str, words: str
) -> None:
    answers = [shared.chat(**fields)]
    if (fields, param, words) in REFUSED:
        answers.append(shared.complete(prompt="x", **fields))
    for answer in answers:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert words in answer.json()["error"]["message"]


def test_without_a_name_the_model_is_the_one_that_is_served(shared: LiveServer) -> None:
    for path, body in (("completions", {"prompt": "x"}), ("chat/completions", {
        "messages": [{"role": "user", "content": "x"}]})):  # fmt: skip
        answer = shared.http.post(f"/v1/{path}", json={**body, "max_tokens": 1})
        assert answer.json()["model"] == MODEL


# -- prompts -----------------------------------------------------------------------------------


def prompt_of(server: LiveServer, **fields: Any) -> str:
    """What a chat comes to in the model's words."""
    answer = server.chat(return_token_ids=True, **{**ASK, **fields}).json()
    return server.tokenizer.decode(answer["prompt_token_ids"], skip_special_tokens=False)


def test_a_conversation_s_end_is_as_it_is_asked_for(shared: LiveServer) -> None:
    usual = prompt_of(shared, messages=ENDING_IN_OURS)
    bare = prompt_of(shared, messages=ENDING_IN_OURS, add_generation_prompt=False)
    assert usual.startswith(bare) and len(usual) > len(bare)
    going_on = prompt_of(shared, messages=ENDING_IN_OURS, continue_final_message=True)
    assert going_on.endswith(ASSISTANT["content"]) and bare.startswith(going_on)


def test_an_answer_that_goes_on_may_begin_with_what_it_goes_on(shared: LiveServer) -> None:
    fields: dict[str, Any] = {**ASK, "messages": ENDING_IN_OURS, "continue_final_message": True}
    plain = shared.chat(**fields).json()["choices"][0]["message"]["content"]
    echoed = shared.chat(**fields, echo=True).json()["choices"][0]["message"]["content"]
    assert echoed == ASSISTANT["content"] + plain
    chunks = events(shared.chat(**fields, echo=True, stream=True))
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == echoed


def test_a_developer_is_a_system_where_the_template_knows_none(shared: LiveServer) -> None:
    def prompt(role: str) -> str:
        turns = [{"role": role, "content": "Be brief."}, {"role": "user", "content": "x"}]
        return prompt_of(shared, messages=turns)

    assert prompt("developer") == prompt("system") != prompt("user")


@pytest.mark.parametrize(("fields", "kept"), [
    ({"truncate_prompt_tokens": 5}, slice(-5, None)),
    ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, slice(5)),
    ({"truncate_prompt_tokens": -1}, slice(-(MAX_MODEL_LEN - 4), None)),
    ({"truncate_prompt_tokens": 255}, slice(-255, None)),
])  # fmt: skip
def test_a_prompt_is_cut(shared: LiveServer, fields: dict[str, Any], kept: slice) -> None:
    text = "".join(f" word{number}" for number in range(100))
    whole = shared.tokenizer.encode(text)
    assert len(whole) > MAX_MODEL_LEN
    for prompt in (text, whole):
        answer = shared.complete(prompt=prompt, **ASK, **fields, return_token_ids=True).json()
        (choice,) = answer["choices"]
        assert choice["prompt_token_ids"] == whole[kept]
        assert len(choice["token_ids"]) == answer["usage"]["completion_tokens"]
    turns = [{"role": "user", "content": text}]
    answer = shared.chat(messages=turns, **ASK, **fields, return_token_ids=True).json()
    assert answer["prompt_token_ids"] == shared.engine.input_processor.tokenizer.encode(
        shared.tokenizer.apply_chat_template(turns, {}), add_special_tokens=False
    )[kept]  # fmt: skip


@pytest.fixture(scope="module")
def trusting() -> Iterator[LiveServer]:
    options = {"trust_request_chat_template": True, "truncate_max_tokens": False, "max_logprobs": 2}
    with live_server(**options) as server:
        yield server


def test_a_request_s_own_template(trusting: LiveServer) -> None:
    template = "{% for one in documents %}[{{ one.text }}]{% endfor %}{{ messages[0].content }}:"
    fields = {"chat_template": template, "documents": [{"text": "a"}, {"text": "b"}]}
    assert prompt_of(trusting, **fields) == "[a][b]hello:"
    wrong = trusting.chat(chat_template="{% for %}")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "chat_template")


# -- answers -----------------------------------------------------------------------------------


def test_tokens_are_told_in_whole_and_in_stream(shared: LiveServer) -> None:
    for ask, prompt in ((shared.chat, {}), (shared.complete, {"prompt": ["Once", "Twice"]})):
        whole = ask(**prompt, **ASK, n=2, return_token_ids=True).json()
        chunks = events(ask(**prompt, **ASK, n=2, return_token_ids=True, stream=True))
        for choice in whole["choices"]:
            own = [one for one in chunks if one["choices"][0]["index"] == choice["index"]]
            assert len(choice["token_ids"]) == 4
            told = [token for one in own for token in one["choices"][0]["token_ids"]]
            assert told == choice["token_ids"]
            places = [whole, *own] if ask == shared.chat else [
                choice, *(one["choices"][0] for one in own)]  # fmt: skip
            prompts = [one["prompt_token_ids"] for one in places if one.get("prompt_token_ids")]
            assert len(prompts) == 2 and prompts[0] == prompts[1] != []


def test_log_probabilities_may_name_tokens_by_their_ids(server: LiveServer) -> None:
    tokens = server.script("A tale.")
    names = [f"token_id:{token}" for token in tokens]
    ask: dict[str, Any] = {"max_tokens": len(tokens), "return_tokens_as_token_ids": True}
    content = server.chat(**ask, logprobs=True, top_logprobs=1).json()["choices"][0]["logprobs"]
    assert [entry["token"] for entry in content["content"]] == names
    tops = [entry["top_logprobs"][0]["token"] for entry in content["content"]]
    assert all(top.startswith("token_id:") for top in tops)
    plain = {"prompt": "x", "max_tokens": len(tokens), "logprobs": 1}
    usual = server.complete(**plain).json()["choices"][0]["logprobs"]
    by_id = server.complete(**{**plain, **ask}).json()["choices"][0]["logprobs"]
    assert by_id["tokens"] == names and by_id["text_offset"] == usual["text_offset"]


def test_every_chunk_may_tell_the_usage(shared: LiveServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for ask, prompt in ((shared.chat, {}), (shared.complete, {"prompt": "Once"})):
        *chunks, last = events(ask(**prompt, **ASK, stream=True, stream_options=options))
        usages = [chunk["usage"] for chunk in chunks]
        assert {usage["prompt_tokens"] for usage in usages} == {last["usage"]["prompt_tokens"]}
        counts = [usage["completion_tokens"] for usage in usages]
        assert counts == ([0] if ask == shared.chat else []) + [1, 2, 3, 4]
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == 4
    alone = {"continuous_usage_stats": True}
    assert all("usage" not in one for one in events(shared.chat(
        **ASK, stream=True, stream_options=alone)))  # fmt: skip


def test_an_answer_goes_by_the_request_s_id(shared: LiveServer) -> None:
    assert shared.chat(**ASK, request_id="mine").json()["id"] == "chatcmpl-mine"
    several = [shared.complete(prompt="x", **ASK, request_id="mine") for _ in range(2)]
    assert [one.json()["id"] for one in several] == ["cmpl-mine"] * 2


def test_two_requests_may_go_by_one_id(server: LiveServer) -> None:
    server.executor.hold()
    body = {"model": MODEL, "prompt": "x", "max_tokens": 2, "request_id": "mine"}
    with Post(server, body) as first, Post(server, body) as second:
        eventually(lambda: server.http.get("/load").json()["server_load"] == 2)
        server.executor.release()
        assert b'"cmpl-mine"' in first.read_until(b'"usage"')
        assert b'"cmpl-mine"' in second.read_until(b'"usage"')


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_alone_is_told_and_scored(shared: LiveServer, stream: bool) -> None:
    fields: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 0, "echo": True}
    if stream:
        chunks = events(shared.complete(**fields, stream=True))
        assert "".join(one["choices"][0]["text"] for one in chunks) == fields["prompt"]
        return
    answer = shared.complete(**fields, logprobs=1, return_token_ids=True).json()
    (choice,), usage = answer["choices"], answer["usage"]
    assert (choice["text"], choice["finish_reason"]) == (fields["prompt"], "length")
    assert "".join(choice["logprobs"]["tokens"]) == fields["prompt"]
    assert choice["token_ids"] == [] and usage["completion_tokens"] == 0
    assert usage["total_tokens"] == usage["prompt_tokens"] == len(choice["prompt_token_ids"])


def test_max_tokens_above_what_is_left_are_cut_and_the_answer_says_so(
    shared: LiveServer, trusting: LiveServer
) -> None:
    fields: dict[str, Any] = {"prompt": [7] * 250, "max_tokens": 9, "ignore_eos": True}
    answer = shared.complete(**fields).json()
    assert answer["usage"]["completion_tokens"] == 6
    (warning,) = answer["warnings"]
    assert "max_tokens was cut from 9 to 6" in warning and "250 tokens" in warning
    chunks = events(shared.complete(**fields, stream=True))
    assert [chunk.get("warnings") for chunk in chunks] == [None] * 5 + [[warning]]
    assert "warnings" not in shared.complete(**{**fields, "max_tokens": 6}).json()
    assert shared.chat(max_completion_tokens=256).json()["warnings"]
    refused = trusting.complete(**fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
    refused = trusting.chat(max_completion_tokens=256)
    assert refused.json()["error"]["param"] == "max_completion_tokens"


def test_the_operator_bounds_log_probabilities(trusting: LiveServer) -> None:
    assert trusting.complete(prompt="x", logprobs=2).status_code == 200
    for fields in ({"logprobs": 3}, {"prompt_logprobs": 3}):
        refused = trusting.complete(prompt="x", **fields)
        assert "--max-logprobs" in refused.json()["error"]["message"]
    refused = trusting.chat(logprobs=True, top_logprobs=3)
    assert refused.json()["error"]["param"] == "top_logprobs"

"""OpenAI's Responses, through OpenAI's own client and by hand."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic_core import from_json

from quire.http.doors import responses, responses_requests
from quire.http.doors.responses import ResponseStore
from quire.http.doors.responses_writer import ResponseAnswer
from quire.http.errors import UnknownResponseError
from support.live_server import MODEL, LiveServer, live_server
from support.speaking import SAID, WEATHER, written

TOOL: Any = {"type": "function", "strict": False, **WEATHER["function"]}
FEW: Any = {"model": MODEL, "max_output_tokens": 3}


def types(events: list[Any]) -> list[str]:
    return [event.type for event in events]


def test_a_stream_comes_to_what_the_whole_response_says(speaking: LiveServer) -> None:
    speaking.script(SAID)
    ask: Any = {"model": MODEL, "input": "weather?", "tools": [TOOL]}
    whole = speaking.openai.responses.create(**ask)
    reasoning, message, *calls = whole.output
    assert reasoning.type == "reasoning" and reasoning.content
    assert reasoning.content[0].text == "The user wants weather."
    assert message.type == "message" and whole.output_text == "I look."
    assert [(call.name, call.arguments) for call in calls if call.type == "function_call"] == [
        ("weather", '{"city": "Paris"}'),
        ("weather", "{}"),
    ]
    assert whole.status == "completed" and whole.usage and whole.usage.total_tokens > 0
    with speaking.openai.responses.stream(**ask) as stream:
        events = [*stream]
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == [*range(len(events))]
    varying = {"id", "call_id", "created_at", "completed_at", "usage", "parsed_arguments", "parsed"}

    def bare(value: Any) -> Any:
        if isinstance(value, list):
            return [bare(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {name: bare(item) for name, item in value.items() if name not in varying}

    assert bare(final.to_dict()) == bare(whole.to_dict())


def test_the_events_of_a_text_in_their_order(server: LiveServer) -> None:
    server.script("Foxes.")
    raw = [*server.openai.responses.create(model=MODEL, input="x", stream=True)]
    *events, last = types(raw)
    deltas = [one for one in raw if one.type == "response.output_text.delta"]
    assert "".join(one.delta for one in deltas) == "Foxes."
    assert events == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added", *["response.output_text.delta"] * len(deltas),
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
    ]  # fmt: skip
    assert last == "response.completed"
    cut = [*server.openai.responses.create(**FEW, input="x", stream=True)][-1]
    assert cut.type == "response.incomplete" and cut.response.incomplete_details
    assert cut.response.incomplete_details.reason == "max_output_tokens"
    assert cut.response.output[-1].status == "incomplete"  # type: ignore[union-attr]


def test_a_conversation_goes_on_from_what_is_kept(speaking: LiveServer, prompts: list[str]) -> None:
    speaking.script("I look." + SAID.partition("I look.")[2])
    ask: Any = {"model": MODEL, "tools": [TOOL], "tool_choice": "auto"}
    first = speaking.openai.responses.create(
        **ask, input="weather?", instructions="Be brief.", reasoning={"effort": "none"}
    )
    speaking.script("hot")
    outputs: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "hot"}
        for call in first.output if call.type == "function_call"
    ]  # fmt: skip
    second = speaking.openai.responses.create(
        model=MODEL, input=outputs, previous_response_id=first.id, store=False
    )
    assert prompts[0].endswith(
        "<|system|>Be brief.<|end|><|user|>weather?<|end|><|assistant|><think></think>"
    )
    assert prompts[1] == (
        f"<|user|>weather?<|end|><|assistant|>I look.{written()}{written('{}')}<|end|>"
        "<|tool|>hot<|end|><|tool|>hot<|end|><|assistant|>"
    )
    assert second.previous_response_id == first.id
    whole: Any = [{"role": "user", "content": "weather?"}, *first.output, *outputs]
    speaking.openai.responses.create(model=MODEL, input=whole, store=False)
    referred = [
        whole[0], *({"type": "item_reference", "id": item.id} for item in first.output), *outputs
    ]  # fmt: skip
    speaking.openai.responses.create(model=MODEL, input=referred, store=False)
    assert prompts[2] == prompts[3] == prompts[1], "or is sent again, or referred to"
    count = speaking.openai.responses.input_tokens.count(model=MODEL, input=whole).input_tokens
    assert second.usage is not None and count == second.usage.input_tokens
    with pytest.raises(openai.NotFoundError):
        speaking.openai.responses.retrieve(second.id)


def test_what_is_kept_can_be_asked_for_and_deleted(shared: LiveServer) -> None:
    responses = shared.openai.responses
    given: Any = [{"role": "user", "content": text} for text in ("one", "two", "three")]
    made = responses.create(**FEW, input=given, metadata={"k": "v"})
    assert responses.retrieve(made.id) == made and made.metadata == {"k": "v"}
    first_page = responses.input_items.list(made.id, limit=2, order="asc")
    told: list[Any] = [*first_page]  # the client asks for the others by itself
    assert [item.content[0].text for item in told] == ["one", "two", "three"]
    assert len(first_page.data) == 2 and first_page.has_more
    responses.delete(made.id)
    for ask in (responses.retrieve, responses.delete, responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)


def test_responses_of_another_key_are_not_found() -> None:
    with live_server(api_key=["anna", "bert"]) as server:
        anna, bert = (server.openai.with_options(api_key=key) for key in ("anna", "bert"))
        kept = anna.responses.create(**FEW, input="secret")
        assert anna.responses.create(**FEW, input="x", previous_response_id=kept.id).output
        reference: Any = [{"type": "item_reference", "id": kept.output[0].id}]
        for refused in (
            lambda: bert.responses.retrieve(kept.id),
            lambda: bert.responses.delete(kept.id),
            lambda: bert.responses.input_items.list(kept.id),
            lambda: bert.responses.create(**FEW, input="x", previous_response_id=kept.id),
            lambda: bert.responses.create(**FEW, input=reference),
        ):
            with pytest.raises(openai.NotFoundError):
                refused()
        assert anna.responses.retrieve(kept.id).id == kept.id


def test_what_is_asked_for_reaches_the_engine(speaking: LiveServer) -> None:
    seen: list[Any] = []
    speaking.executor.fail = lambda step: seen.extend(one.request.params for one in step.opened)
    form: Any = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    made = speaking.openai.responses.create(
        **FEW, input="x", temperature=0.5, top_p=0.9, text={"format": form}, top_logprobs=1,
        include=["message.output_text.logprobs"],
    )  # fmt: skip
    speaking.openai.responses.create(**FEW, input="x", text={"format": {"type": "json_object"}})
    params, free = seen
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.9, 3)
    assert json.loads(params.structured_outputs.json) == form["schema"]
    assert free.structured_outputs.json_object
    scores: Any = made.output[0].content[0].logprobs  # type: ignore[union-attr, index]
    assert len(scores) == 3 and len(scores[0].top_logprobs) == 1
    assert made.text and made.text.format and made.text.format.type == "json_schema"


def test_every_token_of_a_text_has_its_log_probability_told_once(speaking: LiveServer) -> None:
    """Those that are no text too, as its end is; none of reasoning and of calls."""
    ask: Any = {"model": MODEL, "input": "x", "tools": [TOOL], "top_logprobs": 1,
                "include": ["message.output_text.logprobs"]}  # fmt: skip
    for said, text in ((SAID, "I look."), ("A 🦊 looks.", "A 🦊 looks.")):
        tokens = speaking.script(said)
        whole = speaking.openai.responses.create(**ask)
        (message,) = [one for one in whole.output if one.type == "message"]
        (part,) = message.content
        assert part.type == "output_text" and part.logprobs and part.text == text
        told = "".join(entry.token for entry in part.logprobs)
        assert told.strip().startswith(text) and "weather" not in told
        if said == text:
            assert len(part.logprobs) == len(tokens) + 1 == whole.usage.output_tokens  # type: ignore[union-attr]
        stream = [*speaking.openai.responses.create(**ask, stream=True)]
        deltas = [one for one in stream if one.type == "response.output_text.delta"]
        entries = [entry.to_dict() for one in deltas for entry in one.logprobs]
        assert entries == [entry.to_dict() for entry in part.logprobs]


def test_log_probabilities_of_a_call_are_not_told_with_the_text_after_it(
    speaking: LiveServer,
) -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
    speaking.script(f"One.{call}Two.")
    made = speaking.openai.responses.create(
        model=MODEL, input="x", tools=[TOOL], include=["message.output_text.logprobs"]
    )
    parts: Any = [one.content[0] for one in made.output if one.type == "message"]
    told = ["".join(entry.token for entry in part.logprobs) for part in parts]
    assert [part.text for part in parts] == ["One.", "Two."]
    assert told[0] == "One." and told[1].startswith("Two.") and "weather" not in told[1]


def test_a_conversation_is_no_larger_than_a_body_may_be() -> None:
    with live_server(max_body_bytes=4_000) as server:
        made = server.openai.responses.create(**FEW, input="x")
        for _ in range(9):
            try:
                made = server.openai.responses.create(
                    **FEW, input="x", previous_response_id=made.id
                )
            except openai.BadRequestError as error:
                assert error.param == "previous_response_id"
                return
    pytest.fail("it has no end")


def response(name: str, previous: str | None = None, text: str = "") -> Any:
    output = [{"id": f"msg_{name}", "text": text}]
    fields = dict.fromkeys(ResponseAnswer.__struct_fields__)
    return ResponseAnswer(
        **{**fields, "id": name, "previous_response_id": previous, "output": output}
    )


def test_the_store_keeps_so_many_and_so_much() -> None:
    store = ResponseStore(3, 10_000)
    for number in range(4):
        store.add(None, response(f"r{number}"), [])
    with pytest.raises(UnknownResponseError):
        store.get(None, "r0")
    with pytest.raises(UnknownResponseError):
        store.written(None, ["msg_r0"])
    store.get(None, "r1")
    store.add(None, response("r4"), [])
    with pytest.raises(UnknownResponseError):  # r1 was used since
        store.get(None, "r2")
    store.add(None, response("large", text="x" * 8_500), [])
    assert store.get(None, "large") and len(store.conversation(None, "large")) == 1
    with pytest.raises(UnknownResponseError):
        store.get(None, "r1")
    store.add(None, response("too large", text="x" * 10_000), [])
    with pytest.raises(UnknownResponseError):
        store.get(None, "too large")


def test_who_takes_most_room_loses_first_and_conversations_lose_their_ends_first() -> None:
    store = ResponseStore(6, 10**6)
    store.add("anna", response("kept"), [])
    for number in range(9):
        store.add("bert", response(f"b{number}"), [])
    assert store.get("anna", "kept")
    chain = ResponseStore(3, 10**6)
    for name, previous in (("one", None), ("two", "one"), ("three", "two")):
        chain.add(None, response(name, previous), [])
    assert len(chain.conversation(None, "three")) == 3
    chain.add(None, response("other"), [])
    assert len(chain.conversation(None, "two")) == 2
    assert not ResponseStore(0, 10**6).add(None, response("none"), [])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "call_id": "x", "name": "y"}]}, "input[0]"),
        ({"input": [{"role": "bot", "content": "x"}]}, "input[0]"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tools": [{"type": "websearch"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "name": "two words"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "cook"}}, "tool_choice"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}},
         "text.format"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"metadata": {"k": 5}}, "metadata.k"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"n": 2}, "n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [True, False])
def test_bad_bodies(speaking: LiveServer, body: Any, field: str, stream: bool) -> None:
    body = {"model": MODEL, "input": "x", "stream": stream, **body}
    refused = speaking.http.post("/v1/responses", json=body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"].startswith(field), refused.text


def test_what_is_unknown_is_not_found(shared: LiveServer) -> None:
    for body, param in [
        ({"model": "gpt-9"}, "model"),
        ({"previous_response_id": "resp_unknown"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_unknown"}]}, "input"),
    ]:
        refused = shared.http.post("/v1/responses", json={"model": MODEL, "input": "x", **body})
        assert (refused.status_code, refused.json()["error"]["param"]) == (404, param)
    made = shared.openai.responses.create(**FEW, input="x")
    for query in ("limit=0", "limit=x", "limit=101", "order=up", "after=nothing"):
        path = f"/v1/responses/{made.id}/input_items?{query}"
        assert shared.http.get(path).status_code == 400
    assert shared.http.get(f"/v1/responses/{made.id}?stream=true").status_code == 400


def test_a_response_that_is_referred_to_often_is_read_once(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it was given, which may be a thousand times as long, is not read at all."""
    server.script("Foxes.")
    ask: Any = {"model": MODEL, "max_output_tokens": 16}
    item = server.openai.responses.create(input="x", **ask).output[0].id
    read: list[bytes] = []
    monkeypatch.setattr(responses, "from_json", lambda text: read.append(text) or from_json(text))
    server.script("Foxes.")
    server.openai.responses.create(input=[{"type": "item_reference", "id": item}] * 5, **ask)
    assert len(read) == 1 and b"input_text" not in read[0]


class Copied(str):
    """A text that counts how much of texts is copied by adding to it."""

    characters = 0

    def __add__(self, other: str) -> Copied:
        Copied.characters += len(self) + len(other)
        return Copied(str(self) + other)


def test_reasoning_in_many_pieces_is_put_together_in_time_with_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    piece = {"reasoning_content": Copied("a" * 10)}
    monkeypatch.setattr(responses_requests, "_of_assistant", lambda item: piece)
    (message,) = responses_requests.messages(None, [{"type": "reasoning"}] * 100)
    assert message["reasoning_content"] == "a" * 1000
    assert Copied.characters <= 2000

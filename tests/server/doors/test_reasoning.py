"""Whether an answer reasons is for its model and chat template to say, at every door of chats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from quire.capabilities.grammar import BoxedRules, GrammarCompiler
from quire.capabilities.grammar.guide import Guide, May
from quire.core.protocol import Request
from support.live_server import MODEL, LiveServer, live_server
from support.speaking import WEATHER

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = WEATHER["function"]


class Said(NamedTuple):
    content: str
    reasoning: str


class Door(NamedTuple):
    """schema, must: how a form of the text is asked for, and a call."""

    path: str
    body: dict[str, Any]
    heard: Callable[[Any], Said]
    schema: dict[str, Any]
    must: dict[str, Any] = {}  # noqa: RUF012
    messages: str = "messages"


def _of_chat(answer: Any) -> Said:
    message = answer["choices"][0]["message"]
    return Said(message["content"] or "", message.get("reasoning") or "")


def _of_ollama(answer: Any) -> Said:
    message = answer["message"]
    return Said(message["content"], message.get("thinking", ""))


def _of_messages(answer: Any) -> Said:
    said = {"text": "", "thinking": ""}
    for block in answer["content"]:
        said[block["type"]] += block[block["type"]]
    return Said(content=said["text"], reasoning=said["thinking"])


def _of_responses(answer: Any) -> Said:
    said = {"message": "", "reasoning": ""}
    for item in answer["output"]:
        said[item["type"]] += "".join(part["text"] for part in item["content"])
    return Said(said["message"], said["reasoning"])


DOORS = {
    "chat": Door(
        "/v1/chat/completions", {"max_tokens": 60}, _of_chat,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x",
                                                                    "schema": SCHEMA}}},
        {"tools": [WEATHER], "tool_choice": "required"},
    ),
    "messages": Door(
        "/v1/messages", {"max_tokens": 60}, _of_messages,
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"tools": [{"name": "weather", "input_schema": FUNCTION["parameters"]}],
         "tool_choice": {"type": "any"}},
    ),
    "responses": Door(
        "/v1/responses", {"max_output_tokens": 60}, _of_responses,
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
        {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"},
        messages="input",
    ),
    "ollama": Door(
        "/api/chat", {"stream": False, "options": {"num_predict": 60}}, _of_ollama,
        {"format": SCHEMA},
    ),
}  # fmt: skip
HOSTILE = [
    [{"role": "user", "content": "What does the HTML-like tag <think> mean?"}],
    [{"role": "user", "content": "<think>"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Use <think> for that."},
     {"role": "user", "content": "b"}],
]  # fmt: skip


def ask(server: LiveServer, door: Door, messages: Any, **fields: Any) -> Any:
    body = {"model": MODEL, **door.body, **fields, door.messages: messages}
    answer = server.http.post(door.path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def opened(speaking: LiveServer) -> list[Request]:
    """The requests that begin."""
    requests: list[Request] = []
    speaking.executor.fail = lambda step: requests.extend(one.request for one in step.opened)
    return requests


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("messages", HOSTILE)
def test_a_tag_that_a_caller_writes_leaves_the_answer_an_answer(
    speaking: LiveServer, door: Door, messages: Any
) -> None:
    speaking.script("It is a mark of thoughts.")
    said = door.heard(ask(speaking, door, messages))
    assert said == Said("It is a mark of thoughts.", "")


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("messages", HOSTILE)
def test_what_is_promised_of_the_text_holds_from_its_first_token(
    speaking: LiveServer, opened: list[Request], door: Door, messages: Any
) -> None:
    speaking.script('{"a":1}')
    for fields in filter(None, (door.schema, door.must)):
        ask(speaking, door, messages, **fields)
        assert guide_of(speaking, opened.pop()).next() in (May.MATCH, May.MATCH_OR_THINK)


def guide_of(server: LiveServer, request: Request) -> Guide:
    """At the beginning of its output, in this process."""
    assert isinstance(request.rules, BoxedRules) and request.rules.form.asked is not None
    compiler = GrammarCompiler(server.tokenizer, 4096, frozenset({0}))
    return compiler.rules_of(request.rules.form).guide()


LONG = " ".join(["They ask for the weather, so I look where they are."] * 8)


@pytest.mark.parametrize("door", [DOORS[name] for name in ("chat", "messages", "ollama")])
@pytest.mark.parametrize("length", [2, 90, len(LONG)])
def test_a_thought_is_gone_on_with_however_long_it_is(
    speaking: LiveServer, opened: list[Request], door: Door, length: int
) -> None:
    go_on = {"continue_final_message": True, "add_generation_prompt": False}
    fields = go_on if door is DOORS["chat"] else {}
    user = {"role": "user", "content": "weather?"}
    thought = f"<think>{LONG[:length].rstrip()}"
    for begun, expected in (
        (thought, Said("Sunny.", " and then I say.")),
        (f"{thought}</think>Well", Said(" and then I say.</think>Sunny.", "")),
        ("The tag <think>", Said(" and then I say.</think>Sunny.", "")),
    ):
        speaking.script(" and then I say.</think>Sunny.")
        messages = [user, {"role": "assistant", "content": begun}]
        assert door.heard(ask(speaking, door, messages, **fields)) == expected
        opened.clear()
        ask(speaking, door, messages, **fields, **door.schema)
        after = May.GO_ON if expected.reasoning else May.MATCH
        assert guide_of(speaking, opened.pop()).next() is after


def test_a_budget_of_thoughts_is_no_matter_once_the_answer_is_begun(speaking: LiveServer) -> None:
    speaking.script("<think> is a tag.")
    said = _of_chat(
        ask(
            speaking, DOORS["chat"], [{"role": "assistant", "content": "Well,"}],
            continue_final_message=True, add_generation_prompt=False, thinking_token_budget=3,
        )
    )  # fmt: skip
    assert said == Said("<think> is a tag.", "")


def test_a_prompt_whose_end_is_cut_off_begins_no_answer(speaking: LiveServer) -> None:
    speaking.script("Sunny.")
    messages = [{"role": "assistant", "content": f"<think>{LONG}"}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    for side, expected in (("right", Said("Sunny.", "")), ("left", Said("", "Sunny."))):
        cut = {"truncate_prompt_tokens": 4, "truncation_side": side}
        assert _of_chat(ask(speaking, DOORS["chat"], messages, **fields, **cut)) == expected


def test_a_template_that_always_opens_the_reasoning_is_seen_through() -> None:
    """By what it writes, whether it is asked to begin an answer or not."""
    template = (
        "{% for one in messages %}<|{{ one.role }}|>{{ one.content }}<|end|>{% endfor %}"
        "{# </think> #}<|assistant|><think>"
    )
    with live_server({"chat_template": template}, trust_request_chat_template=True) as server:
        server.script("Hm.</think>Sunny.")
        for door in DOORS.values():
            for content in ("weather?", "What is </think>?"):
                messages = [{"role": "user", "content": content}]
                assert door.heard(ask(server, door, messages)) == Said("Sunny.", "Hm.")
        own = {"chat_template": template.removesuffix("<think>")}
        said = _of_chat(ask(server, DOORS["chat"], HOSTILE[0], **own))
        assert said == Said("Hm.</think>Sunny.", "")

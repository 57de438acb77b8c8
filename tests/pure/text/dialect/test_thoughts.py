"""Reasoning in a history reaches the chat template by the name that it reads, at every door."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from references.packages import Unreachable, published_templates

from quire.http.chats.conversation import for_template
from quire.http.doors import anthropic, responses_requests
from quire.http.doors.anthropic import MessagesRequest
from quire.http.doors.ollama import OllamaMessage
from quire.http.openai.requests import ChatMessage
from quire.text.chat_template import ChatTemplate, Message
from quire.text.dialect import Dialect
from quire.text.params import SamplingParams
from support.dialects_in_templates import dialect_in, marks_in

ARGUMENTS = {"a": "ARGUMENT"}

# -- the same loop of tools, as each door's clients keep it ------------------------------------


def chat(text: str, name: str = "reasoning") -> list[Message]:
    function = {"name": "f", "arguments": json.dumps(ARGUMENTS)}
    call = {"id": "call_1", "type": "function", "function": function}
    said = {"role": "assistant", "content": text, name: "THOUGHT", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "RESULT"}
    bodies = [{"role": "user", "content": "USER"}, said, result]
    return [ChatMessage.model_validate(body).for_template() for body in bodies]


def responses(text: str) -> list[Message]:
    call = {"type": "function_call", "call_id": "call_1", "name": "f"}
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "USER"}]},
        {"type": "reasoning", "summary": [], "content": [{"text": "THOUGHT"}]},
        {"type": "message", "role": "assistant", "content": [{"text": text}]},
        {**call, "arguments": json.dumps(ARGUMENTS)},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"text": "RESULT"}]},
    ]
    return list(responses_requests.messages(None, items if text else [*items[:2], *items[3:]]))


def messages(text: str) -> list[Message]:
    blocks = [
        {"type": "thinking", "thinking": "THOUGHT", "signature": ""},
        {"type": "text", "text": text},
        {"type": "tool_use", "id": "call_1", "name": "f", "input": ARGUMENTS},
    ]
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "RESULT"}
    turns = [
        {"role": "user", "content": "USER"},
        {"role": "assistant", "content": blocks if text else [blocks[0], blocks[2]]},
        {"role": "user", "content": [result]},
    ]
    request = MessagesRequest.model_validate({"model": "m", "max_tokens": 1, "messages": turns})
    return list(anthropic.turn(request, SamplingParams(), {}).messages)


def ollama(text: str) -> list[Message]:
    call = {"function": {"name": "f", "arguments": ARGUMENTS}}
    said = {"role": "assistant", "content": text, "thinking": "THOUGHT", "tool_calls": [call]}
    result = {"role": "tool", "tool_name": "f", "content": "RESULT"}
    bodies = [{"role": "user", "content": "USER"}, said, result]
    return [OllamaMessage.model_validate(body).for_template() for body in bodies]


DOORS: dict[str, Callable[[str], Sequence[Message]]] = {
    "chat": chat,
    "chat_by_its_older_name": lambda text: chat(text, "reasoning_content"),
    "responses": responses,
    "messages": messages,
    "ollama": ollama,
}

# -- what published templates make of it -------------------------------------------------------

# Templates that read reasoning and do not show it in a loop of tools, and why.
NOT_SHOWN = {
    "Apriel-1.6-15b-Thinker-fixed": "only of the last message",
    "unsloth-Apriel-1.5": "its own switch for it is off",
}
READS = re.compile(
    r"reasoning_content|\.reasoning\b|\.get\('reasoning'|(message|msg)\.thinking\b"
    r"|message\['thought'\]|\['type'\] == 'thinking'"
)


@cache
def compiled(template: str) -> tuple[ChatTemplate, Dialect | None]:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate(template, tokens), dialect_in(template)


def shown(template: str, history: Sequence[Message]) -> str:
    chat_template, dialect = compiled(template)
    put = for_template(history, dialect.id_length if dialect else None, template)
    function = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function}]
    variables = {"tools": tools, "enable_thinking": True}
    return chat_template.render(put, variables, 1e6)


@pytest.fixture(scope="module")
def templates() -> dict[str, str]:
    try:
        return published_templates()
    except Unreachable as reason:
        pytest.skip(str(reason))


def test_a_thought_reaches_every_template_that_reads_one(templates: dict[str, str]) -> None:
    """From every door; most come to the same messages."""
    readers = {name for name, text in templates.items() if READS.search(text)} - NOT_SHOWN.keys()
    assert len(readers) >= 30
    each = [door(text) for door in DOORS.values() for text in ("", "TEXT")]
    for messages in {repr(messages): messages for messages in each}.values():
        for name in sorted(readers):
            prompt = shown(templates[name], messages).rpartition("USER")[2]
            assert prompt.count("THOUGHT") == 1, (name, prompt)
            assert prompt.index("THOUGHT") < prompt.index("ARGUMENT") < prompt.index("RESULT"), name


def test_a_template_that_takes_thought_or_text_gets_both(templates: dict[str, str]) -> None:
    template = templates["openai-gpt-oss-120b"]
    prompt = shown(template, chat("TEXT"))
    assert "<|channel|>analysis<|message|>THOUGHT\n\nTEXT<|end|>" in prompt
    assert prompt.index("TEXT<|end|>") < prompt.index("to=functions.f")


def test_a_template_that_knows_calls_by_their_having_no_text_gets_both(
    templates: dict[str, str],
) -> None:
    template = templates["deepseek-ai-DeepSeek-R1-Distill-Llama-8B"]
    for text in ("", "TEXT"):
        prompt = shown(template, chat(text))
        assert "ARGUMENT" in prompt and text in prompt
        assert prompt.index(text) < prompt.index("ARGUMENT") < prompt.index("RESULT")


def test_marks_of_thoughts_are_those_that_the_template_writes(templates: dict[str, str]) -> None:
    readers = {name for name, text in templates.items() if READS.search(text)} - NOT_SHOWN.keys()
    for name in sorted(readers):
        before, _, after = shown(templates[name], chat("TEXT")).partition("THOUGHT")
        marks = marks_in(templates[name])
        assert marks is not None, name
        assert before.rstrip().endswith(marks.start), name
        assert name == "openai-gpt-oss-120b" or after.lstrip().startswith(marks.end), name

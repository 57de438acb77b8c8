"""Whoever obeys the grammar calls, where it must, as the tool's schema says: gpt-oss's format."""

from __future__ import annotations

import json

import jsonschema
import pytest

from quire.dialect import Call
from quire.dialect.harmony import MARKS
from quire.protocol import SamplingParams, StructuredOutputs
from quire.server.chats.tools import AUTO, Tool, ToolChoice
from support.obedient import Obedient
from support.tool_schemas import SCHEMAS

TEMPLATE = "# Valid channels: <|channel|>analysis <|start|>assistant<|channel|>final<|message|>"
TOOLS = [Tool(name, parameters=schema, strict=True) for name, schema in SCHEMAS.items()]
REQUIRED = ToolChoice("required")


@pytest.fixture(scope="module")
def gpt_oss() -> Obedient:
    return Obedient(TEMPLATE, MARKS, ends=("<|call|>", "<|return|>"))


def check(call: Call) -> None:
    jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


def test_a_call_that_must_be_comes_after_reasoning_or_without(gpt_oss: Obedient) -> None:
    reasoned = set()
    for seed in range(10):
        text, whole, pieces = gpt_oss.call(TOOLS, REQUIRED, seed)
        assert whole == pieces and len(whole.calls) == 1 and not whole.content, text
        check(whole.calls[0])
        reasoned.add(bool(whole.reasoning))
    assert reasoned == {False, True}
    _, whole, _ = gpt_oss.call(TOOLS, ToolChoice.named("texts"), 3)
    assert [call.name for call in whole.calls] == ["texts"]


def test_a_budget_ends_the_reasoning(gpt_oss: Obedient) -> None:
    for most in (0, 2):
        lengths = set()
        for seed in range(8):
            params = SamplingParams(thinking_token_budget=most)
            _, whole, _ = gpt_oss.call(TOOLS, REQUIRED, seed, params)
            check(whole.calls[0])
            lengths.add(len(whole.reasoning))
        assert max(lengths) <= most * 16 and (most == 0 or max(lengths))


def test_strict_tools_leave_room_for_answers(gpt_oss: Obedient) -> None:
    kinds = set()
    for seed in range(16):
        text, whole, pieces = gpt_oss.call(TOOLS, AUTO, seed)
        assert whole == pieces and len(whole.calls) <= 1, text
        for call in whole.calls:
            check(call)
        kinds.add((bool(whole.calls), bool(whole.content)))
    assert {(True, False), (False, True)} <= kinds
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    asked = SamplingParams(structured_outputs=StructuredOutputs(json=schema))
    for seed in range(8):
        _, whole, _ = gpt_oss.call(TOOLS[:1], AUTO, seed, asked)
        if not whole.calls:
            jsonschema.validate(json.loads(whole.content), schema)
            break
    else:
        raise AssertionError("it never answered")

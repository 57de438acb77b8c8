"""Whoever obeys the grammar calls, where it must, as the tool's schema says: gpt-oss's format."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from quire.http.chats.speech import AUTO, Tool, ToolChoice
from quire.text.dialect import Call
from quire.text.dialect.harmony import MARKS
from quire.text.params import SamplingParams, StructuredOutputs
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


FORM = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ASKED = [
    (StructuredOutputs(json=FORM), r'\{\s*"a"\s*:.*'),
    (StructuredOutputs(json_object=True), r"\{.*"),
    (StructuredOutputs(choice=["yes", "no"]), r"yes|no"),
    (StructuredOutputs(regex="[0-9]{3}/"), r"[0-9]{3}/"),
    (StructuredOutputs(grammar='root ::= "a" [bc]+'), r"a[bc]+"),
    (StructuredOutputs(grammar='start: "a" b\nb: "b"'), r"ab"),
    (StructuredOutputs(structural_tag={"format": {"type": "const_string", "value": "x"}}), r"x"),
]


@pytest.mark.parametrize(("asked", "expected"), ASKED)
def test_whatever_is_asked_of_an_answer_holds_after_any_header(
    gpt_oss: Obedient, asked: StructuredOutputs, expected: str
) -> None:
    reasoned = set()
    for text, said in gpt_oss.answers(asked, 6):
        assert re.fullmatch(expected, said.content, re.DOTALL), text
        reasoned.add(bool(said.reasoning))
    assert reasoned == {False, True}


def test_an_answer_that_is_asked_for_has_the_headers_that_the_model_writes(
    gpt_oss: Obedient,
) -> None:
    asked, final = StructuredOutputs(json=FORM), '<|channel|>final%s<|message|>{"a": 1}'
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    for text in (
        final % "", final % " <|constrain|>json", thought + final % "", thought * 2 + final % "",
    ):  # fmt: skip
        assert gpt_oss.may_answer(asked, text), text
    preamble = thought.replace("analysis", "commentary")
    for text in ('{"a": 1}', "Hm.", preamble + final % "", thought, final % "" + thought):
        assert not gpt_oss.may_answer(asked, text), text


def test_a_thought_that_is_gone_on_with_ends_before_the_answer(gpt_oss: Obedient) -> None:
    opening = "<|channel|>analysis<|message|>They want"
    for most in (None, 0, 2):
        for text, said in gpt_oss.answers(ASKED[2][0], 6, opening=opening, most=most):
            assert re.fullmatch(ASKED[2][1], said.content), text
            assert most is None or len(said.reasoning) <= most * 16
    for text, said in gpt_oss.answers(ASKED[2][0], 4, most=0):
        assert not said.reasoning, text


def test_no_preamble_stands_beside_a_schema_and_tools(gpt_oss: Obedient) -> None:
    asked = SamplingParams(structured_outputs=StructuredOutputs(json=FORM))
    for seed in range(20):
        text, whole, _ = gpt_oss.call(TOOLS[:1], AUTO, seed, asked)
        assert bool(whole.calls) != bool(whole.content), text
        if whole.content:
            jsonschema.validate(json.loads(whole.content), FORM)

"""A real model that knows of no tools: where it must call, it calls as it must."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema.exceptions import best_match
from openai import BadRequestError, OpenAI

from support.hostile_schemas import HOSTILE
from support.served_model import served_model

TEMPLATE = (
    "{% for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>{{ m.content }}<|end|>"
    "{% endfor %}<|assistant|>{% if enable_thinking %}<think>\n{% endif %}{# </think>#}"
    "{# <tool_call> #}"
)
PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": PLACE, "strict": True}},
    {
        "type": "function",
        "function": {"name": "now", "parameters": {"additionalProperties": False}},
    },
]
ASK: Any = {
    "model": "quire-demo",
    "messages": [{"role": "user", "content": "What is the weather like?"}],
    "tools": TOOLS,
    "temperature": 2.0,
    "max_tokens": 120,
    "seed": 3,
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    template: Path = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(TEMPLATE)
    with served_model(kv_cache_memory_bytes="16MiB", chat_template=str(template)) as client:
        yield client


def check(choice: Any, names: set[str]) -> None:
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert {call.function.name for call in choice.message.tool_calls} <= names
    for call in choice.message.tool_calls:
        schema = PLACE if call.function.name == "weather" else {"maxProperties": 0}
        jsonschema.validate(json.loads(call.function.arguments), schema)


def test_a_call_that_must_be_is_one_that_its_schema_accepts(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        **ASK, n=4, tool_choice="required", parallel_tool_calls=False
    )
    for choice in answer.choices:
        check(choice, {"weather", "now"})
        assert len(choice.message.tool_calls or ()) == 1
    named: Any = {"type": "function", "function": {"name": "weather"}}
    for choice in client.chat.completions.create(**ASK, n=3, tool_choice=named).choices:
        check(choice, {"weather"})


def test_a_call_comes_after_the_reasoning(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        **ASK,
        tool_choice="required",
        parallel_tool_calls=False,
        reasoning_effort="low",
        extra_body={"thinking_budget": 9},
    )
    (choice,) = answer.choices
    check(choice, {"weather", "now"})
    assert choice.message.reasoning_content


def test_the_stream_comes_to_the_same(client: OpenAI) -> None:
    ask: Any = {**ASK, "tool_choice": "required", "parallel_tool_calls": False}
    whole = client.chat.completions.create(**ask).choices[0].message.tool_calls[0].function
    with client.chat.completions.stream(**ask) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    called = final.message.tool_calls[0].function
    assert (called.name, called.arguments) == (whole.name, whole.arguments)


def calls_of(answer: Any) -> dict[str, str]:
    calls = answer.choices[0].message.tool_calls
    return {call.function.name: call.function.arguments for call in calls}


def judged(what: str, schema: Any, text: str) -> str:
    """What a caller is to be told of a text that was not kept to a schema in all that it says."""
    error = best_match(jsonschema.Draft202012Validator(schema).iter_errors(json.loads(text)))
    if error is None:
        return f"{what} fits its whole schema"
    value = json.dumps(error.instance)
    return f"{what} does not fit its schema: {value} at {error.json_path} is not as " + (
        f"{error.validator} says"
    )


def test_every_tool_can_be_called_whatever_its_schema_says(client: OpenAI) -> None:
    schemas = [schema for what, schema in HOSTILE.items() if what != "deep"]  # as no body may be
    hostile = {f"t{number}": schema for number, schema in enumerate(schemas)}
    functions: Any = [{"name": name, "parameters": schema} for name, schema in hostile.items()]
    tools: Any = [{"type": "function", "function": one} for one in functions]
    answer = client.chat.completions.create(
        **{**ASK, "tools": [*TOOLS, *tools], "tool_choice": "required", "max_tokens": 60}
    )
    told = [warning for warning in answer.warnings if "all but properties" in warning]
    assert len(told) > 10 and "the tool t0 is not strict" in told[0]
    for name, schema in [*hostile.items()][:6]:
        named: Any = {"type": "function", "function": {"name": name}}
        ask: Any = {**ASK, "tools": tools, "tool_choice": named, "parallel_tool_calls": False}
        answer = client.chat.completions.create(**ask)
        (choice,) = answer.choices
        assert choice.finish_reason in ("tool_calls", "length"), schema
        last = answer.warnings[-1] if choice.finish_reason == "tool_calls" else ""
        assert not last or f"the call of {name}" in last


def test_a_schema_that_cannot_be_kept_to_is_refused_as_the_tool_s(client: OpenAI) -> None:
    form = {"not": {"pattern": "a"}, "uniqueItems": True}
    tool: Any = {"name": "f", "parameters": {"properties": {"a": form}, "required": ["a"]}}
    tools = [{"type": "function", "function": tool}]
    ask = {**ASK, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    answer = client.chat.completions.create(**ask)
    assert "a" in json.loads(answer.choices[0].message.tool_calls[0].function.arguments)
    assert answer.warnings == [
        "the tool f is not strict, and its schema is not kept to in this: not, uniqueItems",
        judged("the call of f", tool["parameters"], calls_of(answer)["f"]),
    ]
    tool["strict"] = True
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(**ask)
    assert refused.value.param == "tools" and "%json" not in refused.value.message


def test_a_call_that_max_tokens_cuts_leaks_no_mark(client: OpenAI) -> None:
    for longest in range(1, 24, 2):
        ask = {**ASK, "max_tokens": longest, "tool_choice": "required"}
        (choice,) = client.chat.completions.create(**ask).choices
        assert choice.finish_reason == "length" and not choice.message.content
        deltas = [
            chunk.choices[0].delta for chunk in client.chat.completions.create(**ask, stream=True)
        ]
        assert not any(delta.content for delta in deltas)


def test_a_schema_that_is_not_strict_is_widened_and_the_answer_says_so(client: OpenAI) -> None:
    schema: Any = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 3}
    form: Any = {"name": "set", "schema": schema, "strict": False}
    ask: Any = {**ASK, "tools": [], "max_tokens": 40}
    asked: Any = {"type": "json_schema", "json_schema": form}
    answer = client.chat.completions.create(**ask, response_format=asked)
    warning = "the schema is not strict, and is not kept to in this: uniqueItems"
    text = answer.choices[0].message.content
    assert answer.warnings == [warning, judged("the answer", schema, text)]
    jsonschema.validate(json.loads(text), {**schema, "uniqueItems": False})
    chunks = list(client.chat.completions.create(**ask, response_format=asked, stream=True))
    told = [found for chunk in chunks if (found := getattr(chunk, "warnings", None))]
    assert told == [answer.warnings]
    whole = client.completions.create(
        model="quire-demo", prompt="A set?", seed=5, extra_body={"response_format": asked}
    )
    assert whole.warnings == [warning, judged("the answer", schema, whole.choices[0].text)]
    response: Any = {"input": "A set?", "text": {"format": {"type": "json_schema", **form}}}
    answer = client.responses.create(model="quire-demo", **response)
    assert answer.warnings == [warning, judged("the answer", schema, answer.output_text)]
    *_, last = client.responses.create(model="quire-demo", **response, stream=True)
    assert last.response.warnings[0] == warning and len(last.response.warnings) == 2
    for strict in (True, None):
        form["strict"] = strict
        with pytest.raises(BadRequestError) as refused:
            client.chat.completions.create(**ask, response_format=asked)
        assert refused.value.param == "response_format"
        assert "uniqueItems cannot be kept to" in refused.value.message


def test_a_newcomer_s_first_tool_is_called_by_the_demonstration_model() -> None:
    """By a grammar, as it was never taught to; its own template takes back what comes of it."""
    named: Any = {"type": "function", "function": {"name": "weather"}}
    with served_model(kv_cache_memory_bytes="16MiB") as client:
        for choice in ("required", named):
            ask = {**ASK, "tools": TOOLS[:1], "tool_choice": choice, "parallel_tool_calls": False}
            (chosen,) = client.chat.completions.create(**ask).choices
            check(chosen, {"weather"})
        result = {"role": "tool", "tool_call_id": chosen.message.tool_calls[0].id, "content": "ok"}
        messages = [*ASK["messages"], chosen.message.model_dump(exclude_none=True), result]
        ask |= {"messages": messages, "tool_choice": "auto", "max_tokens": 3}
        (chosen,) = client.chat.completions.create(**ask).choices
        assert chosen.message.content

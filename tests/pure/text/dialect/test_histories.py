"""Histories as callers keep them, rendered in the manners of chat templates in use."""

from __future__ import annotations

from typing import Any

import pytest

from quire.http.chats.conversation import for_template
from quire.text.chat_template import ChatTemplate

HEAD = "{% for m in messages %}{% for c in m.tool_calls %}{% set f = c.function %}{{ f.name }} "
TAIL = "{% endfor %}{{ m.content }}{% endfor %}"


def rendered(template: str, arguments: object, id_length: int | None = None, **more: Any) -> str:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call], **more}
    messages = for_template([message], id_length)
    return ChatTemplate(template, {}).render(messages, {}, 1000)


@pytest.mark.parametrize(
    ("manner", "expected"),
    [
        ("{{ f.arguments | tojson }}", 'f {"a": "é", "b": 1}'),  # Qwen, Mistral
        ("{{ (c.function | tojson)[:-1] }}", 'f {"name": "f", "arguments": {"a": "é", "b": 1}'),
        ("{{ '<' + f.arguments + '>' }}", 'f <{"a": "é", "b": 1}>'),  # DeepSeek
        ("{{ f.arguments ~ '' }}", 'f {"a": "é", "b": 1}'),
        ("{{ '!' if f.arguments is string else f.arguments }}", 'f {"a": "é", "b": 1}'),
        ("{% for k, v in f.arguments | items %}{{ k }}={{ v }};{% endfor %}", "f a=é;b=1;"),  # XML
        ("{% for k in f.arguments %}{{ '%s;' | format(f.arguments[k]) }}{% endfor %}", "f é;1;"),
    ],
)
def test_arguments_are_what_templates_take_them_for(manner: str, expected: str) -> None:
    for arguments in ('{"a": "é", "b": 1}', {"a": "é", "b": 1}):
        assert rendered(HEAD + manner + TAIL, arguments) == expected


def test_arguments_that_are_no_object_stay_as_they_were_written() -> None:
    for broken in ('{"a": ', "[1]", "null"):
        assert rendered(HEAD + "{{ f.arguments }}" + TAIL, broken) == f"f {broken}"
    assert rendered(HEAD + "{{ f.arguments }}" + TAIL, "") == "f {}"


def test_arguments_that_are_nearly_json_are_an_object_in_a_history_too() -> None:
    each = "{% for k, v in f.arguments | items %}{{ k }}={{ v }};{% endfor %}"
    assert rendered(HEAD + each + TAIL, '{"a": "C:\\dir\n"}') == "f a=C:\\dir\n;"


def test_calls_without_ids_get_some_that_their_results_have() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = {"role": "assistant", "tool_calls": [call, {**call, "id": "mine"}, call]}
    results = [{"role": "tool", "content": "x"}] * 2
    given = {"role": "tool", "content": "x", "tool_call_id": "mine"}
    first, *answers = for_template([asked, results[0], given, results[1]], None)
    assert [one["id"] for one in first["tool_calls"]] == ["call_0", "mine", "call_2"]
    assert [one["tool_call_id"] for one in answers] == ["call_0", "mine", "call_2"]


class Counted(str):
    """An id that counts how often it is compared."""

    __slots__ = ()
    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def test_as_many_results_as_there_are_calls_are_each_looked_up_once() -> None:
    ids = [Counted(f"call-{number}") for number in range(200)]
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": one, "type": "function", "function": function} for one in ids]
    results = [
        {"role": "tool", "content": "x", "tool_call_id": Counted(one)} for one in reversed(ids)
    ]
    _, *answers = for_template([{"role": "assistant", "tool_calls": calls}, *results], None)
    assert Counted.comparisons < 4 * len(ids)
    assert [str(one["tool_call_id"]) for one in answers] == [str(one) for one in reversed(ids)]


def test_ids_are_shortened_the_same_to_the_same() -> None:
    ids = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.id }}{% endfor %}{% endfor %}"
    short = rendered(ids, "{}", 9)
    assert len(short) == 9 and short.isalnum() and short == rendered(ids, "{}", 9)
    assert rendered(ids, "{}") == "call_1"


def test_reasoning_goes_by_both_names() -> None:
    both = "{% for m in messages %}{{ m.reasoning ~ m.reasoning_content }}{% endfor %}"
    assert rendered(both, "{}", reasoning_content="hm") == "hmhm"

"""Arguments that are nearly JSON: what has one meaning is mended, and nothing is guessed."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.text.dialect import (
    DIALECTS,
    REASONING,
    CallBegun,
    CallEnded,
    Event,
    EventParser,
    OutputParser,
    Reply,
)
from quire.text.dialect.mending import MOST_LEVELS, mended

TOOLS: dict[str, Any] = {"f": {"properties": {"a": {"type": "string"}}}, "g": {}}

MENDED = [
    ('{"a": "x\ny\r\n\tz\x00\x1f"}', {"a": "x\ny\r\n\tz\x00\x1f"}),
    (r'{"a": "C:\dir\Users\u12"}', {"a": r"C:\dir\Users\u12"}),
    (r'{"a": "\\d \d \x41 \'"}', {"a": r"\d \d \x41 \'"}),
    ('{"a": "x \\\ny"}', {"a": "x \\\ny"}),  # a shell's line that goes on
    (r'{"a": "\ud83d\ude00 \ud83d! \ude00\ud83d"}', {"a": "😀 �! ��"}),
    ('{"a": "\ud83d"}', {"a": "�"}),
    ("{'a': 'it\\'s \"so\"', \"b\": 'é\n'}", {"a": 'it\'s "so"', "b": "é\n"}),
    ('{"a": True, "b": [False, None], "c": {}}', {"a": True, "b": [False, None], "c": {}}),
    ('{"a": [1, 2,], "b": 3,\n}', {"a": [1, 2], "b": 3}),
    ('{"a": .5, "b": +1, "c": 1_000, "d": 0x1F}', {"a": 0.5, "b": 1, "c": 1000, "d": 31}),
    ('{"a": 9007199254740993, "b": 1' + "0" * 100 + "}", {"a": 2**53 + 1, "b": 10**100}),
]
BROKEN = [
    '{"a": ]}', '{"a" "b"}', '{"a": }', '{"a": 1 "b": 2}', '{"a": "b" c"}', '{"a":: 1}', "{,}",
    '{"a": 1,,}', '{"a": [,]}', '{"a": NaN}', '{"a": -Infinity}', '{"a": 01}',
    '{"a": f(1)}', '{"a": __import__("os")}', '{"a": b}', "{'a': b'x'}", '{"a": 1}}',
    '{"a": ' + "9" * 5000 + "}", "[" * (MOST_LEVELS + 1) + "]" * (MOST_LEVELS + 1),
]  # fmt: skip


@pytest.mark.parametrize(("written", "meant"), MENDED)
def test_what_has_one_meaning_is_mended(written: str, meant: Any) -> None:
    said = mended(written)
    assert said is not None and json.loads(said) == meant and mended(said) == said
    said.encode()


@pytest.mark.parametrize("written", BROKEN)
def test_what_has_none_is_not(written: str) -> None:
    assert mended(written) is None


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(
    lambda value: json.dumps({"a": value})))  # fmt: skip
def test_json_stays_as_it_is_written(written: str) -> None:
    if "\\ud" not in written:
        assert mended(written) == written


# -- in every dialect that has JSON ------------------------------------------------------------

CALLS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>',
    "jamba": '<tool_calls>[{"name": "f", "arguments": %s}]</tool_calls>',
    "granite": '<|tool_call|>[{"name": "f", "arguments": %s}]',
    "cohere_command3": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": %s}]'
    "<|END_ACTION|>",
    "mistral": "[TOOL_CALLS]f[ARGS]%s",
    "llama3_json": '{"name": "f", "parameters": %s}',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n%s"
    "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi_k2": "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>%s<|tool_call_end|>",
    "openai": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>%s<|call|>",
}


def made(name: str) -> EventParser:
    dialect = DIALECTS[name]
    return dialect.parser(TOOLS) if dialect.parser else OutputParser(dialect.form, TOOLS)


def heard(name: str, pieces: list[str]) -> list[Event]:
    parser = made(name)
    return [event for piece in pieces for event in parser.push(piece)] + parser.finish()


@pytest.mark.parametrize("name", CALLS)
def test_arguments_arrive_as_they_were_meant(name: str) -> None:
    for written, meant in MENDED:
        text = CALLS[name] % written
        for pieces in ([text], list(text)):
            reply = Reply.of(heard(name, pieces))
            (call,) = reply.calls
            assert call.cut is None and json.loads(call.arguments) == meant, written
            assert not reply.content


@pytest.mark.parametrize("name", CALLS)
def test_what_cannot_be_mended_is_content_or_said_to_be_broken(name: str) -> None:
    for written in BROKEN[:-3]:
        text = CALLS[name] % written
        for pieces in ([text], list(text)):
            events = heard(name, pieces)
            reply = Reply.of(events)
            assert not any(isinstance(event, CallEnded) for event in events), text
            if reply.calls:
                (call,) = reply.calls
                assert call.cut and text.startswith(call.cut), "it says what was written"
                assert text[len(call.cut) :].split() == reply.content.split(), "nothing is lost"
            elif name != "openai":  # whose marks are no text
                assert reply.content == text


@pytest.mark.parametrize("name", CALLS)
def test_a_text_that_ends_within_a_call_has_no_call_that_is_complete(name: str) -> None:
    arguments = '{"a": "C:\\d\n", "b": [True, {"c": 1}]}'
    text = CALLS[name] % arguments
    start = text.index(arguments)
    for end in range(start + len(arguments)):
        reply = Reply.of(heard(name, [text[:end]]))
        assert all(call.cut == text[:end] for call in reply.calls), text[:end]
        if end <= start + 1:
            assert not reply.calls, "a call without arguments would look as if it had none"
        for call in reply.calls:
            with pytest.raises(ValueError):
                json.loads(call.arguments)
    (whole,) = Reply.of(heard(name, [text[: start + len(arguments)]])).calls
    assert whole.cut is None


def test_arguments_before_the_name_and_within_a_text_are_mended_too() -> None:
    for call in (
        '{"arguments": {"a": "x\ny"}, "name": "f"}',
        '{"name": "f", "arguments": "{\\"a\\": \\"x\\ny\\"}"}',
        "{'name': 'f', 'arguments': {'a': 'x\\ny'}}",
        '```json\n{"name": "f", "arguments": {"a": "x\ny"}}\n```',
    ):
        reply = Reply.of(heard("hermes", [f"<tool_call>\n{call}\n</tool_call>"]))
        assert [json.loads(one.arguments) for one in reply.calls] == [{"a": "x\ny"}], call
        assert not reply.content


NONE = ['{"name": "f", "a": "x"}', '{"name": "f", "args": {"a": "x"}}', '{"name": "f", "input": 1}']


@pytest.mark.parametrize("call", NONE)
def test_arguments_by_no_known_name_are_not_left_out(call: str) -> None:
    text = f"<tool_call>{call}</tool_call>"
    assert Reply.of(heard("hermes", [text])) == Reply(content=text)


def test_one_of_two_calls_may_be_broken() -> None:
    call = CALLS["hermes"]
    for written in ('{"a": NaN}', "{oops}"):
        reply = Reply.of(heard("hermes", [call % '{"a": 1}', "\n", call % written]))
        assert [one.arguments for one in reply.calls if one.cut is None] == ['{"a": 1}']


def test_calls_in_a_row_between_the_same_marks() -> None:
    calls = '{"name": "f", "arguments": {"a": "1"}}\n{"name": "g", "arguments": {}}'
    reply = Reply.of(heard("minimax", [f"<tool_calls>\n{calls}\n</tool_calls>"]))
    assert [call.name for call in reply.calls] == ["f", "g"] and not reply.content


def test_what_gpt_oss_sends_to_a_tool_that_is_no_object_is_content() -> None:
    text = "<|channel|>commentary to=python code<|message|>print(1)<|call|>"
    assert Reply.of(heard("openai", [text])) == Reply(content="print(1)")


# -- arguments one by one ----------------------------------------------------------------------

XML = "<tool_call>\n<function=f>\n%s</function>\n</tool_call>"
ARGUMENT = "<parameter=a>\n%s\n</parameter>\n"


@pytest.mark.parametrize("name", ["qwen3_xml", "glm45"])
def test_what_is_no_argument_does_not_make_a_call_without(name: str) -> None:
    texts = {
        "qwen3_xml": [XML % "<param=a>1</param>", XML % "a: 1", "<function=f> is a mark."],
        "glm45": ["<tool_call>f<key>a</key></tool_call>", "<tool_call>f a=1</tool_call>"],
    }[name]
    for text in texts:
        assert Reply.of(heard(name, list(text))) == Reply(content=text)


def test_a_mark_that_is_forgotten_at_the_end() -> None:
    for end in ("\n</function>\n</tool_call>", "\n</function>", "\n</parameter>\n</tool_call>"):
        reply = Reply.of(heard("qwen3_xml", ["<tool_call>\n<function=f>\n<parameter=a>\nx" + end]))
        assert [call.arguments for call in reply.calls] == ['{"a": "x"}'], end


def test_a_cut_is_not_taken_for_a_forgotten_mark() -> None:
    parser = made("qwen3_xml")
    text = "<tool_call>\n<function=f>\n<parameter=a>\nthe mark </function>"
    reply = Reply.of(parser.push(text) + parser.finish(cut=True))
    assert [call.cut for call in reply.calls] == [text]


def test_a_call_that_is_cut_says_so_in_xml() -> None:
    text = XML % (ARGUMENT % "x\ny" + "<parameter=b>\n2\n</parameter>\n")
    for end in range(len(text)):
        reply = Reply.of(heard("qwen3_xml", [text[:end]]))
        for call in reply.calls:
            whole = end >= text.index("</function>") + len("</function>")
            assert whole == (call.cut is None) and (whole or call.cut == text[:end]), text[:end]


# -- in thoughts -------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ['{"a": ...}', '{"a": NaN}', '{"a": "x', '{"a": 1'])
def test_a_thought_about_a_call_is_no_call(written: str) -> None:
    call, answer = CALLS["hermes"] % written, "</think>Yes."
    if not written.endswith("}"):
        call, answer = call.partition(written)[0] + written, ""
    for pieces in ([f"I write {call} now{answer}"], list(f"I write {call} now{answer}")):
        parser = OutputParser(DIALECTS["hermes"].form, TOOLS, REASONING["qwen3"])
        events = [event for piece in ["<think>", *pieces] for event in parser.push(piece)]
        reply = Reply.of(events + parser.finish())
        assert reply == Reply(f"I write {call} now", "Yes." if answer else "")


def test_a_call_in_mid_thought_is_made() -> None:
    good, bad = CALLS["hermes"] % '{"a": "x\ny"}', CALLS["hermes"] % '{"a": ...}'
    parser = OutputParser(DIALECTS["hermes"].form, TOOLS, REASONING["qwen3"])
    reply = Reply.of(parser.parse(f"<think>So {good} or {bad}</think>Yes."))
    assert [json.loads(call.arguments) for call in reply.calls] == [{"a": "x\ny"}]
    assert reply.content == "Yes." and bad in reply.reasoning


# -- however it is cut -------------------------------------------------------------------------

SLIPS = [
    "\n", "\\", "\\u", "\\ud83d", "\\ude00", "d", "'", '"', "True", "NaN", ",", "}", "]", "{", "[",
    ":", "\x01", "12", "-", ".5", "```", "</parameter>", "<parameter=a>", "</function>", "x",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([*CALLS, "qwen3_xml"]),
    st.lists(st.sampled_from(SLIPS), max_size=10).map("".join),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_pieces_of_what_is_mended_add_up(name: str, slip: str, cuts: list[int]) -> None:
    text = XML % (ARGUMENT % slip) if name == "qwen3_xml" else CALLS[name] % f'{{"a": "{slip}"}}'
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    whole = Reply.of(heard(name, [text]))
    events = heard(name, [text[start:end] for start, end in pairwise(places)])
    assert Reply.of(events) == whole == Reply.of(heard(name, list(text)))
    begun = sum(isinstance(event, CallBegun) for event in events)
    assert begun == len(whole.calls)
    for call in whole.calls:
        if call.cut is None:
            assert isinstance(json.loads(call.arguments), dict)

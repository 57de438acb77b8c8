"""Calls with the slips that models make: what they mean is read, and nothing else is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.text.dialect import DIALECTS, REASONING, OutputParser, ParserState, Reply

TOOLS: dict[str, Any] = {
    "look": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": ["boolean", "null"]},
            "what": {"properties": {"text": {"type": "string"}}},
            "several": {"items": {"type": "integer"}},
        },
    },
    "mail-now": {},
    "calendar.add": {},
}


def reply_of(name: str, text: str, reasoning: str | None = None) -> Reply:
    dialect = DIALECTS[name]
    if dialect.parser is not None:
        return Reply.of(dialect.parser(TOOLS, "").parse(text))
    marks = None if reasoning is None else REASONING[reasoning]
    return Reply.of(
        OutputParser(dialect.form, TOOLS, marks, ParserState(reasons=marks is not None)).parse(text)
    )


def called(reply: Reply) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in reply.calls]


def glm(inner: str) -> str:
    return f"<tool_call>look{inner}</tool_call>"


def qwen(key: str, value: str) -> str:
    inner = f"<parameter={key}>\n{value}\n</parameter>"
    return f"<tool_call>\n<function=look>\n{inner}\n</function>\n</tool_call>"


KIMI = '<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{"days": 2}<|tool_call_end|>'
PATH = [("look", {"path": "/x"})]
SLIPS: list[tuple[str, str, Any]] = [
    ("glm45", glm("<arg_key>path</arg_key></arg_key><arg_value>/x</arg_value>"), PATH),
    ("glm45", glm("<arg_key><arg_key>path</arg_key><arg_value>/x</arg_value>"), PATH),
    ("glm45", glm("<arg_key>path</arg_key>/x</arg_value>"), PATH),
    ("glm45", "<tool_call>mail-now</tool_call>", [("mail-now", {})]),
    ("qwen3_coder", qwen("days", "2026-01-15"), [("look", {"days": "2026-01-15"})]),
    ("qwen3_coder", qwen("exact", "False"), [("look", {"exact": False})]),
    ("qwen3_coder", qwen("exact", "null"), [("look", {"exact": None})]),
    ("qwen3_coder", qwen("path", "null"), [("look", {"path": "null"})]),
    ("qwen3_coder", qwen("days", "9007199254740993"), [("look", {"days": 9007199254740993})]),
    # Schemas whose type is left out, but clear.
    ("qwen3_coder", qwen("what", '{"text": "a"}'), [("look", {"what": {"text": "a"}})]),
    ("qwen3_coder", qwen("several", "[1, 2]"), [("look", {"several": [1, 2]})]),
    ("qwen3_coder", qwen("what", "a"), [("look", {"what": "a"})]),
    # Gemma's texts as JSON has them, with braces and colons in them.
    (
        "gemma4",
        '<|tool_call>call:look{"path":"} b, c: \\" d","what":{"text":"x"}}<tool_call|>',
        [("look", {"path": '} b, c: " d', "what": {"text": "x"}})],
    ),
    ("gemma4", "<|tool_call>call:look{'path':'/x'}<tool_call|>", PATH),
    (
        "gemma4",
        '<|tool_call>call:look{path:<|"|>5" <tool_call|> }<|"|>,days:3}<tool_call|>',
        [("look", {"path": '5" <tool_call|> }', "days": 3})],
    ),
    (
        "kimi_k2",
        f"<|tool_call_section_begin|>{KIMI}<|tool_call_section_end|>",
        [("look", {"days": 2})],
    ),
    (
        "lfm2",
        "<|tool_call_start|>[calendar.add(all=true, of=None)]<|tool_call_end|>",
        [("calendar.add", {"all": True, "of": None})],
    ),
    (
        "openai",
        '<|channel|>analysis to=functions.look code<|message|>\n{"path": "/x"}<|call|>',
        PATH,
    ),
    (
        "openai",
        "<|channel|>commentary to=functions.look<|channel|>commentary <|constrain|>json<|message|>"
        '{"path": "/x"}<|call|>',
        PATH,
    ),
]


@pytest.mark.parametrize(("name", "text", "expected"), SLIPS)
def test_calls_with_slips(name: str, text: str, expected: Any) -> None:
    reply = reply_of(name, text)
    assert (called(reply), reply.content, reply.reasoning) == (expected, "", "")


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<|channel|>commentary?<|message|>hm<|end|><|start|>assistant", "hm\nfour", ""),
        (
            "<|channel|>?? so <|end|><|start|>assistant<|channel|>analysis<|message|>I think"
            "<|end|><|start|>assistant",
            "four",
            "I think",
        ),
        ("<|start|>assistant––commentary", "four", ""),
    ],
)
def test_headers_that_are_none_end_no_answer(text: str, content: str, reasoning: str) -> None:
    reply = reply_of("openai", f"{text}<|channel|>final<|message|>four<|return|>")
    assert (reply.content, reply.reasoning) == (content, reasoning) and not reply.calls


@pytest.mark.parametrize(
    ("name", "reasoning", "call"),
    [
        ("minimax_m2", "minimax_m2", '<minimax:tool_call>\n<invoke name="mail-now">\n</invoke>'),
        ("glm45", "glm45", "<tool_call>mail-now</tool_call>"),
        ("kimi_k2", "kimi_k2", f"<|tool_calls_section_begin|>{KIMI.replace('look', 'mail-now')}"),
        ("qwen3_coder", "qwen3", "<tool_call>\n<function=mail-now>\n</function>\n</tool_call>"),
    ],
)
def test_a_call_may_come_before_the_thought_ends(name: str, reasoning: str, call: str) -> None:
    """Whether the model repeats the mark that the prompt has begun its thought with, or not."""
    for begun in ("", "<think>\n"):
        reply = reply_of(name, f"{begun}I must. {call}", reasoning)
        assert (reply.reasoning, reply.content) == ("I must.", "")
        assert [one.name for one in reply.calls] == ["mail-now"]

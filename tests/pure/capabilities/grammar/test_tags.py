"""Structural tags as a tree of formats: what a text may be, and what is refused by name."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

import quire
from quire.capabilities.grammar.source import grammar_source
from quire.core.errors import RequestError
from quire.text.params import StructuredOutputs

_FILE = Path(quire.__file__).parent / "models/demo" / "tokenizer.json"
AGE = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}


@cache
def _tools() -> tuple[tokenizers.Tokenizer, LLTokenizer]:
    return tokenizers.Tokenizer.from_file(str(_FILE)), LLTokenizer(_FILE.read_text("utf-8"))


def source_of(tag: Any) -> str:
    backend, _ = _tools()
    asked = StructuredOutputs(structural_tag=tag)
    return grammar_source(asked, backend.token_to_id, LLParserLimits())


def allows(format_: Any, text: str) -> bool:
    backend, guide = _tools()
    source = source_of({"type": "structural_tag", "format": format_})
    matcher = LLMatcher(guide, source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = backend.encode(text, add_special_tokens=False).ids
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(name: str, content: Any = None, **others: Any) -> dict[str, Any]:
    content = content or {"type": "json_schema", "json_schema": AGE}
    return {"type": "tag", "begin": f"<{name}>", "content": content, "end": f"</{name}>", **others}


ANY: dict[str, Any] = {"type": "any_text"}
THOUGHT = tag("think", ANY)
CALLS = {"type": "triggered_tags", "triggers": ["<f"], "tags": [tag("fa"), tag("fb", const("x"))]}
REGEX = {"type": "regex", "pattern": "[a-z<>/]+"}
CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (const('a"é'), ['a"é'], ["", "a", 'a"éa']),
    (
        {"type": "sequence", "elements": [THOUGHT, const("!"), ANY]},
        ["<think>a <b></thin</think>!", "<think></think>! rest </think>"],
        ["<think>a", "<think>a</think>", "!"],
    ),
    (
        {"type": "or", "elements": [const("yes"), tag("a")]},
        ["yes", '<a>{"n": 1}</a>'],
        ["<a>yes</a>"],
    ),
    (tag("a", ANY, end=["</a>", "</b>"]), ["<a>x</b>", "<a></a>"], ["<a>x</b>x", "<a>x"]),
    (tag("a", {**ANY, "excludes": ["no", "</"]}), ["<a>yes</a>"], ["<a>a no</a>", "<a>x</y></a>"]),
    (tag("a", {**ANY, "max_chars": 2}), ["<a>é</a>", "<a>xy</a>"], ["<a>xyz</a>"]),
    (tag("a", REGEX), ["<a>b<c></a>"], ["<a></a>", "<a>B</a>"]),
    (
        tag("a", {"type": "json_schema", "json_schema": AGE, "max_whitespace_cnt": 0}),
        ['<a>{"n":1}</a>', "<a>{}</a>"],
        ['<a>{"n":  1}</a>'],
    ),
    (
        CALLS,
        ["", "only text", 'Hm <fa>{"n": 1}</fa> and <fb>x</fb><fb>x</fb>.', "a < b"],
        ["<fc>x</fc>", "<fa>{}", "<fb>y</fb>", "<fa>x</fa>"],
    ),
    (
        {**CALLS, "at_least_one": True},
        ["<fb>x</fb> end", "<fb>x</fb>a<fb>x</fb>"],
        ["", "a<fb>x</fb>"],
    ),
    ({**CALLS, "stop_after_first": True}, ["a", "a<fb>x</fb>"], ["a<fb>x</fb>b"]),
    (
        {**CALLS, "stop_after_first": True, "at_least_one": True},
        ["<fb>x</fb>"],
        ["", "a<fb>x</fb>", "<fb>x</fb>b"],
    ),
    ({**CALLS, "excludes": ["no"]}, ["yes<fb>x</fb>"], ["no<fb>x</fb>", "<fb>x</fb>no"]),
    (tag("o", CALLS), ["<o>a<fb>x</fb>b</o>", "<o></o>"], ["<o>a<fb>x</fb>", "<o>a</o>b"]),
    (
        {
            "type": "tags_with_separator",
            "tags": [tag("a", const("1")), tag("b", ANY)],
            "separator": ",",
        },
        ["", "<a>1</a>", "<b>x,</b>,<a>1</a>,<a>1</a>"],
        ["<a>1</a>,", "<a>1</a><a>1</a>", "x"],
    ),
    (
        {
            "type": "tags_with_separator",
            "tags": [tag("a", const("1"))],
            "separator": "",
            "at_least_one": True,
        },
        ["<a>1</a>", "<a>1</a><a>1</a>"],
        [""],
    ),
    (
        {
            "type": "sequence",
            "elements": [
                {"type": "optional", "content": const("a")},
                {"type": "plus", "content": const("b")},
                {"type": "star", "content": const("c")},
                {"type": "repeat", "min": 1, "max": 2, "content": const("d")},
            ],
        },
        ["bd", "abbcccdd"],
        ["ad", "bddd", "bc"],
    ),
    (tag("a", {"type": "optional", "content": ANY}), ["<a></a>", "<a>x</a>"], ["<a>x"]),
    (
        {
            "type": "sequence",
            "elements": [const("a"), {"type": "grammar", "grammar": 'root ::= ("1" | "2")+'}],
        },
        ["a1", "a212"],
        ["a", "a3", "1"],
    ),
    (
        {
            "type": "sequence",
            "elements": [
                tag(
                    "a",
                    ANY,
                    begin={"type": "token", "token": "<|user|>"},
                    end={"type": "token", "token": 4},
                ),
            ],
        },
        ["<|user|>x y<|end|>"],
        ["<user>x<|end|>", "<|user|>x"],
    ),
    (
        {"type": "dispatch", "rules": [["#", const("1")], ["@", const("2")]]},
        ["", "a #1 b @2#1 c"],
        ["#2", "a#"],
    ),
    ({"type": "dispatch", "rules": [["#", const("1")]], "loop": False}, ["a", "a#1"], ["a#1b"]),
]


@pytest.mark.parametrize(("format_", "good", "bad"), CASES)
def test_what_a_tree_of_formats_allows(
    format_: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    assert [text for text in good if not allows(format_, text)] == []
    assert [text for text in bad if allows(format_, text)] == []


REFUSED: list[tuple[Any, str]] = [
    ({"type": "any_tokens"}, "format.type must be one of"),
    ({"type": "sequence", "elements": [ANY, const("a")]}, "elements[0]: has no end of its own"),
    ({"type": "star", "content": ANY}, "content: has no end"),
    (tag("a", ANY, end=""), "content: has no end"),
    ({**ANY, "max_tokens": 3}, "max_tokens"),
    ({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}, "style"),
    ({"type": "json_schema", "json_schema": {}, "any_order": True}, "any_order"),
    ({"type": "const_string", "value": "a", "sep": 1}, "'sep' is not supported"),
    ({**CALLS, "triggers": ["<f", "<fa"]}, "with one only"),
    ({**CALLS, "tags": [tag("g")]}, "must start with one of the triggers"),
    ({"type": "or", "elements": []}, "elements must be a list"),
    ({"type": "repeat", "min": 2, "max": 1, "content": const("a")}, "min and max"),
    ({"type": "token", "token": "end"}, "token's id"),
    ({"type": "optional"}, "content.type must be one of"),
    ("text", "format.type must be one of"),
]


@pytest.mark.parametrize(("format_", "words"), REFUSED)
def test_what_is_refused_is_named(format_: Any, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        allows(format_, "")
    assert words in str(refused.value) and refused.value.field == "structured_outputs"
    assert "structured_outputs.structural_tag.format" in str(refused.value)


def test_both_forms_at_once_are_refused() -> None:
    both = {"format": ANY, "structures": [{"begin": "a", "end": "b", "schema": {}}]}
    with pytest.raises(RequestError, match="beside format"):
        source_of(json.dumps(both))

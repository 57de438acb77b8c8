"""Grammars for calls: whatever they allow is a call whose arguments the tool's schema accepts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer

import quire
from quire.core.errors import RequestError
from quire.text.dialect import DIALECTS, Dialect, OutputParser, Reply
from quire.text.dialect.grammar import Schema, Wanted, Writing
from support.tool_schemas import SCHEMAS

_DEMO = Path(quire.__file__).parent / "models/demo" / "tokenizer.json"
TOKENIZER = tokenizers.Tokenizer.from_file(str(_DEMO))
GUIDE = LLTokenizer(_DEMO.read_text(encoding="utf-8"))
TOKENS = [TOKENIZER.decode([token]) for token in range(TOKENIZER.get_vocab_size())]
ENDING = np.array([i for i, text in enumerate(TOKENS) if text and set(text) <= set('"}])>\n')])
NAMES = [
    "glm45",
    "deepseek_v3",
    "kimi_k2",
    "qwen3_xml",
    "hermes",
    "mistral",
    "pythonic",
    "llama3_json",
    "nemotron",
    "granite",
]


def spell(text: str) -> str:
    return json.dumps(text)


def calls_grammar(
    writing: Writing, tools: dict[str, Schema], spell: Any = spell, **how: Any
) -> str:
    return writing.grammar(Wanted(tools, spell, **how))


def written(grammar: str, seed: int) -> str:
    """A random text that the grammar allows."""
    matcher = LLMatcher(GUIDE, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    chance, tokens = random.Random(seed), []  # but for 0, the end of sequence
    while not matcher.is_stopped():
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        free = np.unpackbits(mask, bitorder="little")[: len(TOKENS)]
        free[0] = 0
        allowed, ending = free.nonzero()[0], ENDING[free[ENDING] > 0]
        if not len(allowed):
            break
        if matcher.is_accepting() and (len(tokens) > 150 or chance.random() < 0.5):
            break
        in_haste = len(ending) and (len(tokens) > 150 or chance.random() < 0.5)
        tokens.append(int(chance.choice(ending if in_haste else allowed)))
        assert matcher.consume_token(tokens[-1]) and len(tokens) < 2000
    return str(TOKENIZER.decode(tokens, skip_special_tokens=False))


def parsed(dialect: Dialect, text: str) -> Reply:
    return Reply.of(OutputParser(dialect.form, SCHEMAS).parse(text))


@pytest.mark.parametrize("name", NAMES)
def test_what_a_grammar_allows_the_schema_accepts(name: str) -> None:
    dialect = DIALECTS[name]
    for tool, schema in SCHEMAS.items():
        grammar = calls_grammar(dialect.writing, {tool: schema}, spell, several=False)
        assert "::=" not in grammar, "it would be taken for GBNF"
        for seed in range(10):
            text = written(grammar, seed)
            reply = parsed(dialect, text)
            assert [call.name for call in reply.calls] == [tool], text
            assert not reply.content, text
            jsonschema.validate(json.loads(reply.calls[0].arguments), schema)


@pytest.mark.parametrize("name", NAMES)
def test_several_calls_of_several_tools(name: str) -> None:
    dialect = DIALECTS[name]
    frame = dialect.old_writing or dialect.writing
    grammar = calls_grammar(frame, SCHEMAS, spell, several=True)
    counts = set()
    for seed in range(16):
        reply = parsed(dialect, written(grammar, seed))
        assert not reply.content
        counts.add(len(reply.calls))
        for call in reply.calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    assert min(counts) == 1 < max(counts)


@pytest.mark.parametrize("name", NAMES)
def test_a_strict_tool_leaves_room_for_text_and_for_an_answer_by_schema(name: str) -> None:
    frame, tools = DIALECTS[name].writing, {"nothing": SCHEMAS["nothing"]}
    call = {
        "glm45": "<tool_call>nothing</tool_call>",
        "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>nothing\n"
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.nothing:0"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "qwen3_xml": "<tool_call>\n<function=nothing>\n</function>\n</tool_call>",
        "hermes": '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>',
        "mistral": "[TOOL_CALLS]nothing[ARGS]{}",
        "nemotron": '<TOOLCALL>[{"name": "nothing", "arguments": {}}]</TOOLCALL>',
        "granite": '<|tool_call|>[{"name": "nothing", "arguments": {}}]',
        "pythonic": "[nothing()]",
        "llama3_json": '{"name": "nothing", "parameters": {}}',
    }[name]
    free = calls_grammar(frame, tools, spell, several=True, text=True)
    around = "" if frame.bare else "Let me see. "
    assert allows(free, f"{around}{call}") and allows(free, "Nothing to call here.")
    assert not allows(free, around + call.replace("nothing", "other"))
    if frame.bare:
        return
    other = calls_grammar(frame, tools, spell, several=True, instead={"type": "object"})
    assert allows(other, call) and allows(other, '{"a": 1}') and not allows(other, "text")


def allows(grammar: str, text: str) -> bool:
    matcher = LLMatcher(GUIDE, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = TOKENIZER.encode(text, add_special_tokens=False).ids
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def test_a_mark_may_be_a_token() -> None:
    mark = TOKENIZER.token_to_id("<|user|>")
    grammar = calls_grammar(
        DIALECTS["hermes"].writing,
        {"nothing": {"type": "object", "additionalProperties": False}},
        lambda text: f"<[{mark}]>" if text == "<tool_call>" else json.dumps(text),
        several=False,
        text=True,
    )
    assert allows(grammar, 'Hm. <|user|>\n{"name": "nothing", "arguments": {}}\n</tool_call>')
    assert not allows(grammar, "Hm. <|user|>nothing")


def test_a_grammar_holds_only_what_binds() -> None:
    said = {"description": "words", "title": "T", "type": "string", "enum": ["description"]}
    schema = {"description": "words", "properties": {"description": said, "title": said}}
    grammar = calls_grammar(DIALECTS["hermes"].writing, {"f": schema}, spell, several=False)
    one = {"type": "string", "enum": ["description"]}
    assert "words" not in grammar
    assert json.dumps({"description": one, "title": one}) in grammar


@pytest.mark.parametrize("name", ["qwen3_xml", "pythonic"])
def test_words_that_are_no_schema_s_say_nothing(name: str) -> None:
    schema = {"optional": ["a"], "properties": {"a": {"type": "string", "optional": True}}}
    assert calls_grammar(DIALECTS[name].writing, {"f": schema}, several=False)


def test_a_text_in_xml_cannot_hold_what_ends_it() -> None:
    schema = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    grammar = calls_grammar(DIALECTS["qwen3_xml"].writing, {"f": schema}, spell, several=False)
    call = "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>"
    assert allows(grammar, call % "\n <b>x</b> ")
    assert not allows(grammar, call % "x</parameter>y")
    for kept in ("<parameter=b>", "</function>", "</function>\n</tool_call>"):
        text = call % f"x{kept}y"
        assert allows(grammar, text)
        (told,) = parsed(DIALECTS["qwen3_xml"], text).calls
        assert json.loads(told.arguments) == {"a": f"x{kept}y"}


@pytest.mark.parametrize("type_", ["integer", "number"])
def test_a_bound_of_numbers_holds_beside_texts(type_: str) -> None:
    schema = {"properties": {"a": {"type": ["string", type_], "minimum": 5}}, "required": ["a"]}
    grammar = calls_grammar(DIALECTS["qwen3_xml"].writing, {"f": schema}, spell, several=False)
    call = "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>"
    assert allows(grammar, call % "7") and allows(grammar, call % "seven")
    assert not allows(grammar, call % "3"), "which is read as a number"


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("pythonic", {"anyOf": [{"required": ["a"]}]}),
        ("pythonic", {"properties": {"a-b": {}}}),
        ("qwen3_xml", {"minProperties": 1}),
        ("qwen3_xml", {"properties": {"a": {"type": "string", "not": {"const": "x"}}}}),
        ("qwen3_xml", {"properties": {"a>": {}}}),
    ],
)
def test_what_a_grammar_cannot_promise_is_refused(name: str, schema: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        calls_grammar(DIALECTS[name].writing, {"f": schema}, spell, several=False)
    assert caught.value.field == "tools"

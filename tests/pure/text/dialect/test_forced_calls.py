"""Calls that must be: of tools that are not strict, whatever their schemas say; and cut ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer

import quire
from quire.capabilities.box import BoxBroken
from quire.capabilities.grammar import GrammarCompiler
from quire.core.errors import RequestError
from quire.engine.outputs import CompletionOutput, Delta
from quire.http.chats.conversation import ConversationTurn, Listener
from quire.http.chats.speech import Speech, Tool, ToolChoice, can_be_called, guided
from quire.http.config.server import ServerConfig
from quire.http.widened import Widened, checked
from quire.text.begun import Begun
from quire.text.chat_template import ChatTemplate
from quire.text.dialect import DIALECTS, CallBegun, CallCut, ContentPiece, ParserState, Reply
from quire.text.params import SamplingParams
from quire.text.tokenizer import JsonTokenizer
from support.hostile_schemas import HOSTILE

FILE = Path(quire.__file__).parent / "models/demo" / "tokenizer.json"
NAMES = [name for name, dialect in DIALECTS.items() if dialect.writing is not None]
MUST = ToolChoice("required")
TEXT = {"type": "string"}
AWKWARD: dict[str, Any] = {
    "a choice": {"oneOf": [{"properties": {"a": TEXT}}, {"properties": {"b": {"const": 1}}}]},
    "words": {
        "type": "object",
        "properties": {
            "a": {"type": "string", "not": {"pattern": "^b"}},
            "b": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
            "c": {"oneOf": [{"type": "string"}, {"type": "string", "format": "date"}]},
            "d": {"type": "string", "pattern": "(?!x)a"},
        },
        "required": ["a"],
        "dependentRequired": {"a": ["b"]},
        "propertyNames": {"pattern": "^[a-z]"},
    },
    "patterns": {
        "type": "object",
        "properties": {"a": {"type": "string", "format": "date", "pattern": "^2"}},
        "patternProperties": {"^x": {"type": "integer"}},
        "minProperties": 1,
    },
}


@cache
def tokenizer() -> JsonTokenizer:
    return JsonTokenizer(tokenizers.Tokenizer.from_file(str(FILE)), ChatTemplate("", {}))


@cache
def compiler() -> GrammarCompiler:
    words = tokenizers.Tokenizer.from_file(str(FILE)).get_vocab_size()
    return GrammarCompiler(tokenizer(), words, frozenset({0}))


def asked(name: str, tool: Tool, unkept: Collection[str] = ()) -> tuple[SamplingParams, list[str]]:
    speech = Speech.of(tokenizer(), ServerConfig(tool_call_parser=name))
    tools, wider = can_be_called(speech, [tool], MUST, unkept)
    warnings = [one.warning for one in wider]
    params, state = SamplingParams(), ParserState()
    return guided(speech, params, tools, MUST, several=False, state=state), warnings


@pytest.mark.parametrize("what", AWKWARD)
@pytest.mark.parametrize("name", NAMES)
def test_a_tool_that_is_not_strict_can_be_called_whatever_its_schema_says(
    name: str, what: str
) -> None:
    params, _ = asked(name, Tool("f", parameters=AWKWARD[what]))
    assert compiler().rules(params) is not None
    with pytest.raises(RequestError):
        params, _ = asked(name, Tool("f", parameters=AWKWARD["words"], strict=True))
        compiler().rules(params)


@pytest.mark.parametrize("what", HOSTILE)
def test_an_outline_can_be_written_of_any_schema_in_any_form(what: str) -> None:
    tool = Tool("f", parameters=HOSTILE[what])
    for name in NAMES:
        params, (warning,) = asked(name, tool, ["f"])
        assert warning.endswith("all but properties and their types")
        assert compiler().rules(params) is not None


@pytest.mark.parametrize("what", HOSTILE)
def test_a_schema_that_cannot_be_kept_to_is_refused_in_words_of_our_own(what: str) -> None:
    for name in ("hermes", "qwen3_xml", "gemma4", "pythonic"):
        try:
            params, _ = asked(name, Tool("f", parameters=HOSTILE[what], strict=True))
            compiler().rules(params)
        except RequestError as error:
            assert not re.search(r"%json|while processing|regex|f64|lexer|#/grammars", str(error))


def test_what_is_left_out_is_told() -> None:
    _, (warning,) = asked("hermes", Tool("f", parameters=AWKWARD["words"]))
    assert warning.startswith("the tool f is not strict")
    assert warning.endswith(": not, oneOf, pattern, propertyNames, uniqueItems")
    _, (warning,) = asked("qwen3_xml", Tool("f", parameters=AWKWARD["words"]))
    assert warning.endswith("all but properties and their types")
    assert asked("hermes", Tool("f", parameters={"properties": {"a": TEXT}}))[1] == []


@pytest.mark.parametrize("name", [name for name in NAMES if DIALECTS[name].order is None])
def test_a_call_that_is_cut_leaks_no_mark(name: str) -> None:
    tool = Tool("f", parameters={"properties": {"a": {"enum": ["one"]}}, "required": ["a"]})
    params, _ = asked(name, tool)
    assert params.structured_outputs is not None
    speech = Speech.of(tokenizer(), ServerConfig(tool_call_parser=name))
    text = forced(str(params.structured_outputs.grammar))
    turn = ConversationTurn([], params, choice=MUST)
    for length in range(len(text) + 1):
        listener = Listener(speech.parser({"f": tool.parameters or {}}, Begun()), turn)
        cut = CompletionOutput(0, text[:length], [], finish_reason="length")
        heard = listener.hear(cut)
        assert not [event for event in heard if isinstance(event, ContentPiece)], text[:length]
        assert not any(event.text for event in heard if isinstance(event, CallCut)), text[:length]
    assert any(isinstance(event, CallBegun) for event in heard)


def forced(grammar: str) -> str:
    """A short text that a grammar allows: the first token that may come, again and again."""
    guide = LLTokenizer(FILE.read_text(encoding="utf-8"))
    matcher = LLMatcher(guide, LLMatcher.grammar_from_lark(grammar), log_level=0)
    tokens: list[int] = []
    while not matcher.is_accepting() and len(tokens) < 200:
        tokens += matcher.compute_ff_tokens() or [first(matcher)]
        matcher.reset()
        assert matcher.consume_tokens(tokens), matcher.get_error()
    return tokenizer().decode(tokens)


def first(matcher: LLMatcher) -> int:
    allowed = int.from_bytes(matcher.compute_bitmask(), "little") & ~1  # 0 ends the text
    return (allowed & -allowed).bit_length() - 1


class Judge:
    """An engine that knows no more than whether a text is "good"."""

    async def misfit(self, schema: object, text: str) -> str:
        if text == "endless":
            raise BoxBroken("it takes more than 5 s")
        return "" if text == "good" else f"{text} is not good"


def told_of(*texts: str, cut: str = "") -> list[str]:
    """The warnings of a request with these outputs, which come one after the other."""

    async def progress() -> AsyncIterator[Any]:
        for number, text in enumerate([*texts, cut]):
            output = CompletionOutput(
                0, text, [], finish_reason="stop" if text != cut else "length"
            )
            final = cast(Any, Outputs([output]))
            yield [(number, Delta("r", 0, text, (), None, 0.0, False, final=final))]

    async def all_of() -> list[str]:
        warnings = ["before"]
        schemas, engine = [Widened({}, ["not"])], cast(Any, Judge())
        given = checked(engine, cast(Any, progress()), schemas, said, warnings)
        assert len([deltas async for deltas in given]) == len(texts) + 1
        return warnings[1:]

    return asyncio.run(all_of())


class Outputs(NamedTuple):
    outputs: list[CompletionOutput]


def said(output: CompletionOutput) -> Reply:
    return Reply(content=output.text)


def test_what_was_widened_is_judged_once_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told_of("good", "bad", "good", cut="cut") == [
        "the answer fits its whole schema",
        "the answer does not fit its schema: bad is not good",
    ]
    assert told_of("endless") == [
        "whether the answer fits its schema is not known: it takes more than 5 s"
    ]
    monkeypatch.setattr("quire.http.widened._LONGEST", 0.0)
    assert told_of("good", "bad") == [
        "the answer fits its whole schema",
        "what else was written has not been checked: it takes too long",
    ]

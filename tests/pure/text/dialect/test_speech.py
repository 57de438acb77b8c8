"""Marks that are special tokens stay in the text, and nobody sees the other special ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers

import quire
from quire.core.errors import ConfigError
from quire.http.chats.speech import Speech
from quire.http.config.server import ServerConfig
from quire.text.begun import Begun
from quire.text.chat_template import ChatTemplate
from quire.text.detokenizer import Detokenizer
from quire.text.dialect import DIALECTS, REASONING, ParserState, Reply, literal
from quire.text.tokenizer import JsonTokenizer

DEMO = Path(quire.__file__).parent / "models/demo" / "tokenizer.json"
TEMPLATE = "{{ '<tool_call>' }}<|assistant|>{# </think> #}"
MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]


def tokenizer(*special: str) -> JsonTokenizer:
    backend = tokenizers.Tokenizer.from_file(str(DEMO))
    backend.add_special_tokens([tokenizers.AddedToken(one, special=True) for one in special])
    return JsonTokenizer(backend, ChatTemplate(TEMPLATE, {}))


def test_a_mark_that_is_a_token_is_read() -> None:
    made = tokenizer(*MARKS)
    speech = Speech.of(made, ServerConfig())
    assert set(speech.special) == set(MARKS)
    text = '<think>Hm.</think>Hi<tool_call>{"name": "f", "arguments": {}}</tool_call><|end|> you'
    ids = made.encode(text, add_special_tokens=False)
    detokenizer = Detokenizer(made, [], True, tuple(speech.special.values()))
    shown = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
    assert shown == text.replace("<|end|>", "")
    every = Detokenizer(made, [], False, tuple(speech.special.values()))
    assert "".join(map(every.push, ids)) + every.flush() == text
    reply = Reply.of(speech.parser({"f": {}}, Begun()).parse(shown))
    assert (reply.reasoning, reply.content, len(reply.calls)) == ("Hm.", "Hi you", 1)


def test_a_mark_that_another_begins_with_is_not_taken_for_it() -> None:
    speech = Speech.of(tokenizer(), ServerConfig())
    for marks in ({"[TOOL": 7, "[TOOL_CALLS]": 8}, {"[TOOL_CALLS]": 8, "[TOOL": 7}):
        assert replace(speech, special=marks).spelled("a[TOOL_CALLS][TOOL]") == (
            f"{literal('a')} <[8]> <[7]> {literal(']')}"
        )


def test_tokens_in_a_mark_are_seen() -> None:
    made = tokenizer("<|channel>", "<channel|>")
    speech = Speech.of(made, ServerConfig(reasoning_parser="gemma4"))
    assert set(speech.special) == {"<|channel>", "<channel|>"}
    ids = made.encode("<|channel>thought\nHm.<channel|>Hi<|end|>", add_special_tokens=False)
    detokenizer = Detokenizer(made, [], True, tuple(speech.special.values()))
    reply = Reply.of(speech.parser(None, Begun()).parse("".join(map(detokenizer.push, ids))))
    assert (reply.reasoning, reply.content) == ("Hm.", "Hi")


def test_marks_that_are_text_need_no_care() -> None:
    assert not Speech.of(tokenizer(), ServerConfig()).special


def test_tokens_of_reasoning_are_counted_where_marks_are_tokens() -> None:
    made = tokenizer(*MARKS)
    speech = Speech.of(made, ServerConfig())
    thought = made.encode("Let me see.", add_special_tokens=False)
    start, end = speech.special["<think>"], speech.special["</think>"]
    spaces = made.encode("\n \n" * 9, add_special_tokens=False)
    assert len(spaces) > 4
    for before, at in (
        ([start], ParserState()),
        ([*spaces, start], ParserState()),
        ([], ParserState(True)),
        ([start], ParserState(True)),
        ([], ParserState(True, True)),
    ):
        for after in ([end, *thought], [end, start, *thought], []):
            ids = [*before, *thought, *after]
            assert speech.reasoning_tokens(ids, at) == len(thought)
    assert speech.reasoning_tokens([start, *thought], ParserState(True, True)) == len(thought) + 1
    for ids, at in (
        (thought, ParserState()),
        ([*thought[:1], start, *thought, end], ParserState()),
        ([start, *thought, end], ParserState(False, True)),
    ):
        assert speech.reasoning_tokens(ids, at) == 0
    assert Speech.of(tokenizer(), ServerConfig()).reasoning_tokens([1], ParserState(True)) is None


def test_settings_come_before_what_the_template_tells() -> None:
    config = ServerConfig(tool_call_parser="mistral", reasoning_parser="deepseek_r1")
    speech = Speech.of(tokenizer(), config)
    assert speech.dialect is DIALECTS["mistral"] and speech.marks is REASONING["deepseek_r1"]
    assert speech.state_after(Begun()).reasons
    assert not speech.state_after(Begun("<think>\n\n</think>\n\n")).reasons
    for name in ("tool_call_parser", "reasoning_parser"):
        with pytest.raises(ConfigError, match=f"{name} must be one of"):
            ServerConfig(**{name: "nonsense"})

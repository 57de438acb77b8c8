"""Models whose files declare how their answers are read, by transformers' own parser."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import quire
from quire.config import ServerConfig
from quire.dialect import Declared, Event, Parser, Reply
from quire.engine.tokenizer import ChatTemplate, JsonTokenizer
from quire.server.chats.speech import Speech

# In the manner of Gemma 4's.
SPEC: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|turn>model\n",
    "fields": {
        "reasoning_content": {"open": "<|channel>thought\n", "close": "<channel|>"},
        "tool_calls": {
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
            "close": "<tool_call|>",
            "repeats": True,
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {"close": ["<turn|>"], "content": "text", "optional": False},
    },
}
TOOLS = {"f": {"properties": {"n": {"type": "integer"}}}}
CALL = '<|tool_call>call:f{n:5,s:<|"|>a b<|"|>}<tool_call|>'
DECLARED = Declared(SPEC)


def run(parser: Parser, pieces: list[str]) -> Reply:
    events: list[Event] = [event for piece in pieces for event in parser.push(piece)]
    return Reply.of(events + parser.finish())


def read(text: str, tail: str = "<|turn>model\n", *, tools: bool = True) -> Reply:
    return run(DECLARED.parser(TOOLS if tools else None, tail), [text])


def test_what_is_declared_is_read() -> None:
    reply = read(f"<|channel>thought\nHm.\n<channel|>Hi.\n{CALL}{CALL} Bye.<turn|>")
    assert (reply.reasoning, reply.content) == ("Hm.", "Hi.\n Bye.")
    assert [json.loads(call.arguments) for call in reply.calls] == [{"n": 5, "s": "a b"}] * 2
    assert read("Hm.<channel|>Hi.", "<|turn>model\n<|channel>thought\n").reasoning == "Hm."
    assert read("Hi.", "of another turn").content == "Hi."
    assert read(CALL, tools=False) == Reply(content=CALL[18:-12])
    broken = read("<|tool_call>call:f{oops<tool_call|> Hi.")
    assert not broken.calls and broken.content == "{oops Hi."
    assert read("<|tool_call>call:f{n:") == Reply(content="{n:"), "one that is cut"


MARKS = ["<|channel>thought\n", "<channel|>", "<tool_call|>"]
FRAGMENTS = [*MARKS, CALL, CALL[:20], "{", "a", "\n ", "<"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=6), st.lists(st.integers(0, 99), max_size=6))
def test_the_pieces_add_up_to_the_whole(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert run(DECLARED.parser(TOOLS, ""), pieces) == read(text, "")


def test_marks_that_are_declared_stay_in_the_text(caplog: pytest.LogCaptureFixture) -> None:
    backend = tokenizers.Tokenizer.from_file(
        str(Path(quire.__file__).parent / "demo/tokenizer.json")
    )
    marks = ["<|tool_call>", "<tool_call|>", '<|"|>', "<channel|>"]
    backend.add_special_tokens([tokenizers.AddedToken(one, special=True) for one in marks])
    made = JsonTokenizer(backend, ChatTemplate("{{ tools }}", {}, declared=SPEC))
    speech = Speech.of(made, ServerConfig())
    assert speech.reads_calls and set(speech.special) == set(marks)
    assert Speech.of(made, ServerConfig(tool_call_parser="hermes")).declared is None
    odd = JsonTokenizer(backend, ChatTemplate("", {}, declared={"fields": {"a": 5}}))
    assert not Speech.of(odd, ServerConfig()).reads_calls and "cannot be used" in caplog.text

"""Models whose files declare how their answers are read, by transformers' own parser."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.cli.serving import utils as serving

import quire
from quire.core.errors import EngineError, RequestError
from quire.http.chats.speech import AUTO, Speech, Tool, ToolChoice
from quire.http.config.server import ServerConfig
from quire.text.begun import Begun
from quire.text.chat_template import ChatTemplate
from quire.text.dialect import Declared, Event, EventParser, Reply, Wanted, literal
from quire.text.dialect.declared import _Bounded
from quire.text.params import SamplingParams
from quire.text.tokenizer import JsonTokenizer
from support.obedient import Obedient
from support.tool_schemas import SCHEMAS

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


def run(parser: EventParser, pieces: list[str]) -> Reply:
    events: list[Event] = [event for piece in pieces for event in parser.push(piece)]
    return Reply.of(events + parser.finish())


def read(text: str, begun: str = "<|turn>model\n", *, tools: bool = True) -> Reply:
    return run(DECLARED.parser(TOOLS if tools else None, begun), [text])


def test_what_is_declared_is_read() -> None:
    reply = read(f"<|channel>thought\nHm.\n<channel|>Hi.\n{CALL}{CALL} Bye.<turn|>")
    assert (reply.reasoning, reply.content) == ("Hm.", "Hi.\n Bye.")
    assert [json.loads(call.arguments) for call in reply.calls] == [{"n": 5, "s": "a b"}] * 2
    assert read("Hm.<channel|>Hi.", "<|turn>model\n<|channel>thought\n").reasoning == "Hm."
    assert read("Hi.", "of another turn").content == "Hi."
    begun = f"<|turn>model\n<|channel>thought\n{'I think, so. ' * 40}I think"
    assert read(" so.<channel|>Hi.", begun) == Reply(" so.", "Hi."), "letter by letter"
    assert read(" so.<|channel>", f"{begun}<channel|>Hi") == Reply("", " so.<|channel>")
    assert read("{n:5}<tool_call|>", "<|turn>model\n<|tool_call>call:f").calls
    assert read(CALL, tools=False) == Reply(content=CALL[18:-12])
    broken = read("<|tool_call>call:f{oops<tool_call|> Hi.")
    assert not broken.calls and broken.content == "{oops Hi."
    assert read("<|tool_call>call:f{n:") == Reply(content="{n:"), "one that is cut"


@pytest.mark.parametrize("place", ["close_pattern", "tag_pattern"])
def test_an_expression_of_the_files_has_an_end(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.text.dialect.declared._LONGEST_LOOK", 0.01)
    endless, calls = "(?:(?:x{1,1000}){1,1000})+[yz]", SPEC["fields"]["tool_calls"]
    fields = {**SPEC["fields"], "content": {"close_pattern": endless}}
    text = "x" * 4_000
    if place == "tag_pattern":
        tags = {"content": "xml-inline", "content_args": {place: f"(?P<key>{endless})"}}
        fields, text = {"tool_calls": {**calls, **tags}}, f"<|tool_call>call:f {text}<tool_call|>"
    parser = Declared({**SPEC, "fields": fields}).parser(TOOLS, "<|turn>model\n")
    with pytest.raises(EngineError, match="expression of the model's response_template"):
        parser.push(text)


def test_an_expression_is_not_charged_with_what_other_threads_compute() -> None:
    ended = [None, TimeoutError(), TimeoutError()]  # of the clock of the process
    given = list[float]()

    class Expression:
        def search(self, text: str, *, timeout: float, partial: bool = False) -> str:
            given.append(timeout)
            if (error := ended.pop()) is not None:
                raise error
            return text

    assert _Bounded(Expression()).search("Hi") == "Hi"
    assert given == [0.25, 0.5, 1.0]


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
        str(Path(quire.__file__).parent / "models/demo/tokenizer.json")
    )
    marks = ["<|tool_call>", "<tool_call|>", '<|"|>', "<channel|>"]
    backend.add_special_tokens([tokenizers.AddedToken(one, special=True) for one in marks])
    made = JsonTokenizer(backend, ChatTemplate("{{ tools }}", {}, declared=SPEC))
    speech = Speech.of(made, ServerConfig())
    assert speech.reads_calls and set(speech.special) == set(marks)
    assert Speech.of(made, ServerConfig(tool_call_parser="hermes")).declared is None
    odd = JsonTokenizer(backend, ChatTemplate("", {}, declared={"fields": {"a": 5}}))
    assert not Speech.of(odd, ServerConfig()).reads_calls and "cannot be used" in caplog.text


# What transformers itself uses for models that declare nothing.
REAL = {
    kind: spec for kinds, spec in serving._RESPONSE_TEMPLATE_FALLBACKS.items() for kind in kinds
}
NOTED = {
    name: {**schema, "additionalProperties": False}
    for name, schema in SCHEMAS.items()
    if name != "texts"
}
NOTED["texts"] = {
    "properties": {
        "unit": {"enum": ["celsius", 'a"b']},
        "code": {"type": "string", "pattern": "^[a-z]{2}/[0-9]$"},
        "note": {"type": "string", "maxLength": 6},
        "perhaps": {"type": ["string", "null"]},
        "tree": {"$ref": "#/$defs/tree"},
        "by_name": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "required": ["code", "tree"],
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "additionalProperties": False,
        }
    },
}
GEMMA_MARKS = ["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<turn|>"]


@pytest.mark.parametrize(
    ("kind", "marks"),
    [("gemma4", GEMMA_MARKS), ("gemma4", []), ("qwen3", ["<think>", "</think>", "<tool_call>"])],
)
def test_who_obeys_the_grammar_calls_as_the_schema_says(kind: str, marks: list[str]) -> None:
    model = Obedient("no marks", marks, {"<turn|>"} & {*marks}, declared=REAL[kind])
    schemas = NOTED if kind == "gemma4" else SCHEMAS
    if not marks:  # what ends a text is no token: it would never be found by chance
        schemas = {**NOTED, "texts": {**NOTED["texts"], "required": ["code"]}}
        schemas["texts"]["properties"] = {**NOTED["texts"]["properties"], "perhaps": {"const": 1}}
    tools = [Tool(name, parameters=schema, strict=True) for name, schema in schemas.items()]
    counts, reasoned = set(), set()
    params = SamplingParams(thinking_token_budget=None if marks else 0)
    for seed in range(8):
        text, whole, pieces = model.call(tools, ToolChoice("required"), seed, params)
        assert whole == pieces and not whole.content, text
        counts.add(len(whole.calls))
        reasoned.add(bool(whole.reasoning))
        for call in whole.calls:
            if call.cut is not None:  # by chance a number is beyond all floats
                assert re.search(r"[eE]\+?\d{3}", call.cut)
                continue
            jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    assert 0 not in counts and len(counts) > 1
    assert (True in reasoned) == (marks is GEMMA_MARKS)
    texts = [model.call(tools, AUTO, seed)[1] for seed in range(6)]
    assert any(reply.content for reply in texts)
    assert not marks or any(reply.calls for reply in texts)


def test_what_cannot_be_asked_for_is_refused_by_name() -> None:
    def refusal(spec: Any, tool: Tool) -> str:
        model = Obedient("no marks", [], declared=spec)
        with pytest.raises(RequestError) as refused:
            model.call([tool], ToolChoice("required"), 0)
        return str(refused.value)

    assert "does not say that arguments are JSON" in refusal(REAL["qwen3_5"], Tool("f"))
    assert "get-time" in refusal(SPEC, Tool("get-time"))
    for key, schema in (("oneOf", {"oneOf": []}), ("a-b", {"a-b": {}}), ("uniqueItems", True)):
        one = schema if key == "a-b" else {"a": {"type": "array", key: schema}}
        assert key in refusal(SPEC, Tool("f", parameters={"properties": one}))
    calls = SPEC["fields"]["tool_calls"]
    odd = {**SPEC, "fields": {"tool_calls": {**calls, "open_pattern": "<[ab]>(?P<name>.*)"}}}
    assert "no plain text" in refusal(odd, Tool("f"))


def test_reasoning_is_known_by_its_declared_marks() -> None:
    model = Obedient("no marks", GEMMA_MARKS, declared=REAL["gemma4"])
    assert model.speech.state_after(Begun("<|turn>model\n<|channel>thought\n")).reasons
    _, whole, _ = model.call(
        [Tool("f")], ToolChoice("required"), 5, SamplingParams(thinking_token_budget=0)
    )
    assert whole.calls and not whole.reasoning


def test_a_text_cannot_hold_what_ends_it_or_its_call() -> None:
    assert DECLARED.writing is not None
    schema = {"properties": {"s": {"type": "string"}}, "required": ["s"]}
    grammar = DECLARED.writing.grammar(Wanted({"f": schema}, literal, several=False))
    model, call = Obedient("no marks", []), '<|tool_call>call:f{s:<|"|>%s<|"|>}<tool_call|>'
    assert model.allows(grammar, call % 'a "b", c:\n')
    for end in ("<tool_call|>", '<|"|>', "\x01"):
        assert not model.allows(grammar, call % f"a{end}b")


def test_arguments_that_are_nearly_json_are_mended_and_others_are_broken() -> None:
    calls = {"open": "<tool_call>", "close": "</tool_call>", "content": "json", "repeats": True}
    calls["transform"] = {"type": "function", "function": "{content}"}
    declared = Declared({"start_anchor": "<s>", "fields": {"content": {}, "tool_calls": calls}})
    for written, meant in (
        ('{"a": "x\ny"}', {"a": "x\ny"}),
        (r'{"a": "C:\dir"}', {"a": r"C:\dir"}),
        (r'"{\"a\": \"x\ny\"}"', {"a": "x\ny"}),
        (r'{"a": "\ud83d"}', {"a": "�"}),
        ('{"a": NaN}', None),
        ('{"a": 1e999}', None),
        ('{"a": b}', None),
    ):
        call = f'{{"name": "f", "arguments": {written}}}'
        parser = declared.parser(TOOLS, "")
        reply = run(parser, [f"<tool_call>{call}</tool_call>"])
        (told,) = reply.calls if written[-2] != "b" else [None]
        if told is None:
            assert reply.content == call
        elif meant is None:
            assert told.cut == call and not told.arguments
        else:
            assert json.loads(told.arguments) == meant, written

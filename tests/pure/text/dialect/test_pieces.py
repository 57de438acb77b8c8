"""However a text is cut into pieces, the events come to the same, and nothing is lost."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.text.dialect import (
    DIALECTS,
    REASONING,
    CallBegun,
    CallCut,
    CallEnded,
    Event,
    EventParser,
    OutputParser,
    ParserState,
    Reply,
)

TOOLS = {"f": {"properties": {"n": {"type": "integer"}, "l": {"type": "array"}}}, "g": {}}
FRAGMENTS = {
    "hermes": ["<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"a": "\\"}"}}'],
    "qwen3_xml": [
        "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=n>",
        "<parameter=s>", "</parameter>", "\n5\n", "[1]",
    ],
    "glm45": [
        "<tool_call>", "</tool_call>", "f", "<arg_key>", "n", "</arg_key>", "<arg_value>", "5",
        "</arg_value>",
    ],
    "deepseek_v3": [
        "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>",
        "f\n```json\n", "{}", "\n```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
    ],
    "kimi_k2": [
        "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.f:0", "<|tool_call_end|>",
        "<|tool_call_argument_begin|>", "{}", "<|tool_calls_section_end|>",
    ],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "f", '{"name": "g", "arguments": {}}'],
    "pythonic": ["<|python_start|>", "<|python_end|>", "[f(", "a=1", 'b="\\""', ")", "'''", "g()"],
    "minimax_m2": [
        "<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="f">', "</invoke>",
        '<parameter name="n">', '<parameter name="s">', "</parameter>", "5",
    ],
    "deepseek_v32": [
        "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", '<｜DSML｜invoke name="f">',
        "</｜DSML｜invoke>", '<｜DSML｜parameter name="n" string="', 'true">', 'false">',
        "</｜DSML｜parameter>", "5",
    ],
    "minicpm5": [
        '<function name="f">', "</function>", '<param name="s">', "</param>", "<![CDATA[", "]]>",
    ],
    "gemma4": [
        "<|tool_call>", "<tool_call|>", "call:f{", "call:g{}", "n:5", '<|"|>', "}", '"', "\\",
    ],
    "lfm2": ["<|tool_call_start|>", "<|tool_call_end|>", "[f(", "a=1", ")", "g()", "]"],
    "apertus": ["<|tools_prefix|>", "<|tools_suffix|>", '[{"f"', ": {}", "}", '{"g": {"a": 1}}'],
    "llama3_json": ["<|python_tag|>", '{"name": "f", "parameters": {"x": [1, {}]}}', "; "],
}  # fmt: skip
HARMONY = [
    "<|start|>", "assistant", "<|channel|>", "analysis", "commentary to=functions.f", "final",
    "<|message|>", "<|end|>", "<|call|>", "<|return|>", "to=g",
]  # fmt: skip
COMMON = [
    "<think>", "</think>", " ", "\n\n", " " * 70, "text", "<", "[", "]", "{", "}", '"', "\\", ",",
    ":", '"name"', '"arguments"', ": {", "null", "é", "'", '{"a"',
]  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str, list[int]]:
    """A dialect, a text, and where it is cut."""
    name = draw(st.sampled_from(sorted(FRAGMENTS)))
    own = st.sampled_from(FRAGMENTS[name])
    parts = draw(st.lists(st.one_of(own, own, st.sampled_from(COMMON)), max_size=14))
    text = "".join(parts)
    cuts = draw(st.lists(st.integers(0, len(text)), max_size=12))
    return name, text, sorted({0, *cuts, len(text)})


def run(parser: EventParser, pieces: list[str]) -> list[Event]:
    events = [event for piece in pieces for event in parser.push(piece)]
    return events + parser.finish()


@settings(max_examples=400, deadline=None)
@given(cases(), st.booleans(), st.booleans())
def test_the_pieces_add_up_to_the_whole(
    case: tuple[str, str, list[int]], thinks: bool, reasons: bool
) -> None:
    name, text, cuts = case
    marks = REASONING["qwen3"] if thinks else None

    def parser() -> OutputParser:
        return OutputParser(
            DIALECTS[name].form, TOOLS, marks, state=ParserState(thinks and reasons)
        )

    whole = run(parser(), [text])
    pieces = run(parser(), [text[start:end] for start, end in pairwise(cuts)])
    assert Reply.of(pieces) == Reply.of(whole) == Reply.of(run(parser(), list(text)))
    begun = [event.number for event in pieces if isinstance(event, CallBegun)]
    assert begun == list(range(len(begun)))
    assert begun == [event.number for event in pieces if isinstance(event, CallEnded | CallCut)]
    if not begun and not thinks:
        assert Reply.of(pieces) == Reply(content=text)
    if thinks and reasons and "</think>" not in text and not begun:
        assert Reply.of(pieces).reasoning.split() == text.strip().removeprefix("<think>").split()


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(FRAGMENTS)), st.text(max_size=40))
def test_any_text_without_a_call_is_content(name: str, text: str) -> None:
    assert Reply.of(run(OutputParser(DIALECTS[name].form, {}), list(text))) == Reply(content=text)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([*HARMONY, *HARMONY, *COMMON]), max_size=14).map("".join))
def test_harmony_in_pieces(text: str) -> None:
    make = DIALECTS["openai"].parser
    assert make is not None
    assert Reply.of(run(make(TOOLS), list(text))) == Reply.of(run(make(TOOLS), [text]))
    if not any(mark in text for mark in ("<|start|>", "<|channel|>", "to=")):
        assert Reply.of(run(make(TOOLS), [text])).content.strip() == text.strip()

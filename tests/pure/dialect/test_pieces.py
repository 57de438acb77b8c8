"""However a text is cut into pieces, the events come to the same, and nothing is lost."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.dialect import DIALECTS, REASONING, CallBegun, CallEnded, Event, OutputParser, Reply

TOOLS = {"f": {"properties": {"n": {"type": "integer"}, "l": {"type": "array"}}}, "g": {}}
FRAGMENTS = {
    "hermes": ["<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"a": "\\"}"}}'],
    "qwen3_xml": [
        "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=n>",
        "<parameter=s>", "</parameter>", "\n5\n", "[1]",
    ],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "f", '{"name": "g", "arguments": {}}'],
    "pythonic": ["<|python_start|>", "<|python_end|>", "[f(", "a=1", 'b="\\""', ")", "'''", "g()"],
    "llama3_json": ["<|python_tag|>", '{"name": "f", "parameters": {"x": [1, {}]}}', "; "],
}  # fmt: skip
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


def run(parser: OutputParser, pieces: list[str]) -> list[Event]:
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
        return OutputParser(DIALECTS[name].form, TOOLS, marks, reasons=thinks and reasons)

    whole = run(parser(), [text])
    pieces = run(parser(), [text[start:end] for start, end in pairwise(cuts)])
    assert Reply.of(pieces) == Reply.of(whole) == Reply.of(run(parser(), list(text)))
    begun = [event.number for event in pieces if isinstance(event, CallBegun)]
    assert begun == list(range(len(begun)))
    assert begun == [event.number for event in pieces if isinstance(event, CallEnded)]
    if not begun and not thinks:
        assert Reply.of(pieces) == Reply(content=text)
    if thinks and reasons and "</think>" not in text and not begun:
        assert Reply.of(pieces).reasoning.split() == text.strip().removeprefix("<think>").split()


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(FRAGMENTS)), st.text(max_size=40))
def test_any_text_without_a_call_is_content(name: str, text: str) -> None:
    assert Reply.of(run(OutputParser(DIALECTS[name].form, {}), list(text))) == Reply(content=text)

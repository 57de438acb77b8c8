"""A model's dialect and its marks of reasoning, found in what its chat template writes.

The template is given calls, and the dialect is the one that reads exactly these calls back. What
none reads back is read by a form made from what was written, if that reads them back. Texts in a
template's source say only which is tried first, and count alone where it writes no calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from quire.core.errors import RequestError
from quire.text.dialect import harmony
from quire.text.dialect.catalogue import ALL, REASONING, Dialect, made
from quire.text.dialect.made_form import MadeForm, ProbeCall, common_start
from quire.text.dialect.reader import MARK, Marks, OutputParser, Reply

Render = Callable[[Sequence[Mapping[str, Any]], Mapping[str, Any]], str]
"""A conversation as a text, by messages and the template's variables."""

_USER, _CONTENT, _THOUGHT = "QUESTION", "ANSWER", "REASONING"
_CALLS = (ProbeCall("probe_one", "probe0001"), ProbeCall("probe_two", "probe0002"))
_PROBE = "probe_"
_TYPES = ("string", "integer", "boolean", "object")
_VALUES = ('a "b" é', 3, True, {"list": [1, "x"]})
_ARGUMENTS = {_PROBE + type_: value for type_, value in zip(_TYPES, _VALUES, strict=True)}
_SCHEMA = {
    "type": "object",
    "properties": {_PROBE + type_: {"type": type_} for type_ in _TYPES},
}
_TOOLS = {call.name: _SCHEMA for call in _CALLS}
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thought")  # in templates' words


class GivenArguments(dict[str, Any]):
    """A call's, as an object; where a template puts it into a text, its JSON."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, after: str) -> str:
        return str(self) + after

    def __radd__(self, before: str) -> str:
        return before + str(self)


def dialect_of(template: str, render: Render) -> Dialect | None:
    """How the model calls tools; None: not known.

    template: its source.
    """
    ranked = sorted(ALL, key=lambda dialect: dialect.sign not in template)
    written = _Written(render)
    if not written.one:
        return ranked[0] if ranked[0].sign in template else None
    left = {dialect: rest for dialect in ranked if (rest := written.left_by(dialect)) is not None}
    if left:
        return min(left, key=left.__getitem__)
    shown = MadeForm.of(written.one, written.two, _CALLS, _ARGUMENTS, written.end)
    if shown is not None and written.left_by(found := made(shown)) is not None:
        return found
    return None


def marks_of(template: str, render: Render) -> Marks | None:
    """The marks of reasoning: those around a thought that the template writes; if it writes none,
    those that it knows.
    """
    known = dict.fromkeys((harmony.REASONING, *REASONING.values()))
    _, thought, after = _thought(render).partition(_THOUGHT)
    end = after.partition(_CONTENT)[0] if thought else template
    return next((marks for marks in known if marks.end in end), None)


class _Written:
    """What a template writes of answers with calls, without what opens an answer.

    one, two: calls; "" or None where it refuses them, or leaves them out. end: of an answer.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self.one = self._calls("", 1) or self._calls(None, 1)

    @cached_property
    def two(self) -> str | None:
        return self._calls("", 2) or self._calls(None, 2) or None

    @cached_property
    def end(self) -> str:
        return self._plain.rpartition(_CONTENT)[2]

    def left_by(self, dialect: Dialect) -> int | None:
        """How much a dialect leaves as content: marks that it does not know; None where it does
        not read exactly these calls back.
        """
        left = 0
        for text, names in ((self.one, 1), (self.two, 2)):
            if text is None:
                continue
            reply = _read(dialect, text)
            read = [(call.name, call.cut, _value(call.arguments)) for call in reply.calls]
            if read != [(call.name, None, _ARGUMENTS) for call in _CALLS[:names]]:
                return None
            left += len(reply.content)
            if _PROBE in reply.content:
                return None
        return left

    @cached_property
    def _opening(self) -> str:
        return self._text(add_generation_prompt=True)

    @cached_property
    def _plain(self) -> str:
        return self._text({"role": "assistant", "content": _CONTENT})

    def _calls(self, content: str | None, count: int) -> str:
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": GivenArguments(_ARGUMENTS)},
            }
            for call in _CALLS[:count]
        ]
        text = self._text({"role": "assistant", "content": content, "tool_calls": calls})
        if not all(call.name in text for call in _CALLS[:count]):
            return ""
        if text.startswith(self._opening):
            return text[len(self._opening) :]
        openings = (self._opening, self._plain.partition(_CONTENT)[0])
        same = max(len(common_start(text, opening)) for opening in openings)
        cut = (mark.start() for mark in MARK.finditer(text) if mark.start() < same < mark.end())
        return text[next(cut, same) :]

    def _text(self, *said: Mapping[str, Any], add_generation_prompt: bool = False) -> str:
        return _after_question(self._render, said, add_generation_prompt=add_generation_prompt)


def _after_question(render: Render, said: Sequence[Mapping[str, Any]], **variables: object) -> str:
    """What follows the user's message; "" where the template refuses these."""
    empty = {"type": "object", "properties": {}}
    tools = [
        {"type": "function", "function": {"name": name, "description": "d", "parameters": empty}}
        for name in _TOOLS
    ]
    question = {"role": "user", "content": _USER}
    try:
        text = render([question, *said], {"tools": tools, **variables})
    except RequestError:
        return ""
    return text.rpartition(_USER)[2]


def _thought(render: Render) -> str:
    """What a template writes of an answer with a thought."""
    by_name = {"content": _CONTENT, **dict.fromkeys(_THOUGHTS, _THOUGHT)}
    parts = {
        "content": [
            {"type": "thinking", "thinking": _THOUGHT},
            {"type": "text", "text": _CONTENT},
        ]
    }
    for said in (by_name, parts):
        message = {"role": "assistant", **said}
        text = _after_question(
            render, [message], add_generation_prompt=False, enable_thinking=True, thinking=True
        )
        if text.count(_THOUGHT) == text.count(_CONTENT) == 1 and "type" not in text:
            return text
    return ""


def _read(dialect: Dialect, text: str) -> Reply:
    if dialect.parser is not None:
        parser = dialect.parser(_TOOLS, "")
        return Reply.of([*parser.push(text), *parser.finish()])
    return Reply.of(OutputParser(dialect.form, _TOOLS).parse(text))


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return None

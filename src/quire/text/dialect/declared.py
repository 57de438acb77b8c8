"""Dialects that a model's files declare: transformers' ``response_template``, by its own parser."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from quire.text.dialect.calls import Tools
from quire.text.dialect.declared_calls import frame_of
from quire.text.dialect.events import (
    CallArguments,
    CallBegun,
    CallCut,
    CallEnded,
    ContentPiece,
    Event,
    ReasoningPiece,
)
from quire.text.dialect.grammar import Frame
from quire.text.dialect.mending import mended
from quire.text.dialect.parser import Marks

_REASONING = ("reasoning_content", "reasoning", "thinking")
_CALLS = "tool_calls"


class Declared:
    """A response template that can be used.

    ValueError if it makes no sense; ImportError if this transformers has no parser for it.

    marks: of reasoning, if they are plain text.
    writing: how to make a model call; None if the template does not show it: ``why_not``.
    """

    marks: Marks | None
    writing: Frame | None
    why_not: str

    def __init__(self, spec: Mapping[str, Any]) -> None:
        from transformers.utils.chat_parsing.response_parser import ResponseParser
        from transformers.utils.chat_parsing.response_templates import load_response_template

        class Lenient(ResponseParser):  # type: ignore[misc]  # its types are not read
            """Mends a broken region, or reports it, instead of ending there."""

            _body: str

            def _close_current(self, events: list[dict[str, Any]]) -> None:
                written = self._body
                for body in (written, mended(written.strip())):
                    if body is not None:
                        self._body = body
                        with suppress(Exception):  # whatever a declared transformation raises
                            super()._close_current(events)
                            return
                events.append({"type": "malformed", "text": written})
                self._reset_to_implicit()

        # Nothing is missed in what a model writes: it may be cut.
        fields = {name: {**field, "optional": True} for name, field in spec["fields"].items()}
        self._spec = load_response_template({**spec, "fields": fields})
        self._make = Lenient
        self.marks = _marks(spec["fields"])
        self.writing, self.why_not = _writing(spec["fields"])
        self._text = json.dumps(spec, ensure_ascii=False).replace("\\", "")

    def mentions(self, token: str) -> bool:
        """Whether a special token is one of its marks, as it is or in an expression."""
        return token in self._text

    def parser(self, tools: Tools | None, begun: str) -> DeclaredParser:
        """begun: what the prompt holds of the answer, from its header on."""
        if not self._spec.start_anchor_re.search(begun):
            begun = ""
        told: list[Any] = [
            {"type": "function", "function": {"name": name, "parameters": schema}}
            for name, schema in (tools or {}).items()
        ]
        return DeclaredParser(self._make(self._spec, begun, tools=told), calls=tools is not None)


def _marks(fields: Mapping[str, Any]) -> Marks | None:
    for name in _REASONING:
        start, end = (fields.get(name, {}).get(key) for key in ("open", "close"))
        if isinstance(start, str) and isinstance(end, str):
            return Marks(start, end)
    return None


def _writing(fields: Mapping[str, Any]) -> tuple[Frame | None, str]:
    if _CALLS not in fields:
        return None, f"has no field {_CALLS}"
    try:
        return frame_of(fields[_CALLS]), ""
    except ValueError as error:
        return None, str(error)


class DeclaredParser:
    """Like ``OutputParser``, but reports a call when it is complete.

    calls: whether to look for calls; otherwise they are content.
    """

    is_plain = False

    def __init__(self, parser: Any, *, calls: bool) -> None:
        self._parser = parser
        self._tells_calls = calls
        self._region = ""
        self._space = ""  # held back: text between two regions belongs to none
        self._body = ""  # of a call, as it is written
        self._count = 0
        for told in parser.initial_events:  # of the prompt's part, which has been reported
            list(self._events(told))
        self._space = ""

    def push(self, text: str) -> list[Event]:
        return [event for told in self._parser.feed(text) for event in self._events(told)]

    def finish(self, *, cut: bool = False) -> list[Event]:
        """See ``Parser.finish``. Where a call ends shows in it."""
        _, told = self._parser.finalize()
        return [event for one in told for event in self._events(one)]

    def _events(self, told: Mapping[str, Any]) -> Iterator[Event]:
        match told:
            case {"type": "region_chunk", "field": field, "text": text}:
                if field == _CALLS:
                    self._body += text
                else:
                    yield from self._say(field, text)
            case {"type": "region_close", "field": "tool_calls", "value": value}:
                body, self._body = self._body, ""
                listed = value if isinstance(value, list) else [value]
                calls = [_name_and_arguments(one) for one in listed]
                if not self._tells_calls or None in calls:
                    yield ContentPiece(body)
                    return
                for name, arguments in filter(None, calls):
                    yield from self._call(name, arguments, body)
            case {"type": "malformed", "text": text}:
                self._body, self._region = "", "content"
                yield ContentPiece(text)

    def _say(self, field: str, text: str) -> Iterator[Event]:
        if field != self._region:
            self._region, self._space = field, ""
            text = text.lstrip()
            if not text:
                self._region = ""
        text = self._space + text
        said = text.rstrip()
        self._space = text[len(said) :]
        if said:
            yield ReasoningPiece(said) if field in _REASONING else ContentPiece(said)

    def _call(self, name: str, arguments: str | None, body: str) -> Iterator[Event]:
        """arguments: None where they are no JSON."""
        number = self._count
        self._count += 1
        yield CallBegun(number, name)
        if arguments is None:
            yield CallCut(number, body, broken=True)
        else:
            yield CallArguments(number, arguments)
            yield CallEnded(number)


def _name_and_arguments(value: Any) -> tuple[str, str | None] | None:
    """The name and the arguments of a call; None if it is not one, and for arguments that are not
    JSON.
    """
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    spelled = mended(arguments.strip() or "{}")
    return function["name"], spelled if spelled and spelled[0] == "{" else None

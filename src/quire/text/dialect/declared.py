"""Dialects that a model's files declare: transformers' ``response_template``, by its own parser.

A template shows how to read calls. What can be read in one way only can be written too: plain text,
with a name in it, around JSON. Too little information is a ValueError, whose text continues "its
response_template".
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from quire.core.errors import EngineError
from quire.text.dialect.grammar import NUMBER, SPACES, Frame, GrammarRules, Schema
from quire.text.dialect.mending import mended
from quire.text.dialect.notation import Notation
from quire.text.dialect.reader import (
    CallArguments,
    CallBegun,
    CallCut,
    CallEnded,
    ContentPiece,
    Event,
    Marks,
    ReasoningPiece,
    Tools,
)

Field = Mapping[str, Any]

# White space; digits; a group; a character that stands for itself.
_PIECE = re.compile(
    r"(\\s[*+?]\??)|(\\d\+)|(\(\?P<(\w+)>([^()]+)\))|\\([^\w\s]|n)|([^\\()\[\]{}.*+?|^$])"
)
_LONGEST_LOOK = 0.25  # seconds
_PLACE = re.compile(r"\{(?:content\.)?(\w+)\}")


def frame_of(field: Field) -> Frame:
    """field: ``tool_calls`` of a template."""
    transform = field.get("transform")
    function = transform.get("function") if isinstance(transform, Mapping) else None
    if function == "{content}":
        function = {"name": "{content.name}", "arguments": "{content.arguments}"}
    if not isinstance(function, Mapping) or field.get("content") != "json":
        raise ValueError("does not say that arguments are JSON")
    name, arguments = str(function.get("name")), str(function.get("arguments"))
    if arguments == "{content}":
        return _named_before(field, _place(name))
    return _named_within(field, _place(name), _place(arguments))


def _named_before(field: Field, group: str) -> Frame:
    """The frame of calls whose mark holds the name, and whose body is the arguments."""
    opens, names = _opening(field, group)
    if not names:
        raise ValueError(f"has no group {group} for the name of a tool")
    between, opens = _apart(opens)
    return Frame(opens, _closing(field), between, arguments=_arguments(field), names=names)


def _named_within(field: Field, name: str, arguments: str) -> Frame:
    """The frame of calls whose body is an object with name and arguments, or a list of these."""
    between, opens = _apart(_opening(field, "")[0])
    notation, closes = _notation(field), _closing(field)
    if notation is None:
        before = f'{{"{name}": "NAME", "{arguments}": '
    else:
        before = f"{{{notation.key(name)}:{notation.text('NAME')},{notation.key(arguments)}:"
    if field.get("transform_each"):
        comma = ", " if notation is None else ","
        return Frame(
            (before,),
            ("}",),
            (comma,),
            (*opens, "["),
            ("]", *closes),
            arguments=_arguments(field),
        )
    return Frame((*opens, before), ("}", *closes), between, arguments=_arguments(field))


def _arguments(field: Field) -> Callable[[GrammarRules, Schema], str]:
    notation = _notation(field)
    return GrammarRules.json if notation is None else notation.arguments


def _notation(field: Field) -> Notation | None:
    """How its JSON is written; None if as JSON."""
    given = field.get("content_args", {})
    delims, unquoted = given.get("string_delims", []), bool(given.get("unquoted_keys"))
    if not delims:
        if unquoted:
            raise ValueError("lets keys go without quotes, but not texts")
        return None
    opens, closes = delims[0]
    return Notation(opens, closes, not unquoted, tuple(_end_marks(field)))


def _end_marks(field: Field) -> list[str]:
    """The marks that end a call, wherever they are."""
    given = field.get("close", [])
    if not given:
        return ["".join(part for part in _closing(field) if part != SPACES)]
    return [given] if isinstance(given, str) else list(given)


def _closing(field: Field) -> tuple[str, ...]:
    if "close" in field:
        given = field["close"]
        return (given if isinstance(given, str) else given[0],)
    if "close_pattern" not in field:
        raise ValueError("does not say what ends a call")
    return _parts(field["close_pattern"], "close_pattern", "")[0]


def _opening(field: Field, group: str) -> tuple[tuple[str, ...], str]:
    if "open" in field:
        given = field["open"]
        return (given if isinstance(given, str) else given[0],), ""
    if "open_pattern" not in field:
        raise ValueError("does not say what begins a call")
    return _parts(field["open_pattern"], "open_pattern", group)


def _apart(opens: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """White space that may come between two calls, and the marks after it that open one."""
    if opens[0] == SPACES:
        return opens[:1], opens[1:]
    return (), opens


def _parts(pattern: str, key: str, group: str) -> tuple[tuple[str, ...], str]:
    """The parts of an expression that is plain text except for white space, numbers and the group
    of a name.

    Returns a frame's parts, and the expression for names.
    """
    parts, names, at = [""], "", 0
    while at < len(pattern):
        found = _PIECE.match(pattern, at)
        if found is None:
            raise ValueError(f"has an {key} that is no plain text: {json.dumps(pattern)}")
        spaces, digits, grouped, label, inside, escaped, plain = found.groups()
        if grouped and label == group:
            names = inside
            parts += ["NAME", ""]
        elif spaces:
            parts += [" " if "+" in spaces else SPACES, ""]
        elif digits or inside == r"\d+":
            parts += [NUMBER, ""]
        elif grouped:
            raise ValueError(f"does not say what {label} is in its {key}")
        else:
            parts[-1] += "\n" if escaped == "n" else escaped or plain
        at = found.end()
    return tuple(part for part in parts if part), names


def _place(text: str) -> str:
    """The key or group that a transform takes a value from."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise ValueError(f"makes a call in a way that is not known: {json.dumps(text)}")
    return found[1]


_REASONING = ("reasoning_content", "reasoning", "thinking")
_CALLS = "tool_calls"


class _Bounded:
    """A regular expression of the model's files, matched within a time limit.

    It has the methods that transformers' parser calls. EngineError: the time is up.
    """

    def __init__(self, expression: Any) -> None:
        self._expression = expression

    def search(self, text: str, *place: int, partial: bool = False) -> Any:
        return self._within(self._expression.search, text, *place, partial=partial)

    def match(self, text: str, *place: int) -> Any:
        return self._within(self._expression.match, text, *place)

    def finditer(self, text: str) -> Iterator[Any]:
        return iter(self._within(self._all, text))

    def _all(self, text: str, timeout: float) -> list[Any]:
        return list(self._expression.finditer(text, timeout=timeout))

    def _within(self, look: Callable[..., Any], *given: Any, **how: Any) -> Any:
        timeout = _LONGEST_LOOK
        while True:
            began = time.thread_time()
            try:
                return look(*given, **how, timeout=timeout)
            except TimeoutError:  # it counts what other threads of the process compute, too
                if time.thread_time() - began > _LONGEST_LOOK / 2:
                    break
                timeout *= 2
        raise EngineError(
            f"an expression of the model's response_template takes more than {_LONGEST_LOOK} s"
        )


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
            _current: str | None

            def _close_current(self, events: list[dict[str, Any]]) -> None:
                written = self._body
                if (tags := within.get(self._current)) is not None:
                    tags.finditer(written)  # as will be done without an end to it
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
        within = _bounded(self._spec, load_response_template)
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
        listed: list[Any] = [
            {"type": "function", "function": {"name": name, "parameters": schema}}
            for name, schema in (tools or {}).items()
        ]
        return DeclaredParser(self._make(self._spec, begun, tools=listed), calls=tools is not None)


def _bounded(spec: Any, load: Callable[[Any], Any]) -> Mapping[str | None, _Bounded]:
    """Bound the expressions of a template; those of what stands in regions, by field."""
    spec.start_anchor_re = _Bounded(spec.start_anchor_re)
    within: dict[str | None, _Bounded] = {}
    for name, field in spec.fields.items():
        for place in ("open_re", "close_re"):
            if (expression := getattr(field, place)) is not None:
                setattr(field, place, _Bounded(expression))
        if "tag_pattern" in json.dumps(field.content_args.get("value_parser")):
            raise ValueError("its expressions stand in each other")
        if (tags := field.content_args.get("tag_pattern")) is not None:
            alone = {"start_anchor_pattern": tags, "fields": {name: {}}}
            within[name] = _Bounded(load(alone).start_anchor_re)
    return within


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
        for region in parser.initial_events:  # of the prompt's part, which has been reported
            list(self._events(region))
        self._space = ""

    def push(self, text: str) -> list[Event]:
        return [event for region in self._parser.feed(text) for event in self._events(region)]

    def finish(self, *, cut: bool = False) -> list[Event]:
        """See ``Parser.finish``. Where a call ends shows in it."""
        _, regions = self._parser.finalize()
        return [event for region in regions for event in self._events(region)]

    def _events(self, region: Mapping[str, Any]) -> Iterator[Event]:
        match region:
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

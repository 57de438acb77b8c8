"""How to write calls, as far as transformers' ``response_template`` shows it: it shows how to read.

What can be read in one way only can be written: plain text, with a name in it, around JSON. Too
little information is a ValueError, whose text continues "its response_template".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from quire.text.dialect.grammar import NUMBER, SPACES, Frame, GrammarRules, Schema
from quire.text.dialect.notation import Notation

Field = Mapping[str, Any]

# White space; digits; a group; a character that stands for itself.
_PIECE = re.compile(
    r"(\\s[*+?]\??)|(\\d\+)|(\(\?P<(\w+)>([^()]+)\))|\\([^\w\s]|n)|([^\\()\[\]{}.*+?|^$])"
)
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
    """The name stands in what opens a call, whose body is its arguments."""
    opens, names = _opening(field, group)
    if not names:
        raise ValueError(f"has no group {group} for the name of a tool")
    between, opens = _apart(opens)
    return Frame(opens, _closing(field), between, arguments=_arguments(field), names=names)


def _named_within(field: Field, name: str, arguments: str) -> Frame:
    """A call's body is an object with a name and arguments, or a list of these."""
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
    return Notation(opens, closes, not unquoted, tuple(_marks(field)))


def _marks(field: Field) -> list[str]:
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
    """White space that may come before a call stands between two."""
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

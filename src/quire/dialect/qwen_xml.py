"""<tool_call><function=f><parameter=a>1</parameter></function></tool_call>: Qwen 3 Coder, 3.5."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from quire.dialect import literals
from quire.dialect.calls import Calls
from quire.dialect.grammar import Frame, Rules, Schema, literal, members
from quire.dialect.reader import Reader, Reading
from quire.errors import RequestError, shown

OPENS, CLOSES = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_ENDS = "<function=", "</function>"
PARAMETER, PARAMETER_ENDS = "<parameter=", "</parameter>"

_LONGEST_KEY = 256  # characters
_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


_ENDS = r"/(?s:.*)(<\/parameter>|<parameter=|<\/function>)(?s:.*)/"
_TEXTS = {"type", "enum", "const", "pattern", "minLength", "maxLength"}  # what is said of texts
_SAID = {"title", "description", "default", "examples", "format", "$defs", "definitions"}


def _arguments(rules: Rules, schema: Schema) -> str:
    parameters = []
    for key, one, required in members(schema):
        if set(key) & set("<>\n") or len(key) > _LONGEST_KEY:
            raise RequestError(f"this model's calls cannot have an argument {shown(key)}", "tools")
        end = literal(f"\n{PARAMETER_ENDS}\n")
        if _types(one) <= {"string"}:
            value = rules.terminal(f"{_text(rules, one)} {end}")
        else:
            value = f"{rules.json(one)} {end}"
        spelled = f"{literal(f'{PARAMETER}{key}>' + chr(10))} {value}"
        parameters.append(spelled if required else f"({spelled})?")
    return " ".join(parameters)


def _text(rules: Rules, schema: Schema) -> str:
    """A text that is written as it is, and so may not hold what ends it."""
    if others := sorted(schema.keys() - _TEXTS - _SAID):
        raise RequestError(
            f"where this model must call, the schema of a text may not hold {others[0]}", "tools"
        )
    values = _values(schema)
    if values:
        return f"({' | '.join(map(literal, values))})"
    most = schema.get("maxLength", "")
    parts = [f"/(?s:.{{{schema.get('minLength', 0)},{most}}})/", f"~{_ENDS}"]
    if "pattern" in schema:
        pattern = str(schema["pattern"])
        head = "" if pattern.startswith("^") else "(?s:.*)"
        tail = "" if pattern.endswith("$") else "(?s:.*)"
        inner = re.sub(r"(?<!\\)/", r"\\/", pattern.removeprefix("^").removesuffix("$"))
        parts.append(f"/{head}({inner}){tail}/")
    return rules.terminal(" & ".join(parts))


FRAME = Frame(
    before=(OPENS, f"\n{FUNCTION}NAME>\n"),
    after=(f"{FUNCTION_ENDS}\n", CLOSES),
    between=("\n",),
    arguments=_arguments,
)


def read(reader: Reader, calls: Calls) -> Reading[bool]:
    """A call whose arguments are told as they come: those that are texts, bit by bit."""
    yield from reader.take(OPENS)  # some leave it out
    yield from reader.spaces()
    if not (yield from reader.take(FUNCTION)):
        return False
    name = yield from reader.word()
    if not calls.accepts(name) or not (yield from reader.take(">")):
        return False
    calls.begin(name)
    if (yield from _read_parameters(reader, calls, calls.tools.get(name, {}))):
        calls.give("}")
        reader.use()
        yield from reader.spaces()
        if not (yield from reader.take(FUNCTION_ENDS)):
            reader.retreat()
        reader.use()
    calls.end()
    yield from reader.spaces()
    if (yield from reader.take(CLOSES)):
        reader.use()
    else:
        reader.retreat()
    return True


def _read_parameters(reader: Reader, calls: Calls, schema: Mapping[str, Any]) -> Reading[bool]:
    """All of them, as members of a JSON object that is left open; False if the text ends first."""
    opening = "{"
    known = schema.get("properties")
    while True:
        yield from reader.spaces()
        if not (yield from reader.take(PARAMETER)):
            if opening == "{":
                calls.give(opening)
            ended = not (yield from reader.peek())
            reader.retreat()
            return not ended
        key = yield from reader.until(">", _LONGEST_KEY)
        if key is None:
            reader.retreat()
            return not reader.ended
        reader.use()
        calls.give(f"{opening}{literals.quoted(key)}: ")
        opening = ", "
        types = _types(known.get(key) if isinstance(known, Mapping) else None)
        if not (yield from _read_value(reader, calls, types)):
            return False


def _read_value(reader: Reader, calls: Calls, types: frozenset[str]) -> Reading[bool]:
    """One parameter, up to its end or where it must have been forgotten; False at the text's."""
    pieces: list[str] = []

    def say(text: str) -> None:
        calls.give(literals.quoted(text)[1:-1])

    plain = types <= {"string"}
    yield from reader.take("\n")
    reader.use()
    if plain:
        calls.give('"')
    ends = (PARAMETER_ENDS, PARAMETER, FUNCTION_ENDS)
    space, mark = yield from reader.flow(say if plain else pieces.append, ends)
    last = space.removesuffix("\n")
    if plain:
        say(last)
    if not mark:
        return False
    calls.give('"' if plain else _spelled("".join(pieces) + last, types))
    if mark == PARAMETER_ENDS:
        reader.pass_mark(mark)
    return True


def _types(schema: object) -> frozenset[str]:
    """The types that a parameter may have; none if its schema does not say."""
    if not isinstance(schema, Mapping):
        return frozenset()
    named = schema.get("type")
    found = {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        for choice in choices if isinstance(choices, list) else ():
            found |= _types(choice)
    values = _values(schema) or []
    odd = schema.keys() & {"$ref", "allOf"} or any(not isinstance(value, str) for value in values)
    if not found and odd:
        found = {*_TYPES, "string"}
    return frozenset(one for one in found if isinstance(one, str))


def _values(schema: Schema) -> list[Any] | None:
    """Those that a schema names; None if it allows others."""
    named = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return named if isinstance(named, list) else None


def _spelled(text: str, types: frozenset[str]) -> str:
    """A value as JSON. What does not look like one of its types is a text."""
    spelled = text.strip()
    if spelled in ("True", "False", "None"):
        spelled = {"True": "true", "False": "false", "None": "null"}[spelled]
    try:
        spelled = literals.as_json(spelled)
    except literals.NoLiteral:
        return literals.quoted(text)
    value = json.loads(spelled)
    wanted = {kind for name in types for kind in _TYPES.get(name, ())}
    return spelled if type(value) in {*wanted, str} else literals.quoted(text)

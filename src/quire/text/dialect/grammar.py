"""Grammars by which a model writes nothing but calls of the tools that there are.

They are in llguidance's dialect of Lark. Schemas are embedded, each as a grammar of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from quire.core.errors import RequestError, shown
from quire.text import exact_json

Schema = Mapping[str, Any]
Spell = Callable[[str], str]
"""How a grammar spells a text or a mark, which may be a token of its own."""

NUMBER, SPACES, LINE, ID = "\0number", "\0spaces", "\0line", "\0id"
"""Of a frame's parts: any number; white space, if there is some; a line's end, if it is there; a
call's id."""
Part = str | tuple[str, ...]
"""Of a frame: a text or one of these, or several that may be left out together."""

_PARTS = {
    NUMBER: "/[0-9]{1,3}/",
    SPACES: r"/[ \t\n\r]{1,16}/?",
    LINE: r'"\n"?',
    ID: "/[0-9a-zA-Z]{9}/",
}
_LAYOUT = {"whitespace_pattern": r"[ \t\n\r]{1,16}"}  # models have been seen to write nothing else
TEXT = "/(?s:.*)/"
_NO_CALL = r"/[^\[{<](?s:.*)/"
_TYPES = {"null", "boolean", "number", "integer", "string", "array", "object"}
_KINDS: Mapping[str, Any] = {
    "type": (str, list),
    "properties": Mapping,
    "required": list,
    "enum": list,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), int),
}
_DEFINITIONS = ("$defs", "definitions")
_BY_NAME = {"properties", "patternProperties", "dependentSchemas", *_DEFINITIONS}
_PLAIN = {"type", "properties", "required", "additionalProperties", *_DEFINITIONS}
_WORDS = {"title", "description", "default", "examples"}  # which bind nobody
_BINDING = {
    *("type", "enum", "const", "format", "pattern", "minLength", "maxLength"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
    *("contains", "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties"),
    *("properties", "patternProperties", "additionalProperties", "propertyNames", "required"),
    *("minProperties", "maxProperties", "dependencies", "dependentRequired", "dependentSchemas"),
    *("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref", "$dynamicRef"),
}


def unknown_keyword(schema: Schema, known: Collection[str]) -> str | None:
    """The keywords of a schema that are not in ``known``. Words that JSON Schema does not define
    are ignored.

    A format is taken for a description.
    """
    return min((schema.keys() & _BINDING) - {"format", *known}, default=None)


@dataclass
class GrammarRules:
    """A grammar while it is built. Methods that add to it return the name of what they have added.

    any_token: how one token of a text is spelled, without special ones.
    """

    spell: Spell
    any_token: str
    lines: list[str] = field(default_factory=list)

    def rule(self, expression: str, *, lazy: bool = False) -> str:
        return self._add("r", "[lazy]" if lazy else "", expression)

    def terminal(self, expression: str) -> str:
        """Add a terminal, which is read as one lexeme."""
        return self._add("T", "", expression)

    def json(self, schema: Schema) -> str:
        try:
            bound = exact_json.exact({"x-guidance": _LAYOUT, **_binding(schema)})
        except ValueError as error:
            raise RequestError(f"the schema of a tool: {error}", "tools") from None
        return self.rule(f"%json {_spelled(exact_json.write(bound))}")

    def up_to(self, mark: str, most: int | None) -> str:
        """A text and the mark that ends it, which is not in it. most: tokens of the text."""
        end = self.spell(mark)
        if most is not None:
            return f"{self.any_token}{{0,{most}}} {end}"
        text = self.terminal(TEXT)
        if end.startswith('"'):  # no token of its own: the first one that comes is it
            return self.rule(f"{text} {end}", lazy=True)
        return f"{text} {end}"

    def bound(self, mark: str, most: int | None) -> int | None:
        """Tokens that a text before a mark may have: none, where no bound could be kept to."""
        return 0 if most is not None and self.spell(mark).startswith('"') else most

    def _add(self, kind: str, how: str, expression: str) -> str:
        name = f"{kind}{len(self.lines)}"
        self.lines.append(f"{name}{how}: {expression}")
        return name


class Thought(NamedTuple):
    """Reasoning before all else, if its first mark is not a single token.

    most: tokens of it; None: any number.
    """

    start: str
    end: str
    most: int | None = None


@dataclass(frozen=True)
class Wanted:
    """What a grammar allows: calls of these tools, whose schemas are those of their arguments.

    several: more than one call.
    text: text around calls, or in place of them; for bare calls, in place of them only.
    instead: a schema that the answer may follow in place of calls, unless these are bare.
    any_token: how a grammar spells one token of a text, without special ones.
    """

    tools: Mapping[str, Schema]
    spell: Spell
    several: bool
    any_token: str = "<[*]>"
    text: bool = False
    instead: Schema | None = None
    thought: Thought | None = None


class Writing(Protocol):
    """How a model is made to write calls.

    bare: it does not begin with a mark.
    """

    @property
    def bare(self) -> bool: ...

    def grammar(self, wanted: Wanted) -> str: ...


@dataclass(frozen=True)
class Frame:
    """The text around calls: marks, and texts in which NAME is the tool's.

    opening, closing: around all calls. before, after: around the arguments of each.
    arguments: how they are written.
    names: an expression for the names that can be written so.
    """

    before: tuple[Part, ...]
    after: tuple[Part, ...] = ()
    between: tuple[str, ...] = ()
    opening: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    bare: bool = False
    arguments: Callable[[GrammarRules, Schema], str] = GrammarRules.json
    names: str = ""

    def grammar(self, wanted: Wanted) -> str:
        """See ``Wanted``. RequestError where a schema asks for what cannot be promised."""
        rules, spell = GrammarRules(wanted.spell, wanted.any_token), wanted.spell
        mark, *rest = self.opening or self.before
        assert isinstance(mark, str)
        head = spell(mark)
        if self.bare:
            head, rest = "", [mark, *rest]
        between = _line(spell, self.between)
        if self.opening:
            one = self._call(rules, wanted, self.before)
            more = f"({between} {one})*" if wanted.several else ""
            closing = _line(spell, self.closing)
            unit = rules.rule(f"{_line(spell, rest)} {one} {more} {closing}")
            start = f"{head} {unit}"
        else:
            unit = self._call(rules, wanted, rest)
            more = f"({between} {head} {unit})*" if wanted.several else ""
            start = f"{head} {unit} {more}"
        if wanted.instead is not None:
            start = f"{rules.rule(start)} | {rules.json(wanted.instead)}"
        elif wanted.text and self.bare:
            start = f"{rules.rule(start)} | {rules.terminal(_NO_CALL)}"
        elif wanted.text:
            start = _amid_text(rules, head, unit, several=wanted.several)
        if wanted.thought is not None:
            start = f"{self._thought(rules, wanted.thought)} {rules.rule(start)}"
        return "\n".join([f"start: {start}", *rules.lines])

    def _thought(self, rules: GrammarRules, thought: Thought) -> str:
        most = rules.bound(thought.end, thought.most)
        if most == 0:
            return ""
        text = rules.up_to(thought.end, most)
        return f"({rules.spell(thought.start)} {text} {_PARTS[SPACES]})?"

    def _call(self, rules: GrammarRules, wanted: Wanted, before: Sequence[Part]) -> str:
        after = _line(wanted.spell, self.after)
        each = []
        for name, schema in wanted.tools.items():
            if self.names and not re.fullmatch(self.names, name):
                text = f"this model's calls cannot be of a tool named {shown(name)}"
                raise RequestError(text, "tools")
            named = _line(wanted.spell, before, name)
            each.append(f"{named} {self.arguments(rules, schema)} {after}")
        return rules.rule(" | ".join(each))


def _line(spell: Spell, parts: Sequence[Part], name: str = "NAME") -> str:
    return " ".join(
        f"({_line(spell, part)})?"
        if isinstance(part, tuple)
        else _PARTS.get(part) or spell(part.replace("NAME", name))
        for part in parts
    )


def _amid_text(rules: GrammarRules, mark: str, unit: str, *, several: bool) -> str:
    text = rules.terminal(TEXT)
    head = f"{text} {mark}"
    if mark.startswith('"'):  # no token of its own: the first one that comes is it
        head = rules.rule(head, lazy=True)
    return f"({head} {unit}){'*' if several else '?'} {text}"


def members(schema: Schema) -> list[tuple[str, Schema, bool]]:
    """Each property of an object, its schema, and whether it is required.

    RequestError if the schema asks for more than that.
    """
    if other := unknown_keyword(schema, _PLAIN):
        raise RequestError(
            f"where this model must call, a tool's schema may not hold {other} at its top",
            "tools",
        )
    required = schema.get("required", [])
    properties = {**schema.get("properties", {})}
    for key in required:
        properties.setdefault(key, schema.get("additionalProperties", {}))
        if properties[key] is False:
            raise RequestError(f"no call can have the argument {shown(key)}, and must", "tools")
    return [
        (key, {**definitions(schema), **as_schema(one)}, key in required)
        for key, one in properties.items()
        if one is not False
    ]


def as_schema(given: object) -> Schema:
    """A checked schema. RequestError: a keyword that calls rely on has a value of another type."""
    said = {} if given is True else given
    if not isinstance(said, Mapping) or not all(
        isinstance(said[key], kind) and not isinstance(said[key], bool)
        for key, kind in _KINDS.items()
        if key in said
    ):
        raise RequestError(f"where this model must call, {shown(given)} is no schema", "tools")
    types, required = said.get("type", []), said.get("required", [])
    for one in [*([types] if isinstance(types, str) else types), *required]:
        if not isinstance(one, str) or (one not in _TYPES and one not in required):
            raise RequestError(f"where this model must call, {shown(one)} is no type", "tools")
    return said


def definitions(schema: Schema) -> Schema:
    """What references in a schema may name."""
    return {key: schema[key] for key in _DEFINITIONS if key in schema}


def literal(text: str) -> str:
    return _spelled(json.dumps(text)).replace("\x7f", r"\u007f")


def _binding(schema: Any) -> Any:
    """A schema without what it only says: descriptions are most of many."""
    if not isinstance(schema, Mapping):
        return [_binding(one) for one in schema] if isinstance(schema, list) else schema
    return {key: _bound(key, value) for key, value in schema.items() if key not in _WORDS}


def _bound(key: str, value: Any) -> Any:
    if key in ("enum", "const"):
        return value
    if key in _BY_NAME and isinstance(value, Mapping):
        return {name: _binding(one) for name, one in value.items()}
    return _binding(value)


def _spelled(text: str) -> str:
    """JSON in which "::=" is escaped: llguidance takes it for the sign of another grammar."""
    return text.replace("::=", r":\u003a=")

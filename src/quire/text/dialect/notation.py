"""JSON as some models write it: keys without quotes, texts between special marks.

Such as Gemma 4's {city:<|"|>Paris<|"|>,days:[1,2]}. llguidance does not know such JSON. So a schema
becomes rules here, as far as they can guarantee it, and is refused otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.errors import RequestError, shown
from quire.text.dialect.grammar import (
    Frame,
    GrammarRules,
    Schema,
    Spell,
    as_schema,
    definitions,
    literal,
    members,
    unknown_keyword,
)
from quire.text.dialect.mending import mended, quoted
from quire.text.dialect.reader import Calls, Reading, TextReader
from quire.text.dialect.schemas import of_type, text_terminal, values

_SCALARS = ("integer", "number", "boolean", "null")
_TYPES = ("object", "array", "string", *_SCALARS)
_REFERENCE = re.compile(r"#/(\$defs|definitions)/([^/~%]+)")
_OF_ARRAYS = {"type", "items", "minItems", "maxItems"}
_OF_UNIONS = {"anyOf", "type"}
_COMMA = ' "," '
_BETWEEN = re.compile(r"[^{}\[\]<\"]*")
_IN_QUOTES = re.compile(r"[^\\\"]*")
# A text between quotes, as in JSON, or what stands before a key without them, and the key.
_KEY = re.compile(r'([{\[,:]\s*"(?:[^\\"]|\\.)*")|([{,]\s*)([^{}\[\],:]*)(?=:)', re.DOTALL)
_LONGEST_TEXT = 2**20  # characters
_MOST_ITEMS = 64  # of a bound: larger ones make the grammar large
_MOST_LEVELS = 32


@dataclass(frozen=True)
class Notation:
    """opens, closes: around a text, which is written as it is.

    quoted: keys are between these marks too; else they are words.
    stops: what a text may not hold, beside ``closes``.
    """

    opens: str
    closes: str
    quoted: bool
    stops: tuple[str, ...]

    def arguments(self, rules: GrammarRules, schema: Schema) -> str:
        return _SchemaRules(self, rules, definitions(schema)).object(schema, 0)

    def read(self, reader: TextReader, calls: Calls, name: str) -> Reading[bool]:
        """The arguments of a call, of one whose keys are without quotes: reported at their end."""
        if (yield from reader.peek()) != "{":
            return False
        calls.begin(name)
        if (yield from self._pass_object(reader)):
            given = self._as_json(reader.text[: reader.at])
            if given is not None:
                calls.give(given)
                calls.end()
                return True
        calls.cut(broken=not reader.ended)
        return True

    def _pass_object(self, reader: TextReader) -> Reading[bool]:
        """Skip an object up to its end; False if it has none."""
        depth = 0
        while char := (yield from reader.pass_all(_BETWEEN)):
            if (yield from reader.take(self.opens)):
                if (yield from reader.until(self.closes, _LONGEST_TEXT)) is None:
                    return False
                continue
            reader.at += 1
            if char == '"':
                if _begins(reader) and not (yield from _pass_quotes(reader)):
                    return False
                continue
            depth += (char in "{[") - (char in "}]")
            if not depth and char in "}]":
                return True
        return False

    def _as_json(self, text: str) -> str | None:
        """An object of this notation as JSON; None if it is none."""
        opens, closes = re.escape(self.opens), re.escape(self.closes)
        pieces = re.split(f"{opens}(.*?){closes}", text, flags=re.DOTALL)
        for at, piece in enumerate(pieces):
            pieces[at] = quoted(piece) if at % 2 else _KEY.sub(_quoted_key, piece)
        return mended("".join(pieces))

    def key(self, name: str) -> str:
        if self.quoted:
            return self.text(name)
        if not re.fullmatch(r"\w+", name):
            raise RequestError(f"this model's calls cannot have an argument {shown(name)}", "tools")
        return name

    def text(self, text: str) -> str:
        if any(mark in text for mark in (self.closes, *self.stops)):
            raise RequestError(f"this model's calls cannot hold the text {shown(text)}", "tools")
        return f"{self.opens}{text}{self.closes}"

    def spelled_key(self, name: str, spell: Spell) -> str:
        return self.spelled(name, spell) if self.quoted else literal(self.key(name))

    def spelled(self, value: Any, spell: Spell) -> str:
        """How a grammar spells a value that a schema names: what it holds is text, and no mark."""
        if isinstance(value, str):
            self.text(value)
            return f"{spell(self.opens)} {literal(value)} {spell(self.closes)}"
        if isinstance(value, list):
            return f'"[" {_COMMA.join(self.spelled(one, spell) for one in value)} "]"'
        if isinstance(value, Mapping):
            pairs = (
                f'{self.spelled_key(key, spell)} ":" {self.spelled(one, spell)}'
                for key, one in value.items()
            )
            return f'"{{" {_COMMA.join(pairs)} "}}"'
        return literal(json.dumps(value))


def _quoted_key(found: re.Match[str]) -> str:
    key = found[3]
    return found[1] or found[2] + quoted(key[1:-1] if key and key[0] == key[-1] == "'" else key)


def _begins(reader: TextReader) -> bool:
    """Whether a key or a value begins with the character that was just read."""
    at = reader.at - 2
    while reader.text[at].isspace():
        at -= 1
    return reader.text[at] in "{[,:"


def _pass_quotes(reader: TextReader) -> Reading[bool]:
    """Skip what is left of a text between quotes, as some models write it; False if it does not
    end.
    """
    while char := (yield from reader.pass_all(_IN_QUOTES)):
        reader.at += 1
        if char == '"':
            return True
        if not (yield from reader.peek()):
            return False
        reader.at += 1  # whatever is escaped
    return False


class _SchemaRules:
    """Writes the rules of one tool's schema."""

    def __init__(
        self, notation: Notation, rules: GrammarRules, definitions: Mapping[str, Any]
    ) -> None:
        self._notation, self._rules, self._definitions = notation, rules, definitions
        self._named: dict[str, str] = {}  # rules by what refers to them
        self._anything = ""

    def value(self, schema: object, level: int) -> str:
        if level > _MOST_LEVELS:
            raise _refusal(f"levels beyond {_MOST_LEVELS}")
        if schema is True or (isinstance(schema, Mapping) and unknown_keyword(schema, ()) is None):
            return self.anything()
        schema = as_schema(schema)
        if "$ref" in schema:
            return self._referred(schema, level)
        named = values(schema)
        if named is not None:
            if not named:
                raise _refusal("a choice of no value")
            return self._rules.rule(" | ".join(map(self._literal, named)))
        if "anyOf" in schema:
            _check(schema, _OF_UNIONS)
            return self._either(schema["anyOf"], level)
        types = schema.get("type", _TYPES if "properties" not in schema else "object")
        if isinstance(types, str):
            return self._of_type(types, schema, level)
        return self._either([of_type(schema, one) for one in types], level)

    def object(self, schema: Schema, level: int) -> str:
        """Properties in their order, with a comma before each but the first that is there."""
        properties = members(schema)
        if not properties:
            others = schema.get("additionalProperties", "properties" not in schema)
            return literal("{}") if others is False else self._map(self.value(others, level + 1))
        rests = [""]  # what may follow a property, from the last one on
        firsts: list[str] = []
        for key, one, required in reversed(properties):
            value = self.value(_without_definitions(one), level + 1)
            pair = self._rules.rule(f"{self._literal_key(key)} {value}")
            first = f"{pair} {rests[-1]}"
            firsts = [first] if required else [first, *firsts]
            later = f'"," {pair}'
            rests.append(self._rules.rule(f"{later if required else f'({later})?'} {rests[-1]}"))
        optional = not any(required for _, _, required in properties)
        inner = f"({' | '.join(firsts)}){'?' if optional else ''}"
        return self._rules.rule(f'"{{" {inner} "}}"')

    def anything(self) -> str:
        """Any value, in any depth."""
        if not self._anything:
            self._anything = self._rules.rule("LATER")
            line = len(self._rules.lines) - 1
            text, scalar = self._text({}), self._rules.json({"type": list(_SCALARS)})
            many = f'"[" ({self._anything} ("," {self._anything})*)? "]"'
            choices = [text, scalar, many, self._map(self._anything)]
            self._rules.lines[line] = f"{self._anything}: {' | '.join(choices)}"
        return self._anything

    def _map(self, value: str) -> str:
        """A rule for an object with any keys."""
        key = self._text({}) if self._notation.quoted else r"/\w{1,64}/"
        pair = self._rules.rule(f'{key} ":" {value}')
        return self._rules.rule(f'"{{" ({pair} ("," {pair})*)? "}}"')

    def _of_type(self, type_: str, schema: Schema, level: int) -> str:
        match type_:
            case "object":
                return self.object(schema, level)
            case "array":
                return self._array(schema, level)
            case "string":
                return self._text(schema)
        if type_ not in _SCALARS:
            raise _refusal(f"the type {shown(type_)}")
        return self._rules.json(_without_definitions(schema))

    def _text(self, schema: Schema) -> str:
        notation = self._notation
        stops = (notation.closes, *notation.stops)
        text = text_terminal(self._rules, schema, stops, r"[^\x01\x02]")
        opens, closes = map(self._rules.spell, (notation.opens, notation.closes))
        if closes.startswith('"'):  # no token of its own: it is read together with the text
            return self._rules.rule(f"{opens} {self._rules.terminal(f'{text} {closes}')}")
        return self._rules.rule(f"{opens} {text} {closes}")

    def _array(self, schema: Schema, level: int) -> str:
        _check(schema, _OF_ARRAYS)
        item = self.value(schema.get("items", True), level + 1)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if max(least, most or 0) > _MOST_ITEMS:
            raise _refusal(f"bounds of a list above {_MOST_ITEMS}")
        if most == 0:
            return literal("[]")
        rest = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        some = f"{item} {rest}"
        return self._rules.rule(f'"[" {some if least else f"({some})?"} "]"')

    def _referred(self, schema: Schema, level: int) -> str:
        _check(schema, {"$ref"})
        name = str(schema["$ref"])
        found = _REFERENCE.fullmatch(name)
        if found is None or found[2] not in self._definitions.get(found[1], {}):
            raise _refusal(f"the reference {shown(name)}")
        if name not in self._named:  # it may refer to itself
            self._named[name] = self._rules.rule("LATER")
            line = len(self._rules.lines) - 1
            value = self.value(self._definitions[found[1]][found[2]], level + 1)
            self._rules.lines[line] = f"{self._named[name]}: {value}"
        return self._named[name]

    def _either(self, choices: Sequence[Any], level: int) -> str:
        return self._rules.rule(" | ".join(self.value(one, level + 1) for one in choices))

    def _literal(self, value: Any) -> str:
        return self._notation.spelled(value, self._rules.spell)

    def _literal_key(self, name: str) -> str:
        return f'{self._notation.spelled_key(name, self._rules.spell)} ":"'


def _without_definitions(schema: Schema) -> Schema:
    return {key: one for key, one in schema.items() if key not in definitions(schema)}


def _check(schema: Schema, known: set[str]) -> None:
    if other := unknown_keyword(schema, known):
        raise _refusal(other)


def _refusal(what: str) -> RequestError:
    return RequestError(f"where this model must call, a tool's schema may not hold {what}", "tools")


GEMMA_OPENS, GEMMA_CLOSES = "<|tool_call>", "<tool_call|>"
_GEMMA_QUOTE = '<|"|>'
_GEMMA = Notation(_GEMMA_QUOTE, _GEMMA_QUOTE, quoted=False, stops=(GEMMA_CLOSES,))
GEMMA_MARKS = (GEMMA_OPENS, GEMMA_CLOSES, _GEMMA_QUOTE)
GEMMA_FRAME = Frame((GEMMA_OPENS, "call:NAME"), (GEMMA_CLOSES,), arguments=_GEMMA.arguments)


def read_gemma(reader: TextReader, calls: Calls) -> Reading[bool]:
    """A call."""
    yield from reader.take(GEMMA_OPENS)
    yield from reader.spaces()
    if not (yield from reader.take("call:")):
        return False
    name = yield from reader.word()
    if not calls.accepts(name) or not (yield from _GEMMA.read(reader, calls, name)):
        return False
    if not calls.incomplete and (yield from reader.take(GEMMA_CLOSES)):
        reader.use()
    return True

"""Arguments that are written one after the other, texts among them as they are.

What a value means depends on the tool's schema: "5" is a number only where that says so. Some
families write what it is beside its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from quire.core.errors import RequestError, shown
from quire.text.dialect.grammar import (
    GrammarRules,
    Schema,
    literal,
    members,
    unknown_keyword,
)
from quire.text.dialect.mending import NoLiteral, as_json, mended, quoted
from quire.text.dialect.reader import Calls, Reading, TextReader
from quire.text.dialect.schemas import (
    fits,
    of_type,
    parted,
    python_words,
    text_terminal,
    types_of,
    values,
)

_LONGEST_KEY = 256  # characters
_NO_MARKUP = r"/[^<&\n]*/"
_NO_TEXT = r"~/(?s:\s*([-+.0-9\[({].*|true|false|null|True|False|None)\s*)/"


@dataclass(frozen=True)
class Spelling:
    """``key`` NAME ``named``, a value and ``ends``.

    A text has no escapes. So it ends where ``ends`` is followed by what may follow an argument,
    and holds whatever else it holds.

    call_ends: what ends all of them.
    outer: what comes after that, if it is not the same.
    value: a mark before the value, if there is one.
    margin: a line's end on either side of a value, which is not of it.
    line: an expression for what stands after an argument; lines: and after a name.
    python: numbers, True, False and None are written as in Python; else as in JSON.
    tags: by type, what follows the name of an argument to say what it is.
    quotes: around a text that would not do as it is.
    """

    key: str
    named: str
    ends: str
    call_ends: str
    outer: str = ""
    value: str = ""
    margin: bool = False
    line: str = '"\\n"'
    lines: bool = False
    python: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    quotes: tuple[str, str] | None = None

    # -- for grammars --------------------------------------------------------------------------

    def arguments(self, rules: GrammarRules, schema: Schema) -> str:
        parameters = []
        line = "\n" if self.margin else ""
        for key, one, required in members(schema):
            if set(key) & set("<>\n") or len(key) > _LONGEST_KEY:
                text = f"this model's calls cannot have an argument {shown(key)}"
                raise RequestError(text, "tools")
            end = f"{rules.spell(line + self.ends)} {self.line}"
            value = rules.rule(" | ".join(self._values(rules, one, end)))
            between = self.line if self.lines else ""
            named = rules.spell(f"{self.key}{key}{self.named}{line if not self.value else ''}")
            spelled = f"{named} {between} {rules.spell(self.value) if self.value else ''} {value}"
            parameters.append(spelled if required else f"({spelled})?")
        return " ".join(parameters)

    def _values(self, rules: GrammarRules, schema: Schema, end: str) -> list[str]:
        """A grammar for a value and its end: a text as it is, anything else as JSON."""
        texts, others = parted(schema)
        if self.tags:
            return self._tagged(rules, texts, others, end)
        spelled = [self._text(rules, one, others, end) for one in texts]
        free = any(unknown_keyword(one, ("type",)) is None for one in texts)
        if free and not _strict(others):
            return spelled  # as a text, whatever else it may be can be written too
        if texts and not free and any("number" in types_of(one, one) for one in others):
            text = "where this model must call, a text in a union with numbers may not be bound"
            raise RequestError(text, "tools")
        for one in others:
            words = self._words(one)
            if not (words and texts):  # beside texts, what JSON has for them would be a text
                spelled.append(f"{rules.json(one)} {end}")
            spelled += [f"{literal(word)} {end}" for word in words]
        return spelled

    def _tagged(
        self, rules: GrammarRules, texts: list[Schema], others: list[Schema], end: str
    ) -> list[str]:
        """Like ``_values``, each after the tag of its type."""
        tag = {name: rules.spell(text) for name, text in self.tags.items()}
        spelled = [f"{tag['string']} {self._text(rules, one, [], end)}" for one in texts]
        for one in others:
            for name in sorted(types_of(one, one)):
                spelled.append(f"{tag[name]} {rules.json(of_type(one, name))} {end}")
        return spelled

    def _words(self, schema: Schema) -> Sequence[str]:
        """The values that are allowed, where Python's spelling matters and they are few."""
        if not self.python:
            return ()
        named = values(schema)
        if named is not None:
            return [json.dumps(one) if isinstance(one, (list, dict)) else str(one) for one in named]
        return python_words(schema)

    def _text(self, rules: GrammarRules, schema: Schema, others: list[Schema], end: str) -> str:
        """A terminal for a text and its end.

        A reader takes a text that looks like a value of another allowed type for that value. So
        where the schema says more of such values than their type, the text may not look like one.
        """
        text = text_terminal(rules, schema, (self.ends,))
        if _strict(others) and not values(schema):
            text = rules.terminal(f"{text} & {_NO_TEXT}")
        if not end.startswith('"'):  # a token of its own, which is in no terminal
            return rules.rule(f"{text} {end}")
        plain = rules.terminal(f"{text} {end}")
        if self.quotes is None:
            return plain
        opens, closes = map(literal, self.quotes)
        quoted = rules.terminal(f"{opens} {text_terminal(rules, schema, self.quotes[1:])} {closes}")
        plain = rules.terminal(f"{rules.terminal(f'{text} & {_NO_MARKUP}')} {end}")
        return f"{plain} | {quoted} {end}"

    def _is_other(self, text: str) -> bool:
        """Whether this is the spelling of a value that is no text."""
        if text[:1] in ("[", "{"):
            return text == text.strip()
        value = _value_of(text)
        return text == (str(value) if self.python else json.dumps(value))

    def _spelled(self, text: str, types: frozenset[str]) -> str:
        """A value as JSON. What does not look like one of its types is a text, as it stands."""
        if "string" in types and not self._is_other(text):
            return quoted(text)
        spelled: str | None = text.strip()
        with suppress(NoLiteral):
            spelled = as_json(text.strip())
        if spelled and spelled[0] in "{[":
            spelled = mended(spelled)
        with suppress(ValueError):
            if spelled and fits(spelled, types):
                return spelled
        return quoted(text)

    # -- for readers ---------------------------------------------------------------------------

    def read_call(self, reader: TextReader, calls: Calls, name: str) -> Reading[bool]:
        """A call's arguments and its end, reported as they come: texts bit by bit.

        False if neither an argument nor the end is here.
        """
        if not (yield from self._follows(reader)):
            return False
        opening = "{"
        while (yield from self._take_again(reader, self.key)):
            key = yield from reader.until(self.named, _LONGEST_KEY)
            if opening == "{":
                if key is None:
                    return False
                calls.begin(name)
            elif key is None:
                calls.cut(broken=not reader.ended)
                return True
            reader.use()
            calls.give(f"{opening}{quoted(key)}: ")
            opening = ", "
            types = (yield from self._tag(reader)) or _types_of(calls, name, key)
            if not (yield from self._read_value(reader, calls, types)):
                calls.cut(broken=False)
                return True
            yield from reader.spaces()
        if opening == "{":
            calls.begin(name)
            calls.give("{")
        calls.give("}")
        calls.end()
        if (yield from reader.take(self.call_ends)):
            reader.use()
        return True

    def _take_again(self, reader: TextReader, mark: str) -> Reading[bool]:
        """Go past a mark, which models write twice now and then; False if it is not here."""
        found = yield from reader.take(mark)
        while found and (yield from reader.take(mark)):
            pass
        return found

    def _follows(self, reader: TextReader) -> Reading[bool]:
        """Skip white space; whether a separator of arguments follows."""
        yield from reader.spaces()
        start = reader.at
        for mark in filter(None, (self.key, self.call_ends, self.outer)):
            if (yield from reader.take(mark)):
                reader.at = start
                return True
        return False

    def _tag(self, reader: TextReader) -> Reading[frozenset[str]]:
        """The types that a tag stands for; none where there is no tag."""
        for tag in dict.fromkeys(self.tags.values()):
            if (yield from reader.take(tag)):
                return frozenset(name for name, its in self.tags.items() if its == tag)
        return frozenset()

    def _read_quoted(self, reader: TextReader, calls: Calls, closes: str) -> Reading[bool]:
        """A text between quotes; see ``_read_value``."""
        reader.use()
        calls.give('"')
        space, mark = yield from reader.flow(lambda text: calls.give(quoted(text)[1:-1]), (closes,))
        calls.give(quoted(space)[1:-1])
        if not mark:
            return False
        calls.give('"')
        reader.pass_mark(mark)
        yield from reader.pass_end(self.ends)
        return True

    def _read_value(self, reader: TextReader, calls: Calls, types: frozenset[str]) -> Reading[bool]:
        """One value and its end; False where the text ends before that."""
        pieces: list[str] = []

        def say(text: str) -> None:
            calls.give(quoted(text)[1:-1])

        plain = types <= {"string"}
        if self.value:
            yield from self._take_again(reader, self.named)
            yield from reader.spaces()
            yield from reader.take(self.value)
        if self.margin:
            yield from reader.take("\n")
        if self.quotes is not None and (yield from reader.take(self.quotes[0])):
            return (yield from self._read_quoted(reader, calls, self.quotes[1]))
        reader.use()
        if plain:
            calls.give('"')
            report: Callable[[str], None] = say
        else:
            report = pieces.append
        while True:
            space, mark = yield from reader.flow(report, (self.ends, self.call_ends))
            if not mark:
                report(space)
                return False
            ended = yield from self._ends(reader, mark)
            if ended:
                break
            if ended is None:
                return False
            report(space + mark)
            reader.pass_mark(mark)
        last = space.removesuffix("\n") if self.margin else space
        if plain:
            say(last)
        calls.give('"' if plain else self._spelled("".join(pieces) + last, types))
        return True

    def _ends(self, reader: TextReader, mark: str) -> Reading[bool | None]:
        """Whether a value ends at this mark, past which it is then; None where the text is cut.

        Where its own mark has been forgotten, nothing comes after the end of the call.
        """
        reader.at = len(mark)
        if mark == self.ends:
            if (yield from self._follows(reader)):
                reader.at = len(mark)
                reader.use()
                return True
            rest = reader.text[reader.at :]
            marks = (self.key, self.call_ends, self.outer)
            if reader.ended and any(one.startswith(rest) for one in marks):
                return None
        else:
            yield from reader.spaces()
            if self.outer and (yield from reader.take(self.outer)):
                yield from reader.spaces()
            if not (yield from reader.peek()) and not reader.cut:
                reader.retreat()
                return True
        reader.retreat()
        return False


def _strict(schemas: list[Schema]) -> bool:
    return any(unknown_keyword(one, ("type",)) for one in schemas)


def _value_of(text: str) -> Any:
    """The value of a text, in JSON or in Python; a text that is neither is itself."""
    try:
        return json.loads(as_json(text))
    except NoLiteral:
        return text


def _types_of(calls: Calls, name: str, key: str) -> frozenset[str]:
    """The types that an argument of a tool may have; none if its schema does not say."""
    schema = calls.tools.get(name, {})
    known = schema.get("properties")
    return types_of(known.get(key) if isinstance(known, Mapping) else None, schema)

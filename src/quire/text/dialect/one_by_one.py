"""Arguments that are written one after the other, texts among them as they are: Qwen's and GLM's.

What a value means depends on the tool's schema: "5" is a number only where that says so.
Qwen 3 Coder and 3.5: <tool_call><function=f><parameter=a>1</parameter></function></tool_call>;
Seed-OSS has marks of its own, and no line's end on either side of a value.
GLM 4.5 and later: <tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from quire.core.errors import RequestError, shown
from quire.text.dialect.grammar import (
    LINE,
    Frame,
    GrammarRules,
    Schema,
    literal,
    members,
    unknown_keyword,
)
from quire.text.dialect.mending import NoLiteral, as_json, mended, quoted
from quire.text.dialect.reader import Calls, Reading, TextReader
from quire.text.dialect.schemas import fits, parted, python_words, text_terminal, types_of, values

_LONGEST_KEY = 256  # characters
_LINE = '"\\n"?'
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
    lines: a line may end after a name and after an argument: in some versions it does. Without, it
    does after an argument.
    python: numbers, True, False and None are written as in Python; else as in JSON.
    """

    key: str
    named: str
    ends: str
    call_ends: str
    outer: str = ""
    value: str = ""
    margin: bool = False
    lines: bool = False
    python: bool = False

    # -- for grammars --------------------------------------------------------------------------

    def arguments(self, rules: GrammarRules, schema: Schema) -> str:
        """See ``Frame.arguments``."""
        parameters = []
        line = "\n" if self.margin else ""
        for key, one, required in members(schema):
            if set(key) & set("<>\n") or len(key) > _LONGEST_KEY:
                text = f"this model's calls cannot have an argument {shown(key)}"
                raise RequestError(text, "tools")
            after = _LINE if self.lines else literal("\n")
            end = f"{literal(line + self.ends)} {after}"
            value = rules.rule(" | ".join(self._values(rules, one, end)))
            between = _LINE if self.lines else ""
            named = literal(f"{self.key}{key}{self.named}{line if not self.value else ''}")
            spelled = f"{named} {between} {literal(self.value) if self.value else ''} {value}"
            parameters.append(spelled if required else f"({spelled})?")
        return " ".join(parameters)

    def _values(self, rules: GrammarRules, schema: Schema, end: str) -> list[str]:
        """A grammar for a value and its end: a text as it is, anything else as JSON."""
        texts, others = parted(schema)
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

    def _words(self, schema: Schema) -> Sequence[str]:
        """All that a value may be, where that is few words."""
        if not self.python:
            return ()
        named = values(schema)
        if named is not None:
            return [json.dumps(one) if isinstance(one, (list, dict)) else str(one) for one in named]
        return python_words(schema)

    def _text(self, rules: GrammarRules, schema: Schema, others: list[Schema], end: str) -> str:
        """A text is read as what it looks like, where a value may be that.

        So it looks like nothing else where the schema says more of that than its type.
        """
        text = text_terminal(rules, schema, (self.ends,))
        if _strict(others) and not values(schema):
            text = rules.terminal(f"{text} & {_NO_TEXT}")
        return rules.terminal(f"{text} {end}")

    def _is_other(self, text: str) -> bool:
        """Whether a value that is no text is written just so."""
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
        while (yield from reader.take(self.key)):
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
            if not (yield from self._read_value(reader, calls, _types_of(calls, name, key))):
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

    def _follows(self, reader: TextReader) -> Reading[bool]:
        """Skip white space; whether a separator of arguments follows."""
        yield from reader.spaces()
        start = reader.at
        for mark in filter(None, (self.key, self.call_ends, self.outer)):
            if (yield from reader.take(mark)):
                reader.at = start
                return True
        return False

    def _read_value(self, reader: TextReader, calls: Calls, types: frozenset[str]) -> Reading[bool]:
        """One value and its end; False where the text ends before that."""
        pieces: list[str] = []

        def say(text: str) -> None:
            calls.give(quoted(text)[1:-1])

        plain = types <= {"string"}
        if self.value:
            yield from reader.spaces()
            yield from reader.take(self.value)
        if self.margin:
            yield from reader.take("\n")
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


FUNCTION, FUNCTION_ENDS, PARAMETER = "<function=", "</function>", "<parameter="


@dataclass(frozen=True)
class Manner:
    """How one family writes it. opens, closes: around a call; some models leave them out."""

    opens: str
    closes: str
    margin: bool

    @property
    def marks(self) -> tuple[str, str]:
        return self.opens, self.closes

    @property
    def frame(self) -> Frame:
        return Frame(
            before=(self.opens, f"\n{FUNCTION}NAME>\n"),
            after=(f"{FUNCTION_ENDS}\n", self.closes, LINE),
            arguments=self._arguments.arguments,
        )

    @property
    def _arguments(self) -> Spelling:
        ends = ("</parameter>", FUNCTION_ENDS, self.closes)
        return Spelling(PARAMETER, ">", *ends, margin=self.margin, python=True)

    def read(self, reader: TextReader, calls: Calls) -> Reading[bool]:
        """A call."""
        yield from reader.take(self.opens)
        yield from reader.spaces()
        if not (yield from reader.take(FUNCTION)):
            return False
        name = yield from reader.word()
        if not calls.accepts(name) or not (yield from reader.take(">")):
            return False
        if not (yield from self._arguments.read_call(reader, calls, name)):
            return False
        yield from reader.spaces()
        if (yield from reader.take(self.closes)):
            reader.use()
        else:
            reader.retreat()
        return True


QWEN = Manner("<tool_call>", "</tool_call>", margin=True)
SEED = Manner("<seed:tool_call>", "</seed:tool_call>", margin=False)


GLM_OPENS, GLM_CLOSES, GLM_KEY = "<tool_call>", "</tool_call>", "<arg_key>"
_GLM_ARGUMENTS = Spelling(
    GLM_KEY, "</arg_key>", "</arg_value>", GLM_CLOSES, value="<arg_value>", lines=True
)

GLM_FRAME = Frame(
    (GLM_OPENS, "NAME", LINE), (LINE, GLM_CLOSES, LINE), arguments=_GLM_ARGUMENTS.arguments
)


def read_glm(reader: TextReader, calls: Calls) -> Reading[bool]:
    """A call."""
    yield from reader.take(GLM_OPENS)
    yield from reader.spaces()
    name = yield from reader.word()
    yield from reader.spaces()
    return calls.accepts(name) and (yield from _GLM_ARGUMENTS.read_call(reader, calls, name))

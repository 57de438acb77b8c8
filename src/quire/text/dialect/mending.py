"""JSON as models write it, made JSON as it passes.

What has one meaning only is mended: a line end or another control character within a text, a
backslash before what JSON does not escape (``C:\\dir``), half a surrogate pair, texts in single
quotes, Python's True, False and None, numbers as Python writes them, a comma before a bracket that
closes. Whatever else is no JSON breaks. Python's literals are parsed, and never evaluated.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from itertools import accumulate
from typing import Any


class NoLiteral(ValueError):
    """The text stands for no value that JSON has."""


def parse_python(text: str) -> ast.expr:
    """The expression that a text spells; NoLiteral if it spells none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what the model has written
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NoLiteral(text[:100]) from error


def spelling_in(text: str) -> Callable[[ast.expr], str]:
    """A function that says how a part of a parsed text is spelled there."""
    source = text.encode()
    lines = [0, *accumulate(map(len, source.splitlines(keepends=True)))]

    def spelled(node: ast.expr) -> str:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = lines[node.lineno - 1] + node.col_offset
        return source[start : lines[node.end_lineno - 1] + node.end_col_offset].decode()

    return spelled


def _value(node: ast.expr) -> Any:
    """The value of a literal. JSON's own true, false and null count too."""
    match node:
        case ast.Constant(str() | int() | float() | None as constant):
            return constant
        case ast.Name(("true" | "false" | "null") as name):
            return {"true": True, "false": False, "null": None}[name]
        case ast.List(items) | ast.Tuple(items) | ast.Set(items):
            return [_value(item) for item in items]
        case ast.Dict(keys, values):
            return dict(zip(map(_key, keys), map(_value, values), strict=True))
        case ast.UnaryOp(ast.USub() | ast.UAdd() as sign, ast.Constant(int() | float() as number)):
            return -number if isinstance(sign, ast.USub) else number
    raise NoLiteral(type(node).__name__)


def as_json(text: str, node: ast.expr | None = None) -> str:
    """A literal as JSON, which it may be already; NoLiteral if JSON does not have it.

    node: what the text spells, where that is known.
    """
    with suppress(ValueError, RecursionError):
        json.loads(text, parse_constant=_refuse)
        return text
    try:
        return json.dumps(_value(node or parse_python(text)), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise NoLiteral(text[:100]) from error


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> None:
    raise NoLiteral(constant)


def _key(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(str(key)):
            return key
    raise NoLiteral("a key that is no text")


MOST_LEVELS = 128  # of objects and lists: what reads JSON bounds them
_LONGEST_SCALAR = 4096  # characters: Python reads integers of 4,300 digits

_SPACES = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"[-+.\w]*")
_PLAIN = {quote: re.compile(rf'[^"\\\x00-\x1f\ud800-\udfff{quote}]*') for quote in "\"'"}
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_PARTIAL = re.compile(r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?")  # of an escape
_HIGH, _LOW = re.compile(r"\\u[dD][89abAB]"), re.compile(r"\\u[dD][c-fC-F]")
_CLOSING = {"{": "}", "[": "]"}
_NO_CHARACTER = r"\ufffd"


class _Next(Enum):
    """What may come next."""

    VALUE = auto()
    KEY = auto()
    COLON = auto()
    REST = auto()  # a comma, or what closes


class Mender:
    """One object or list, as it comes.

    done: it is complete. broken: it cannot go on as it does.
    """

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._next = _Next.VALUE
        self._opened: list[str] = []  # what will close each object and list
        self._empty = False  # the last one holds nothing yet
        self._comma = ""  # and white space, held back: it may be one too many
        self._quote = ""  # of the text that it is in
        self._is_key = False
        self._said: list[str] = []

    def feed(self, text: str, at: int) -> tuple[str, int]:
        """The mended form of the text from ``at`` on, and the position up to which it was read."""
        while at < len(text) and not self.done and not self.broken:
            before = at
            at = self._in_text(text, at) if self._quote else self._between(text, at)
            if at == before:
                break  # more has to come
        said, self._said = "".join(self._said), []
        return said, at

    # -- within a text -----------------------------------------------------------------------------

    def _in_text(self, text: str, at: int) -> int:
        start, at = at, _end(_PLAIN[self._quote], text, at)
        self._said.append(text[start:at])
        if at == len(text):
            return at
        char = text[at]
        if char == "\\":
            return self._escape(text, at)
        if char == self._quote:
            self._said.append('"')
            self._quote, self._next = "", _Next.COLON if self._is_key else _Next.REST
        else:
            self._said.append(_NO_CHARACTER if char >= "\ud800" else json.dumps(char)[1:-1])
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        """Skip an escape, if it is complete."""
        if _is_partial(text, at):
            return at
        if self._quote == "'" == text[at + 1]:
            self._said.append("'")
            return at + 2
        found = _ESCAPE.match(text, at)
        if found is None:
            self._said.append(r"\\")
            return at + 1
        escape, end = found[0], found.end()
        if _LOW.match(escape):
            escape = _NO_CHARACTER
        elif _HIGH.match(escape):
            if _is_partial(text, end):
                return at  # the other half may come
            other = _ESCAPE.match(text, end)
            if other is not None and _LOW.match(other[0]):
                escape, end = escape + other[0], other.end()
            else:
                escape = _NO_CHARACTER
        self._said.append(escape)
        return end

    # -- between texts -----------------------------------------------------------------------------

    def _between(self, text: str, at: int) -> int:
        start, at = at, _end(_SPACES, text, at)
        if self._comma:
            self._comma += text[start:at]
        else:
            self._said.append(text[start:at])
        if at == len(text):
            return at
        char = text[at]
        if self._opened and char == self._opened[-1] and self._closes():
            self._close(char)
            return at + 1
        match self._next:
            case _Next.COLON if char == ":":
                self._say(char, _Next.VALUE)
            case _Next.REST if char == ",":
                self._comma = char
                self._next = _Next.KEY if self._opened[-1] == "}" else _Next.VALUE
            case _Next.KEY | _Next.VALUE if char in _PLAIN:
                self._say('"', self._next)
                self._quote, self._is_key = char, self._next is _Next.KEY
            case _Next.VALUE if char in _CLOSING and len(self._opened) < MOST_LEVELS:
                self._say(char, _Next.KEY if char == "{" else _Next.VALUE)
                self._opened.append(_CLOSING[char])
                self._empty = True
            case _Next.VALUE if self._opened:
                return self._scalar(text, at)
            case _:
                self.broken = True
                return at
        return at + 1

    def _scalar(self, text: str, at: int) -> int:
        end = _end(_SCALAR, text, at)
        if end == len(text) and end - at <= _LONGEST_SCALAR:
            return at  # it may go on
        try:
            if end - at > _LONGEST_SCALAR:
                raise NoLiteral
            self._say(as_json(text[at:end]), _Next.REST)
        except NoLiteral:
            self.broken = True
            return at
        return end

    def _say(self, text: str, then: _Next) -> None:
        self._said.append(self._comma + text)
        self._comma, self._empty, self._next = "", False, then

    def _closes(self) -> bool:
        """Whether what closes may come: after a value, a comma, or nothing."""
        return self._next is _Next.REST or self._empty or bool(self._comma)

    def _close(self, char: str) -> None:
        self._said.append(self._comma[1:] + char)
        self._comma, self._empty, self._next = "", False, _Next.REST
        self._opened.pop()
        self.done = not self._opened


def mended(text: str) -> str | None:
    """A whole object or list, mended; None if it cannot be."""
    mender = Mender()
    said, at = mender.feed(text, 0)
    return said if mender.done and not text[at:].strip() else None


def _is_partial(text: str, at: int) -> bool:
    """Whether an escape may continue after the end of the text."""
    return _end(_PARTIAL, text, at) == len(text)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    return pattern.match(text, at).end()  # type: ignore[union-attr]

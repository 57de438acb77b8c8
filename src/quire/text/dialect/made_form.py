"""A form of calls that is made from what a chat template writes: text around names and JSON.

One call and two show which text is of each call and which is around all of them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from quire.text.dialect.grammar import ID, Frame, Part
from quire.text.dialect.json_calls import read_arguments
from quire.text.dialect.reader import MARK, CallForm, Calls, Reading, TextReader

_PIECE = re.compile(rf'{ID}|[\[\]{{}}":,]|[^\s\[\]{{}}":,\0]+')


class ProbeCall(NamedTuple):
    """A call that a template was given."""

    name: str
    id: str


@dataclass(frozen=True)
class MadeForm:
    """Texts: ``before`` a name, ``middle`` between it and its arguments, which are JSON, ``after``.

    Of several calls, ``between`` them, and ``opening`` and ``closing`` around all. White space in
    them may be any, and ID stands for a call's id. What ends a call may be missing.
    """

    before: str
    middle: str
    after: str = ""
    between: str = ""
    opening: str = ""
    closing: str = ""

    @property
    def form(self) -> CallForm:
        first = _pieces(self.opening + self.before)[0]
        return CallForm(() if self._bare else (first,), self.read, bare=self._bare)

    @property
    def frame(self) -> Frame:
        return Frame(
            (*_parts(self.before), *_parts("NAME" + self.middle)),
            _parts(self.after),
            _texts(self.between),
            _texts(self.opening),
            _texts(self.closing),
            self._bare,
        )

    @property
    def marks(self) -> tuple[str, ...]:
        texts = (self.opening, self.before, self.middle, self.after, self.closing)
        return tuple(dict.fromkeys(MARK.findall("\n".join(texts))))

    @property
    def _bare(self) -> bool:
        """An answer that is JSON is such a call, if a tool of that name is there."""
        return (self.opening + self.before).lstrip()[:1] in ("{", "[", '"')

    def read(self, reader: TextReader, calls: Calls) -> Reading[bool]:
        """All calls that follow one another."""
        if self.opening and (yield from _take(reader, self.opening)) is None:
            return False
        called = False
        while (yield from self._read_call(reader, calls)):
            called = True
            if calls.incomplete:
                return True
            if (yield from _take(reader, self.between)) is None:
                reader.retreat()
        if called:
            reader.retreat()
            yield from _use(reader, self.closing)
        return called

    def _read_call(self, reader: TextReader, calls: Calls) -> Reading[bool]:
        first = yield from _take(reader, self.before)
        name = yield from reader.word()
        if first is None or not calls.accepts(name):
            return False
        second = yield from _take(reader, self.middle)
        if second is None:
            return False
        yield from reader.spaces()
        if not (yield from read_arguments(reader, calls, name, first or second or None)):
            return False
        if not calls.incomplete:
            yield from _use(reader, self.after)
        return True

    @classmethod
    def of(
        cls, one: str, two: str | None, calls: tuple[ProbeCall, ProbeCall], arguments: Any, end: str
    ) -> MadeForm | None:
        """The form in which one call was written, and two; None where that shows none.

        end: what ends an answer without calls.
        """
        first, second = calls
        single = _cut(one, first, arguments)
        if single is None:
            return None
        before, middle, after = single
        after = after[: len(after) - len(_common_end(after, end))]
        double = None if two is None else _cut(two, first, arguments)
        follows = None if double is None else _cut(double[2], second, arguments)
        if follows is None or not follows[0]:
            made = cls(before.lstrip(), middle, after.rstrip())
        else:
            gap = follows[0]
            each = _common_end(before, gap)
            gap = gap[: len(gap) - len(each)]
            ends = common_start(after, gap)
            opening, closing = before[: len(before) - len(each)], after[len(ends) :]
            if opening.strip():
                made = cls(each, middle, ends, gap[len(ends) :], opening.lstrip(), closing.rstrip())
            else:
                made = cls(before.lstrip(), middle, after.rstrip(), gap[len(ends) :])
        return made if _pieces(made.opening + made.before) else None


def _cut(text: str, call: ProbeCall, arguments: Any) -> tuple[str, str, str] | None:
    """The text before a call's name, from there to its arguments, and after them."""
    before, name, rest = text.partition(call.name)
    for found in re.finditer("{", rest):
        try:
            value, end = json.JSONDecoder().raw_decode(rest, found.start())
        except ValueError:
            continue
        if name and value == arguments:
            texts = before, rest[: found.start()], rest[end:]
            first, second, third = (text.replace(call.id, ID) for text in texts)
            return first, second, third
    return None


def common_start(one: str, other: str) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return "".join(char for char, _ in same)


def _common_end(one: str, other: str) -> str:
    return common_start(one[::-1], other[::-1])[::-1]


def _pieces(text: str) -> list[str]:
    return _PIECE.findall(text)


def _texts(text: str) -> tuple[str, ...]:
    """The parts of a frame: a mark first, which may be a token."""
    mark = MARK.match(text)
    cut = mark.end() if mark else 0
    return tuple(part for part in (text[:cut], text[cut:]) if part)


def _parts(text: str) -> tuple[Part, ...]:
    pieces = [part for part in re.split(f"({ID})", text) if part]
    return tuple(part for piece in pieces for part in ((piece,) if piece == ID else _texts(piece)))


def _take(reader: TextReader, text: str) -> Reading[str | None]:
    """The id in a text that must be here, "" if it has none; None where the text is not here."""
    id = ""
    for piece in _pieces(text):
        yield from reader.spaces()
        if piece == ID:
            id = yield from reader.word()
        elif not (yield from reader.take(piece)):
            return None
    return id


def _use(reader: TextReader, text: str) -> Reading[None]:
    """Skip as much of a text as is here."""
    for piece in _pieces(text):
        yield from reader.spaces()
        if not (yield from reader.take(piece)):
            break
        reader.use()
    reader.retreat()

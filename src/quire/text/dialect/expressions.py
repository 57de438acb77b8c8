"""Expressions of JSON schemas, read by JavaScript's rules, in words that llguidance reads alike.

llguidance reads what Rust does: ``[[:alpha:]]``, ``[a&&b]`` and ``\\a`` mean something else there.
And it takes a class of all control characters for one that holds quotes and backslashes too, once
it stands in JSON: ``[^"]`` lets a quote in. So each class is written as ranges, and none of them
holds control characters for which JSON has nothing but numbers. Where JavaScript, Python and Rust
differ in what ``.`` and ``\\s`` are, an expression allows what all of them do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

Range = tuple[int, int]

_LAST = 0x10FFFF
_HALVES = range(0xD800, 0xE000)  # of characters in UTF-16, which are none alone
_DIGITS = [(0x30, 0x39)]
_LETTERS = [*_DIGITS, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACES = [
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
]
_SOME_SPACES = [(0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF)]  # for some of the readers
_LINE_END, _SOME_LINE_ENDS = [(0x0A, 0x0A)], [(0x0D, 0x0D), (0x2028, 0x2029)]
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_ENDS = {"A": "^", "Z": "$", "z": "$"}  # as Python and Rust have them
_UNWRITTEN = [(0, 0x07), (0x0B, 0x0B), (0x0E, 0x1F), (0x7F, 0x7F)]
_NOTHING = "[a&&b]"
_HEX = "[0-9a-fA-F]"
_ESCAPE = re.compile(
    rf"""\\(?: u(?P<high>[dD][89abAB]{_HEX}{{2}})\\u(?P<low>[dD][c-fC-F]{_HEX}{{2}})
      | (?:u\{{(?P<code>{_HEX}{{1,6}})\}} | u(?P<four>{_HEX}{{4}}) | x(?P<two>{_HEX}{{2}}))
      | c(?P<control>[A-Za-z]) | (?P<property>[pP]\{{\w+(?:=\w+)?\}}) | (?P<zero>0)(?![0-9])
      | (?P<class>[dDwWsS]) | (?P<plain>[tnvfr]|[^0-9A-Za-z]))""",
    re.VERBOSE,
)
_FLAGS = re.compile(r"\(\?([is]{1,2})\)")
_GROUP = re.compile(r"\((?:\?(?:P?<[^\W\d]\w*>|(?P<flags>[is]{0,2}):)|(?!\?))")
_AROUND = re.compile(r"\(\?<?[=!]")
_REPEATED = re.compile(r"(?:[*+?]|\{([0-9]{1,9})(,([0-9]{0,9}))?\})")
_UNCLEAR = re.compile(r"\{,[0-9]+\}")  # a text, or a repetition
_POSIX = re.compile(r"\[[:.=]\^?\w+[:.=]\]")


def pieces_of(pattern: object, *, wide: bool = False) -> list[str]:
    """An expression's parts in their order: characters, classes, ends, brackets and repetitions.

    ValueError, which continues "the expression", for what is not understood or cannot be kept to.

    wide: it allows what one of its readers does at least.
    """
    if not isinstance(pattern, str):
        raise ValueError("is no text")
    return _Reader(pattern, wide).pieces()


class _Reader:
    def __init__(self, pattern: str, wide: bool) -> None:
        self._text, self._wide, self._at = pattern, wide, 0

    def pieces(self) -> list[str]:
        found, whole = list[str](), _FLAGS.match(self._text)
        open_groups = [False]  # whether a dot is any character there
        if whole:
            found, self._at = [f"(?{_folding(whole[1])}:"], whole.end()
            open_groups = ["s" in whole[1]]
        repeatable = False
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "(":
                found.append(self._group(open_groups))
                repeatable = False
            elif repeated := _REPEATED.match(self._text, self._at):
                found.append(self._repetition(repeated, repeatable))
                repeatable = False
            elif char in "|^$":
                found.append(self._take(1))
                repeatable = False
            else:
                found.append(self._unit(char, open_groups))
                repeatable = found[-1] not in ("^", "$")
        if len(open_groups) > 1:
            raise ValueError("has a group that does not end")
        return [*found, ")"] if whole else found

    def _take(self, length: int) -> str:
        self._at += length
        return self._text[self._at - length : self._at]

    def _group(self, open_groups: list[bool]) -> str:
        begun = _GROUP.match(self._text, self._at)
        if begun is None:
            if _AROUND.match(self._text, self._at):
                raise ValueError("asks for look-around")
            raise ValueError(f"has {self._text[self._at : self._at + 4]}, which readers differ in")
        self._at = begun.end()
        flags = begun["flags"] or ""
        open_groups.append(open_groups[-1] or "s" in flags)
        return f"(?{_folding(flags)}:"

    def _repetition(self, found: re.Match[str], repeatable: bool) -> str:
        if not repeatable:
            raise ValueError("repeats what cannot be repeated")
        least, _, most = found.groups()
        if least and most and int(least) > int(most):
            raise ValueError(f"repeats from {least} to {most} times")
        self._at = found.end()
        if self._text.startswith("?", self._at):  # as few as there can be: the texts are the same
            self._at += 1
        return found[0]

    def _unit(self, char: str, open_groups: list[bool]) -> str:
        """What stands for one character, or ends a group."""
        match char:
            case ")":
                if len(open_groups) == 1:
                    raise ValueError("ends a group that has not begun")
                open_groups.pop()
                return self._take(1)
            case "[":
                return self._class()
            case "\\":
                return self._escaped()
            case ".":
                self._at += 1
                if open_groups[-1]:
                    return self._written([], [], negated=True)
                ends = _LINE_END if self._wide else [*_LINE_END, *_SOME_LINE_ENDS]
                return self._written(ends, [], negated=True)
        if _UNCLEAR.match(self._text, self._at):
            raise ValueError("has a repetition that does not say from how many times on")
        self._at += 1
        return self._written([(ord(char), ord(char))], [], negated=False)

    def _escaped(self) -> str:
        if (end := _ENDS.get(self._text[self._at + 1 : self._at + 2])) is not None:
            self._at += 2
            return end
        ranges, others = self._escape(negated=False)
        return self._written(ranges, others, negated=False)

    def _escape(self, *, negated: bool) -> tuple[list[Range], list[str]]:
        """The characters that one stands for, as ranges or as a class in Rust's words.

        negated: in a class of all that it does not stand for.
        """
        found = _ESCAPE.match(self._text, self._at)
        if found is None:
            raise ValueError(f"has {self._text[self._at : self._at + 2]}, which readers differ in")
        self._at = found.end()
        if found["property"]:
            return [], ["\\" + found["property"]]
        if found["class"]:
            return self._shorthand(found["class"], narrow=self._wide is negated)
        if found["high"]:
            high, low = (int(found[half], 16) for half in ("high", "low"))
            code = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
        elif number := found["code"] or found["four"] or found["two"] or found["zero"]:
            code = int(number, 16)
        elif found["control"]:
            code = ord(found["control"]) % 32
        else:
            code = _CONTROLS.get(found["plain"], ord(found["plain"]))
        if code > _LAST or code in _HALVES:
            raise ValueError(f"has {found[0]}, which is no character")
        return [(code, code)], []

    def _shorthand(self, name: str, *, narrow: bool) -> tuple[list[Range], list[str]]:
        every = [*_SPACES, *_SOME_SPACES]
        match name:
            case "d" | "w":
                return (_DIGITS if name == "d" else _LETTERS), []
            case "s":
                return (_SPACES if narrow else every), []
            case "S":
                return [], [f"[^{_ranges(every if narrow else _SPACES)}]"]
        return [], [f"[^{_ranges(_DIGITS if name == 'D' else _LETTERS)}]"]

    def _class(self) -> str:
        negated = self._text.startswith("[^", self._at)
        self._at += 1 + negated
        if self._text.startswith("]", self._at):
            raise ValueError("has a class that begins with ], which readers differ in")
        ranges, others, names = list[Range](), list[str](), set[str]()
        while not self._text.startswith("]", self._at):
            if self._at >= len(self._text):
                raise ValueError("has a class that does not end")
            if _POSIX.match(self._text, self._at):
                raise ValueError("has a class by its name, which readers differ in")
            names.add(self._text[self._at : self._at + 2])
            some, more = self._member(negated=negated)
            if len(some) == 1 and not more and self._is_range(some[0]):
                self._at += 1
                last, none = self._member(negated=negated)
                if none or len(last) != 1 or last[0][0] != last[0][1]:
                    raise ValueError("has a range that ends with a class")
                if last[0][0] < some[0][0]:
                    raise ValueError("has a range that ends before it begins")
                some = [(some[0][0], last[0][0])]
            ranges += some
            others += more
        self._at += 1
        if any({rf"\{one}", rf"\{one.upper()}"} <= names for one in "dsw"):
            ranges, others = [(0, _LAST)], []
        return self._written(ranges, others, negated=negated)

    def _member(self, *, negated: bool) -> tuple[list[Range], list[str]]:
        if self._text.startswith(r"\b", self._at):
            self._at += 2
            return [(0x08, 0x08)], []
        if self._text.startswith("\\", self._at):
            return self._escape(negated=negated)
        code = ord(self._take(1))
        return [(code, code)], []

    def _is_range(self, first: Range) -> bool:
        """Whether a range of characters goes on here."""
        after = self._text[self._at : self._at + 2]
        return first[0] == first[1] and after[:1] == "-" and after[1:] not in ("", "]")

    def _written(self, ranges: Sequence[Range], others: Sequence[str], *, negated: bool) -> str:
        """A class in Rust's words. It folds what is to be turned round, so that it has to do that.

        others: classes in it that are so written already.
        """
        if not others and not negated:
            some = [part for one in ranges for part in _without_unwritten(one)]
            if len(some) == 1 and some[0][0] == some[0][1]:
                return _character(some[0][0])
            return f"[{written}]" if (written := _ranges(some)) else _NOTHING
        inner = f"[{'^' if negated else ''}{_ranges(ranges)}{''.join(others)}]"
        if inner == "[^]":
            inner = f"[{_ranges([(0, _LAST)])}]"
        return f"[{inner}&&[^{_ranges(_UNWRITTEN)}]]"


def _without_unwritten(given: Range) -> Iterator[Range]:
    first, last = given
    for low, high in _UNWRITTEN:
        if first < low <= last:
            yield first, low - 1
        if low <= last:
            first = max(first, high + 1)
    if first <= last:
        yield first, last


def _folding(flags: str) -> str:
    return "i" if "i" in flags else ""


def _ranges(ranges: Sequence[Range]) -> str:
    parts = []
    for first, last in ranges:
        for low, high in ((first, min(last, _HALVES[0] - 1)), (max(first, _HALVES[-1] + 1), last)):
            if low < high:
                parts.append(f"{_character(low)}-{_character(high)}")
            elif low == high:
                parts.append(_character(low))
    return "".join(parts)


def _character(code: int) -> str:
    char = chr(code)
    return char if char.isalnum() else rf"\x{{{code:x}}}"

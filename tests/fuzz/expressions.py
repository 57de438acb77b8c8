"""Regular expressions: what all engines have, what some have, and what none should have to."""

from __future__ import annotations

from fuzz.draws import Draws
from fuzz.texts import count, word

_ATOMS = (
    *("a", "b", "[a-z]", ".", r"\d", r"\w", r"\s", "[^a]", "é", "🙂", r"\n", r"[\s\S]", r"\p{L}"),
    *(r"\P{Greek}", r"\u0041", r"\x41", r"\x{10FFFF}", "[[:alpha:]]", "[^\\x00-\\x7f]", "[a-]"),
    *("[]a]", r"\.", "^", "$", r"\b", r"\B", r"\A", r"\z", r"\1", r"\k<a>", "(?=a)", "(?!a)"),
    *("(?<=a)", "(?i)", "(?s:.)", "(?x) a ", "(?P<a>a)", "(?>a)", r"\c", r"\Q", "[", "("),
    *(")", "{", "*", "a{2,1}", "[z-a]"),
)  # fmt: skip
_USUAL = 13  # of these, which everybody understands


def expression(draws: Draws) -> str:
    """One of any form."""
    match draws.below(10):
        case 7:
            depth = draws.length(8_000)
            return "(" * depth + _alternatives(draws) + ")" * depth
        case 8:  # each of many may be there
            one = _piece(draws)
            return f"({one}?){{{count(draws)}}}{one}{{{count(draws)}}}"
        case 9:
            return "|".join(
                f"{_piece(draws)}.*{_piece(draws)}{i}" for i in range(draws.length(2_000))
            )
    return _alternatives(draws)


def _alternatives(draws: Draws) -> str:
    return "|".join(_sequence(draws) for _ in range(1 + draws.size(5)))


def _sequence(draws: Draws) -> str:
    return "".join(_piece(draws) for _ in range(draws.size(8)))


def _piece(draws: Draws) -> str:
    if not draws.spend():
        return "a"
    match draws.below(6):
        case 4:
            inner = draws.deeper(lambda: _alternatives(draws), "a")
            one = f"({draws.pick(('', '?:', '?i:', '?s:'))}{inner})"
        case 5:
            one = "".join(f"\\{c}" if c in r"\.^$*+?()[]{}|/" else c for c in word(draws))
        case _:
            one = draws.pick(_ATOMS if draws.oddly() else _ATOMS[:_USUAL])
    return one + _repeated(draws)


def _repeated(draws: Draws) -> str:
    match draws.below(12):
        case 7:
            return "*"
        case 8:
            return "+"
        case 9:
            return "?" + draws.pick(("", "?"))
        case 10:
            return f"{{{count(draws)}{draws.pick(('', ','))}}}"
        case 11:
            least = count(draws)
            return f"{{{least},{least + count(draws)}}}"
    return ""

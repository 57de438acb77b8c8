"""Names, texts and numbers that are at the edge of something."""

from __future__ import annotations

from typing import Any

from fuzz.draws import Draws

LARGE = 200_000  # characters: what has more need not be larger
WORDS = (
    *("a", "b", "name", "", " ", "the town", "0", "null", '"', "\\", "/", "~", "~1", "%25"),
    *("\0", "\n", "\u2028", "é", "e\u0301", "ß", "İ", "名前", "🙂", "👩‍👩‍👧", "\ufeff"),
    *("\U0010ffff", "$ref", "__proto__", "%", "{{", "<|endoftext|>", "</tool_call>", "#", "//"),
)  # fmt: skip
ODD = ("::=", "\x7f", "A" * 3_000, "\ud800", "")
WHOLE = (
    *(0, 1, 2, -(10**300), -1, 3, 10, 63, 64, 255, 1000, 4_095, 65_535, 100_000, 2**31, 2**32),
    *(2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**18, 10**19, 10**300, 10**4000),
)  # fmt: skip
BROKEN = (0.5, -0.0, 0.1, 1e-18, 5e-324, 1.7976931348623157e308, 1e18, 0.1 + 2**-50, 1e-400)


def word(draws: Draws) -> str:
    if draws.oddly():
        return draws.pick(ODD)
    if draws.one_in(16):
        return "".join(draws.pick(WORDS) for _ in range(draws.size(40)))
    return draws.pick(WORDS)


def name(draws: Draws) -> str:
    """One that no language minds."""
    return draws.pick("abcdefgh") + draws.pick(("", "1", "2", "_x", "e9"))


def number(draws: Draws) -> int | float:
    return draws.pick(BROKEN) if draws.one_in(3) else draws.pick(WHOLE)


def count(draws: Draws) -> int:
    """How often something is repeated."""
    return draws.size(100_000)


def value(draws: Draws, depth: int = 3) -> Any:
    """Any JSON."""
    kind = draws.below(8 if depth and draws.spend() else 6)
    match kind:
        case 0:
            return None
        case 1:
            return draws.one_in(2)
        case 2 | 3:
            return word(draws)
        case 4 | 5:
            return number(draws)
        case 6:
            return [value(draws, depth - 1) for _ in range(draws.size(20))]
    return {word(draws): value(draws, depth - 1) for _ in range(draws.size(20))}

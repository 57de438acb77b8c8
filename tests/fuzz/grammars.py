"""Grammars in llguidance's dialect of Lark, and in llama.cpp's GBNF."""

from __future__ import annotations

import json
import re

from fuzz.draws import Draws
from fuzz.expressions import expression
from fuzz.schemas import schema
from fuzz.texts import count, word

_REPEATS = ("", "", "", "*", "+", "?")
_HOWS = ("", "", "", "", "", "[lazy]", "[capture]", '[suffix="a"]', '[stop="a"]', "[max_tokens=3]",
         "[temperature=0.5]", "[capture, max_tokens=100000]")  # fmt: skip
_TOKENS = ("<[0]>", "<[*]>", "<[^0]>", "<[5-9]>", "<[1,7-9]>", "<|endoftext|>")
_ODD = ("<nobody>", "<[99999999]>", "%json {", "nowhere", "T99", "@nobody", "()", "\\", "[a", "[]")
_LINES = (
    *("%ignore /[ ]+/", "%ignore T0", "%import common.INT", "%import common.WS", "%ignore WS"),
    *('%llguidance {"no_forcing": false}', '%llguidance {"allow_invalid_utf8": true}'),
    *('%declare A', '%override a: "b"', "%llguidance {", "# é", "// b"),
)  # fmt: skip


def lark(draws: Draws) -> str:
    """One of any form."""
    match draws.below(8):
        case 6:
            return ambiguous(draws)
        case 7:
            return _lark_chain(draws)
    return _lark(draws)


def ambiguous(draws: Draws) -> str:
    """What can be read in more and more ways."""
    atom = draws.pick(("/[a-z ]/", '"a"', "/(?s:.)/", "/[a-z ]*/", '"a" | "aa"', '""', "<[*]>"))
    ways = (" ".join(["e"] * (1 + draws.size(12))) for _ in range(1 + draws.size(5)))
    repeat = draws.pick(_REPEATS)
    return f"start: e{repeat}\ne: {' | '.join(ways)} | {atom}"


def _lark_chain(draws: Draws) -> str:
    length = draws.length(3_000)
    around = draws.pick(("{}", "({})*", '"a" {}', '{} | ""', "{} {}", '{}? "a"'))
    name = draws.pick(("r", "T"))
    lines = [f"{name}{i}: {around.replace('{}', f'{name}{i + 1}')}" for i in range(length)]
    last = _terminal(draws, 0) if name == "T" else _choices(draws, 0, 0)
    return "\n".join([f"start: {name}0", *lines, f"{name}{length}: {last}"])


def _lark(draws: Draws) -> str:
    rules, terminals = draws.size(40), draws.size(40)
    lines = [f"start: {_choices(draws, rules, terminals)}"]
    lines += [f"r{i}{draws.pick(_HOWS)}: {_choices(draws, rules, terminals)}" for i in range(rules)]
    lines += [f"T{i}: {_terminal(draws, i)}" for i in range(terminals)]
    if draws.oddly():
        lines.insert(draws.below(len(lines) + 1), draws.pick(_LINES))
    return "\n".join(lines)


def _choices(draws: Draws, rules: int, terminals: int) -> str:
    return " | ".join(
        " ".join(_item(draws, rules, terminals) for _ in draws.several(6))
        for _ in range(1 + draws.size(5))
    )


def _item(draws: Draws, rules: int, terminals: int) -> str:
    if not draws.spend():
        return '"a"'
    if draws.oddly():
        return draws.pick(_ODD)
    match draws.below(10):
        case 1 | 2 | 3 if rules:
            one = f"r{draws.below(rules)}"
        case 4 | 5 if terminals:
            one = f"T{draws.below(terminals)}"
        case 6:
            inner = draws.deeper(lambda: _choices(draws, rules, terminals), '"a"')
            one = f"({inner})"
        case 7 if draws.one_in(4):
            one = f"%json {json.dumps(schema(draws))}"
        case 8 if draws.one_in(2):
            one = draws.pick(_TOKENS)
        case 9:
            one = _slashed(draws)
        case _:
            one = _quoted(draws)
    return one + (_times(draws) if draws.one_in(20) else draws.pick(_REPEATS))


def _terminal(draws: Draws, known: int) -> str:
    """An expression, or what is put together of others; mostly of those before it."""
    match draws.below(6):
        case 1 if known:
            one, other = draws.below(known), draws.below(known + draws.below(2))
            return f"T{one} {draws.pick(('|', '&', '& ~', ''))} T{other}"
        case 2:
            return f"({_quoted(draws)} | {_slashed(draws)}){draws.pick(_REPEATS)}"
        case 3:
            return '"a".."z"'
        case 4:
            return f"{_slashed(draws)} & ~{_slashed(draws)}"
    return _slashed(draws)


def _times(draws: Draws) -> str:
    least = count(draws)
    return f"{{{least},{least + count(draws)}}}"


def _quoted(draws: Draws) -> str:
    return json.dumps(word(draws), ensure_ascii=draws.one_in(2)) + draws.pick(("", "", "", "i"))


def _slashed(draws: Draws) -> str:
    inner = re.sub(r"\\?/", r"\/", expression(draws)).replace("\n", r"\n")
    return f"/{inner}/{draws.pick(('', '', '', 'i', 's', 'x', 'u'))}"


def gbnf(draws: Draws) -> str:
    """One of any form."""
    match draws.below(6):
        case 4:
            depth = draws.length(8_000)
            return f"root ::= {'(' * depth}{_gbnf_choices(draws, 0)}{')' * depth}"
        case 5:
            length = draws.length(600)
            around = draws.pick(("{}", "({})*", '"a" {}', '{} | ""', "{} {}"))
            lines = [f"r{i} ::= {around.replace('{}', f'r{i + 1}')}" for i in range(length)]
            return "\n".join(["root ::= r0", *lines, f'r{length} ::= "a"'])
    rules = draws.size(40)
    lines = [f"root ::= {_gbnf_choices(draws, rules)}"]
    lines += [f"r{i} ::= {_gbnf_choices(draws, rules)}" for i in range(rules)]
    return "\n".join(lines)


def _gbnf_choices(draws: Draws, rules: int) -> str:
    return " | ".join(
        " ".join(_gbnf_item(draws, rules) for _ in draws.several(6))
        for _ in range(1 + draws.size(5))
    )


def _gbnf_item(draws: Draws, rules: int) -> str:
    classes = ("[a-z]", "[^a]", r"[\x00-\xff]", r"[\u00e9-\U0010ffff]", ".", r"[\]\\]")
    if not draws.spend():
        return '"a"'
    if draws.oddly():
        return draws.pick(_ODD)
    match draws.below(6):
        case 1 | 2 if rules:
            one = f"r{draws.below(rules)}"
        case 3:
            inner = draws.deeper(lambda: _gbnf_choices(draws, rules), '"a"')
            one = f"({inner})"
        case 4:
            one = draws.pick(classes)
        case _:
            one = json.dumps(word(draws), ensure_ascii=draws.one_in(2))
    return one + (_times(draws) if draws.one_in(20) else draws.pick(_REPEATS))

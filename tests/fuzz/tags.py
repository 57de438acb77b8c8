"""Structural tags: vLLM's older form, and xgrammar's tree of formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzz.draws import Draws
from fuzz.expressions import expression
from fuzz.grammars import gbnf, lark
from fuzz.schemas import schema
from fuzz.texts import LARGE, count, value, word

Format = Any


def structural_tag(draws: Draws) -> dict[str, Any]:
    """One of any form."""
    if draws.one_in(4):
        triggers = [word(draws) + "<" for _ in draws.several(20)]
        structures = [
            {
                "begin": draws.pick(triggers) + word(draws),
                "schema": schema(draws),
                "end": word(draws),
            }
            for _ in draws.several(40 if not draws.oddly() else 1_100)
        ]
        return {"type": "structural_tag", "structures": structures, "triggers": triggers}
    if draws.oddly():
        return {"type": "structural_tag", "format": value(draws)}
    return {"type": "structural_tag", "format": _deep(draws)}


def _deep(draws: Draws) -> Format:
    """A format, perhaps in many others."""
    one = _format(draws)
    if not draws.one_in(4):
        return one
    wraps: tuple[Callable[[Format], Format], ...] = (
        lambda inner: {"type": "sequence", "elements": [inner]},
        lambda inner: {"type": "or", "elements": [inner, inner]},
        lambda inner: {"type": "optional", "content": inner},
        lambda inner: {"type": "star", "content": inner},
        lambda inner: {"type": "tag", "begin": "<", "content": inner, "end": ">"},
    )
    wrap = draws.pick(wraps)
    for _ in range(draws.length(15 if wrap is wraps[1] else 400)):
        if len(str(one)) > LARGE:
            break
        one = wrap(one)
    return one


def _format(draws: Draws) -> Format:
    return draws.deeper(lambda: _any(draws), {"type": "const_string", "value": "a"})


def _any(draws: Draws) -> Format:
    kinds = (_constant, _any_text, _tag, _sequence, _repeated, _triggered, _separated, _dispatched)
    return draws.pick((*kinds, _schema, _expression, _grammar, _token))(draws)


def _constant(draws: Draws) -> Format:
    return {"type": "const_string", "value": word(draws)}


def _any_text(draws: Draws) -> Format:
    found: Format = {"type": "any_text"}
    if draws.one_in(3):
        found["excludes"] = [word(draws) for _ in range(draws.size(200))]
    if draws.one_in(3):
        found["max_chars"] = count(draws)
    return found


def _tag(draws: Draws) -> Format:
    begin: Any = word(draws) if not draws.one_in(6) else {"type": "token", "token": count(draws)}
    end: Any = [word(draws) for _ in range(draws.size(20))] if draws.one_in(3) else word(draws)
    return {"type": "tag", "begin": begin, "content": _format(draws), "end": end}


def _sequence(draws: Draws) -> Format:
    elements = [_format(draws) for _ in draws.several(20)]
    return {"type": draws.pick(("sequence", "or")), "elements": elements}


def _repeated(draws: Draws) -> Format:
    kind = draws.pick(("optional", "plus", "star", "repeat"))
    bounds = {"min": draws.size(4_096), "max": draws.pick((-1, 4_096))} if kind == "repeat" else {}
    return {"type": kind, "content": _format(draws), **bounds}


def _triggered(draws: Draws) -> Format:
    triggers = [word(draws) + "<" for _ in draws.several(20)]
    tags = [_tag(draws) for _ in draws.several(40)]
    for tag in tags:
        tag["begin"] = draws.pick(triggers) + word(draws)
    flags = {each: draws.one_in(2) for each in ("at_least_one", "stop_after_first")}
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, **flags}


def _separated(draws: Draws) -> Format:
    tags = [_tag(draws) for _ in draws.several(40)]
    return {"type": "tags_with_separator", "tags": tags, "separator": word(draws)}


def _dispatched(draws: Draws) -> Format:
    rules = [[word(draws), _format(draws)] for _ in draws.several(40)]
    return {"type": "dispatch", "rules": rules, "loop": draws.one_in(2)}


def _schema(draws: Draws) -> Format:
    return {"type": "json_schema", "json_schema": schema(draws)}


def _expression(draws: Draws) -> Format:
    return {"type": "regex", "pattern": expression(draws)}


def _grammar(draws: Draws) -> Format:
    return {"type": "grammar", "grammar": draws.pick((lark, gbnf))(draws)}


def _token(draws: Draws) -> Format:
    return {"type": "token", "token": draws.pick((0, 5, "<|endoftext|>", 10**9, -1, "nobody"))}

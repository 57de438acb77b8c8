"""A case: what one client shapes, by the language that it is written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fuzz import calls, expressions, grammars, schemas, tags, templates
from fuzz.draws import Draws
from fuzz.texts import word

Given = Mapping[str, Any]


class Case(NamedTuple):
    """given: fields of ``structured_outputs``, or what ``templates`` or ``calls`` say."""

    language: str
    given: Given


def _schema(draws: Draws) -> Given:
    layout = {} if not draws.one_in(4) else {draws.pick(_LAYOUTS): True}
    if draws.one_in(20):
        layout = {"whitespace_pattern": expressions.expression(draws)[:256]}
    return {"json": schemas.schema(draws), **layout}


def _choice(draws: Draws) -> Given:
    return {"choice": [word(draws) + str(number) for number in draws.several(4_000)]}


_LAYOUTS = ("disable_any_whitespace", "disable_additional_properties")
LANGUAGES: Mapping[str, Callable[[Draws], Given]] = {
    "schema": _schema,
    "regex": lambda draws: {"regex": expressions.expression(draws)},
    "lark": lambda draws: {"grammar": grammars.lark(draws)},
    "gbnf": lambda draws: {"grammar": grammars.gbnf(draws)},
    "tags": lambda draws: {"structural_tag": tags.structural_tag(draws)},
    "choice": _choice,
    "template": templates.template,
    "tools": calls.tools,
}


def drawn(language: str, seed: int) -> tuple[Case, list[int]]:
    """The case of a seed, and the choices that it is made of."""
    draws = Draws(seed)
    given = LANGUAGES[language](draws)
    return Case(language, given), draws.chosen


def remade(language: str, choices: Sequence[int]) -> Case:
    """The case that choices make."""
    return Case(language, LANGUAGES[language](Draws(None, choices)))

"""Texts that are written as they are, without quotes or escapes: what a grammar says of one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from quire.core.errors import RequestError
from quire.text.dialect.grammar import GrammarRules, Schema, beyond, literal
from quire.text.dialect.patterns import whole

_TEXTS = {"type", "enum", "const", "pattern", "minLength", "maxLength"}  # what is said of texts


def text_terminal(
    rules: GrammarRules, schema: Schema, stops: Sequence[str], chars: str = "."
) -> str:
    """A terminal for a text that follows a schema and contains none of ``stops``, which end it.

    chars: an expression for one character. RequestError if the schema asks for more.
    """
    if other := beyond(schema, _TEXTS):
        raise RequestError(
            f"where this model must call, the schema of a text may not hold {other}", "tools"
        )
    named = values(schema)
    if named:
        return f"({' | '.join(literal(one) for one in named if isinstance(one, str))})"
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    marks = "|".join(re.sub(r"([^\w\s<>'\"=-])", r"\\\1", mark) for mark in stops)
    parts = [f"/(?s:{chars}{{{least},{most}}})/", f"~/(?s:.*)({marks})(?s:.*)/"]
    if "pattern" in schema:
        parts.append(f"/{whole(str(schema['pattern']))}/")
    return rules.terminal(" & ".join(parts))


def values(schema: Schema) -> list[Any] | None:
    """The values that a schema names; None if it allows others."""
    named = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return named if isinstance(named, list) else None

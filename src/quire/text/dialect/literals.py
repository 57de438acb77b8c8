"""Python's literals as JSON, of text that is parsed and never evaluated."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from typing import Any


class NoLiteral(ValueError):
    """The text stands for no value that JSON has."""


def parse(text: str) -> ast.expr:
    """The expression that a text spells; NoLiteral if it spells none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what the model has written
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NoLiteral(text[:100]) from error


def spelling(text: str) -> Callable[[ast.expr], str]:
    """A function that says how a part of a parsed text is spelled there."""
    source = text.encode()
    lines = [0, *accumulate(map(len, source.splitlines(keepends=True)))]

    def spelled(node: ast.expr) -> str:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = lines[node.lineno - 1] + node.col_offset
        return source[start : lines[node.end_lineno - 1] + node.end_col_offset].decode()

    return spelled


def value(node: ast.expr) -> Any:
    """The value of a literal. JSON's own true, false and null count too."""
    match node:
        case ast.Constant(str() | int() | float() | None as constant):
            return constant
        case ast.Name(("true" | "false" | "null") as name):
            return {"true": True, "false": False, "null": None}[name]
        case ast.List(items) | ast.Tuple(items) | ast.Set(items):
            return [value(item) for item in items]
        case ast.Dict(keys, values):
            return dict(zip(map(_key, keys), map(value, values), strict=True))
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
        return json.dumps(value(node or parse(text)), ensure_ascii=False, allow_nan=False)
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

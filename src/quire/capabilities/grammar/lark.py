"""Grammars in llguidance's dialect of Lark, before it reads them.

Schemas in them become rules of ours, and tokens that are called by name are called by number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from quire.capabilities.grammar.subschemas import longest_chain
from quire.core.errors import RequestError, reason
from quire.text.exact_json import read_at

_MOST_RULES_DEEP = 1_000  # each of which takes llguidance's stack
_FIELD = "structured_outputs"
_PIECES = re.compile(
    r"""(?P<comment>(?:\#|//)[^\n]*)
      | (?P<text>"(?:\\.|[^"\\\n])*")
      | (?P<expression>/(?:\\.|[^/\\\n])+/)
      | (?P<json>%json(?![\w-]))
      | <(?P<token>[^<>\s\[\]][^<>\s]*)>
      | (?P<defined>^[ \t]*[!?_]*[A-Za-z][\w-]*)
        (?=[^\S\n]*(?:\[[^\]\n]*\]|::|\.[\d-]+|\{[^}\n]*\})?[^\S\n]*:)
      | (?P<name>[A-Za-z_][\w-]*)
    """,
    re.VERBOSE | re.MULTILINE,
)


def prepared(
    source: str, token_id: Callable[[str], int | None], schema: Callable[[Any], str]
) -> str:
    """What llguidance is given for a grammar, or for several as an object; RequestError.

    schema: a grammar for values that a schema allows, which can stand for itself.
    """
    if not source.lstrip().startswith("{"):
        return '%llguidance {"no_forcing": true}\n' + _prepared(source, token_id, schema)
    several = json.loads(source)
    for one in several["grammars"]:
        one["lark_grammar"] = prepared(one["lark_grammar"], token_id, schema)
    return json.dumps(several)


def _prepared(
    source: str, token_id: Callable[[str], int | None], schema: Callable[[Any], str]
) -> str:
    parts: list[str] = []
    links: dict[str, set[str]] = {}
    rule, end = "", 0
    while found := _PIECES.search(source, end):
        parts.append(source[end : found.start()])
        piece, end = found[0], found.end()
        match found.lastgroup:
            case "json":
                try:
                    value, end = read_at(source, end)
                except (ValueError, RecursionError) as error:
                    raise RequestError(
                        f"{_FIELD}: %json holds no JSON: {reason(error)}", _FIELD
                    ) from None
                piece = schema(value)
            case "token" if (id_ := token_id(piece)) is not None:
                piece = f"<[{id_}]>"
            case "defined":
                rule = piece.lstrip(" \t!?")
                links.setdefault(rule, set())
            case "name" if rule:
                links[rule].add(piece)
        parts.append(piece)
    parts.append(source[end:])
    if longest_chain(links, dict.fromkeys(links, 1)) > _MOST_RULES_DEEP:
        raise RequestError(
            f"{_FIELD}: rules of a grammar may lead through at most {_MOST_RULES_DEEP:,} others",
            _FIELD,
        )
    return "".join(parts)


def literal(text: str) -> str:
    """A text as itself: none of it is a mark, whatever it looks like. "" is nothing at all."""
    return json.dumps(text).replace("\x7f", r"\u007f")


def either(each: Iterable[str]) -> str:
    return " | ".join(each)


def json_text(text: str) -> str:
    """A text in JSON, as it is mostly written."""
    return json.dumps(text, ensure_ascii=False)

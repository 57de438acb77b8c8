"""Cases that have once crashed, taken long, taken much or come out wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fuzz.case import Case

_MESSAGES = [{"role": "user", "content": "a"}]


def _chain(length: int, link: Callable[[Any], Any]) -> Case:
    """Definitions of which each refers to the next."""
    links = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return _schema({"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {"type": "null"}}})


def _schema(schema: Any) -> Case:
    return Case("schema", {"json": schema})


def _lark(*lines: str) -> Case:
    return Case("lark", {"grammar": "\n".join(lines)})


def _template(source: str) -> Case:
    return Case("template", {"template": source, "messages": _MESSAGES, "variables": {}})


CORPUS: Mapping[str, Case] = {
    "a chain of references": _chain(3_000, lambda one: one),
    "a chain through items": _chain(1_101, lambda one: {"type": "array", "items": one}),
    "a chain through allOf": _chain(1_101, lambda one: {"allOf": [one]}),
    "an expression with three readings": _lark("start: e", "e: e e e | e e | /[a-z ]/"),
    "an expression with more readings": _lark("start: e", "e: e e e e | e e | /(?s:.)/"),
    "parentheses of GBNF": Case("gbnf", {"grammar": f"root ::= {'(' * 8_000}"}),
    "slices as large as memory": _template("{{ range(10) | slice(10 ** 9) | list }}"),
    "a batch as large as memory": _template("{{ [1] | batch(10 ** 9, 'x') | list }}"),
    "nothing, of a block": _template("{% filter first %}{{ x }}{% endfilter %}"),
    "a rule that ends with a word": _lark('start: "x"+ r', 'r[stop="a"]: /b*/'),
    "an expression with more states than there may be": Case("regex", {"regex": "aaaaba{50000}a"}),
    "a tool whose parameters are anything": Case(
        "tools",
        {
            "dialect": "hermes",
            "tools": [{"name": "a", "parameters": True}],
            "tool_choice": "auto",
            "begun": "",
            "said": "",
            "several": True,
        },
    ),
    "a line for each letter": _template("{{ ('a' * 10 ** 6) | wordwrap(1) }}"),
}

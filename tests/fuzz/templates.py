"""Chat templates: Jinja's statements, and all of its filters, tests and methods with any values."""

from __future__ import annotations

from typing import Any

from jinja2.filters import FILTERS
from jinja2.tests import TESTS

from fuzz.draws import Draws
from fuzz.texts import value, word

_FILTERS, _TESTS = sorted(FILTERS), sorted(TESTS)
_METHODS = sorted(
    {name for kind in (str, list, dict, int, tuple) for name in dir(kind) if name[0] != "_"}
    | {"__class__", "__mro__", "__init__", "__globals__", "undefined"}
)
_ATOMS = (
    *("messages", "messages[0].content", "tools", "x", "'a'", "0", "1", "''", "[]", "{}", "none"),
    *("true", "loop", "loop.index", "namespace(a=1)", "range(9)", "('a', 1)", "{'a': [1]}", "1.5"),
    *("range(99999)", "'a' * 10 ** 6", "[1] * 10 ** 5", "10 ** 9", "-10 ** 9", "cycler(1, 2)"),
    *("nobody", "joiner()", "dict(a=1)", "self", "caller", "strftime_now('%Y')"),
    "raise_exception('a')",
    *("add_generation_prompt", "'%s %999999d'", "'{:>9999999}'", "2 ** 999"),
)  # fmt: skip
_ITEMS = ("range(9)", "messages", "[1, 'a']", "'abc'", "{'a': 1}", "range(99999)")
_PLAIN = 18  # of these, which take nothing
_OPERATORS = (
    "+",
    "~",
    "*",
    "==",
    "in",
    "and",
    "or",
    "-",
    "/",
    "//",
    "%",
    "**",
    "<",
    "not in",
    "is",
)


def template(draws: Draws) -> dict[str, Any]:
    """A template, the messages that it gets and its variables."""
    messages = [
        {"role": draws.pick(("user", "system", "assistant", "tool")), "content": value(draws)}
        for _ in draws.several(8)
    ]
    variables = {draws.pick(("x", "y", word(draws))): value(draws) for _ in range(2)}
    return {"template": _source(draws), "messages": messages, "variables": variables}


def _source(draws: Draws) -> str:
    if draws.one_in(8):
        depth, around = (
            draws.length(2_000),
            draws.pick(("({})", "[{}]", "not {}", "{} ~ 'a'", "-{}")),
        )
        before, after = around.split("{}")
        return f"{{{{ {before * depth}{_expression(draws)}{after * depth} }}}}"
    return _body(draws, 4)


def _body(draws: Draws, depth: int) -> str:
    return "".join(_statement(draws, depth) for _ in draws.several(6))


def _statement(draws: Draws, depth: int) -> str:
    if not depth or not draws.spend():
        return f"{{{{ {_expression(draws)} }}}}"
    inner = _body(draws, depth - 1)
    match draws.below(12):
        case 0 | 1 | 2:
            return f"{{{{ {_expression(draws)} }}}}"
        case 3:
            how = draws.pick(("", " if loop.first", " recursive"))
            again = "{{ loop([1]) }}" if draws.one_in(6) else ""
            leave = draws.pick(("", "{% break %}", "{% continue %}"))
            items = draws.pick(_ITEMS) if not draws.one_in(4) else _expression(draws)
            return f"{{% for x in {items}{how} %}}{inner}{again}{leave}{{% endfor %}}"
        case 4:
            return f"{{% if {_expression(draws)} %}}{inner}{{% else %}}b{{% endif %}}"
        case 5:
            return f"{{% set x = {_expression(draws)} %}}"
        case 6:
            return f"{{% set x %}}{inner}{{% endset %}}"
        case 7:
            call = draws.pick(("m()", "m(m)", "m(1, 2)"))
            return f"{{% macro m(a=1) %}}{inner}{{% endmacro %}}{{{{ {call} }}}}"
        case 8:
            return f"{{% filter {draws.pick(_FILTERS)} %}}{inner}{{% endfilter %}}"
        case 9:
            macro = "{% macro m() %}{{ caller() }}{% endmacro %}"
            return f"{macro}{{% call m() %}}{inner}{{% endcall %}}"
        case 10:
            twice = draws.pick(("ns.a + ns.a", "[ns.a, ns.a]", "ns.a ~ ns.a", "(ns.a,) * 9"))
            loop = (
                f"{{% for i in range({draws.size(99)}) %}}{{% set ns.a = {twice} %}}{{% endfor %}}"
            )
            return f"{{% set ns = namespace(a='a') %}}{loop}{{{{ ns.a | {draws.pick(_FILTERS)} }}}}"
    return f"{{% generation %}}{inner}{{% endgeneration %}}{word(draws)}"


def _expression(draws: Draws) -> str:
    return draws.deeper(lambda: _operation(draws), "x")


def _operation(draws: Draws) -> str:
    match draws.below(10):
        case 1 | 2 | 3:
            return f"({_expression(draws)}) | {draws.pick(_FILTERS)}{_arguments(draws)}"
        case 4:
            return f"({_expression(draws)}).{draws.pick(_METHODS)}{_arguments(draws)}"
        case 5:
            return f"({_expression(draws)} {draws.pick(_OPERATORS)} {_expression(draws)})"
        case 6:
            cut = ":".join(_atom(draws) for _ in range(1 + draws.below(3)))
            return f"({_expression(draws)})[{cut}]"
        case 7:
            return f"({_expression(draws)} is {draws.pick(_TESTS)}{_arguments(draws)})"
        case 8:
            return f"({_expression(draws)} if {_expression(draws)} else {_atom(draws)})"
        case 9:
            return f"[{_expression(draws)}, {_atom(draws)}]"
    return _atom(draws)


def _arguments(draws: Draws) -> str:
    number = draws.below(4)
    if not number:
        return draws.pick(("", "()"))
    named = draws.pick(("", "", "", "attribute=", "width=", "fill_with=", "default=", "indent="))
    given = [_expression(draws) if draws.one_in(4) else _atom(draws) for _ in range(number)]
    return f"({', '.join([*given[:-1], named + given[-1]])})"


def _atom(draws: Draws) -> str:
    return draws.pick(_ATOMS if draws.one_in(3) else _ATOMS[:_PLAIN])

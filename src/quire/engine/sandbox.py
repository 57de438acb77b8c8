"""Jinja for templates that nobody has read: what they may reach, and what they may cost."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quire.engine.weight import weight

MOST_SECONDS = 2.0  # of the processor's time, for one text
MOST_CHARACTERS = 2**26  # in all texts and lists that are made on the way
_MOST_INTEGER = 2**12  # bits
_STEPS = 64  # between two looks at the clock
# What can make much out of little: of as many characters as all that goes in, multiplied.
_MULTIPLYING = {"center", "expandtabs", "indent", "ljust", "replace", "rjust", "zfill"}
_LISTS = {  # filters that do not look into the items
    "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "random",
    "reject", "rejectattr", "reverse", "select", "selectattr", "slice",
}  # fmt: skip
_WIDTH = re.compile(r"\d+")


class TooMuch(BaseException):
    """A template takes more than it may. No Exception: Jinja handles some of those itself."""


class _Generator(CodeGenerator):
    """Has the environment do what else nobody would count."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._call("joined", node.nodes, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        none = nodes.Const(None)
        ends = [node.arg.start or none, node.arg.stop or none, node.arg.step or none]
        self._call("sliced", [node.node, *ends], frame)

    def _call(self, name: str, arguments: Sequence[nodes.Expr], frame: Frame) -> None:
        self.write(f"environment.{name}((")
        for argument in arguments:
            self.visit(argument, frame)
            self.write(", ")
        self.write("))")


class Generation(Extension):
    """{% generation %}: marks what the assistant says, for those who train models."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox in which rendering ends: within ``limits``, time and memory are bounded."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *, filters: Mapping[str, Callable[..., Any]], **options: Any) -> None:
        """filters: beside Jinja's own, or in their place."""
        # Nothing is computed before there are limits.
        super().__init__(optimized=False, finalize=self._shown, **options)
        self.globals.pop("lipsum")
        self.filters.pop("urlize")  # takes long, by expressions that nobody has bounded
        all_filters = {**self.filters, **filters}
        self.filters = {name: self._counted(name, of) for name, of in all_filters.items()}
        self._local = threading.local()

    @contextmanager
    def limits(self) -> Iterator[None]:
        """What this thread renders meanwhile is bounded; TooMuch where it is not enough."""
        self._local.budget = _Budget()
        try:
            yield
        finally:
            del self._local.budget

    # -- what Jinja calls ----------------------------------------------------------------------

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Every loop goes through what it goes through step by step."""
        template = super()._parse(source, name, filename)
        step = nodes.EnvironmentAttribute("stepping")
        for loop in template.find_all(nodes.For):
            loop.iter = nodes.Call(step, [loop.iter], [], None, None, lineno=loop.lineno)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (abs(right) if operator == "**" else 1) + right.bit_length()
            if bits > _MOST_INTEGER:
                raise TooMuch
        elif operator == "%" and isinstance(left, str):
            self._spend_on_form(left, right)
        elif operator == "*":
            self._spend(_size(left) * _size(right))
        else:
            self._spend(_size(left) + _size(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, called: Any, *args: Any, **kwargs: Any) -> Any:
        method = getattr(called, "__wrapped__", called)  # format is another one in a sandbox
        name, owner = getattr(method, "__name__", ""), getattr(method, "__self__", None)
        if isinstance(called, LoopContext):  # one that is recursive
            args = tuple(map(self.stepping, args))
        if isinstance(owner, str):
            args = self._foresee(name, (owner, *args), kwargs)[1:]
        return self._taken(super().call(context, called, *args, **kwargs))

    def stepping(self, items: Any) -> Any:
        return _Steps(items, self._local.budget)

    def concat(self, pieces: Any) -> str:
        return self.joined([*pieces])

    def joined(self, parts: Sequence[Any]) -> str:
        self._spend(sum(map(self._weight, parts)))
        return "".join(map(str, parts))

    def sliced(self, parts: tuple[Any, Any, Any, Any]) -> Any:
        whole, start, stop, step = parts
        return self._taken(whole[start:stop:step])

    # -- counting ------------------------------------------------------------------------------

    def _counted(self, name: str, of: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(of)
        def counted(*args: Any, **kwargs: Any) -> Any:
            return self._taken(of(*self._foresee(name, args, kwargs), **kwargs))

        return counted

    def _foresee(self, name: str, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, ...]:
        """The arguments of what may make much of them, paid for before it does."""
        args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
        if name == "join":
            lists = [arg for arg in args if isinstance(arg, (list, tuple))]
            between = sum(len(arg) for arg in args if isinstance(arg, str)) + 1
            self._spend(sum(map(self._weight, lists)) + sum(map(len, lists)) * between)
        elif name == "format":
            self._spend_on_form(str(args[0]), [args[1:], kwargs])
        elif name not in _LISTS:
            self._spend(sum(map(self._weight, args)))
        if name in _MULTIPLYING:
            size = 1
            for arg in (*args, *kwargs.values()):
                size *= _size(arg)
            self._spend(size)
        return args

    def _spend_on_form(self, form: str, given: object) -> None:
        widths = sum(int(width[:9]) for width in _WIDTH.findall(form))
        self._spend(widths + len(form) * max(self._weight(given), 1))

    def _shown(self, value: object) -> object:
        self._spend(self._weight(value))
        return value

    def _weight(self, value: object) -> int:
        """Of what is to become a text."""
        return len(value) if isinstance(value, str) else weight(value, MOST_CHARACTERS)

    def _taken(self, made: Any) -> Any:
        if isinstance(made, (str, list, tuple)):
            self._spend(len(made))
        return made

    def _spend(self, characters: int) -> None:
        self._local.budget.spend(characters)


class _Budget:
    """What one text may take. Whatever loops or calls takes a step at least."""

    def __init__(self) -> None:
        self._characters = MOST_CHARACTERS
        self._deadline = time.thread_time() + MOST_SECONDS
        self._steps = 0

    def spend(self, characters: int) -> None:
        self._characters -= characters
        self._steps += 1 + characters // 1024
        if self._characters < 0:
            raise TooMuch
        if self._steps > _STEPS:
            self._steps = 0
            if time.thread_time() > self._deadline:
                raise TooMuch


class _Steps:
    """What a loop goes through, a step each."""

    def __init__(self, items: Any, budget: _Budget) -> None:
        self._items = items
        self._budget = budget

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._budget.spend(0)
            yield item

    def __len__(self) -> int:
        return len(self._items)


def _size(value: object) -> int:
    """At least one: of a text or a list what it holds, of a number what it asks for."""
    if isinstance(value, (str, list, tuple, dict)):
        return max(len(value), 1)
    return max(abs(value), 1) if isinstance(value, int) else 1

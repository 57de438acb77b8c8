"""Jinja for untrusted templates: what they may reach, and how much they may cost."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

from jinja2 import Environment, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quire.text import template_costs
from quire.text.template_costs import ITEM, MOST_CHARACTERS, of_comparison, of_form, weigh

MOST_SECONDS = 2.0  # of the processor's time, for one text
_MOST_INTEGER = 2**12  # bits
_STEPS = 64  # steps between two checks of the clock
_BYTES = {"encode", "from_bytes", "to_bytes"}  # no text is made of them, and codecs take long


class TooMuch(BaseException):
    """A template exceeds its budget. Not an Exception, since Jinja handles some of those itself."""


class _Generator(CodeGenerator):
    """Makes compiled templates count operations that nothing else would count."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._call("joined", node.nodes, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        none = nodes.Const(None)
        ends = [node.arg.start or none, node.arg.stop or none, node.arg.step or none]
        self._call("sliced", [node.node, *ends], frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        operators = [nodes.Const(operand.op) for operand in node.ops]
        self._call("compared", [node.expr, *(one.expr for one in node.ops), *operators], frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("{")
        for pair in node.items:
            self._call("key", [pair.key], frame)
            self.write(": ")
            self.visit(pair.value, frame)
            self.write(", ")
        self.write("}")

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
        """filters: in addition to Jinja's own, or in place of them."""
        # Nothing is computed before there are limits.
        super().__init__(optimized=False, finalize=self._shown, **options)
        self.globals.pop("lipsum")
        for name in ("pprint", "urlize"):  # take long, without a bound
            self.filters.pop(name)
        self.filters.update(filters)
        for table, cost in (
            (self.filters, template_costs.of_filter),
            (self.tests, template_costs.of_test),
        ):
            for name, of in [*table.items()]:
                table[name] = self._counted(partial(cost, name), of)
        self._local = threading.local()

    @contextmanager
    def limits(self) -> Iterator[None]:
        """Bound what this thread renders meanwhile; TooMuch if it takes more."""
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

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _BYTES and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (abs(right) if operator == "**" else 1) + right.bit_length()
            if bits > _MOST_INTEGER:
                raise TooMuch
        elif operator == "%" and isinstance(left, str):
            self._spend(of_form(left, right))
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
        elif not isinstance(called, Macro):
            args = _listed(args)
            self._spend(template_costs.of_method(owner, name, args, kwargs))
        return self._taken(super().call(context, called, *args, **kwargs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(obj, self.key((argument,)))

    def key(self, parts: tuple[Any]) -> Any:
        """A key to look up in a mapping, whose own size has been counted."""
        if isinstance(parts[0], tuple):
            self._spend(weigh(parts[0]))
        return parts[0]

    def compared(self, parts: tuple[Any, ...]) -> Any:
        """values and then the operators between them: ``a < b < c``."""
        values, operators = parts[: len(parts) // 2 + 1], parts[len(parts) // 2 + 1 :]
        found: Any = True
        for sign, left, right in zip(operators, values, values[1:], strict=False):
            self._spend(of_comparison(sign, left, right))
            found = _COMPARISONS[sign](left, right)
            if not found:
                break
        return found

    def stepping(self, items: Any) -> Any:
        return _Steps(items, self._local.budget)

    def concat(self, pieces: Any) -> str:
        return self.joined([*pieces])

    def joined(self, parts: Sequence[Any]) -> str:
        self._spend(sum(map(weigh, parts)))
        return "".join(map(str, parts))

    def sliced(self, parts: tuple[Any, Any, Any, Any]) -> Any:
        whole, start, stop, step = parts
        return self._taken(whole[start:stop:step])

    # -- counting ------------------------------------------------------------------------------

    def _counted(self, cost: Callable[..., int], of: Callable[..., Any]) -> Callable[..., Any]:
        """A filter or a test, paid for before it does anything."""

        @wraps(of)
        def counted(*args: Any, **kwargs: Any) -> Any:
            args = _listed(args)
            own = args[1:] if args and isinstance(args[0], _PASSED) else args
            self._spend(cost(own, kwargs))
            return self._taken(of(*args, **kwargs))

        return counted

    def _shown(self, value: object) -> object:
        self._spend(weigh(value))
        return value

    def _taken(self, made: Any) -> Any:
        if isinstance(made, str):
            self._spend(len(made))
        elif isinstance(made, (list, tuple, dict)):
            self._spend(ITEM * len(made))
        elif isinstance(made, int) and made.bit_length() > _MOST_INTEGER:
            raise TooMuch
        elif isinstance(made, Iterator) and not isinstance(made, LoopContext):
            return self._paid(made)
        return made

    def _paid(self, made: Iterator[Any]) -> Generator[Any, None, None]:
        """The items that a filter yields, each of which is counted."""
        for one in made:
            self._spend(ITEM * (1 + (len(one) if isinstance(one, list) else 0)))
            yield one

    def _spend(self, characters: int) -> None:
        self._local.budget.spend(characters)


class _Budget:
    """The budget of one text. Every loop and every call takes a step at least."""

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


_PASSED = (Environment, Context, EvalContext)  # what Jinja gives some filters before all else
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}


class _Steps:
    """The items of a loop, a step for each."""

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
    """At least one: the length of a text or a list, or the size of a number."""
    if isinstance(value, (list, tuple, dict)):
        return max(ITEM * len(value), 1)
    return max(abs(value), 1) if isinstance(value, int) else max(weigh(value), 1)


def _listed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """An iterable that can be read only once, as a list, so that it can be weighed."""
    return tuple(
        list(arg) if isinstance(arg, Iterator) and not isinstance(arg, LoopContext) else arg
        for arg in args
    )

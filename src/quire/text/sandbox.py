"""What chat templates are rendered by: Jinja's sandbox, which bounds what they reach.

What they cost is bounded by where they are rendered (``Renderer``): Jinja takes any time and memory
that a template, or a request's values in it, ask for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, Protocol

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quire.core.errors import ModelError, RequestError, reason

OWN = "chat_template"  # the field in which a request brings a template of its own

_PIECEMEAL = ("batch", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr",
              "slice", "unique")  # fmt: skip
_KEPT = 8  # compiled templates: a model has one or two


class Renderer(Protocol):
    """Where templates are rendered."""

    def render(self, source: str, given: Mapping[str, Any], most: float, field: str) -> str:
        """The text of a template with the variables ``given``, up to a little over ``most``
        characters.

        RequestError of ``field`` if there is none. The field ``chat_template`` says that it is a
        request's own template.
        """
        ...


class Templates:
    """Renders templates in this process, however long that takes."""

    def __init__(self) -> None:
        self._environment = _environment()
        self._compiled = lru_cache(_KEPT)(self._compile)

    def check(self, source: str) -> None:
        """ModelError if a template does not compile. Nothing of it is rendered."""
        try:
            self._environment.parse(source)
        except Exception as error:  # numbers may have too many digits, and parentheses no end
            raise ModelError(f"the chat template does not compile: {reason(error)}") from error

    def render(self, source: str, given: Mapping[str, Any], most: float, field: str) -> str:
        try:
            template, understood = self._compiled(source)
        except MemoryError:
            raise
        except Exception as error:  # whatever Jinja and Python raise at what they cannot read
            raise RequestError(
                f"the chat template does not compile: {reason(error)}", field
            ) from error
        if given.get("documents") and "documents" not in understood:
            raise RequestError("the model's chat template takes no documents", "documents")
        pieces, length = list[str](), 0
        try:
            for piece in template.generate(_kept({**given})):
                pieces.append(piece)
                length += len(piece)
                if length > most:
                    break  # it need not end
            text = "".join(pieces)  # filters may have made anything else of a block
            text.encode()  # which half of a surrogate pair cannot be
        except MemoryError:
            raise
        except Exception as error:  # whatever its operations on these values raise
            why = f"the model's chat template refuses these messages: {reason(error)}"
            raise RequestError(why, field) from error
        return text

    def _compile(self, source: str) -> tuple[Template, set[str]]:
        understood = find_undeclared_variables(self._environment.parse(source))
        return self._environment.from_string(source), understood


class _Generation(Extension):
    """{% generation %}: marks what the assistant says, for those who train models."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which a template may append to its own lists, as Kimi K2's does."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        queues = type(obj) is list and attr in ("append", "pop")
        return queues or super().is_safe_attribute(obj, attr, value)


class _GivenList(list[Any]):
    """A list that a template was given, and does not change."""


def _kept(value: Any) -> Any:
    """A copy of the value in which no list can be changed by a template."""
    if isinstance(value, list):
        return _GivenList(map(_kept, value))
    if isinstance(value, dict):
        return type(value)({key: _kept(item) for key, item in value.items()})
    return value


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja's environment as transformers sets it up, except for lists."""
    made = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
    )
    made.filters |= {name: _whole(made.filters[name]) for name in _PIECEMEAL}
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    return made


def _whole(of: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that gives a list where it would give an iterator, which has no length or JSON."""

    @wraps(of)
    def listed(*args: Any, **kwargs: Any) -> Any:
        made = of(*args, **kwargs)
        return list(made) if isinstance(made, Iterator) else made

    return listed


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which prompts are not.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=None if separators is None else (separators[0], separators[1]),
        sort_keys=sort_keys,
    )


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)

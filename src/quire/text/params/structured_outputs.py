"""What the text of an output must be like, in vLLM's names, and where its reasoning ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from quire.core.errors import RequestError, reason, shown
from quire.text import exact_json
from quire.text.params.parameters import check_unicode

LONGEST_GRAMMAR = 2**18  # characters of a schema, an expression or a grammar
MOST_CHOICES = 4_096
_MOST_LEVELS = 64  # of a schema
_LONGEST_WHITESPACE = 256  # characters of its pattern
_KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
_NEUTRAL = {"disable_fallback"}  # vLLM's: there is nothing to fall back on
_FIELD = "structured_outputs"


@dataclass(frozen=True)
class StructuredOutputs:
    """One rule for a text, and how JSON is to be laid out. Checked on construction.

    json: a JSON schema, as an object, true (anything) or their text; kept as text.
    json_object: any JSON object.
    regex: an expression that the whole text matches.
    choice: texts of which it is one.
    grammar: in llguidance's dialect of Lark, or in the GBNF that llama.cpp and xgrammar read.
    structural_tag: marks in free text after which a schema holds, or xgrammar's tree of formats,
        as an object or its text.
    disable_additional_properties: of objects that list some; None: as the engine is set.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    whitespace_pattern: str | None = None  # an expression for whitespace in JSON
    disable_any_whitespace: bool = False
    disable_additional_properties: bool | None = None

    def __post_init__(self) -> None:
        if self.json_object is False:
            object.__setattr__(self, "json_object", None)
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none of them"
            raise RequestError(f"{_FIELD} must hold one of {', '.join(_KINDS)}; got {got}", _FIELD)
        for name in ("json", "structural_tag"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _object(name, getattr(self, name)))
        for name in ("regex", "grammar"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name), LONGEST_GRAMMAR)
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        if self.whitespace_pattern is not None:
            _check_text("whitespace_pattern", self.whitespace_pattern, _LONGEST_WHITESPACE)
        for name in ("json_object", "disable_any_whitespace", "disable_additional_properties"):
            if getattr(self, name) not in (True, False, None):
                raise _wrong(name, "true or false", getattr(self, name))

    @classmethod
    def of(cls, given: object) -> StructuredOutputs:
        """From an object with fields of these names, or its JSON; RequestError for another."""
        if isinstance(given, cls):
            return given
        if isinstance(given, str):
            try:
                given = exact_json.read(given)
            except (ValueError, RecursionError) as error:
                raise RequestError(f"{_FIELD} must be JSON, got {shown(given)}", _FIELD) from error
        if not isinstance(given, Mapping):
            raise RequestError(f"{_FIELD} must be an object, got {shown(given)}", _FIELD)
        given = {name: given[name] for name in given if name not in _NEUTRAL}
        unknown = set(given) - {field.name for field in fields(cls)}
        if unknown:
            name = f"{_FIELD}.{shown(min(map(str, unknown)))}"
            raise RequestError(f"field {name} is not supported by Quire", name)
        return cls(**{name: value for name, value in given.items() if value is not None})

    @property
    def size(self) -> int:
        """Characters."""
        values = (getattr(self, name) for name in _KINDS)
        return sum(
            len(v) if isinstance(v, str) else sum(map(len, v or ()))
            for v in values
            if isinstance(v, (str, tuple))
        )


class Reasoning(NamedTuple):
    """How a model marks what it thinks before it answers.

    order: of a format that orders the whole output, a grammar for all that may come, in which
        ``@text`` stands for the answer.
    """

    start: str
    end: str
    open: bool  # whether the prompt ends within it
    order: str = ""


def _object(name: str, given: object) -> str:
    """A JSON object, or true, as text. Its keys stay in their order, which decides the output's."""
    if isinstance(given, str):
        _check_text(name, given, LONGEST_GRAMMAR)
        try:
            given = exact_json.read(given)
        except (ValueError, RecursionError) as error:
            raise _wrong(name, "JSON", given) from error
    if not (isinstance(given, Mapping) or (name == "json" and isinstance(given, bool))):
        raise _wrong(name, "a JSON object", given)
    _check_depth(name, given)
    try:
        text = exact_json.write(exact_json.exact(given))
    except (TypeError, ValueError) as error:
        raise _wrong(name, f"a JSON object ({reason(error)})", given) from error
    _check_text(name, text, LONGEST_GRAMMAR)
    return text


def _check_depth(name: str, given: object) -> None:
    level = [given]
    for _ in range(_MOST_LEVELS):
        inside: list[object] = []
        for value in level:
            if isinstance(value, Mapping):
                inside += value.values()
            elif isinstance(value, (list, tuple)):
                inside += value
        level = inside
        if not level:
            return
    raise RequestError(f"{_FIELD}.{name} may be at most {_MOST_LEVELS} levels deep", _FIELD)


def _choices(given: object) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise _wrong("choice", "a list of texts", given)
    if not 1 <= len(given) <= MOST_CHOICES:
        raise RequestError(
            f"{_FIELD}.choice must hold 1 to {MOST_CHOICES} texts, got {len(given)}", _FIELD
        )
    for text in given:
        _check_text("choice", text, LONGEST_GRAMMAR)
    if sum(map(len, given)) > LONGEST_GRAMMAR:
        raise _too_long("choice", LONGEST_GRAMMAR)
    return tuple(given)


def _check_text(name: str, text: object, longest: int) -> None:
    if not isinstance(text, str) or not text:
        raise _wrong(name, "a text that is not empty", text)
    if len(text) > longest:
        raise _too_long(name, longest)
    check_unicode(f"{_FIELD}.{name}", text)


def _too_long(name: str, longest: int) -> RequestError:
    return RequestError(f"{_FIELD}.{name} may have at most {longest:,} characters", _FIELD)


def _wrong(name: str, what: str, got: object) -> RequestError:
    return RequestError(f"{_FIELD}.{name} must be {what}, got {shown(got)}", _FIELD)

"""How a request's parameters are declared: once, with their default, help and range.

Checks, flags, the types of HTTP requests and the docs' table are made of that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, field
from typing import Any, NamedTuple

from quire.core.errors import RequestError, shown
from quire.core.protocol.checks import MAX_INTEGER, check_integer, check_token_ids, check_unicode
from quire.core.protocol.structured_outputs import Reasoning, StructuredOutputs

_LARGEST = sys.float_info.max


class Allowed(NamedTuple):
    """The values that a parameter may have."""

    check: Callable[[str, Any], Any]  # (name, value) -> as it is kept; RequestError
    words: str  # for people
    schema: Mapping[str, Any]  # in JSON Schema


def parameter(
    default: Any, text: str, allowed: Allowed, *, flag: bool = True, http: bool = True
) -> Any:
    """A field whose metadata say all of it; None is allowed where its annotation says so.

    flag: ``quire generate`` and ``quire chat`` have a flag for it.
    http: the bodies of HTTP requests have a field for it.
    """
    metadata = {"help": text, "allowed": allowed, "flag": flag, "http": http}
    return field(default=default, metadata=metadata)


def description(declared: Field[Any]) -> str:
    """A parameter's help, with what it may be."""
    text, words = declared.metadata["help"], declared.metadata["allowed"].words
    return f"{text} ({words})" if words else str(text)


def integer(low: int, high: int = MAX_INTEGER) -> Allowed:
    def check(name: str, value: Any) -> int:
        check_integer(name, value, low, high)
        return int(value)

    words = f"at least {low}" if high == MAX_INTEGER else f"{_figure(low)} to {_figure(high)}"
    return Allowed(check, words, {"minimum": low, "maximum": high})


def number(low: float, high: float = _LARGEST, *, above: bool = False) -> Allowed:
    """``above``: ``low`` itself is too little."""
    bounded = high != _LARGEST

    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RequestError(f"{name} must be a number, got {shown(value)}", name)
        if not low <= value <= high:  # exact for integers of any size; NaN is in no range
            limit = f"from {low:g} to {high:g}" if bounded else f"finite, at least {low:g}"
            raise RequestError(f"{name} must be {limit}, got {shown(value)}", name)
        if above and value == low:
            limit = f"in ({low:g}, {high:g}]" if bounded else f"above {low:g}"
            raise RequestError(f"{name} must be {limit}, got {value:g}", name)
        return value

    least = "above" if above else "at least"
    words = f"{low:g} to {high:g}" if bounded else f"{least} {low:g}"
    schema = {"exclusiveMinimum" if above else "minimum": low}
    if bounded:
        words = f"{least} {low:g}, at most {high:g}" if above else words
        schema["maximum"] = high
    return Allowed(check, words, schema)


def boolean() -> Allowed:
    def check(name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise RequestError(f"{name} must be true or false", name)
        return value

    return Allowed(check, "", {})


def choice(*values: object) -> Allowed:
    """One of these texts, true or false."""
    *others, last = (f'"{one}"' if isinstance(one, str) else str(one).lower() for one in values)
    words = f"{', '.join(others)} or {last}"

    def check(name: str, value: Any) -> Any:
        if value not in values:
            raise RequestError(f"{name} must be {words}, got {shown(value)}", name)
        return value

    return Allowed(check, words, {"enum": list(values)})


def any_text() -> Allowed:
    """Of any length: how long one may be is the engine's to say."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise RequestError(f"{name} must be a text, got {shown(value)}", name)
        check_unicode(name, value)
        return value

    return Allowed(check, "", {})


def strings(most: int, longest: int, *, alone: bool = False) -> Allowed:
    """``most`` of 1 to ``longest`` characters. ``alone``: one may come without a list."""

    def check(name: str, value: Any) -> tuple[str, ...]:
        values = (value,) if alone and isinstance(value, str) else value
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise RequestError(f"{name} must be a list of strings, got {shown(values)}", name)
        if len(values) > most:
            raise RequestError(f"{name} must hold at most {most} strings, got {len(values)}", name)
        for text in values:
            if not isinstance(text, str) or not text:
                raise RequestError(f"{name} must hold non-empty strings, got {shown(text)}", name)
            if len(text) > longest:
                limit = f"must hold strings of 1 to {longest} characters"
                raise RequestError(f"{name} {limit}, got one of {len(text)}", name)
            check_unicode(name, text)
        return tuple(values)

    return Allowed(check, f"at most {most} of {longest} characters", {"maxItems": most})


def token_ids(most: int, least: int = 0) -> Allowed:
    def check(name: str, value: Any) -> tuple[int, ...]:
        found = check_token_ids(name, value, most=most)
        if len(found) < least:
            raise RequestError(f"{name} must name a token", name)
        return found

    return Allowed(check, f"at most {most:,}", {"minItems": least, "maxItems": most})


def biases(most: int, largest: float) -> Allowed:
    """What is added to the logits of tokens, from ``-largest`` to ``largest``."""
    size = number(-largest, largest)

    def check(name: str, value: Any) -> dict[int, float]:
        if not isinstance(value, Mapping):
            raise RequestError(f"{name} must map token ids to biases, got {shown(value)}", name)
        if len(value) > most:
            raise RequestError(f"{name} must hold at most {most} biases, got {len(value)}", name)
        named = check_token_ids(name, tuple(value))
        sizes = [float(size.check(name, bias)) for bias in value.values()]
        return dict(zip(named, sizes, strict=True))

    return Allowed(check, f"at most {most:,}, each {size.words}", {"maxProperties": most})


def structure() -> Allowed:
    """What a text must be like."""

    def check(_: str, value: Any) -> StructuredOutputs:
        return StructuredOutputs.of(value)

    return Allowed(check, "one of json, json_object, regex, choice, grammar, structural_tag", {})


def marks() -> Allowed:
    """Those of a model's reasoning."""

    def check(name: str, value: Any) -> Reasoning:
        if not isinstance(value, Reasoning) or not (value.start and value.end):
            raise RequestError(f"{name} must be a Reasoning with both marks", name)
        return value

    return Allowed(check, "", {})


def _figure(number: int) -> str:
    """Its digits, or a power of two where that says more."""
    if abs(number) < 2**53:
        return f"{number:,}"
    power = abs(number).bit_length()
    return f"-2^{power - 1}" if number < 0 else f"2^{power} - 1"

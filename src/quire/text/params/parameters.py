"""How a request's parameters are declared and checked: once, with their default, help and range.

Checks, flags, the types of HTTP requests and the docs' table are made of that. Each error names the
field and what is allowed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, field
from typing import Any, NamedTuple

from quire.core.errors import RequestError, shown

MAX_INTEGER = 2**31 - 1  # where nothing else bounds an integer: what every library can hold
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


def _figure(number: int) -> str:
    """Its digits, or a power of two where that says more."""
    if abs(number) < 2**53:
        return f"{number:,}"
    power = abs(number).bit_length()
    return f"-2^{power - 1}" if number < 0 else f"2^{power} - 1"


def check_integer(name: str, value: object, low: int, high: int = MAX_INTEGER) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, got {shown(value)}", name)
    if not low <= value <= high:
        raise RequestError(f"{name} must be from {low} to {high}, got {shown(value)}", name)


def check_token_ids(
    name: str, values: object, *, most: int = MAX_INTEGER, highest: int = MAX_INTEGER
) -> tuple[int, ...]:
    """``values`` if they are at most ``most`` token ids from 0 to ``highest``."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise RequestError(f"{name} must be a list of token ids, got {shown(values)}", name)
    if len(values) > most:
        raise RequestError(f"{name} must hold at most {most} token ids, got {len(values)}", name)
    token_ids = tuple(values)
    # The three passes over what may be a long prompt run in C.
    if not set(map(type, token_ids)) <= {int}:
        for value in token_ids:
            if isinstance(value, bool) or not isinstance(value, int):
                raise RequestError(f"{name} must hold token ids, got {shown(value)}", name)
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) <= highest):
        wrong = next(value for value in token_ids if not 0 <= value <= highest)
        which = "any" if highest == MAX_INTEGER else "the"
        raise RequestError(
            f"{name} holds token id {shown(wrong)}, outside {which} vocabulary (0 to {highest})",
            name,
        )
    return token_ids


def check_unicode(name: str, text: str) -> None:
    """RequestError if ``text`` holds half a character, which no tokenizer can take."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{name} is not valid Unicode: {error}", name) from error

"""JSON whose numbers stay as they are written: no float comes between."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NoReturn


def read(text: str) -> Any:
    """Fractions and what has an exponent as ``Decimal``; ValueError where it is not JSON."""
    return _DECODER.decode(text)


def read_at(text: str, start: int) -> tuple[Any, int]:
    """The value that begins there, or after white space, and where it ends; or ValueError."""
    while text[start : start + 1] in (" ", "\t", "\n", "\r"):
        start += 1
    return _DECODER.raw_decode(text, start)


class Rounded(float):
    """A float that is not quite the number that was written, which it knows."""

    spelled: str


def rounded(spelled: str) -> float:
    """The float for a number of JSON. For ``json.loads``, of what floats are wanted of."""
    value = float(spelled)
    if Decimal(repr(value)) == Decimal(spelled):
        return value
    value = Rounded(value)
    value.spelled = spelled
    return value


def exact(value: object) -> Any:
    """JSON's values as ``read`` gives them: a float is what its shortest spelling says.

    ValueError for infinities, and what JSON does not have.
    """
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("the names of an object must be texts")
        return {key: exact(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [exact(one) for one in value]
    if isinstance(value, float):
        value = Decimal(value.spelled if isinstance(value, Rounded) else repr(float(value)))
    if isinstance(value, Decimal) and not value.is_finite():
        raise ValueError("a number is not finite")
    if value is not None and not isinstance(value, (str, bool, int, Decimal)):
        raise ValueError(f"{type(value).__name__} is not JSON")
    return value


def write(value: Any) -> str:
    """What ``read`` gives, as text."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {write(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(write, value)) + "]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse)

"""What a caller's values are checked for. Each error names the field and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import RequestError, shown

MAX_INTEGER = 2**31 - 1  # where nothing else bounds an integer: what every library can hold


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

"""From the bytes of a body to the request that they spell, or to the one error that says why not.

Python's JSON parsers keep the interpreter to themselves while they work, so what they are given is
bounded: by bytes, which :mod:`quire.server.bodies` does, and here by how many values they spell.
Long texts are parsed at a gigabyte a second; a megabyte of ``[],[],[]`` takes 150 ms.
"""

from __future__ import annotations

import codecs
import json
from typing import TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from quire.errors import RequestError
from quire.server.errors import first_complaint

MOST_CONTAINERS = 2**13  # lists and objects: 2,048 prompts, or as many messages with their parts
MOST_VALUES = 2**20  # and all values together: a million token ids

_PIECE = 2**18  # bytes looked at in one go; small enough for the processor's cache
_MOST_DIGITS = 4300  # that Python makes a number of

Body = TypeVar("Body", bound=BaseModel)


def parse(body: bytes | bytearray, kind: type[Body]) -> Body:
    """RequestError, or an HTTPException where no field can be named, if it is no such request."""
    _check_values(body)
    try:
        data = from_json(body.removeprefix(codecs.BOM_UTF8))
    except ValueError as error:
        field = _unreadable_field(body)
        if field is None:
            raise HTTPException(400, f"the body is not valid JSON: {error}") from None
        raise RequestError(
            f"{field} holds invalid Unicode, or a number of more than {_MOST_DIGITS:,} digits",
            field,
        ) from None
    if not isinstance(data, dict):
        raise HTTPException(400, "the body must be a JSON object, sent as application/json")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise first_complaint(error) from None


def _check_values(body: bytes | bytearray) -> None:
    """Refuse what would take long to parse, without parsing it."""
    openings = body.count(b"[") + body.count(b"{")  # too many by those inside of texts
    if openings <= MOST_CONTAINERS and openings + body.count(b",") <= MOST_VALUES:
        return
    containers, commas = _count_outside_texts(body)
    if containers > MOST_CONTAINERS:
        raise HTTPException(400, f"the body holds more than {MOST_CONTAINERS:,} lists and objects")
    if containers + commas > MOST_VALUES:
        raise HTTPException(400, f"the body holds more than {MOST_VALUES:,} values")


def _count_outside_texts(body: bytes | bytearray) -> tuple[int, int]:
    """How many ``[`` and ``{``, and how many ``,``, are not part of a text.

    By numpy, which lets other threads run meanwhile.
    """
    bare = np.frombuffer(body.replace(rb"\\", b"__").replace(rb"\"", b"__"), np.uint8)
    containers = commas = 0
    in_text = np.uint8(0)
    for start in range(0, len(bare), _PIECE):
        piece = bare[start : start + _PIECE]
        quotes = np.cumsum(piece == ord('"'), dtype=np.uint8) + in_text
        in_text = quotes[-1] & 1
        outside = quotes & 1 == 0
        containers += np.count_nonzero((piece | 0x20 == ord("{")) & outside)  # [ is { less a bit
        commas += np.count_nonzero((piece == ord(",")) & outside)
    return containers, commas


def _unreadable_field(body: bytes | bytearray) -> str | None:
    """The field of a body that is JSON by its grammar, but spells what Python cannot hold.

    JSON can spell half a character ("\\ud800"), and numbers without end.
    """

    def number(digits: str) -> object:
        return 0 if len(digits) <= _MOST_DIGITS else object()

    try:
        data = json.loads(body, parse_int=number, parse_float=number)
    except (ValueError, RecursionError):
        return None
    for name, value in data.items() if isinstance(data, dict) else ():
        try:
            json.dumps({name: value}, ensure_ascii=False).encode()
        except (UnicodeEncodeError, TypeError):
            return ascii(name)[1:-1]
    return None

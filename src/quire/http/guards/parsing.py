"""From the bytes of a body to the request that they spell, or to the one error that says why not.

Python's JSON parsers keep the interpreter to themselves while they work, so what they are given is
bounded: by bytes, which :mod:`quire.http.guards.bodies` does, and here by how many values they
spell. Long texts are parsed at a gigabyte a second; a megabyte of ``[],[],[]`` takes 150 ms.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from typing import NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from quire.core import exact_json
from quire.core.errors import RequestError, cut, reason
from quire.http.errors import first_complaint

MOST_CONTAINERS = 2**13  # lists and objects: 2,048 prompts, or as many messages with their parts
MOST_MEMBERS = 2**14  # fields of all objects
MOST_VALUES = 2**20  # and all values together: a million token ids

_PIECE = 2**18  # bytes looked at in one go; small enough for the processor's cache
_MOST_LEVELS = 200  # that the parser goes down
_MOST_DIGITS = 4300  # that Python makes a number of
_MAYBE_ROUNDED = re.compile(rb"[0-9][0-9.]{16}|[0-9][eE][+-]?[0-9]{3}")

Body = TypeVar("Body", bound=BaseModel)
_EITHER = 32 + zlib.MAX_WBITS  # gzip's frame or zlib's, as the data say
_PLAIN = ("", "identity")
_PACKED = ("gzip", "x-gzip", "deflate")


def parse(body: bytes | bytearray, kind: type[Body]) -> Body:
    """RequestError, or an HTTPException where no field can be named, if it is no such request."""
    _check_structure(body)
    try:
        data = from_json(body.removeprefix(codecs.BOM_UTF8))
        if _MAYBE_ROUNDED.search(body):  # which a schema's numbers may not be
            data = json.loads(body, parse_float=exact_json.rounded)
    except ValueError as error:
        field = _unreadable_field(body)
        if field is None:
            raise HTTPException(400, _why_no_json(body, str(error))) from None
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


def _why_no_json(body: bytes | bytearray, complaint: str) -> str:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"the body is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}"
    if "recursion limit" in complaint:
        return f"the body's lists and objects are more than {_MOST_LEVELS} levels deep"
    return f"the body is not valid JSON: {complaint}"


def _check_structure(body: bytes | bytearray) -> None:
    """Refuse what would take long to parse, without parsing it."""
    counts = _Marks(*map(body.count, (b"[", b"{", b":", b",")))
    if not counts.complaint:  # although they count texts too
        return
    complaint = _counts_outside_texts(body).complaint
    if complaint:
        raise HTTPException(400, complaint)


class _Marks(NamedTuple):
    """How often the characters occur that JSON's structure is made of."""

    brackets: int
    braces: int
    colons: int
    commas: int

    @property
    def complaint(self) -> str:
        containers = self.brackets + self.braces
        if containers > MOST_CONTAINERS:
            return f"the body holds more than {MOST_CONTAINERS:,} lists and objects"
        if self.colons > MOST_MEMBERS:
            return f"the objects in the body hold more than {MOST_MEMBERS:,} fields"
        if containers + self.commas > MOST_VALUES:
            return f"the body holds more than {MOST_VALUES:,} values"
        return ""


def _counts_outside_texts(body: bytes | bytearray) -> _Marks:
    """By numpy, which lets other threads run meanwhile."""
    bare = np.frombuffer(body.replace(rb"\\", b"__").replace(rb"\"", b"__"), np.uint8)
    totals = np.zeros(4, int)
    in_text = np.uint8(0)
    for start in range(0, len(bare), _PIECE):
        piece = bare[start : start + _PIECE]
        quotes = np.cumsum(piece == ord('"'), dtype=np.uint8) + in_text
        in_text = quotes[-1] & 1
        outside = quotes & 1 == 0
        totals += [np.count_nonzero((piece == ord(mark)) & outside) for mark in "[{:,"]
    return _Marks(*totals.tolist())


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
            return cut(ascii(name[:200])[1:-1])
    return None


def is_packed(encoding: str) -> bool:
    """By a content-encoding; HTTPException if it is none that is understood."""
    name = encoding.strip().lower()
    if name in _PACKED:
        return True
    if name in _PLAIN:
        return False
    raise HTTPException(
        415, f"content-encoding {encoding[:50]!r} is not understood: gzip, deflate or identity are"
    )


def unpacked(body: bytes | bytearray, most: int) -> bytes:
    """What it holds; HTTPException if that is more than ``most`` bytes, or not whole."""
    unpacking = zlib.decompressobj(_EITHER)
    try:
        content = unpacking.decompress(body, most + 1)
    except zlib.error as error:
        raise HTTPException(400, f"the body cannot be unpacked: {reason(error)}") from None
    if len(content) > most:
        raise HTTPException(413, f"the body unpacks to more than {most:,} bytes (--max-body-bytes)")
    if not unpacking.eof or unpacking.unused_data:
        raise HTTPException(400, "the body cannot be unpacked: it is not one whole gzip stream")
    return content

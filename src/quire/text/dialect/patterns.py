"""A JSON schema's ``pattern``, which may match anywhere, as an expression of a whole text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quire.core.errors import RequestError, shown

_PIECES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|\(\?[a-zA-Z<:=!P-]*|[\s\S]", re.DOTALL)
_ASCII = {r"\d": "0-9", r"\w": "a-zA-Z0-9_"}  # as in JavaScript, whose expressions these are
_ANYTHING = "(?s:.*)"


def whole(pattern: str) -> str:
    """An expression for texts in which ``pattern`` is found, without slashes around it.

    RequestError for an anchor in the middle.
    """
    return "|".join(_anchored(one, pattern) for one in _alternatives(pattern))


def _anchored(pieces: list[str], pattern: str) -> str:
    head, tail = _ANYTHING, _ANYTHING
    if pieces[:1] == ["^"]:
        head, pieces = "", pieces[1:]
    if pieces[-1:] == ["$"]:
        tail, pieces = "", pieces[:-1]
    if {"^", "$"} & set(pieces):
        raise RequestError(
            f"where this model must call, a pattern may have ^ and $ at its ends only, got "
            f"{shown(pattern)}",
            "tools",
        )
    return f"{head}({''.join(map(_spelled, pieces))}){tail}"


def _alternatives(pattern: str) -> Iterator[list[str]]:
    """The texts between the bars that are in no group, in pieces."""
    pieces: list[str] = []
    depth = 0
    for piece in _PIECES.findall(pattern):
        depth += piece.startswith("(") - (piece == ")")
        if piece == "|" and not depth:
            yield pieces
            pieces = []
        else:
            pieces.append(piece)
    yield pieces


def _spelled(piece: str) -> str:
    """The pattern as it can be written between slashes, on one line."""
    if piece in _ASCII:
        return f"[{_ASCII[piece]}]"
    if piece[0] == "[":
        piece = re.sub(r"\\.", lambda found: _ASCII.get(found[0], found[0]), piece)
        return re.sub(r"\\.|/", _escaped, piece, flags=re.DOTALL).replace("\n", r"\n")
    return r"\/" if piece == "/" else piece.replace("\n", r"\n")


def _escaped(found: re.Match[str]) -> str:
    return r"\/" if found[0] == "/" else found[0]

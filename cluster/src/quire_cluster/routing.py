"""What a request says of where it should go: who keeps what it is about, how its prompt begins."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple, TypeGuard

from pydantic_core import to_json

from quire.http.kept_ids import keeper_of
from quire_cluster.rules import MOST_PIECES, TOKENS_PER_PIECE, Prefix

_BYTES_PER_TOKEN = 4  # of texts about so many, of token ids just so many
PIECE = TOKENS_PER_PIECE * _BYTES_PER_TOKEN  # bytes

# What prompts are made of, at all doors, in the order in which it stands in them.
_BEFORE = (
    "chat_template", "chat_template_kwargs", "documents", "tools", "functions", "system",
    "instructions", "previous_response_id",
)  # fmt: skip
_PROMPTS = ("messages", "prompt", "input", "content", "query", "text_1")


class Hint(NamedTuple):
    """replica: the one that keeps what the request refers to, if any does."""

    prefix: Prefix = Prefix()
    replica: str | None = None


def hint_of(path: str, body: Mapping[str, Any], cache: str) -> Hint:
    """The hint of a request for ``path``.

    cache: what else than its own salt keeps its blocks apart from others'.
    """
    kept = keeper_of(path) or _keeper_of_input(body)
    salt = body.get("cache_salt")
    return Hint(prefix_of(body, f"{cache}\0{salt}" if salt else cache), kept)


def _keeper_of_input(body: Mapping[str, Any]) -> str | None:
    """The replica that keeps the response, or the item of one, that a request of /v1/responses
    continues.
    """
    items = body.get("input")
    named = [body.get("previous_response_id")]
    if isinstance(items, list):
        named += [
            item.get("id")
            for item in items
            if isinstance(item, dict) and item.get("type") == "item_reference"
        ]
    return next(
        (name for each in named if isinstance(each, str) and (name := keeper_of(each))), None
    )


def prefix_of(body: Mapping[str, Any], cache: str) -> Prefix:
    """The prefix of a request's body.

    Two prompts have equal digests as far as they begin alike, if they also have the same ``cache``:
    whatever keeps their blocks apart, such as a salt or an adapter.
    """
    content = b"".join(_content(body))
    digest, pieces = blake2b(cache.encode("utf-8", "surrogatepass"), digest_size=16).digest(), []
    for end in range(PIECE, min(len(content), PIECE * MOST_PIECES) + 1, PIECE):
        digest = blake2b(content[end - PIECE : end], key=digest, digest_size=16).digest()
        pieces.append(digest)
    return Prefix(tuple(pieces), len(content) // _BYTES_PER_TOKEN)


def _content(body: Mapping[str, Any]) -> Iterator[bytes]:
    for name in (*_BEFORE, *_PROMPTS):
        if body.get(name):
            yield name.encode()
            yield from _spelled(body[name])


def _spelled(value: object) -> Iterator[bytes]:
    """The text of a value without the end of a list, so that a longer list begins with a shorter
    one.
    """
    match value:
        case str():
            yield value.encode("utf-8", "surrogatepass")
        case list() if value and _are_ids(value):
            yield array("i", value).tobytes()
        case [str() | list() as first, *_]:  # several prompts, which stay together: the first's
            yield from _spelled(first)
        case list():
            for item in value:
                yield to_json(item)
        case _:
            yield to_json(value)


def _are_ids(value: list[object]) -> TypeGuard[list[int]]:
    return all(isinstance(each, int) and 0 <= each < 2**31 for each in value)

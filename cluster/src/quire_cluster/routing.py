"""What a request says of where it should go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from quire.http.kept_ids import keeper_of
from quire_cluster.prompts import prefix_of
from quire_cluster.rules import Prefix


class Hint(NamedTuple):
    """replica: the one that keeps what the request is about, if any does."""

    prefix: Prefix = Prefix()
    replica: str | None = None


def hint_of(path: str, body: Mapping[str, Any], cache: str) -> Hint:
    """Of a request for ``path``.

    cache: what keeps its blocks from being shared with others', its own salt aside.
    """
    kept = keeper_of(path) or _keeper_of_input(body)
    salt = body.get("cache_salt")
    return Hint(prefix_of(body, f"{cache}\0{salt}" if salt else cache), kept)


def _keeper_of_input(body: Mapping[str, Any]) -> str | None:
    """Who keeps the response, or an item of one, that a request of /v1/responses goes on from."""
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

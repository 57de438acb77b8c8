"""Responses that are kept, within bounds, so that conversations may go on from them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic_core import from_json

from quire.core.errors import shown
from quire.http.answers.rendering import Json, encode
from quire.http.doors.responses_writer import ResponseAnswer
from quire.http.errors import UnknownResponseError

_BESIDE = 512  # bytes that a response takes beside its JSON


class Kept(NamedTuple):
    """response, input: JSON. item_ids: of what the response has written."""

    response: bytes
    input: bytes
    item_ids: tuple[str, ...]
    previous: str | None

    @property
    def size(self) -> int:
        return len(self.response) + len(self.input) + _BESIDE

    @property
    def input_items(self) -> list[Json]:
        items: list[Json] = from_json(self.input)
        return items

    @property
    def items(self) -> list[Json]:
        return [*self.input_items, *from_json(self.response)["output"]]


@dataclass
class _OwnResponses:
    """The responses of one owner, the one that was used last at the end."""

    kept: OrderedDict[str, Kept] = field(default_factory=OrderedDict)
    of_item: dict[str, str] = field(default_factory=dict)  # the response that has it
    size: int = 0


class ResponseStore:
    """Keeps the responses of each owner apart.

    What has not been used for longest goes first, of the owner who takes most room; so nobody can
    drive out others' by having many. A conversation that is gone on with is used as a whole.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._by_owner: dict[str | None, _OwnResponses] = {}

    def add(self, owner: str | None, response: ResponseAnswer, input_items: list[Json]) -> None:
        item_ids = tuple(item["id"] for item in response.output)
        kept = Kept(encode(response), encode(input_items), item_ids, response.previous_response_id)
        if not self._most or kept.size > self._most_bytes:
            return
        own = self._by_owner.setdefault(owner, _OwnResponses())
        own.kept[response.id] = kept
        own.of_item.update(dict.fromkeys(item_ids, response.id))
        own.size += kept.size
        self._make_room()

    def get(self, owner: str | None, response_id: str) -> Kept:
        """UnknownResponseError if there is none, or it is another owner's."""
        own = self._by_owner.get(owner)
        if own is None or response_id not in own.kept:
            raise _unknown("response", response_id, "previous_response_id")
        own.kept.move_to_end(response_id)
        return own.kept[response_id]

    def conversation(self, owner: str | None, response_id: str) -> list[Kept]:
        """A response and those before it, the oldest first."""
        chain: list[Kept] = []
        following: str | None = response_id
        while following is not None:  # the oldest is used last: it goes after those that need it
            chain.append(self.get(owner, following))
            following = chain[-1].previous
        return chain[::-1]

    def item(self, owner: str | None, item_id: str) -> Json:
        """An item that a response has written."""
        own = self._by_owner.get(owner)
        if own is None or item_id not in own.of_item:
            raise _unknown("item", item_id, "input")
        kept = self.get(owner, own.of_item[item_id])
        found: Json = next(item for item in kept.items if item.get("id") == item_id)
        return found

    def remove(self, owner: str | None, response_id: str) -> None:
        self.get(owner, response_id)
        self._drop(owner, response_id)

    def _make_room(self) -> None:
        while (
            sum(len(own.kept) for own in self._by_owner.values()) > self._most
            or sum(own.size for own in self._by_owner.values()) > self._most_bytes
        ):
            largest = max(self._by_owner, key=lambda owner: self._by_owner[owner].size)
            self._drop(largest, next(iter(self._by_owner[largest].kept)))

    def _drop(self, owner: str | None, response_id: str) -> None:
        own = self._by_owner[owner]
        kept = own.kept.pop(response_id)
        own.size -= kept.size
        for item_id in kept.item_ids:
            del own.of_item[item_id]
        if not own.kept:
            del self._by_owner[owner]


def _unknown(what: str, name: str, field: str) -> UnknownResponseError:
    return UnknownResponseError(f"{what} {shown(name)} is not kept here, or no longer", field)

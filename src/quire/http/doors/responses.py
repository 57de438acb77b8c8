"""OpenAI's Responses: POST /v1/responses, and the responses that are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic_core import from_json

from quire.core.errors import RequestError, shown
from quire.http.answers.rendering import Answer, Json, encode, json_response, respond
from quire.http.answers.streaming import NAMED_EVENTS, EventStream
from quire.http.body_fields import in_callers_words
from quire.http.chats.conversation import ConversationTurn, PreparedChat, begin
from quire.http.doors.responses_requests import (
    FIELD_NAMES,
    HostedItem,
    ItemReference,
    ResponsesRequest,
    turn,
)
from quire.http.doors.responses_writer import ResponseAnswer, ResponseEvent, ResponseWriter
from quire.http.errors import UnknownResponseError
from quire.http.openai.chat import CountedInput
from quire.http.openapi import body_route, gives
from quire.http.service import Caller, ModelChoice, Service

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
    def output_items(self) -> list[Json]:
        items: list[Json] = from_json(self.response)["output"]
        return items


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
        """A kept response. UnknownResponseError: there is none, or it is another owner's."""
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

    def written(self, owner: str | None, item_ids: Iterable[str]) -> dict[str, Kept]:
        """The responses that have written these items, each once, by their ids."""
        own, found = self._by_owner.get(owner), dict[str, Kept]()
        for item_id in item_ids:
            if own is None or item_id not in own.of_item:
                raise _unknown("item", item_id, "input")
            if (response_id := own.of_item[item_id]) not in found:
                found[response_id] = self.get(owner, response_id)
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


_MOST_LISTED = 100  # items at a time
_PREFIXES = {
    "message": "msg_", "reasoning": "rs_", "function_call": "fc_", "function_call_output": "fco_",
    "custom_tool_call": "ctc_", "custom_tool_call_output": "ctco_", "additional_tools": "at_",
}  # fmt: skip


class InputItems(Answer, kw_only=True):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(Answer):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


def add_responses(app: FastAPI, service: Service) -> None:
    config = service.config
    store = ResponseStore(config.max_stored_responses, config.max_stored_response_bytes)
    _add_making(app, service, store)
    _add_keeping(app, service, store)


def _add_making(app: FastAPI, service: Service, store: ResponseStore) -> None:
    @body_route(
        app,
        service,
        ResponsesRequest,
        gives(ResponseAnswer, ResponseEvent, framing=NAMED_EVENTS),
        "/v1/responses",
        "/responses",
    )
    async def create(http: Request, request: ResponsesRequest) -> Response:
        """OpenAI's Responses: answer a conversation, and keep the answer to go on from."""
        model, caller = service.model_of(request.model, request.warnings), service.caller(http)
        conversation, items = await _begin(service, store, caller, request, model)

        def keep(response: ResponseAnswer) -> None:
            if request.store:
                store.add(caller.key, response, items)

        writer = ResponseWriter(conversation, request, model.name, service.new_id(), keep)
        if request.stream:
            return EventStream(writer.events(), NAMED_EVENTS, service.silence, writer.error)
        response = await writer.whole()
        return await json_response(lambda: response, large=request.wants_logprobs)

    @body_route(app, service, ResponsesRequest, gives(CountedInput), "/v1/responses/input_tokens")
    async def count(http: Request, request: ResponsesRequest) -> Response:
        """How many tokens the input has."""
        model, caller = service.model_of(request.model, request.warnings), service.caller(http)
        conversation, _ = await _begin(service, store, caller, request, model)
        return respond(CountedInput(input_tokens=conversation.num_prompt_tokens))


def _add_keeping(app: FastAPI, service: Service, store: ResponseStore) -> None:
    @app.get("/v1/responses/{response_id}", responses=gives(ResponseAnswer, None, 404))
    async def retrieve(http: Request, response_id: str, stream: str = "false") -> Response:
        """A response that is kept."""
        if stream != "false":
            raise RequestError("a response that is kept cannot be streamed again", "stream")
        kept = store.get(service.caller(http).key, response_id)
        return Response(kept.response, media_type="application/json")

    @app.delete("/v1/responses/{response_id}", responses=gives(DeletedResponse, None, 404))
    async def delete(http: Request, response_id: str) -> Response:
        """Forget a response."""
        store.remove(service.caller(http).key, response_id)
        return respond(DeletedResponse(response_id))

    @app.get("/v1/responses/{response_id}/input_items", responses=gives(InputItems, None, 400, 404))
    async def input_items(
        http: Request,
        response_id: str,
        limit: str = "20",
        order: str = "desc",
        after: str | None = None,
    ) -> Response:
        """What a response was given, item by item, the last one first unless `order` is `asc`."""
        kept = store.get(service.caller(http).key, response_id)
        return respond(_page(kept.input_items, limit, order, after))


async def _begin(
    service: Service,
    store: ResponseStore,
    caller: Caller,
    request: ResponsesRequest,
    model: ModelChoice,
) -> tuple[PreparedChat, list[Json]]:
    """The conversation, and the input's items as they are kept."""
    before = _before(service, store, caller.key, request.previous_response_id)
    references = [item.id for item in request.input if isinstance(item, ItemReference)]
    written, new_id = store.written(caller.key, references), service.new_id()
    with in_callers_words(FIELD_NAMES, in_text=True):
        options = caller.options(model, request.user)
        defaults = service.input_processor.sampling_defaults

        def read() -> tuple[ConversationTurn, list[Json]]:
            history = [one for kept in before for one in (*kept.input_items, *kept.output_items)]
            request.goes_on_from(history)
            items = _items(request, new_id, written.values())
            return turn(request, [*history, *items], defaults, options), items

        large = request.large or bool(before) or bool(written)
        conversation, items = await service.bodies.done(read, large=large)
        return await begin(service, conversation), items


def _items(request: ResponsesRequest, new_id: str, written: Iterable[Kept]) -> list[Json]:
    """The input's items as they are kept, each with an id; what is referred to in its place.

    new_id: one for all: to draw it takes longer than all else of an item.
    """
    items: list[Json] = []
    by_id = {item["id"]: item for kept in written for item in kept.output_items}
    for number, item in enumerate(request.input):
        if isinstance(item, HostedItem):
            continue
        if isinstance(item, ItemReference):
            items.append(by_id[item.id])
            continue
        own_id = f"{_PREFIXES[item.type]}{new_id}{number}"
        given = item.model_dump(mode="json", exclude_none=True)
        items.append({"id": own_id, "status": "completed", **given})
    return items


def _before(
    service: Service, store: ResponseStore, owner: str | None, response_id: str | None
) -> list[Kept]:
    """A response and all before it, which may be as large as a body may be."""
    if response_id is None:
        return []
    conversation = store.conversation(owner, response_id)
    size = sum(kept.size for kept in conversation)
    if size > service.bodies.max_bytes:
        raise RequestError(
            f"the conversation up to {response_id} has {size:,} bytes; with --max-body-bytes it "
            f"may have at most {service.bodies.max_bytes:,}",
            "previous_response_id",
        )
    return conversation


def _page(items: list[Json], limit: str, order: str, after: str | None) -> InputItems:
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:4]) <= _MOST_LISTED):
        raise RequestError(f"limit must be from 1 to {_MOST_LISTED}, got {shown(limit)}", "limit")
    if order not in ("asc", "desc"):
        raise RequestError(f'order must be "asc" or "desc", got {shown(order)}', "order")
    if order == "desc":
        items = items[::-1]
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise RequestError("after must be the id of an item of this response", "after")
    start = 0 if after is None else ids.index(after) + 1
    end = start + int(limit)
    page = items[start:end]
    return InputItems(
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=end < len(items),
    )

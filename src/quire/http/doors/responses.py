"""OpenAI's Responses: POST /v1/responses, and the responses that are kept."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response

from quire.core.errors import RequestError
from quire.http.answers.rendering import Answer, Json, json_response, respond
from quire.http.answers.streaming import NAMED_EVENTS, EventStream
from quire.http.chats.conversation import PreparedChat, begin
from quire.http.description.openapi import gives, takes
from quire.http.doors.answering import in_their_words
from quire.http.doors.responses_store import ResponseStore
from quire.http.doors.responses_turns import FIELD_NAMES, turn
from quire.http.doors.responses_types import ItemReference, ResponsesRequest
from quire.http.doors.responses_writer import ResponseAnswer, ResponseEvent, ResponseWriter
from quire.http.guards.clients import Caller
from quire.http.service import ModelChoice, Service

_MOST_LISTED = 100  # items at a time
_PREFIXES = {
    "message": "msg_", "reasoning": "rs_", "function_call": "fc_", "function_call_output": "fco_",
    "custom_tool_call": "ctc_", "custom_tool_call_output": "ctco_",
}  # fmt: skip


class InputItems(Answer, kw_only=True):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class CountedInput(Answer, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


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
    @app.post(
        "/v1/responses",
        openapi_extra=takes(ResponsesRequest),
        responses=gives(ResponseAnswer, ResponseEvent, framing=NAMED_EVENTS),
    )
    async def create(http: Request) -> Response:
        """OpenAI's Responses: answer a conversation, and keep the answer to go on from."""
        request = await service.bodies.parse(http, ResponsesRequest)
        model, caller = service.check_model(request.model), service.caller(http)
        owner, items = caller.key, _items(service, store, caller.key, request)
        conversation = await _begin(service, store, caller, request, items, model)

        def keep(response: ResponseAnswer) -> None:
            if request.store:
                store.add(owner, response, items)

        writer = ResponseWriter(conversation, request, model.name, service.new_id(), keep)
        if request.stream:
            return EventStream(writer.events(), NAMED_EVENTS, writer.error, service.silence)
        response = await writer.whole()
        return await json_response(lambda: response, large=request.wants_logprobs)

    @app.post(
        "/v1/responses/input_tokens",
        openapi_extra=takes(ResponsesRequest),
        responses=gives(CountedInput),
    )
    async def count(http: Request) -> Response:
        """How many tokens the input has."""
        request = await service.bodies.parse(http, ResponsesRequest)
        model, caller = service.check_model(request.model), service.caller(http)
        items = _items(service, store, caller.key, request)
        conversation = await _begin(service, store, caller, request, items, model)
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
    items: list[Json],
    model: ModelChoice,
) -> PreparedChat:
    history = await _history(service, store, caller.key, request.previous_response_id)
    with in_their_words(FIELD_NAMES):
        options = caller.options(model.options, request.user)
        defaults = service.input_processor.sampling_defaults
        return await begin(service, turn(request, [*history, *items], defaults, options))


def _items(
    service: Service, store: ResponseStore, owner: str | None, request: ResponsesRequest
) -> list[Json]:
    """The input's items as they are kept, each with an id; what is referred to in its place."""
    items: list[Json] = []
    for item in request.input:
        if isinstance(item, ItemReference):
            items.append(store.item(owner, item.id))
            continue
        new_id = _PREFIXES[item.type] + service.new_id()
        given = item.model_dump(mode="json", exclude_none=True)
        items.append({"id": new_id, "status": "completed", **given})
    return items


async def _history(
    service: Service, store: ResponseStore, owner: str | None, response_id: str | None
) -> list[Json]:
    """The items of a response and of all before it, which may be as large as a body may be."""
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
    return await asyncio.to_thread(lambda: [item for kept in conversation for item in kept.items])


def _page(items: list[Json], limit: str, order: str, after: str | None) -> InputItems:
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:4]) <= _MOST_LISTED):
        raise RequestError(f"limit must be from 1 to {_MOST_LISTED}", "limit")
    if order not in ("asc", "desc"):
        raise RequestError('order must be "asc" or "desc"', "order")
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

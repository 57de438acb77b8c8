"""A response as it is written: its items, and the events of a stream that tell of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from quire.engine.outputs import Delta
from quire.http.answers.logprobs import TokenLogprob, chat_logprobs
from quire.http.answers.rendering import Answer, Json
from quire.http.answers.streaming import Events
from quire.http.chats.conversation import PreparedChat
from quire.http.doors.responses_requests import FIELD_NAMES, ResponsesRequest
from quire.http.doors.responses_tools import input_of
from quire.http.doors.turn_stream import (
    Block,
    BlockClosed,
    BlockGrown,
    BlockOpened,
    Change,
    Kind,
    TurnStream,
)
from quire.http.errors import Problem

_Scored = tuple[str, TokenLogprob]  # what a token adds, and its log-probabilities
_PREFIXES = {Kind.TEXT: "msg_", Kind.REASONING: "rs_", Kind.CALL: "fc_"}
_PARTS = {Kind.TEXT: "output_text", Kind.REASONING: "reasoning_text"}


class ResponseUsage(Answer):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseAnswer(Answer, kw_only=True):
    """A response; what it repeats of its request is as it was given, or as it is left out."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete"]
    error: None = None
    incomplete_details: dict[str, str] | None
    output: list[dict[str, Any]]
    usage: ResponseUsage | UnsetType = UNSET
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    prompt: None = None
    input_messages: None = None
    output_messages: None = None
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    instructions: str | None
    previous_response_id: str | None
    store: bool
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    max_tool_calls: int | None
    text: dict[str, Any]
    reasoning: dict[str, Any]
    max_output_tokens: int | None
    top_logprobs: int
    truncation: str
    background: bool
    metadata: dict[str, str]
    prompt_cache_key: str | None
    safety_identifier: str | None
    user: str | UnsetType = UNSET
    tools: list[dict[str, Any]]
    service_tier: str = "default"
    warnings: list[str] | UnsetType = UNSET
    model: str


class ResponseEvent(Answer, kw_only=True):
    """One of a stream's events, of OpenAI's types, from response.created to the last."""

    type: str
    sequence_number: int
    response: ResponseAnswer | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item: dict[str, Any] | UnsetType = UNSET
    part: dict[str, Any] | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET


class ResponseWriter:
    """own_id: what its names end with. keep: gets the response once it is complete."""

    def __init__(
        self,
        conversation: PreparedChat,
        request: ResponsesRequest,
        model: str,
        own_id: str,
        keep: Callable[[ResponseAnswer], None],
    ) -> None:
        self._conversation = conversation
        # Tokens of reasoning and of calls have nowhere to put theirs.
        singly = request.wants_logprobs
        new_call_id = conversation.call_id
        self._turn = TurnStream(conversation, "resp-", new_call_id, FIELD_NAMES, singly=singly)
        self._request = request
        self._offered = request.offered
        self._model = model
        self._keep = keep
        self._id = own_id
        self._created = int(time.time())
        self._number = 0  # of the next event
        self._logprobs: dict[int, list[TokenLogprob]] = {}  # of each block of text
        self._unsent: list[_Scored] = []  # tokens whose text is yet to come

    async def whole(self) -> ResponseAnswer:
        """The response; made as its events are, so that both say the same."""
        async with aclosing(self.events(whole=True)) as batches:
            async for batch in batches:
                last = batch[-1]
        assert isinstance(last, ResponseEvent) and isinstance(last.response, ResponseAnswer)
        return last.response

    def events(self, *, whole: bool = False) -> Events:
        response = self._response("in_progress", [])
        opening = [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]
        return self._turn.events(self._events, self._ending, lambda _: opening, whole=whole)

    def error(self, problem: Problem) -> ResponseEvent:
        """An error after the beginning, as an event."""
        code = problem.code or problem.type
        return self._event("error", code=code, message=problem.message, param=problem.param)

    def _ending(self) -> list[ResponseEvent]:
        cut = self._turn.reason == "length"
        status = "incomplete" if cut else "completed"
        response = self._response(status, [self._item(block) for block in self._turn.blocks])
        self._keep(response)
        return [self._event(f"response.{status}", response=response)]

    def _event(self, kind: str, **fields: Any) -> ResponseEvent:
        self._number += 1
        return ResponseEvent(type=kind, sequence_number=self._number - 1, **fields)

    def _events(self, delta: Delta, changes: Sequence[Change]) -> Iterator[ResponseEvent]:
        scores = self._scores(delta)
        self._unsent += scores
        for change in changes:
            if change.block.kind is not Kind.TEXT:  # what came before is never sent
                self._unsent = self._unsent[max(0, len(self._unsent) - len(scores)) :]
            yield from self._events_of(change, ended=delta.finish_reason is not None)

    def _events_of(self, change: Change, *, ended: bool) -> Iterator[ResponseEvent]:
        block, index = change.block, change.block.index
        within: Json = {"item_id": self._item_id(block), "output_index": index}
        match change:
            case BlockOpened():
                empty = Block(block.index, block.kind, "", block.name, block.call_id)
                item = self._item(empty, begun=True)
                yield self._event("response.output_item.added", output_index=index, item=item)
                if block.kind is not Kind.CALL:
                    part = _part(block.kind, "")
                    added = "response.content_part.added"
                    yield self._event(added, **within, content_index=0, part=part)
            case BlockGrown(_, text):
                yield from self._growth(block, within, text)
            case BlockClosed():
                if block.kind is Kind.TEXT and ended and self._unsent:
                    yield from self._growth(block, within, "")  # tokens without a text of their own
                yield from self._closing(block, within)
                done = self._item(block)
                yield self._event("response.output_item.done", output_index=index, item=done)

    def _growth(self, block: Block, where: Json, text: str) -> Iterator[ResponseEvent]:
        if block.kind is Kind.CALL:
            if not self._offered.origin(block.name).custom:  # whose text is in the arguments
                yield self._event("response.function_call_arguments.delta", **where, delta=text)
            return
        where = {**where, "content_index": 0}
        if block.kind is Kind.REASONING:
            yield self._event("response.reasoning_text.delta", **where, delta=text)
            return
        if block.index and block.index not in self._logprobs:
            self._unsent = _from_text_on(self._unsent, text)
        sent, self._unsent = [entry for _, entry in self._unsent], []
        self._logprobs.setdefault(block.index, []).extend(sent)
        yield self._event("response.output_text.delta", **where, delta=text, logprobs=sent)

    def _closing(self, block: Block, where: Json) -> Iterator[ResponseEvent]:
        if block.kind is Kind.CALL:
            yield from self._called(block, where)
            return
        where = {**where, "content_index": 0}
        if block.kind is Kind.REASONING:
            yield self._event("response.reasoning_text.done", **where, text=block.text)
        else:
            done, logprobs = "response.output_text.done", self._logprobs.get(block.index, [])
            yield self._event(done, **where, text=block.text, logprobs=logprobs)
        (part,) = self._item(block)["content"]
        yield self._event("response.content_part.done", **where, part=part)

    def _called(self, block: Block, where: Json) -> Iterator[ResponseEvent]:
        origin = self._offered.origin(block.name)
        if origin.custom:
            text = input_of(block.text)
            yield self._event("response.custom_tool_call_input.delta", **where, delta=text)
            yield self._event("response.custom_tool_call_input.done", **where, input=text)
            return
        done = {"name": origin.name, "arguments": block.text}
        yield self._event("response.function_call_arguments.done", **where, **done)

    def _scores(self, delta: Delta) -> list[_Scored]:
        tables = delta.logprobs or ()
        entries = chat_logprobs(tables, self._request.top_logprobs or 0).content
        added = (table.token.added for table in tables)
        return [*zip(added, entries, strict=True)]

    def _item_id(self, block: Block) -> str:
        custom = self._offered.origin(block.name).custom
        return f"{'ctc_' if custom else _PREFIXES[block.kind]}{self._id}{block.index:x}"

    def _item(self, block: Block, *, begun: bool = False) -> Json:
        cut = self._turn.reason == "length" and block is self._turn.blocks[-1]
        if block.kind is Kind.CALL:
            cut = block.cut is not None
        status = "in_progress" if begun else "incomplete" if cut else "completed"
        item: Json = {"id": self._item_id(block), "status": status}
        if block.kind is Kind.CALL:
            return {**item, **self._call(block, begun=begun)}
        part = _part(block.kind, block.text, self._logprobs.get(block.index, []))
        content = [] if begun else [part]
        if block.kind is Kind.REASONING:
            return {**item, "type": "reasoning", "summary": [], "content": content}
        return {**item, "type": "message", "role": "assistant", "content": content}

    def _call(self, block: Block, *, begun: bool) -> Json:
        """A call as its caller knows the tool."""
        origin = self._offered.origin(block.name)
        called: Json = {"call_id": block.call_id, "name": origin.name}
        if origin.namespace is not None:
            called["namespace"] = origin.namespace
        if origin.custom:
            text = "" if begun else input_of(block.text)
            return {"type": "custom_tool_call", **called, "input": text}
        return {"type": "function_call", **called, "arguments": block.text}

    def _response(self, status: Any, output: list[Json]) -> ResponseAnswer:
        params = self._conversation.params
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return ResponseAnswer(
            id=f"resp_{self._id}",
            created_at=self._created,
            completed_at=int(time.time()) if output else None,
            status=status,
            incomplete_details=cut,
            output=output,
            usage=self._usage(),
            temperature=params.temperature,
            top_p=params.top_p,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            warnings=[*self._request.warnings, *self._offered.warnings] or UNSET,
            model=self._model,
            **_repeated(self._request),
        )

    def _usage(self) -> ResponseUsage | UnsetType:
        if self._turn.output is None:
            return UNSET
        usage = self._conversation.usage(self._turn.output)
        return ResponseUsage(
            usage.prompt,
            {"cached_tokens": usage.cached or 0, "cache_write_tokens": 0},
            usage.completion,
            {"reasoning_tokens": usage.reasoning or 0},
            usage.prompt + usage.completion,
        )


def _from_text_on(tokens: list[_Scored], text: str) -> list[_Scored]:
    """Without the tokens before those of ``text``: they end the reasoning or the call before it."""
    start = max(0, "".join(added for added, _ in tokens).rfind(text))
    first, end = 0, 0
    for number, (added, _) in enumerate(tokens, 1):
        end += len(added)
        if added and end <= start:
            first = number
    return tokens[first:]


def _repeated(request: ResponsesRequest) -> Json:
    """What a response repeats of its request."""
    repeated = request.model_dump(
        mode="json",
        by_alias=True,
        include={
            "instructions", "previous_response_id", "store", "tool_choice",
            "parallel_tool_calls", "max_tool_calls", "text", "reasoning", "max_output_tokens",
            "truncation", "background", "metadata", "prompt_cache_key", "safety_identifier",
        },
    )  # fmt: skip
    form = repeated["text"]["format"]
    if form.get("description", "") is None:  # OpenAI's schema allows no null there
        del form["description"]
    repeated["tools"] = [tool.echoed() for tool in request.tools]
    return {**repeated, "top_logprobs": request.top_logprobs or 0, "user": request.user or UNSET}


def _part(kind: Kind, text: str, logprobs: list[TokenLogprob] | None = None) -> Json:
    part: Json = {"type": _PARTS[kind], "text": text}
    if kind is Kind.TEXT:
        part |= {"annotations": [], "logprobs": logprobs or []}
    return part

"""The body of OpenAI's POST /v1/responses, and the turn of a conversation that it asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, TypeAdapter, model_validator

from quire.core.errors import RequestError
from quire.http.answers.rendering import Json
from quire.http.body_fields import Hosted, JsonSchema, Listed, Name, Strict, at_most, given_of
from quire.http.chats.conversation import ConversationTurn, called
from quire.http.chats.kept_prompts import mark_of_key
from quire.http.chats.speech import MOST_TOOLS
from quire.http.doors.responses_tools import (
    AnyChoice,
    AnyTool,
    Offered,
    arguments_of,
    flat_name,
)
from quire.http.openai.requests import JsonObject
from quire.text.chat_template import Message
from quire.text.params import SamplingParams, StructuredOutputs

MOST_ITEMS = 4096
_MOST_PARTS = 1024
_Status = Literal["in_progress", "completed", "incomplete"]
_LOGPROBS = "message.output_text.logprobs"


class ContentPart(Strict):
    """A piece of a message, as a client sends it or as it has got it from here."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


def _as_parts(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "input_text", "text": value}]
    return [*map(_as_part, value)] if isinstance(value, list) else value


def _as_part(value: Any) -> Any:
    match value:
        case {"type": "refusal", "refusal": text, **rest}:
            return {**rest, "type": "output_text", "text": text}
    return value


_Parts = Annotated[Listed[ContentPart], at_most(_MOST_PARTS, "parts"), BeforeValidator(_as_parts)]


class Item(Strict):
    id: Name | None = None
    status: _Status | None = None


class MessageItem(Item):
    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: _Parts
    phase: Literal["commentary", "final_answer"] | None = None


class CallItem(Item):
    type: Literal["function_call"]
    call_id: Name
    name: str
    namespace: Name | None = None
    arguments: str


class CustomCallItem(Item):
    type: Literal["custom_tool_call"]
    call_id: Name
    name: str
    namespace: Name | None = None
    input: str


class CallOutputItem(Item):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: Name
    output: _Parts
    name: str | None = None


class ToolsItem(Item):
    """Tools that a conversation has from here on; the model has them from its beginning."""

    type: Literal["additional_tools"]
    role: Literal["developer", "system", "user"] = "developer"
    tools: Annotated[Listed[AnyTool], at_most(MOST_TOOLS, "tools")]


class ReasoningItem(Item):
    type: Literal["reasoning"]
    summary: _Parts = Field(default_factory=list)
    content: _Parts = Field(default_factory=list)
    encrypted_content: str | None = None  # another server's; nothing is encrypted here


class HostedItem(Hosted):
    """What OpenAI has done in a conversation begun there: what came of it is in its messages."""

    what, field = "item", "input"

    type: Literal[
        "code_interpreter_call", "file_search_call", "image_generation_call", "mcp_call",
        "mcp_list_tools", "tool_search_call", "tool_search_output", "web_search_call",
    ]  # fmt: skip


class ItemReference(Strict):
    """An item of a response that is kept here."""

    type: Literal["item_reference"]
    id: Name


def _with_type(value: Any) -> Any:
    """A message need not say that it is one, nor a reference."""
    if not isinstance(value, dict) or value.get("type") is not None:
        return value
    return {**value, "type": "message" if "role" in value else "item_reference"}


InputItem = Annotated[
    Annotated[
        MessageItem
        | CallItem
        | CustomCallItem
        | CallOutputItem
        | ReasoningItem
        | ToolsItem
        | ItemReference
        | HostedItem,
        Field(discriminator="type"),
    ],
    BeforeValidator(_with_type),
]


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class PlainFormat(Strict):
    type: Literal["text", "json_object"]


class SchemaFormat(JsonSchema):
    type: Literal["json_schema"]
    json_schema: JsonObject = Field(alias="schema")


class TextConfig(Strict):
    format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] = PlainFormat(
        type="text"
    )
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Strict):
    """Reasoning is given as it is, so that there is nothing to sum up."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "all_turns"] = "auto"  # the chat template decides what it reads


class ResponsesStreamOptions(Strict):
    include_obfuscation: Literal[False] = False


class ResponsesRequest(Strict):
    model: str | None = None
    input: Annotated[Listed[InputItem], at_most(MOST_ITEMS, "items"), BeforeValidator(_as_items)]
    instructions: str | None = None
    previous_response_id: Name | None = None
    store: bool = True
    stream: bool = False
    stream_options: ResponsesStreamOptions | None = None

    tools: Annotated[Listed[AnyTool], at_most(MOST_TOOLS, "tools")] = Field(default_factory=list)
    tool_choice: AnyChoice = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None  # of tools that OpenAI runs

    text: TextConfig = TextConfig()
    reasoning: ReasoningConfig = ReasoningConfig()
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] = Field(default_factory=list)
    truncation: Literal["disabled"] = "disabled"

    background: Literal[False] = False
    metadata: Annotated[dict[str, str], at_most(16, "keys")] = Field(default_factory=dict)
    client_metadata: JsonObject | None = None  # the client's own notes, which nobody reads here
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Name | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    user: Name | None = None
    _earlier_tools: list[AnyTool] = PrivateAttr(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> ResponsesRequest:
        if self.top_logprobs is not None and not self.wants_logprobs:
            raise RequestError(f'top_logprobs needs include: ["{_LOGPROBS}"]', "top_logprobs")
        return self

    @property
    def wants_logprobs(self) -> bool:
        return _LOGPROBS in self.include

    @property
    def offered(self) -> Offered:
        """Its tools and its conversation's, as the model knows them."""
        items = (item.tools for item in self.input if isinstance(item, ToolsItem))
        tools = [*self.tools, *self._earlier_tools, *chain.from_iterable(items)]
        return Offered.of(tools, self.tool_choice)

    def goes_on_from(self, history: Iterable[Json]) -> None:
        """Take over the tools that a conversation has brought."""
        items = (item["tools"] for item in history if item["type"] == "additional_tools")
        self._earlier_tools = _TOOLS.validate_python([*chain.from_iterable(items)])


_TOOLS = TypeAdapter(list[AnyTool])


FIELD_NAMES = {
    "prompt": "input",
    "messages": "input",
    "client": "user",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "structured_outputs": "text.format",
}


def turn(
    request: ResponsesRequest,
    items: Iterable[Json],
    defaults: Mapping[str, Any],
    options: Mapping[str, Any],
) -> ConversationTurn:
    """The turn of a request. items: of the whole conversation, the earliest first."""
    offered, form = request.offered, request.text.format
    return ConversationTurn(
        messages=list(messages(request.instructions, items)),
        params=_sampling_params(request, defaults),
        tools=offered.tools,
        choice=offered.choice,
        parallel_calls=request.parallel_tool_calls,
        reasoning_effort=request.reasoning.effort,
        rendering={"verbosity": request.text.verbosity} if request.text.verbosity else {},
        options=options,
        marks=mark_of_key(request.prompt_cache_key, request.prompt_cache_retention),
        widened=form.asked()[1] if isinstance(form, SchemaFormat) else (),
        warnings=request.warnings,
    )


def _sampling_params(request: ResponsesRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    given = given_of(request, "temperature", "top_p")
    form = request.text.format
    if isinstance(form, SchemaFormat):
        given["structured_outputs"], _ = form.asked()
    elif form.type == "json_object":
        given["structured_outputs"] = StructuredOutputs(json_object=True)
    if request.wants_logprobs:
        given["logprobs"] = request.top_logprobs or 0
    return SamplingParams.over(defaults, {**given, "max_tokens": request.max_output_tokens})


def messages(instructions: str | None, items: Iterable[Json]) -> Iterator[Message]:
    """Messages in OpenAI's older form. Of an assistant's items, those of one turn are one."""
    if instructions:
        yield {"role": "system", "content": instructions}
    said: dict[str, list[Any]] = {}  # by the assistant, and not in a message yet
    for item in items:
        if item["type"] == "additional_tools":
            continue
        piece = _of_assistant(item)
        if piece is None:
            yield from _whole(said)
            said = {}
            yield _of_others(item)
            continue
        if _begins_anew(said, piece):
            yield from _whole(said)
            said = {}
        for name, value in piece.items():
            said.setdefault(name, []).append(value)
    yield from _whole(said)


def _of_assistant(item: Json) -> dict[str, Any] | None:
    match item:
        case {"type": "message", "role": "assistant", "content": parts}:
            return {"content": _joined(parts)}
        case {"type": "reasoning"}:
            return {"reasoning_content": _joined(item.get("content") or item.get("summary") or ())}
        case {"type": "function_call", "arguments": arguments}:
            return {"tool_calls": _call(item, arguments)}
        case {"type": "custom_tool_call", "input": text}:
            return {"tool_calls": _call(item, arguments_of(text))}
    return None


def _call(item: Json, arguments: str) -> Json:
    return called(item["call_id"], flat_name(item.get("namespace"), item["name"]), arguments)


def _of_others(item: Json) -> Message:
    if item["type"] in ("function_call_output", "custom_tool_call_output"):
        content = _joined(item["output"])
        return {"role": "tool", "tool_call_id": item["call_id"], "content": content}
    return {"role": item["role"], "content": _joined(item["content"])}


def _begins_anew(said: Mapping[str, Any], piece: Mapping[str, Any]) -> bool:
    """Whether a piece begins another turn, which is reasoning, then text, then calls."""
    order = ("reasoning_content", "content", "tool_calls")
    (kind,) = piece
    return any(name in said for name in order[order.index(kind) + 1 :]) or (
        kind == "content" and "content" in said
    )


def _whole(said: Mapping[str, list[Any]]) -> Iterator[Message]:
    """The assistant's message, unless it is empty, as another server's reasoning is."""
    put = {name: all_ if name == "tool_calls" else "".join(all_) for name, all_ in said.items()}
    if any(put.values()):
        yield {"role": "assistant", "content": "", **put}


def _joined(parts: Iterable[Json]) -> str:
    return "".join(part["text"] for part in parts)

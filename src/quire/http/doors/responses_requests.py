"""The body of OpenAI's POST /v1/responses, and the turn of a conversation that it asks for.

A model knows functions by one name each. A namespace's are flattened to ``namespace__name``; a
custom tool, which takes any text, is a function of one text. What only OpenAI can run is left out,
and the caller gets a warning.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from quire.core.errors import RequestError, shown
from quire.core.protocol import SamplingParams, StructuredOutputs
from quire.http.answers.rendering import Json
from quire.http.body_fields import (
    JsonSchema,
    Name,
    Strict,
    at_most,
    check_depth,
    expecting,
    given_of,
)
from quire.http.chats.conversation import ConversationTurn, called
from quire.http.chats.speech import LONGEST_NAME, MOST_TOOLS, Tool, ToolChoice
from quire.http.openai.requests import JsonObject
from quire.text.chat_template import Message

_HostedType = Literal[
    "apply_patch", "code_interpreter", "computer", "computer_use", "computer_use_preview",
    "file_search", "image_generation", "local_shell", "mcp", "programmatic_tool_calling", "shell",
    "tool_search", "web_search", "web_search_2025_08_26", "web_search_preview",
    "web_search_preview_2025_03_11",
]  # fmt: skip
_INPUT: Json = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
_NOT_OURS = "Quire does not have it"
_NO_GRAMMAR = "a custom tool's input is kept to no grammar here"
_SEPARATOR, _DIGITS = "__", 8


class ToolOrigin(NamedTuple):
    """What a function of the model's is to the caller."""

    name: str
    namespace: str | None = None
    custom: bool = False


class ResponsesTool(Strict):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool = False
    defer_loading: bool = False  # the model always gets all
    allowed_callers: list[Literal["direct"]] | None = None
    output_schema: JsonObject | None = None  # what its caller makes of it is not looked at

    def as_tool(self, name: str) -> Tool:
        return Tool(name, self.description, self.parameters, self.strict)

    def echoed(self) -> Json:
        names = ("type", "name", "description", "parameters", "strict")
        return {name: getattr(self, name) for name in names}


class TextInput(Strict):
    type: Literal["text"] = "text"


class GrammarInput(Strict):
    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(Strict):
    """A tool that takes a text."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: Annotated[TextInput | GrammarInput, Field(discriminator="type")] = TextInput()
    defer_loading: bool = False  # the model always gets all
    allowed_callers: list[Literal["direct"]] | None = None

    def as_tool(self, name: str) -> Tool:
        return Tool(name, self.description, _INPUT)

    def echoed(self) -> Json:
        return self.model_dump(exclude_none=True, exclude={"defer_loading"})


class NamespaceTool(Strict):
    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: Annotated[
        list[Annotated[ResponsesTool | CustomTool, Field(discriminator="type")]],
        Field(fail_fast=True),
        at_most(MOST_TOOLS, "tools"),
    ]

    def echoed(self) -> Json:
        described = {} if self.description is None else {"description": self.description}
        tools = [tool.echoed() for tool in self.tools]
        return {"type": self.type, "name": self.name, **described, "tools": tools}


class HostedTool(BaseModel):
    """One that OpenAI runs, or that its models alone know, or the choice of one."""

    model_config = ConfigDict(extra="allow")

    type: _HostedType

    @model_validator(mode="before")
    @classmethod
    def _bound(cls, data: Any) -> Any:
        return check_depth(data, levels=16, most_values=4096)

    def echoed(self) -> Json:
        return self.model_dump(exclude_none=True)


AnyTool = Annotated[
    ResponsesTool | CustomTool | NamespaceTool | HostedTool, Field(discriminator="type")
]


class ResponsesNamedTool(Strict):
    type: Literal["function", "custom"]
    name: str
    namespace: Name | None = None


_Named = Annotated[ResponsesNamedTool | HostedTool, Field(discriminator="type")]


class ResponsesAllowedTools(Strict):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[_Named], Field(fail_fast=True), at_most(MOST_TOOLS, "tools")]


AnyChoice = Annotated[
    Literal["auto", "none", "required"] | ResponsesNamedTool | HostedTool | ResponsesAllowedTools,
    expecting('"auto", "none", "required" or {"type": "function", "name": ...}'),
]


@dataclass(frozen=True)
class Offered:
    """A request's tools as the model knows them.

    origins: by the names that the model knows. left_out: why the model does not get a tool, by
    the name that it would have, or its type.
    """

    tools: Sequence[Tool]
    choice: ToolChoice
    origins: Mapping[str, ToolOrigin]
    left_out: Mapping[str, str]

    @classmethod
    def of(cls, tools: Iterable[Any], choice: Any) -> Offered:
        offered: list[Tool] = []
        origins: dict[str, ToolOrigin] = {}
        left_out: dict[str, str] = {}
        for tool, namespace in _flat(tools):
            if isinstance(tool, HostedTool):
                left_out[tool.type] = f"the tool {tool.type} was left out: {_NOT_OURS}"
                continue
            name = flat_name(namespace, tool.name)
            if isinstance(tool, CustomTool) and isinstance(tool.format, GrammarInput):
                left_out[name] = f"the tool {shown(name)} was left out: {_NO_GRAMMAR}"
                continue
            offered.append(tool.as_tool(name))
            origins[name] = ToolOrigin(tool.name, namespace, isinstance(tool, CustomTool))
        return cls(offered, _chosen(choice, origins, left_out), origins, left_out)

    @property
    def warnings(self) -> list[str]:
        """Why tools were left out, for the caller."""
        return [*self.left_out.values()]

    def origin(self, name: str) -> ToolOrigin:
        return self.origins.get(name, ToolOrigin(name))


def flat_name(namespace: str | None, name: str) -> str:
    """By which the model knows a tool: no longer than names may be."""
    if not namespace:
        return name
    whole = namespace + _SEPARATOR + name
    if len(whole) <= LONGEST_NAME or len(name) > LONGEST_NAME:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_DIGITS]
    return f"{whole[: LONGEST_NAME - _DIGITS - 1]}_{digest}"


def input_of(arguments: str) -> str:
    """What a custom tool is given, of the arguments that the model has written for it."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    given = value.get("input") if isinstance(value, dict) and len(value) == 1 else None
    return given if isinstance(given, str) else arguments


def arguments_of(text: str) -> str:
    """The other way: a custom tool's input as the arguments of a function."""
    return json.dumps({"input": text}, ensure_ascii=False)


def _flat(tools: Iterable[Any]) -> Iterator[tuple[Any, str | None]]:
    for tool in tools:
        if isinstance(tool, NamespaceTool):
            yield from ((inner, tool.name) for inner in tool.tools)
        else:
            yield tool, None


def _chosen(
    choice: Any, origins: Mapping[str, ToolOrigin], left_out: Mapping[str, str]
) -> ToolChoice:
    """RequestError where a tool that was left out must be called."""
    match choice:
        case str():
            _check_any(choice, origins, left_out)
            return ToolChoice(choice)  # type: ignore[arg-type]  # its type has checked it
        case ResponsesAllowedTools():
            names = [
                _known(one, origins) for one in choice.tools if isinstance(one, ResponsesNamedTool)
            ]
            counting = tuple(name for name in names if name not in left_out)
            _check_any(choice.mode, counting, left_out)
            return ToolChoice(choice.mode, counting) if counting else ToolChoice("none")
    name = choice.type if isinstance(choice, HostedTool) else _known(choice, origins)
    if isinstance(choice, HostedTool) or name in left_out:
        why = left_out.get(name, f"Quire does not have {name}")
        raise RequestError(f"tool_choice must not be {name}: {why}", "tool_choice")
    return ToolChoice.named(name)


def _check_any(mode: str, counting: Collection[str], left_out: Mapping[str, str]) -> None:
    if mode == "required" and not counting and left_out:
        raise RequestError(
            f"tool_choice must not be required: {next(iter(left_out.values()))}", "tool_choice"
        )


def _known(named: ResponsesNamedTool, origins: Mapping[str, ToolOrigin]) -> str:
    """The model's name of a tool that a caller names in full, or as its namespace does."""
    whole = flat_name(named.namespace, named.name)
    found = [name for name, origin in origins.items() if origin.name == named.name]
    if whole in origins or named.namespace or not found:
        return whole
    if len(found) > 1:
        raise RequestError(
            f"tool_choice names {shown(named.name)}, which several namespaces have: "
            f"{', '.join(found[:4])}",
            "tool_choice",
        )
    return found[0]


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


_Parts = Annotated[
    list[ContentPart],
    Field(fail_fast=True),
    at_most(_MOST_PARTS, "parts"),
    BeforeValidator(_as_parts),
]


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


class ReasoningItem(Item):
    type: Literal["reasoning"]
    summary: _Parts = Field(default_factory=list)
    content: _Parts = Field(default_factory=list)
    encrypted_content: str | None = None  # another server's; nothing is encrypted here


class HostedItem(BaseModel):
    """What OpenAI has done in a conversation begun there: what came of it is in its messages."""

    model_config = ConfigDict(extra="allow")

    type: Literal[
        "code_interpreter_call", "file_search_call", "image_generation_call", "mcp_call",
        "mcp_list_tools", "tool_search_call", "tool_search_output", "web_search_call",
    ]  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, data: Any, info: ValidationInfo) -> Any:
        kind = data["type"]
        if info.context is None or not info.context.leave_out(kind, _NOT_OURS, "item"):
            raise RequestError(f"input may hold no {kind}: {_NOT_OURS}", "input")
        return {"type": kind}


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


class ResponsesStreamOptions(Strict):
    include_obfuscation: Literal[False] = False


class ResponsesRequest(Strict):
    model: str | None = None
    input: Annotated[
        list[InputItem],
        Field(fail_fast=True),
        at_most(MOST_ITEMS, "items"),
        BeforeValidator(_as_items),
    ]
    instructions: str | None = None
    previous_response_id: Name | None = None
    store: bool = True
    stream: bool = False
    stream_options: ResponsesStreamOptions | None = None

    tools: Annotated[list[AnyTool], Field(fail_fast=True), at_most(MOST_TOOLS, "tools")] = Field(
        default_factory=list
    )
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
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    user: Name | None = None

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
        """Its tools, as the model knows them."""
        return Offered.of(self.tools, self.tool_choice)


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
    """items: all of the conversation's, those of earlier responses first."""
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
    said: dict[str, Any] = {}  # by the assistant, and not in a message yet
    for item in items:
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
            said[name] = said[name] + value if name in said else value
    yield from _whole(said)


def _of_assistant(item: Json) -> dict[str, Any] | None:
    match item:
        case {"type": "message", "role": "assistant", "content": parts}:
            return {"content": _joined(parts)}
        case {"type": "reasoning"}:
            return {"reasoning_content": _joined(item.get("content") or item.get("summary") or ())}
        case {"type": "function_call", "arguments": arguments}:
            return {"tool_calls": [_call(item, arguments)]}
        case {"type": "custom_tool_call", "input": text}:
            return {"tool_calls": [_call(item, arguments_of(text))]}
    return None


def _call(item: Json, arguments: str) -> Json:
    return called(item["call_id"], flat_name(item.get("namespace"), item["name"]), arguments)


def _of_others(item: Json) -> Message:
    if item["type"] in ("function_call_output", "custom_tool_call_output"):
        content = _joined(item["output"])
        return {"role": "tool", "tool_call_id": item["call_id"], "content": content}
    return {"role": item["role"], "content": _joined(item["content"])}


def _begins_anew(said: Mapping[str, Any], piece: Mapping[str, Any]) -> bool:
    """A turn is reasoning, then text, then calls."""
    order = ("reasoning_content", "content", "tool_calls")
    (kind,) = piece
    return any(name in said for name in order[order.index(kind) + 1 :]) or (
        kind == "content" and "content" in said
    )


def _whole(said: Mapping[str, Any]) -> Iterator[Message]:
    """Nothing of what holds nothing: another server's reasoning is encrypted."""
    if any(said.values()):
        yield {"role": "assistant", "content": "", **said}


def _joined(parts: Iterable[Json]) -> str:
    return "".join(part["text"] for part in parts)

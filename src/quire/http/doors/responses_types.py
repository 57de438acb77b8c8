"""The body of OpenAI's POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from quire.core.errors import RequestError
from quire.http.chats.tools import MOST_TOOLS
from quire.http.doors.responses_tools import AnyChoice, AnyTool, Offered
from quire.http.fields.strict import Name, Strict, at_most
from quire.http.openai.messages import JsonObject

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
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


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
        MessageItem | CallItem | CustomCallItem | CallOutputItem | ReasoningItem | ItemReference,
        Field(discriminator="type"),
    ],
    BeforeValidator(_with_type),
]


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class PlainFormat(Strict):
    type: Literal["text", "json_object"]


class SchemaFormat(Strict):
    type: Literal["json_schema"]
    name: Name
    schema_: JsonObject = Field(alias="schema")
    description: str | None = None
    strict: bool = False


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

"""The bodies of Anthropic's POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from quire.core.errors import RequestError
from quire.http.chats.tools import AUTO, MOST_TOOLS, Tool, ToolChoice
from quire.http.fields.strict import Strict, Texts, at_most
from quire.http.openai.messages import JsonObject

_MOST_MESSAGES, _MOST_BLOCKS = 4096, 1024


class Cacheable(Strict):
    """``cache_control`` is a hint: every prompt is cached here."""

    cache_control: dict[str, Any] | None = None


class TextBlock(Cacheable):
    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], at_most(0, "citations")] | None = None


class ThinkingBlock(Cacheable):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""  # nothing is signed here, and so nothing is checked


class RedactedThinkingBlock(Cacheable):
    """Another model's secret, of which this one can make nothing."""

    type: Literal["redacted_thinking"]
    data: str = ""


class ToolUseBlock(Cacheable):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject
    caller: dict[str, Any] | None = None


def _as_blocks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


_Texts = Annotated[
    list[TextBlock],
    Field(fail_fast=True),
    at_most(_MOST_BLOCKS, "blocks"),
    BeforeValidator(_as_blocks),
]


class ToolResultBlock(Cacheable):
    type: Literal["tool_result"]
    tool_use_id: str
    content: _Texts = Field(default_factory=list)
    is_error: bool = False


Block = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock,
    Field(discriminator="type"),
]


class AnthropicMessage(Strict):
    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[Block],
        Field(fail_fast=True),
        at_most(_MOST_BLOCKS, "blocks"),
        BeforeValidator(_as_blocks),
    ]

    @model_validator(mode="after")
    def _check(self) -> AnthropicMessage:
        allowed = {"assistant": {"text", "thinking", "redacted_thinking", "tool_use"}}
        for block in self.content:
            if block.type not in allowed.get(self.role, {"text", "tool_result"}):
                raise RequestError(
                    f"a message of role {self.role} may hold no block of type {block.type}",
                    "messages",
                )
        return self


class AnthropicTool(Cacheable):
    """A tool of the client's; those that Anthropic runs have other types."""

    type: Literal["custom"] = "custom"
    name: str
    description: str | None = None
    input_schema: JsonObject
    strict: bool = False
    eager_input_streaming: bool | None = None  # arguments are always streamed as they come
    input_examples: list[Any] | None = None

    def as_tool(self) -> Tool:
        return Tool(self.name, self.description, self.input_schema, self.strict)


_Tools = Annotated[list[AnthropicTool], Field(fail_fast=True), at_most(MOST_TOOLS, "tools")]


class AnthropicToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _check(self) -> AnthropicToolChoice:
        if (self.name is not None) != (self.type == "tool"):
            raise RequestError("tool_choice has a name if its type is tool", "tool_choice.name")
        return self

    def as_choice(self) -> ToolChoice:
        if self.name is not None:
            return ToolChoice.named(self.name)
        if self.type == "any":
            return ToolChoice("required")
        return ToolChoice("none") if self.type == "none" else AUTO


class ThinkingConfig(Strict):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Strict):
    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema")


class OutputConfig(Strict):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Edit(Strict):
    """Old thinking is shown to the model or not as its chat template will have it."""

    type: Literal["clear_thinking_20251015"]
    keep: Any = None


class ContextManagement(Strict):
    edits: list[Edit] = Field(default_factory=list)


class CountTokensRequest(Cacheable):
    """What makes a prompt."""

    model: str | None = None
    messages: Annotated[
        list[AnthropicMessage], Field(fail_fast=True), at_most(_MOST_MESSAGES, "messages")
    ]
    system: _Texts = Field(default_factory=list)
    tools: _Tools = Field(default_factory=list)
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig = OutputConfig()
    context_management: ContextManagement | None = None


class MessagesRequest(CountTokensRequest):
    max_tokens: int
    stop_sequences: Texts = Field(default_factory=list)
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    metadata: dict[str, Any] | None = None  # from here on what changes nothing here
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Literal["standard"] | None = None
    inference_geo: str | None = None
    diagnostics: dict[str, Any] | None = None

"""The messages and tools of OpenAI's chats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from quire.http.chats.tools import MOST_TOOLS, Tool, ToolChoice
from quire.http.fields.strict import Name, Strict, at_most, doc, expecting, no_deeper
from quire.text.chat_template import Message

_MOST_PARTS = 1024  # of one message, or of a prediction
_MOST_CALLS = 256  # of one message
_MOST_LEVELS, _MOST_VALUES = 64, 16_384  # of one schema, or of the arguments of a call

JsonObject = Annotated[dict[str, Any], no_deeper(_MOST_LEVELS, _MOST_VALUES)]


def _wrong(field: str, message: str) -> PydanticCustomError:
    """A complaint about a field of an object that was checked as a whole."""
    return PydanticCustomError("field", message, {"field": field})


class TextPart(Strict):
    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = None  # a hint of Anthropic's; all prompts are cached


Content = Annotated[
    str | Annotated[list[TextPart], Field(fail_fast=True)],
    expecting("a string or a list of parts of type text"),
    at_most(_MOST_PARTS, "parts"),
]


class Prediction(Strict):
    """What a text is expected to be, mostly."""

    type: Literal["content"]
    content: Content

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class CalledFunction(Strict):
    name: str
    arguments: Annotated[str | JsonObject, expecting("a string of JSON, or an object")] = ""


class ToolCall(Strict):
    """A call that the assistant has made."""

    id: Name | None = None
    type: Literal["function"] = "function"
    index: int | None = None  # of those who put deltas together
    function: CalledFunction

    def for_template(self) -> Mapping[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": self.type, "function": function}


class ChatMessage(Strict):
    """One turn of a conversation. What its fields do is up to the model's chat template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: Name | None = None
    tool_call_id: Name | None = None
    tool_calls: (
        Annotated[list[ToolCall], Field(fail_fast=True), at_most(_MOST_CALLS, "calls")] | None
    ) = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _check(self) -> ChatMessage:
        if self.role != "assistant":
            if self.content is None:
                raise _wrong("content", f"a message of role {self.role} needs it")
            for name in ("tool_calls", "reasoning", "reasoning_content"):
                if getattr(self, name) is not None:
                    raise _wrong(name, "only messages of role assistant have it")
        return self

    def for_template(self) -> Message:
        content = self.content or ""
        if not isinstance(content, str):
            content = "\n".join(part.text for part in content)
        others = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "tool_calls": [call.for_template() for call in self.tool_calls or ()],
            "reasoning_content": self.reasoning or self.reasoning_content,
        }
        given = {name: value for name, value in others.items() if value}
        return {"role": self.role, "content": content, **given}


class Function(Strict):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool = False


class FunctionTool(Strict):
    type: Literal["function"]
    function: Function

    def as_tool(self) -> Tool:
        return Tool(**dict(self.function))


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction

    def as_choice(self) -> ToolChoice:
        return ToolChoice.named(self.function.name)


class AllowedNames(Strict):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(fail_fast=True), at_most(MOST_TOOLS, "tools")]


class AllowedTools(Strict):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedNames

    def as_choice(self) -> ToolChoice:
        allowed = self.allowed_tools
        return ToolChoice(allowed.mode, tuple(tool.function.name for tool in allowed.tools))


Tools = Annotated[list[FunctionTool], Field(fail_fast=True), at_most(MOST_TOOLS, "tools")]
Choice = Annotated[
    Literal["auto", "none", "required"] | NamedTool | AllowedTools,
    expecting('"auto", "none", "required", or {"type": "function", "function": {"name": ...}}'),
]


class ToolFields(Strict):
    """The fields of a chat's body that speak of tools and reasoning."""

    tools: Tools | None = doc(None, "functions that the model may call")
    tool_choice: Choice | None = doc(None, "whether it may, or must, or which; left out, it may")
    parallel_tool_calls: bool = doc(True, "several calls may be made at once")
    include_reasoning: bool = doc(True, "give the reasoning, if the model does that")
    thinking_budget: int | None = doc(None, "another name of thinking_token_budget")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        doc(None, "for templates that take it; none: no reasoning")
    )

    @property
    def choice(self) -> ToolChoice:
        if self.tool_choice is None or isinstance(self.tool_choice, str):
            return ToolChoice(self.tool_choice or "auto")
        return self.tool_choice.as_choice()

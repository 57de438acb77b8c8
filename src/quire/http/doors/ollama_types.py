"""The bodies of Ollama's API. Options about the machine pass; what would be ignored is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from quire.core.errors import RequestError
from quire.http.chats.tools import MOST_TOOLS, Tool
from quire.http.doors.llama_options import LlamaOptions
from quire.http.fields.strict import Ids, Name, Strict, Texts, at_most, between, expecting
from quire.http.openai.messages import Function, JsonObject
from quire.text.chat_template import Message

_MOST_MESSAGES, _MOST_CALLS = 4096, 256

Format = Annotated[Literal["", "json"] | JsonObject, expecting('"json" or a JSON schema')]
KeepAlive = Annotated[int | float | str, expecting("a duration")]
Think = Annotated[
    bool | Literal["low", "medium", "high"], expecting('true, false, "low", "medium" or "high"')
]


class OllamaOptions(LlamaOptions):
    idle = LlamaOptions.idle | {
        "embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_gpu",
        "num_keep", "num_thread", "numa", "penalize_newline", "use_mlock", "use_mmap", "vocab_only",
    }  # fmt: skip

    num_predict: int | None = None
    num_ctx: Annotated[int, between(1, 2**31 - 1)] | None = None

    def check_context(self, max_model_len: int | None) -> None:
        """RequestError if num_ctx is more than there is; texts are never cut to fit."""
        if self.num_ctx is not None and self.num_ctx > (max_model_len or self.num_ctx):
            raise RequestError(
                f"num_ctx must be at most max_model_len, {max_model_len}, got {self.num_ctx}",
                "num_ctx",
            )


class OllamaRequest(Strict):
    """What requests for text have in common."""

    model: str
    stream: bool = True
    format: Format | None = None
    options: OllamaOptions = OllamaOptions()
    keep_alive: KeepAlive | None = None
    think: Think | None = None
    logprobs: bool = False
    top_logprobs: int = 0

    @model_validator(mode="after")
    def _check_logprobs(self) -> OllamaRequest:
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
        return self

    @property
    def variables(self) -> dict[str, Any]:
        """The chat template's."""
        if isinstance(self.think, str):
            return {"enable_thinking": True, "reasoning_effort": self.think}
        return {} if self.think is None else {"enable_thinking": self.think}


class GenerateRequest(OllamaRequest):
    """The body of POST /api/generate."""

    prompt: str = ""
    system: str | None = None
    raw: bool = False
    suffix: str | None = None
    template: str | None = None
    context: Ids | None = None
    images: Texts | None = None

    @model_validator(mode="after")
    def _refuse(self) -> GenerateRequest:
        for name in ("suffix", "template", "context", "images"):
            if getattr(self, name):
                raise RequestError(f"{name} is not supported by Quire; leave it out", name)
        for name in ("system", "think"):
            if self.raw and getattr(self, name):
                raise RequestError(f"{name} is no part of a raw prompt; leave one out", name)
        return self

    @property
    def messages(self) -> list[Message]:
        """What the chat template makes the prompt of, unless it is raw."""
        system: list[Message] = []
        if self.system:
            system = [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": self.prompt}]


class OllamaFunction(Strict):
    name: str
    arguments: JsonObject = Field(default_factory=dict)
    index: int | None = None


class OllamaCall(Strict):
    id: Name | None = None
    type: Literal["function"] = "function"
    function: OllamaFunction

    def for_template(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"type": "function", "function": function, **({"id": self.id} if self.id else {})}


class OllamaMessage(Strict):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: Annotated[Texts, at_most(0, "images")] | None = None
    tool_calls: (
        Annotated[list[OllamaCall], Field(fail_fast=True), at_most(_MOST_CALLS, "calls")] | None
    ) = None
    tool_name: Name | None = None
    tool_call_id: Name | None = None

    def for_template(self) -> Message:
        others: dict[str, Any] = {
            "reasoning_content": self.thinking,
            "tool_calls": [call.for_template() for call in self.tool_calls or ()],
            "name": self.tool_name,
            "tool_call_id": self.tool_call_id,
        }
        given = {name: value for name, value in others.items() if value}
        return {"role": self.role, "content": self.content, **given}


class OllamaTool(Strict):
    type: Literal["function"] = "function"
    function: Function

    def as_tool(self) -> Tool:
        return Tool(**dict(self.function))


_Tools = Annotated[list[OllamaTool], Field(fail_fast=True), at_most(MOST_TOOLS, "tools")]


class OllamaChatRequest(OllamaRequest):
    """The body of POST /api/chat."""

    messages: Annotated[
        list[OllamaMessage], Field(fail_fast=True), at_most(_MOST_MESSAGES, "messages")
    ] = Field(default_factory=list)
    tools: _Tools = Field(default_factory=list)


class ShowRequest(Strict):
    """The body of POST /api/show; ``name`` is what ``model`` was called once."""

    model: str | None = None
    name: str | None = None
    verbose: bool = False

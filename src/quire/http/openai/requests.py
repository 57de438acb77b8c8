"""The requests of OpenAI's API that Quire serves, with vLLM's extra fields.

Any other field is refused. ``null`` always means that a field is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from quire.core.errors import RequestError
from quire.core.protocol import Origin
from quire.engine.input_processor import MAX_PRIORITY
from quire.http.body_fields import (
    Ids,
    Listed,
    Name,
    RequestId,
    Strict,
    StructuredFields,
    Texts,
    at_most,
    between,
    doc,
    expecting,
    given_of,
    in_callers_words,
    most_tokens,
    no_deeper,
    texts_of,
)
from quire.http.chats.conversation import called, said
from quire.http.chats.kept_prompts import kept_by, mark_of_key
from quire.http.chats.speech import MOST_TOOLS, Tool, ToolChoice
from quire.http.service import Caller, ModelChoice
from quire.text.chat_template import Message
from quire.text.encoder import PromptForm
from quire.text.params import SamplingParams
from quire.text.params.parameters import MAX_INTEGER, description

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
    cache_control: dict[str, Any] | None = None  # a hint of Anthropic's, of what to keep


Content = Annotated[
    str | Listed[TextPart],
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
        return called(self.id, self.function.name, self.function.arguments)


class ChatMessage(Strict):
    """One turn of a conversation. What its fields do is up to the model's chat template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: Name | None = None
    tool_call_id: Name | None = None
    tool_calls: Annotated[Listed[ToolCall], at_most(_MOST_CALLS, "calls")] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None  # OpenAI's, in place of content

    @model_validator(mode="after")
    def _check(self) -> ChatMessage:
        if self.role != "assistant":
            if self.content is None:
                raise _wrong("content", f"a message of role {self.role} needs it")
            for name in ("tool_calls", "reasoning", "reasoning_content", "refusal"):
                if getattr(self, name) is not None:
                    raise _wrong(name, "only messages of role assistant have it")
        return self

    def for_template(self) -> Message:
        content = self.content or self.refusal or ""
        if not isinstance(content, str):
            content = "\n".join(part.text for part in content)
        return said(
            self.role,
            content,
            name=self.name,
            tool_call_id=self.tool_call_id,
            tool_calls=[call.for_template() for call in self.tool_calls or ()],
            reasoning_content=self.reasoning or self.reasoning_content,
        )


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
    tools: Annotated[Listed[NamedTool], at_most(MOST_TOOLS, "tools")]


class AllowedTools(Strict):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedNames

    def as_choice(self) -> ToolChoice:
        allowed = self.allowed_tools
        return ToolChoice(allowed.mode, tuple(tool.function.name for tool in allowed.tools))


Tools = Annotated[Listed[FunctionTool], at_most(MOST_TOOLS, "tools")]
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


_MOST_MESSAGES = 4096
_MOST_DOCUMENTS, _LONGEST_TEMPLATE = 1024, 2**16
_HELP = {field.name: description(field) for field in fields(SamplingParams)}
_Variables = Annotated[dict[str, Any], no_deeper(levels=16, most_values=4096)]


class StreamOptions(Strict):
    include_usage: bool = doc(False, "end with a chunk that has the tokens of all")
    continuous_usage_stats: bool = doc(
        False, "with include_usage: each chunk has the tokens of its choice up to there"
    )


class CommonFields(Strict):
    """What all requests of OpenAI's API have: a model, and whose they are."""

    model: str | None = doc(None, "a name that /v1/models lists; left out, the one that is served")
    user: Name | None = doc(None, "an end-user, by OpenAI's definition")
    request_id: RequestId | None = doc(
        None, "what the answer's id ends with; left out, the request's x-request-id"
    )
    cache_salt: Name | None = doc(None, "only requests with the same one share a prefix cache")
    priority: Annotated[int, between(-MAX_PRIORITY, MAX_PRIORITY)] | None = doc(
        None, "under the priority and fair policies, the lower, the sooner"
    )

    def options(self, caller: Caller, model: ModelChoice) -> dict[str, Any]:
        """What its prompts say beside their texts."""
        return caller.options(model, self.user, self.cache_salt, self.priority)


class GenerationRequest(StructuredFields, CommonFields):
    """The fields that all requests for text have in common, SamplingParams' among them.

    idle: llama.cpp's, about places, its cache and its drafts.
    """

    idle = frozenset({
        "cache_prompt", "id_slot", "speculative.n_max", "speculative.n_min", "speculative.p_min",
    })  # fmt: skip

    stream: bool = doc(False, "answer with server-sent events, one for each token")
    stream_options: StreamOptions | None = doc(None, "of a stream")
    include_metrics: bool = doc(False, "add what the request cost in memory and time")
    return_token_ids: bool = doc(False, "add the tokens of prompt and outputs")
    return_tokens_as_token_ids: bool = doc(
        False,
        'log-probabilities name tokens as "token_id:7", which tells apart what looks the same',
    )

    max_new_tokens: int | None = doc(None, "another name of max_tokens")
    n_predict: int | None = doc(None, "another name of max_tokens, llama.cpp's")
    timings_per_token: bool = doc(
        False, "add how long it took, as llama.cpp tells it; to each chunk, how long until then"
    )
    return_progress: bool = doc(
        False, "begin a stream with how far its prompt has been computed, as llama.cpp tells it"
    )
    prompt_cache_key: Name | None = doc(None, "a hint: prompts with one are evicted after others")
    prompt_cache_retention: Name | None = doc(None, 'a hint: for how long, "5m", "1h" or "24h"')
    prediction: Prediction | None = doc(None, _HELP["prediction"])
    kv_transfer_params: Annotated[dict[str, Any], no_deeper(levels=4, most_values=65536)] | None = (
        doc(None, "of a proxy between servers that prefill and that decode, as vLLM has them")
    )

    @model_validator(mode="after")
    def _check_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream: true", "stream_options")
        if self.stream and self.include_metrics and not self.include_usage:
            raise RequestError(
                "in a stream, include_metrics needs stream_options.include_usage: true",
                "include_metrics",
            )
        if self.stream and (self.kv_transfer_params or {}).get("do_remote_decode"):
            raise RequestError("do_remote_decode cannot be streamed", "kv_transfer_params")
        if self.stream and self.prompt_logprobs is not None:
            raise RequestError("prompt_logprobs cannot be streamed", "prompt_logprobs")
        return self

    def origin(self, caller: Caller) -> Origin:
        return caller.origin._replace(progress=self.stream and self.return_progress)

    def options(self, caller: Caller, model: ModelChoice) -> dict[str, Any]:
        given = super().options(caller, model) | {"origin": self.origin(caller)}
        if self.prompt_cache_key or self.prompt_cache_retention:
            key, retention = self.prompt_cache_key, self.prompt_cache_retention
            given["keep"] = kept_by(mark_of_key(key, retention))
        return given

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def counts_tokens(self) -> bool:
        """Whether a stream's chunks tell more of their tokens than the text."""
        timed = self.stream and self.timings_per_token
        return self.return_token_ids or self.continuous_usage or timed

    @property
    def continuous_usage(self) -> bool:
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats

    @property
    def wanted_tokens(self) -> int | None:
        """``max_tokens``, by whichever name; None: not given, or -1, for as many as fit."""
        longest: int | None = getattr(self, self._longest_name)
        return None if longest == -1 else longest

    @property
    def _longest_name(self) -> str:
        """The name by which ``max_tokens`` is given, if it is."""
        others = given_of(self, "max_tokens", "max_new_tokens", "n_predict")
        return next(iter(others), "max_tokens")

    @property
    def field_names(self) -> Mapping[str, str]:
        """The engine's names of fields that are called otherwise here."""
        names = {"client": "user", "structured_outputs": self.structure_field}
        if self._longest_name != "max_tokens":
            names["max_tokens"] = self._longest_name
        return names

    def _sampling_params(self, defaults: Mapping[str, Any], **others: Any) -> SamplingParams:
        """SamplingParams of the fields that go by its names, and of ``others`` in their place."""
        here = {field.name: getattr(self, field.name, None) for field in fields(SamplingParams)}
        with in_callers_words(self.field_names):
            here["structured_outputs"] = self.wanted_structure()
            here["prediction"] = self.prediction and self.prediction.text
            given = {name: value for name, value in here.items() if value is not None}
            if getattr(self, self._longest_name) is not None:
                given["max_tokens"] = self.wanted_tokens
            if given.get("stop") == "":  # some clients send all their fields
                del given["stop"]
            params = SamplingParams.over(defaults, {**given, **others})
        if self.stream and not params.use_beam_search and params.width > params.num_outputs:
            raise RequestError("best_of above n cannot be streamed", "best_of")
        return params


class PromptedRequest(GenerationRequest):
    """The fields that completions and chats have in common."""

    echo: bool = doc(False, "the answer begins with the prompt, or the message that it goes on")
    add_special_tokens: bool | None = doc(
        None,
        "add the tokenizer's special tokens around the prompt; left out, it is done for a text, "
        "and for a conversation left to the chat template",
    )
    truncate_prompt_tokens: Annotated[int, between(-1, MAX_INTEGER)] | None = doc(
        None,
        "keep only this many tokens of the prompt, the last ones; -1: as many as leave room for "
        "max_tokens",
    )
    truncation_side: Literal["left", "right"] = doc(
        "left", "where truncate_prompt_tokens cuts; right: the first ones are kept"
    )

    def prompt_form(self, max_model_len: int | None, suffix: str | None = None) -> PromptForm:
        """What the request says of how its prompt becomes tokens."""
        most = most_tokens(
            self.truncate_prompt_tokens, max_model_len, output=max(1, self.wanted_tokens or 1)
        )
        keep_first = most is not None and self.truncation_side == "right"
        return PromptForm(
            self.add_special_tokens, most, keep_first, suffix, keep_begin=most is not None
        )


class CompletionRequest(PromptedRequest):
    """The body of POST /v1/completions."""

    prompt: (
        Annotated[
            str | Texts | Ids | Listed[Ids],
            expecting("a string, a list of strings, a list of token ids or a list of such lists"),
        ]
        | None
    ) = doc(None, "one or several prompts, as texts or as token ids", examples=["Once upon a time"])
    prompt_embeds: (
        Annotated[str | Texts, expecting("a string of base64, or a list of such strings")] | None
    ) = doc(
        None,
        "in the place of prompt, the vectors of one or several: safetensors files of one tensor "
        "[tokens, hidden size], in base64",
    )
    suffix: str | None = doc(
        None, "what comes after the text that is to be written, for models that fill in the middle"
    )

    @model_validator(mode="after")
    def _check(self) -> CompletionRequest:
        self.prompts()
        if self.prompt_embeds is not None:
            self._check_vectors()
        if self.only_prompts and not self.echo:
            raise RequestError(
                "max_tokens: 0 needs echo: true, or there is nothing to answer", "max_tokens"
            )
        if self.stream and self.echo and self.logprobs is not None:
            raise RequestError("echo with logprobs cannot be streamed", "echo")
        if self.suffix and self.truncate_prompt_tokens is not None:  # the marks would be cut off
            raise RequestError(
                "truncate_prompt_tokens and suffix cannot be given together",
                "truncate_prompt_tokens",
            )
        return self

    def _check_vectors(self) -> None:
        for name in ("prompt", "suffix", "echo", "truncate_prompt_tokens", "kv_transfer_params"):
            if getattr(self, name):
                why = f"{name} and prompt_embeds cannot be given together"
                raise RequestError(why, "prompt_embeds")

    def prompts(self) -> list[str | list[int]]:
        """Texts or token ids; of vectors, none."""
        if self.prompt_embeds is not None:
            return [[] for _ in texts_of("prompt_embeds", self.prompt_embeds)]
        return texts_of("prompt", self.prompt)

    def take_vector_files(self) -> list[str]:
        """They are large, and the request lives to the end of its answer: so it lets go of them."""
        files, self.prompt_embeds = texts_of("prompt_embeds", self.prompt_embeds), None
        return files

    @property
    def only_prompts(self) -> bool:
        """Whether nothing is to be written: the answer is of the prompts alone."""
        return self.wanted_tokens == 0

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        others: dict[str, Any] = {}
        if self.echo and self.logprobs is not None:  # the prompt's tokens have logprobs too
            others["prompt_logprobs"] = max(self.logprobs, self.prompt_logprobs or 0)
        scored = others.get("prompt_logprobs", self.prompt_logprobs) is not None
        alone = scored and (self.best_of or self.n or 1) == 1
        if self.only_prompts and not alone:  # computing it ends with a token that nobody gets
            others["max_tokens"] = 1
        return self._sampling_params(defaults, **others)


class ChatRequest(PromptedRequest, ToolFields):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[Listed[ChatMessage], at_most(_MOST_MESSAGES, "messages")] = doc(
        ..., "the conversation so far", examples=[[{"role": "user", "content": "Hello!"}]]
    )
    max_completion_tokens: int | None = doc(
        None, "most tokens to generate; left out, max_tokens, its older name", ge=1
    )
    logprobs: bool = doc(False, "add each token's log-probability")
    top_logprobs: int | None = doc(None, "and of this many likeliest", ge=0, le=100)
    chat_template_kwargs: _Variables | None = doc(None, "variables of the model's chat template")
    add_generation_prompt: bool | None = doc(
        None, "end the prompt with the opening of an answer; left out, it is done"
    )
    continue_final_message: bool = doc(
        False, "let the answer go on with the last message, without an end or an opening between"
    )
    documents: Annotated[list[_Variables], at_most(_MOST_DOCUMENTS, "documents")] | None = doc(
        None, "what a template for retrieval puts into the prompt"
    )
    chat_template: Annotated[str, Field(max_length=_LONGEST_TEMPLATE)] | None = doc(
        None, "a Jinja template in place of the model's; needs --trust-request-chat-template"
    )
    verbosity: Literal["low", "medium", "high"] | None = doc(
        None, "a hint for templates that take it"
    )

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt cannot both be true",
                "continue_final_message",
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
        return self

    @property
    def field_names(self) -> Mapping[str, str]:
        names = {"prompt": "messages", "logprobs": "top_logprobs", **super().field_names}
        if self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        elif self.max_tokens is None:
            names.setdefault("max_tokens", "max_completion_tokens")
        if self.thinking_token_budget is None:
            names["thinking_token_budget"] = "thinking_budget"
        return names

    @property
    def wanted_tokens(self) -> int | None:
        newer = self.max_completion_tokens
        if newer is None:
            return super().wanted_tokens
        return None if newer == -1 else newer

    @property
    def rendering(self) -> dict[str, Any]:
        """What the request says of the rendering itself, beside the template's variables."""
        given = given_of(self, "documents", "verbosity", "chat_template")
        if self.continue_final_message:
            given |= {"continue_final_message": True, "add_generation_prompt": False}
        elif self.add_generation_prompt is not None:
            given["add_generation_prompt"] = self.add_generation_prompt
        return {name: value for name, value in given.items() if value != []}

    @property
    def echoed(self) -> str:
        """What the answer begins with: the message that it goes on, if ``echo`` is set."""
        content, last = "", self.messages[-1] if self.messages else None
        if self.echo and last is not None and last.role == "assistant":
            content = str(last.for_template()["content"])
        return content

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        return self._sampling_params(
            defaults,
            max_tokens=self.wanted_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            thinking_token_budget=(
                self.thinking_budget
                if self.thinking_token_budget is None
                else self.thinking_token_budget
            ),
        )


class TurnRequest(GenerationRequest):
    """The body of POST /v1/sessions/{id}/generate: the fields of a completion without a prompt."""

    echo: ClassVar[bool] = False

    @model_validator(mode="after")
    def _check_turn(self) -> TurnRequest:
        if self.cache_salt is not None:
            raise RequestError(
                "cache_salt belongs to the session: give it when the session is opened",
                "cache_salt",
            )
        if self.kv_transfer_params:
            raise RequestError(
                "kv_transfer_params cannot be given in a session, whose blocks stay here",
                "kv_transfer_params",
            )
        return self

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        return self._sampling_params(defaults)

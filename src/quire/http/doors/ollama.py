"""Ollama's API: /api/chat and /api/generate.

Options about the machine pass; what would be ignored is refused. An answer is lines that hold a
piece each, and a last one with what it all took.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from msgspec import UNSET, UnsetType
from pydantic import Field, model_validator

from quire.core.errors import RequestError
from quire.engine.input_processor import as_dict
from quire.engine.outputs import CompletionOutput, Delta
from quire.http.answers.logprobs import TokenLogprob, chat_logprobs
from quire.http.answers.rendering import Answer, Json, json_response, respond
from quire.http.answers.streaming import LINES, Events, EventStream
from quire.http.body_fields import (
    Ids,
    Listed,
    Name,
    Strict,
    Texts,
    at_most,
    between,
    expecting,
    in_callers_words,
)
from quire.http.chats.conversation import ConversationTurn, PreparedChat, begin, said
from quire.http.chats.speech import MOST_TOOLS
from quire.http.doors.llama_cpp import LlamaOptions
from quire.http.doors.ollama_context import Context, fitting, fitting_text
from quire.http.doors.ollama_models import add_models, untagged
from quire.http.doors.turn_stream import (
    Block,
    BlockClosed,
    BlockGrown,
    Change,
    Kind,
    RawText,
    Speaker,
    TurnStream,
    going_on,
    now,
)
from quire.http.openai.requests import FunctionTool, JsonObject
from quire.http.openapi import body_route, gives
from quire.http.service import Caller, ModelChoice, Service
from quire.text.chat_template import Message
from quire.text.encoder import PromptForm
from quire.text.params import SamplingParams, StructuredOutputs

_MOST_MESSAGES, _MOST_CALLS = 4096, 256
_LEAST_CONTEXT = 4  # tokens, as Ollama has it

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


class OllamaBody(Strict):
    """What all requests have in common."""

    model: str
    options: OllamaOptions = OllamaOptions()
    keep_alive: KeepAlive | None = None

    def asks(self, service: Service) -> ModelChoice:
        """The model that answers."""
        return service.model_of(untagged(service, self.model), self.warnings)

    def context_of(self, max_model_len: int | None) -> Context:
        """The context of num_ctx, with a warning where that is more than there is."""
        wanted, there_is = self.options.num_ctx, max_model_len
        if wanted is not None and (there_is is None or wanted < there_is):
            return Context(max(wanted, _LEAST_CONTEXT), "num_ctx")
        if wanted is not None and there_is is not None and wanted > there_is:
            self.warnings.append(f"num_ctx is {there_is} (--max-model-len), not {wanted}")
        return Context(there_is)


class OllamaRequest(OllamaBody):
    """What requests for text have in common.

    truncate: leave out what is oldest of a prompt that is too long; else it is refused.
    """

    stream: bool = True
    format: Format | None = None
    truncate: bool = True
    shift: bool = True  # an answer ends where the context is full
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
        """The chat template's variables."""
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
    tool_calls: Annotated[Listed[OllamaCall], at_most(_MOST_CALLS, "calls")] | None = None
    tool_name: Name | None = None
    tool_call_id: Name | None = None

    def for_template(self) -> Message:
        return said(
            self.role,
            self.content,
            reasoning_content=self.thinking,
            tool_calls=[call.for_template() for call in self.tool_calls or ()],
            name=self.tool_name,
            tool_call_id=self.tool_call_id,
        )


class OllamaTool(FunctionTool):
    type: Literal["function"] = "function"


_Tools = Annotated[Listed[OllamaTool], at_most(MOST_TOOLS, "tools")]


class OllamaChatRequest(OllamaRequest):
    """The body of POST /api/chat."""

    messages: Annotated[Listed[OllamaMessage], at_most(_MOST_MESSAGES, "messages")] = Field(
        default_factory=list
    )
    tools: _Tools = Field(default_factory=list)


_NANOSECONDS = 10**9


class OllamaCallFunction(Answer):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaMessageCall(Answer):
    id: str
    function: OllamaCallFunction

    @classmethod
    def of(cls, block: Block) -> OllamaMessageCall:
        return cls(block.call_id, OllamaCallFunction(block.number, block.name, block.arguments))


class OllamaMessageAnswer(Answer):
    role: str
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaMessageCall] | UnsetType = UNSET


class _Line(Answer, kw_only=True):
    """The fields that both kinds of lines have."""

    model: str
    created_at: str
    done: bool = False
    done_reason: str | UnsetType | None = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class GeneratedAnswer(_Line, kw_only=True):
    """To /api/generate. The last line of a stream has all of it; a whole answer too."""

    response: str
    thinking: str | UnsetType = UNSET

    @classmethod
    def of(cls, model: str, *, content: str = "", **more: Any) -> GeneratedAnswer:
        return cls(model=model, created_at=now(), response=content, **more)


class OllamaChatAnswer(_Line, kw_only=True):
    """To /api/chat. The last line of a stream has all of it; a whole answer too."""

    message: OllamaMessageAnswer

    @classmethod
    def of(
        cls,
        model: str,
        *,
        content: str = "",
        thinking: str | UnsetType = UNSET,
        tool_calls: list[OllamaMessageCall] | UnsetType = UNSET,
        **more: Any,
    ) -> OllamaChatAnswer:
        message = OllamaMessageAnswer("assistant", content, thinking, tool_calls)
        return cls(model=model, created_at=now(), message=message, **more)


Line = GeneratedAnswer | OllamaChatAnswer


class OllamaWriter:
    """Writes an answer. line: the type of its lines."""

    def __init__(self, turn: TurnStream, request: OllamaRequest, line: type[Line]) -> None:
        self._turn = turn
        self._request = request
        self._line = line

    def lines(self) -> Events:
        return self._turn.events(
            self._pieces, lambda: [self._line.of(self._request.model, **self._ending())]
        )

    async def whole(self) -> Line:
        await self._turn.all()
        (output,), blocks = self._turn.result.outputs, self._turn.blocks
        said: Json = {"content": "".join(map(_content, blocks))}
        thinking = "".join(one.text for one in blocks if one.kind is Kind.REASONING)
        calls = [OllamaMessageCall.of(block) for block in blocks if _is_call(block)]
        said |= {"thinking": thinking} if thinking else {}
        said |= {"tool_calls": calls} if calls else {}
        logprobs = self._logprobs(output)
        return self._line.of(self._request.model, **said, **self._ending(), logprobs=logprobs)

    def _pieces(self, delta: Delta, changes: Iterable[Change]) -> list[Line]:
        said: list[Json] = []
        for change in changes:
            match change:
                case BlockGrown(block, text) if block.kind is Kind.TEXT:
                    said.append({"content": text})
                case BlockGrown(block, text) if block.kind is Kind.REASONING:
                    said.append({"thinking": text})
                case BlockClosed(block) if _is_call(block):
                    said.append({"tool_calls": [OllamaMessageCall.of(block)]})
                case BlockClosed(block) if block.cut is not None:
                    said.append({"content": block.cut})
        logprobs = self._logprobs(delta)
        if logprobs and not said:
            said.append({})
        lines = [self._line.of(self._request.model, **one) for one in said]
        if lines:
            lines[0].logprobs = logprobs
        return lines

    def _logprobs(self, source: CompletionOutput | Delta) -> list[TokenLogprob] | UnsetType:
        """Of the text's tokens: Ollama tells nothing of the one that ends it."""
        if source.logprobs is None:
            return UNSET
        tables = [table for table in source.logprobs if table.token.shown]
        return [*chat_logprobs(tables, self._request.top_logprobs).content]

    def _ending(self) -> Json:
        """What the last line says: why it is the last, and what the request has used."""
        (output,), story = self._turn.result.outputs, self._turn.result.metrics
        first = story.e2e_latency if story.ttft is None else story.ttft
        return {
            "done": True,
            "done_reason": output.finish_reason,
            "total_duration": _nanoseconds(story.e2e_latency),
            "load_duration": 0,  # it is there before anybody asks
            "prompt_eval_count": story.num_prompt_tokens,
            "prompt_eval_duration": _nanoseconds(first),
            "eval_count": story.num_output_tokens,
            "eval_duration": _nanoseconds(story.e2e_latency - first),
            "warnings": self._request.warnings or UNSET,
        }


def _content(block: Block) -> str:
    """What it adds to the text: of a call that is not complete, what was written of it."""
    return block.text if block.kind is Kind.TEXT else block.cut or ""


def _is_call(block: Block) -> bool:
    return block.kind is Kind.CALL and block.cut is None


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)


_NAMES = {  # of fields that are called otherwise here
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "logprobs": "top_logprobs",
    "structured_outputs": "format",
    **{
        name: f"options.{name}"
        for name in (
            "temperature", "top_k", "top_p", "min_p", "seed", "stop", "num_ctx",
            "presence_penalty", "frequency_penalty",
        )
    },
}  # fmt: skip


def add_ollama(app: FastAPI, service: Service) -> None:
    add_models(app, service)

    @body_route(
        app,
        service,
        GenerateRequest,
        gives(GeneratedAnswer, GeneratedAnswer, framing=LINES),
        "/api/generate",
        from_tools=True,
    )
    async def generate(http: Request, request: GenerateRequest) -> Response:
        """Ollama's: answer a prompt."""
        model = request.asks(service)
        if not request.prompt:
            return _loaded(request, GeneratedAnswer)
        with in_callers_words(_NAMES | {"messages": "prompt"}, in_text=True):
            params = _params(service, request)
            speaker = await _speaker(service, model, service.caller(http), request, params)
        return await _answer(service, request, speaker, GeneratedAnswer)

    @body_route(
        app,
        service,
        OllamaChatRequest,
        gives(OllamaChatAnswer, OllamaChatAnswer, framing=LINES),
        "/api/chat",
        from_tools=True,
    )
    async def chat(http: Request, request: OllamaChatRequest) -> Response:
        """Ollama's: answer a conversation."""
        model = request.asks(service)
        if not request.messages:
            return _loaded(request, OllamaChatAnswer)
        with in_callers_words(_NAMES | {"prompt": "messages"}, in_text=True):
            params, options = _params(service, request), service.caller(http).options(model)
            read = partial(_turn, request, params, options)
            turn = await service.bodies.done(read, large=request.large)
            speaker = await _begun(service, request, turn)
        return await _answer(service, request, speaker, OllamaChatAnswer)


def _turn(
    request: OllamaChatRequest, params: SamplingParams, options: Mapping[str, Any]
) -> ConversationTurn:
    messages = [message.for_template() for message in request.messages]
    return ConversationTurn(
        messages=messages,
        params=params,
        tools=[tool.as_tool() for tool in request.tools],
        variables=request.variables,
        rendering=going_on(messages),
        options=options,
    )


async def _speaker(
    service: Service,
    model: ModelChoice,
    caller: Caller,
    request: GenerateRequest,
    params: SamplingParams,
) -> Speaker:
    own = caller.options(model)
    templated = service.input_processor.tokenizer.chat_template or request.system
    if request.raw or not templated:
        context, text = request.context_of(service.input_processor.max_model_len), request.prompt
        if request.truncate:
            most = params.max_tokens
            token_ids = await fitting_text(service, text, most, context, request.warnings)
        else:
            with service.reserve(1, [text]):
                token_ids = await service.engine.text_prompt(text, PromptForm())
        params = context.ended_by(params, len(token_ids), "prompt")
        return RawText(service, {**as_dict(token_ids), **own}, params)
    turn = ConversationTurn(
        messages=request.messages,
        params=params,
        variables=request.variables,
        options=own,
    )
    return await _begun(service, request, turn)


async def _begun(service: Service, request: OllamaRequest, turn: ConversationTurn) -> PreparedChat:
    context = request.context_of(service.input_processor.max_model_len)
    if request.truncate:
        chat = await fitting(service, turn, context, request.warnings)
    else:
        chat = await begin(service, turn)
    chat.params = context.ended_by(chat.params, chat.num_prompt_tokens, "messages")
    return chat


async def _answer(
    service: Service, request: OllamaRequest, speaker: Speaker, line: type[Line]
) -> Response:
    turn = TurnStream(speaker, "ollama-", lambda: f"call_{uuid.uuid4().hex[:24]}", _NAMES)
    writer = OllamaWriter(turn, request, line)
    if request.stream:
        return EventStream(writer.lines(), LINES, service.silence)
    whole = await writer.whole()
    return await json_response(lambda: whole, large=request.logprobs)


def _params(service: Service, request: OllamaRequest) -> SamplingParams:
    given, input_processor = request.options, service.input_processor
    structure = None
    if request.format == "json":
        structure = StructuredOutputs(json_object=True)
    elif request.format:
        structure = StructuredOutputs(json=request.format)
    params = given.sampling_params(
        input_processor.sampling_defaults,
        given.num_predict,
        logprobs=request.top_logprobs if request.logprobs else None,
        structured_outputs=structure,
    )
    service.check_answer(params)
    return params


def _loaded(request: OllamaRequest, line: type[Line]) -> Response:
    """Without a prompt, a client asks for the model to be loaded, or not to be any more."""
    reason = "unload" if request.keep_alive in (0, "0") else "load"
    response = respond(line.of(request.model, done=True, done_reason=reason))
    if request.stream:
        response.headers["content-type"] = LINES.media_type
    return response

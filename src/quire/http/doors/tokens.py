"""POST /tokenize and /detokenize: what a text comes to, without a model's work."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from msgspec import UNSET, UnsetType
from pydantic import model_validator

from quire.core.errors import RequestError
from quire.http.answers.rendering import Answer, json_response, respond
from quire.http.body_fields import Ids, Listed, Strict, at_most, no_deeper
from quire.http.chats.conversation import ConversationTurn, begin
from quire.http.openai.requests import ChatMessage, Tools
from quire.http.openapi import body_route, gives
from quire.http.service import Service
from quire.text.encoder import PromptForm
from quire.text.params import SamplingParams

_PROMPTS = ("prompt", "messages", "content")
_MANY = 1024  # tokens whose texts are not made at once


class TokenizeRequest(Strict):
    """A text or a conversation as vLLM's clients send them, or a text as llama.cpp's do."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[Listed[ChatMessage], at_most(4096, "messages")] | None = None
    add_special_tokens: bool | None = None  # a conversation's template writes them itself
    return_token_strs: bool = False
    tools: Tools | None = None  # from here on a conversation's
    chat_template_kwargs: Annotated[dict[str, Any], no_deeper(16, 4096)] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    content: str | None = None  # llama.cpp's, and so are these
    add_special: bool = False
    with_pieces: bool = False
    parse_special: Literal[True] = True  # the tokenizer's names for special tokens are just that

    @model_validator(mode="after")
    def _check(self) -> TokenizeRequest:
        given = [name for name in _PROMPTS if getattr(self, name) is not None]
        if len(given) != 1:
            raise RequestError(f"one of {', '.join(_PROMPTS)} must be given", "prompt")
        if self.continue_final_message and "add_generation_prompt" not in self.model_fields_set:
            self.add_generation_prompt = False
        return self

    @property
    def rendering(self) -> dict[str, bool]:
        """How the chat template is rendered."""
        return {
            "add_generation_prompt": self.add_generation_prompt,
            **({"continue_final_message": True} if self.continue_final_message else {}),
        }


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: Ids


class TokenPiece(Answer):
    id: int
    piece: str | list[int]


class Tokenized(Answer, kw_only=True):
    """To a prompt or messages; to llama.cpp's content, ``tokens`` alone, with or without pieces."""

    count: int | UnsetType = UNSET
    max_model_len: int | UnsetType | None = UNSET
    tokens: Sequence[int | TokenPiece]
    token_strs: list[str] | UnsetType | None = UNSET
    warnings: list[str] | UnsetType = UNSET


class Detokenized(Answer):
    """The same text by vLLM's name and by llama.cpp's."""

    prompt: str
    content: str


def add_tokens(app: FastAPI, service: Service) -> None:
    @body_route(app, service, TokenizeRequest, gives(Tokenized), "/tokenize")
    async def tokenize(http: Request, request: TokenizeRequest) -> Response:
        """The tokens of a text, or of a conversation by the model's chat template."""
        token_ids = await _token_ids(service, request)
        answer = _as_llama_cpp if request.content is not None else _as_vllm
        large = len(token_ids) > _MANY
        tokenized = answer(service, request, token_ids)
        tokenized.warnings = request.warnings or UNSET
        return await json_response(lambda: tokenized, large=large)

    @body_route(app, service, DetokenizeRequest, gives(Detokenized), "/detokenize")
    async def detokenize(http: Request, request: DetokenizeRequest) -> Response:
        """The text of tokens."""
        service.model_of(request.model, request.warnings)
        with service.reserve():
            text = await service.engine.detokenize(request.tokens)
        return respond(Detokenized(prompt=text, content=text))


async def _token_ids(service: Service, request: TokenizeRequest) -> list[int]:
    service.model_of(request.model, request.warnings)
    if request.messages is not None:
        turn = await service.bodies.done(partial(_turn, request), large=request.large)
        return [*(await begin(service, turn)).prompt_token_ids]
    with service.reserve():
        if request.content is not None:
            return await service.engine.tokenize(
                request.content, add_special_tokens=request.add_special
            )
        add_special_tokens = request.add_special_tokens is not False
        return await service.engine.tokenize(
            request.prompt or "", add_special_tokens=add_special_tokens
        )


def _turn(request: TokenizeRequest) -> ConversationTurn:
    return ConversationTurn(
        [message.for_template() for message in request.messages or ()],
        SamplingParams(max_tokens=1),
        tools=[tool.as_tool() for tool in request.tools or ()],
        variables=request.chat_template_kwargs or {},
        rendering=request.rendering,
        form=PromptForm(add_special_tokens=request.add_special_tokens),
        field_names={"prompt": "messages"},
    )


def _as_vllm(service: Service, request: TokenizeRequest, token_ids: list[int]) -> Tokenized:
    named = service.input_processor.tokenizer.own_texts.named
    names = [*map(named, token_ids)] if request.return_token_strs else None
    length = service.input_processor.max_model_len
    return Tokenized(count=len(token_ids), max_model_len=length, tokens=token_ids, token_strs=names)


def _as_llama_cpp(service: Service, request: TokenizeRequest, token_ids: list[int]) -> Tokenized:
    if not request.with_pieces:
        return Tokenized(tokens=token_ids)
    own = service.input_processor.tokenizer.own_texts.bytes
    return Tokenized(tokens=[TokenPiece(token_id, piece(own[token_id])) for token_id in token_ids])


def piece(data: bytes) -> str | list[int]:
    """As llama.cpp has it: bytes that are no whole characters come one by one."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return [*data]

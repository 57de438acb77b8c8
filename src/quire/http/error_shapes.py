"""Errors in the shape of the API of their path: OpenAI's, unless a path is another's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from msgspec import UNSET, UnsetType
from starlette.types import Scope

from quire.http.answers.rendering import Answer

CLIENT, SERVER = "invalid_request_error", "server_error"

_ANTHROPIC_S_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_LLAMA_CPP_S_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    503: "unavailable_error",
}


class Problem(NamedTuple):
    """An error as OpenAI's API has it, from which the other shapes are made.

    context: of a prompt that is too long, the tokens that it has, that it may have, and that it
    may have together with the output.
    """

    status: int
    message: str
    type: str = CLIENT
    param: str | None = None
    code: str | None = None
    context: tuple[int, int, int] | None = None


class ShapedError(Answer):
    """An error as one API has it."""

    @classmethod
    def of(cls, problem: Problem) -> Answer:
        raise NotImplementedError


ErrorShape = Callable[[Problem], Answer]


class ErrorBody(Answer):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(ShapedError):
    """Why a request could not be served; ``param`` is the field at fault."""

    error: ErrorBody

    @classmethod
    def of(cls, problem: Problem) -> Answer:
        return cls(ErrorBody(*problem[1:5]))


class AnthropicErrorBody(Answer):
    type: str
    message: str


class AnthropicErrorAnswer(ShapedError, kw_only=True):
    type: Literal["error"] = "error"
    error: AnthropicErrorBody

    @classmethod
    def of(cls, problem: Problem) -> Answer:
        kind = "invalid_request_error" if problem.status < 500 else "api_error"
        message = problem.message
        if problem.context is not None:
            tokens, most, _ = problem.context
            message = f"prompt is too long: {tokens} tokens > {most} maximum; {message}"
        kind = _ANTHROPIC_S_TYPES.get(problem.status, kind)
        return cls(error=AnthropicErrorBody(kind, message))


class OllamaErrorAnswer(ShapedError):
    error: str

    @classmethod
    def of(cls, problem: Problem) -> Answer:
        long = "the input length exceeds the context length; "
        return cls(problem.message if problem.context is None else long + problem.message)


class LlamaCppErrorBody(Answer):
    code: int
    message: str
    type: str
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class LlamaCppErrorAnswer(ShapedError):
    error: LlamaCppErrorBody

    @classmethod
    def of(cls, problem: Problem) -> Answer:
        status, message = problem.status, problem.message
        if problem.context is None:
            kind = _LLAMA_CPP_S_TYPES.get(status, CLIENT if status < 500 else SERVER)
            return cls(LlamaCppErrorBody(status, message, kind))
        tokens, _, length = problem.context
        told = f"request ({tokens} tokens) exceeds the available context size ({length} tokens)"
        kind = "exceed_context_size_error"
        return cls(LlamaCppErrorBody(status, f"{told}; {message}", kind, tokens, length))


_BY_PATH: Mapping[str, type[ShapedError]] = {
    "/api": OllamaErrorAnswer,
    "/v1/messages": AnthropicErrorAnswer,
    "/completion": LlamaCppErrorAnswer,
    "/embedding": LlamaCppErrorAnswer,
    "/embeddings": LlamaCppErrorAnswer,
    "/props": LlamaCppErrorAnswer,
    "/slots": LlamaCppErrorAnswer,
}


def shape_for(scope: Scope) -> type[ShapedError]:
    """The shape of errors on a path and what is below it."""
    path = route_path(scope)
    for above, shape in _BY_PATH.items():
        if path == above or path.startswith(above + "/"):
            return shape
    return ErrorAnswer


def route_path(scope: Scope) -> str:
    """The path below ``root_path``, which proxies may or may not have taken away."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))

"""Errors in the shape of the API that was asked: OpenAI's, unless a path is another's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import Scope

Json = dict[str, Any]
ErrorShape = Callable[[int, Json], Json]
"""From the status, and the body in OpenAI's shape, to the body as it is sent.

Where the prompt was too long, "context" stands beside the error: the tokens that it has, that it
may have, and that it may have together with the output.
"""

CONTEXT_LENGTH = "context_length_exceeded"

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


def in_openai_s_shape(status: int, body: Json) -> Json:
    return {"error": body["error"]}


def in_anthropic_s_shape(status: int, body: Json) -> Json:
    kind = "invalid_request_error" if status < 500 else "api_error"
    message = body["error"]["message"]
    if "context" in body:
        tokens, most, _ = body["context"]
        message = f"prompt is too long: {tokens} tokens > {most} maximum; {message}"
    error = {"type": _ANTHROPIC_S_TYPES.get(status, kind), "message": message}
    return {"type": "error", "error": error}


def in_ollama_s_shape(status: int, body: Json) -> Json:
    message = body["error"]["message"]
    if "context" in body:
        message = f"the input length exceeds the context length; {message}"
    return {"error": message}


def in_llama_cpp_s_shape(status: int, body: Json) -> Json:
    kind = "invalid_request_error" if status < 500 else "server_error"
    kind, message = _LLAMA_CPP_S_TYPES.get(status, kind), body["error"]["message"]
    if "context" not in body:
        return {"error": {"code": status, "message": message, "type": kind}}
    tokens, _, length = body["context"]
    told = f"request ({tokens} tokens) exceeds the available context size ({length} tokens)"
    error = {"code": status, "message": f"{told}; {message}", "type": "exceed_context_size_error"}
    return {"error": {**error, "n_prompt_tokens": tokens, "n_ctx": length}}


_BY_PATH: Mapping[str, ErrorShape] = {
    "/api": in_ollama_s_shape,
    "/v1/messages": in_anthropic_s_shape,
    "/completion": in_llama_cpp_s_shape,
    "/embedding": in_llama_cpp_s_shape,
    "/embeddings": in_llama_cpp_s_shape,
    "/props": in_llama_cpp_s_shape,
    "/slots": in_llama_cpp_s_shape,
}


def shape_for(scope: Scope) -> ErrorShape:
    """The shape of errors on a path and what is below it."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    for above, shape in _BY_PATH.items():
        if path == above or path.startswith(above + "/"):
            return shape
    return in_openai_s_shape

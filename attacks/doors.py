"""A JSON schema for the answer, as each door takes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attacks.target import Target, http_request


def asking_every_door(target: Target, schemas: Sequence[Any]) -> list[bytes]:
    """Requests for a short answer that follows a schema: of every schema, at every door."""
    return [
        http_request(path, json.dumps(body).encode())
        for schema in schemas
        for path, body in bodies(target.limits.model, schema)
    ]


def bodies(model: str, schema: Any) -> list[tuple[str, dict[str, Any]]]:
    """The path and the body at each."""
    named = {"name": "a", "schema": schema}
    plain = {"model": model, "prompt": "The town", "max_tokens": 9}
    chat = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}
    tool = {"name": "a", "parameters": schema, "strict": True}
    return [
        ("/v1/completions", {**plain, "structured_outputs": {"json": schema}}),
        ("/v1/completions", {**plain, "guided_json": schema}),
        ("/v1/completions", {**plain, "structured_outputs": {"structural_tag": _tag(schema)}}),
        ("/v1/completions", {**plain, "structured_outputs": {"grammar": _lark(schema)}}),
        (
            "/v1/chat/completions",
            {**chat, "response_format": {"type": "json_schema", "json_schema": named}},
        ),
        (
            "/v1/chat/completions",
            {
                **chat,
                "tools": [{"type": "function", "function": tool}],
                "tool_choice": "required",
            },
        ),
        (
            "/v1/responses",
            {
                "model": model,
                "input": "hello",
                "max_output_tokens": 16,
                "text": {"format": {"type": "json_schema", **named}},
            },
        ),
        (
            "/v1/messages",
            {**chat, "output_config": {"format": {"type": "json_schema", "schema": schema}}},
        ),
        (
            "/api/generate",
            {"model": model, "prompt": "a", "format": schema, "options": {"num_predict": 9}},
        ),
        ("/completion", {"prompt": "The town", "n_predict": 9, "json_schema": schema}),
    ]


def _tag(schema: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}


def _lark(schema: Any) -> str:
    return f"start: %json {json.dumps(schema)}"

"""From the items of responses to the messages of a chat template, and what a turn asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from quire.core.protocol import SamplingParams, StructuredOutputs
from quire.http.answers.rendering import Json
from quire.http.chats.conversation import ConversationTurn
from quire.http.doors.responses_tools import arguments_of, flat_name
from quire.http.doors.responses_types import ResponsesRequest, SchemaFormat
from quire.text.chat_template import Message

FIELD_NAMES = {
    "prompt": "input",
    "messages": "input",
    "client": "user",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "structured_outputs": "text.format",
}


def turn(
    request: ResponsesRequest,
    items: Iterable[Json],
    defaults: Mapping[str, Any],
    options: Mapping[str, Any],
) -> ConversationTurn:
    """items: all of the conversation's, those of earlier responses first."""
    offered = request.offered
    return ConversationTurn(
        messages=list(messages(request.instructions, items)),
        params=_sampling_params(request, defaults),
        tools=offered.tools,
        choice=offered.choice,
        parallel_calls=request.parallel_tool_calls,
        reasoning_effort=request.reasoning.effort,
        rendering={"verbosity": request.text.verbosity} if request.text.verbosity else {},
        options=options,
    )


def _sampling_params(request: ResponsesRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    given: dict[str, Any] = {
        name: getattr(request, name)
        for name in ("temperature", "top_p")
        if getattr(request, name) is not None
    }
    form = request.text.format
    if isinstance(form, SchemaFormat):
        given["structured_outputs"] = StructuredOutputs(json=form.schema_)
    elif form.type == "json_object":
        given["structured_outputs"] = StructuredOutputs(json_object=True)
    if request.wants_logprobs:
        given["logprobs"] = request.top_logprobs or 0
    return SamplingParams.over(defaults, {**given, "max_tokens": request.max_output_tokens})


def messages(instructions: str | None, items: Iterable[Json]) -> Iterator[Message]:
    """Messages in OpenAI's older form. Of an assistant's items, those of one turn are one."""
    if instructions:
        yield {"role": "system", "content": instructions}
    said: dict[str, Any] = {}  # by the assistant, and not in a message yet
    for item in items:
        piece = _of_assistant(item)
        if piece is None:
            yield from _whole(said)
            said = {}
            yield _of_others(item)
            continue
        if _begins_anew(said, piece):
            yield from _whole(said)
            said = {}
        for name, value in piece.items():
            said[name] = said[name] + value if name in said else value
    yield from _whole(said)


def _of_assistant(item: Json) -> dict[str, Any] | None:
    match item:
        case {"type": "message", "role": "assistant", "content": parts}:
            return {"content": _joined(parts)}
        case {"type": "reasoning"}:
            return {"reasoning_content": _joined(item.get("content") or item.get("summary") or ())}
        case {"type": "function_call", "arguments": arguments}:
            return {"tool_calls": [_call(item, arguments)]}
        case {"type": "custom_tool_call", "input": text}:
            return {"tool_calls": [_call(item, arguments_of(text))]}
    return None


def _call(item: Json, arguments: str) -> Json:
    name = flat_name(item.get("namespace"), item["name"])
    function = {"name": name, "arguments": arguments}
    return {"id": item["call_id"], "type": "function", "function": function}


def _of_others(item: Json) -> Message:
    if item["type"] in ("function_call_output", "custom_tool_call_output"):
        content = _joined(item["output"])
        return {"role": "tool", "tool_call_id": item["call_id"], "content": content}
    return {"role": item["role"], "content": _joined(item["content"])}


def _begins_anew(said: Mapping[str, Any], piece: Mapping[str, Any]) -> bool:
    """A turn is reasoning, then text, then calls."""
    order = ("reasoning_content", "content", "tool_calls")
    (kind,) = piece
    return any(name in said for name in order[order.index(kind) + 1 :]) or (
        kind == "content" and "content" in said
    )


def _whole(said: Mapping[str, Any]) -> Iterator[Message]:
    """Nothing of what holds nothing: another server's reasoning is encrypted."""
    if any(said.values()):
        yield {"role": "assistant", "content": "", **said}


def _joined(parts: Iterable[Json]) -> str:
    return "".join(part["text"] for part in parts)

"""From Anthropic's messages to those of a chat template, and what a turn asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire.core.protocol import SamplingParams, StructuredOutputs
from quire.http.chats.conversation import ConversationTurn
from quire.http.chats.tools import AUTO
from quire.http.doors.answering import going_on
from quire.http.doors.anthropic_types import (
    AnthropicMessage,
    CountTokensRequest,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from quire.text.chat_template import Message

FIELD_NAMES = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
    "structured_outputs": "output_config.format",
    "continue_final_message": "messages",
}


def turn(
    request: CountTokensRequest, params: SamplingParams, options: Mapping[str, Any]
) -> ConversationTurn:
    choice = request.tool_choice
    messages = list(_messages(request))
    return ConversationTurn(
        messages=messages,
        params=params,
        tools=[tool.as_tool() for tool in request.tools],
        choice=AUTO if choice is None else choice.as_choice(),
        parallel_calls=choice is None or not choice.disable_parallel_tool_use,
        reasoning_effort=request.output_config.effort,
        variables=_variables(request),
        rendering=going_on(messages),
        options=options,
    )


def sampling_params(request: MessagesRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    given: dict[str, Any] = {
        name: getattr(request, name)
        for name in ("temperature", "top_p", "top_k")
        if getattr(request, name) is not None
    }
    if request.thinking is not None and request.thinking.type == "enabled":
        given["thinking_token_budget"] = request.thinking.budget_tokens
    if request.output_config.format is not None:
        given["structured_outputs"] = StructuredOutputs(json=request.output_config.format.schema_)
    stop = request.stop_sequences
    return SamplingParams.over(defaults, {**given, "max_tokens": request.max_tokens, "stop": stop})


def _variables(request: CountTokensRequest) -> dict[str, Any]:
    """The chat template's: whether to think."""
    variables: dict[str, Any] = {}
    if request.thinking is not None and request.thinking.type != "adaptive":
        variables["enable_thinking"] = request.thinking.type == "enabled"
    return variables


def _messages(request: CountTokensRequest) -> Iterator[Message]:
    if request.system:
        yield {"role": "system", "content": _joined(request.system)}
    for message in request.messages:
        if message.role == "assistant":
            yield _assistant(message)
        else:
            yield from _others(message)


def _assistant(message: AnthropicMessage) -> Message:
    texts = [block for block in message.content if isinstance(block, TextBlock)]
    put: dict[str, Any] = {"role": "assistant", "content": _joined(texts)}
    thoughts = [block.thinking for block in message.content if isinstance(block, ThinkingBlock)]
    if thoughts:
        put["reasoning_content"] = "\n".join(thoughts)
    calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
    if calls:
        put["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.input},
            }
            for call in calls
        ]
    return put


def _others(message: AnthropicMessage) -> Iterator[Message]:
    """A user's turn holds the results of tools too, which are messages of their own here."""
    texts: list[TextBlock] = []
    for block in message.content:
        if isinstance(block, TextBlock):
            texts.append(block)
        elif isinstance(block, ToolResultBlock):
            if texts:
                yield {"role": message.role, "content": _joined(texts)}
                texts = []
            content = _joined(block.content)
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
    if texts or not message.content:
        yield {"role": message.role, "content": _joined(texts)}


def _joined(blocks: Sequence[TextBlock]) -> str:
    return "\n".join(block.text for block in blocks)

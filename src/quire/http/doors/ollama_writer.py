"""Ollama's answers: lines that hold a piece each, and a last one with what it all took."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

from msgspec import UNSET, UnsetType

from quire.engine.outputs import CompletionOutput, Delta
from quire.http.answers.logprobs import TokenLogprob, chat_logprobs
from quire.http.answers.rendering import Answer, Json
from quire.http.answers.streaming import Events
from quire.http.doors.answering import now
from quire.http.doors.blocks import Block, BlockClosed, BlockGrown, Change, Kind
from quire.http.doors.ollama_types import OllamaRequest
from quire.http.doors.turn_stream import TurnStream

_NANOSECONDS = 10**9
_ID = "ollama-"


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


class GeneratedAnswer(Answer, kw_only=True):
    """To /api/generate. The last line of a stream has all of it; a whole answer too."""

    model: str
    created_at: str
    response: str
    thinking: str | UnsetType = UNSET
    done: bool = False
    done_reason: str | UnsetType | None = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET

    @classmethod
    def of(cls, model: str, *, content: str = "", **more: Any) -> GeneratedAnswer:
        return cls(model=model, created_at=now(), response=content, **more)


class OllamaChatAnswer(Answer, kw_only=True):
    """To /api/chat. The last line of a stream has all of it; a whole answer too."""

    model: str
    created_at: str
    message: OllamaMessageAnswer
    done: bool = False
    done_reason: str | UnsetType | None = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET

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
    """line: what a line of the answer is."""

    def __init__(self, stream: TurnStream, request: OllamaRequest, line: type[Line]) -> None:
        self._stream = stream
        self._state = stream.state
        self._request = request
        self._line = line

    async def lines(self) -> Events:
        async with aclosing(self._stream.changes(_ID)) as steps:
            async for step in steps:
                lines = [line for delta, changes in step for line in self._pieces(delta, changes)]
                if self._state.output is not None:
                    lines.append(self._line.of(self._request.model, **self._ending()))
                if lines:
                    yield lines

    async def whole(self) -> Line:
        state = await self._stream.all(_ID)
        assert state.output is not None
        (output,) = state.output.outputs
        said: Json = {"content": "".join(map(_content, state.blocks))}
        thinking = "".join(one.text for one in state.blocks if one.kind is Kind.REASONING)
        calls = [OllamaMessageCall.of(block) for block in state.blocks if _is_call(block)]
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
        tables = [table for table in source.logprobs if table.place.shown]
        return [*chat_logprobs(tables, self._request.top_logprobs).content]

    def _ending(self) -> Json:
        """What the last line says: why it is the last, and what the request has used."""
        assert self._state.output is not None
        (output,) = self._state.output.outputs
        story = self._state.output.metrics
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
        }


def _content(block: Block) -> str:
    """What it adds to the text: of a call that is not complete, what was written of it."""
    return block.text if block.kind is Kind.TEXT else block.cut or ""


def _is_call(block: Block) -> bool:
    return block.kind is Kind.CALL and block.cut is None


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)

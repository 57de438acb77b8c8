"""Ollama's answers: lines that hold a piece each, and a last one with what it all took."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import aclosing

from quire.engine.outputs import CompletionOutput, Delta
from quire.http.answers.logprobs import chat_logprobs
from quire.http.answers.streaming import Events, Json
from quire.http.doors.answering import now
from quire.http.doors.blocks import Block, Change, Closed, Grown, Kind
from quire.http.doors.ollama_types import OllamaRequest
from quire.http.doors.telling import Telling

_NANOSECONDS = 10**9
_ID = "ollama-"


class OllamaWriter:
    """put: what is said (content, thinking, tool_calls) as a line has it."""

    def __init__(
        self, telling: Telling, request: OllamaRequest, put: Callable[[Json], Json]
    ) -> None:
        self._telling = telling
        self._told = telling.told
        self._request = request
        self._put = put

    async def lines(self) -> Events:
        async with aclosing(self._telling.changes(_ID)) as steps:
            async for step in steps:
                lines = [line for delta, changes in step for line in self._pieces(delta, changes)]
                if self._told.output is not None:
                    lines.append({**self._head(), **self._put({"content": ""}), **self._ending()})
                if lines:
                    yield lines

    async def whole(self) -> Json:
        told = await self._telling.all(_ID)
        assert told.output is not None
        (output,) = told.output.outputs
        said: Json = {"content": "".join(map(_content, told.blocks))}
        thinking = _joined(told.blocks, Kind.REASONING)
        calls = [_call(block) for block in told.blocks if _is_call(block)]
        said |= {"thinking": thinking} if thinking else {}
        said |= {"tool_calls": calls} if calls else {}
        return {**self._head(), **self._put(said), **self._logprobs(output), **self._ending()}

    def _pieces(self, delta: Delta, changes: Iterable[Change]) -> list[Json]:
        said: list[Json] = []
        for change in changes:
            match change:
                case Grown(block, text) if block.kind is Kind.TEXT:
                    said.append({"content": text})
                case Grown(block, text) if block.kind is Kind.REASONING:
                    said.append({"content": "", "thinking": text})
                case Closed(block) if _is_call(block):
                    said.append({"content": "", "tool_calls": [_call(block)]})
                case Closed(block) if block.cut is not None:
                    said.append({"content": block.cut})
        told = self._logprobs(delta)
        if told.get("logprobs") and not said:
            said.append({"content": ""})
        lines = [{**self._head(), **self._put(one), "done": False} for one in said]
        if lines:
            lines[0] |= told
        return lines

    def _head(self) -> Json:
        return {"model": self._request.model, "created_at": now()}

    def _logprobs(self, source: CompletionOutput | Delta) -> Json:
        """Of the text's tokens: Ollama tells nothing of the one that ends it."""
        if source.logprobs is None:
            return {}
        tables = [table for table in source.logprobs if table.place.shown]
        entries = chat_logprobs(tables, self._request.top_logprobs)
        return {"logprobs": list(entries["content"])}

    def _ending(self) -> Json:
        """What the last line says: why it is the last, and what the request has used."""
        assert self._told.output is not None
        (output,) = self._told.output.outputs
        story = self._told.output.metrics
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


def _joined(blocks: Iterable[Block], kind: Kind) -> str:
    return "".join(block.text for block in blocks if block.kind is kind)


def _content(block: Block) -> str:
    """What it adds to the text: of a call that is not complete, what was written of it."""
    return block.text if block.kind is Kind.TEXT else block.cut or ""


def _is_call(block: Block) -> bool:
    return block.kind is Kind.CALL and block.cut is None


def _call(block: Block) -> Json:
    return {
        "id": block.call_id,
        "function": {"index": block.number, "name": block.name, "arguments": block.arguments},
    }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)

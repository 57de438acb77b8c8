"""From the engine's deltas to answers of any shape, whole or in pieces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from datetime import datetime, timezone

from quire.core.errors import RequestError
from quire.engine.outputs import Delta, RequestOutput
from quire.http.answers.rendering import Answer
from quire.http.answers.streaming import Events
from quire.http.service import Progress
from quire.text.chat_template import Message


async def outputs(progress: Progress, names: Mapping[str, str]) -> list[RequestOutput]:
    """The finished requests, in the order of their prompts."""
    finished: dict[int, RequestOutput] = {}
    async with aclosing(progress):
        with in_their_words(names):
            async for deltas in progress:
                finished.update({number: delta.final for number, delta in deltas if delta.final})
    return [finished[number] for number in sorted(finished)]


async def pieces(
    progress: Progress, worded: Callable[[int, Delta], list[Answer]], names: Mapping[str, str]
) -> Events:
    """What ``worded`` makes of each delta of a prompt, as it comes."""
    async with aclosing(progress):
        with in_their_words(names):
            async for deltas in progress:
                values = [value for number, delta in deltas for value in worded(number, delta)]
                if values:
                    yield values


def going_on(messages: Sequence[Message]) -> dict[str, bool]:
    """How a conversation is rendered whose last words are the assistant's: to be gone on with."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or not last["content"] or "tool_calls" in last:
        return {}
    return {"continue_final_message": True, "add_generation_prompt": False}


@contextmanager
def in_their_words(names: Mapping[str, str]) -> Iterator[None]:
    """Name a refused field as the caller wrote it, in the message too: it is all that they see."""
    try:
        yield
    except RequestError as error:
        theirs = names.get(error.field, error.field)
        error.args = (re.sub(rf"\b{re.escape(error.field)}\b", theirs, str(error)),)
        error.field = theirs
        raise


def now() -> str:
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")

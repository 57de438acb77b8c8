"""Schemas that a text is not kept to in all that they say, and how it fits them in the end."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from quire.capabilities.box import BoxBroken
from quire.capabilities.grammar.plain_words import widened
from quire.core.errors import RequestError
from quire.engine.async_engine import AsyncEngine
from quire.engine.outputs import CompletionOutput, Delta
from quire.text.dialect import Reply
from quire.text.params import StructuredOutputs

_LONGEST = 4.0  # seconds of one request, beside the text that is looked at when they are over
_TOO_LONG = "what else was written has not been checked: it takes too long"

Progress = AsyncGenerator[list[tuple[int, Delta]], None]


class Widened(NamedTuple):
    """A schema as the caller gave it, and the words of it that the text is not kept to.

    tool: of whose arguments it is; "": it is that of the answer.
    """

    schema: Mapping[str, Any]
    left_out: Sequence[str]
    tool: str = ""

    @property
    def warning(self) -> str:
        """What the caller is told before anything is written."""
        what = f"the tool {self.tool} is not strict, and its schema is"
        if not self.tool:
            what = "the schema is not strict, and is"
        return f"{what} not kept to in this: {', '.join(self.left_out)}"

    def texts(self, reply: Reply) -> Iterator[tuple[str, str]]:
        """The texts in an answer that it is about, and what each is."""
        if not self.tool and not reply.calls:
            yield "the answer", reply.content
        for call in reply.calls:
            if call.name == self.tool and call.cut is None:
                yield f"the call of {self.tool}", call.arguments


def kept_to(
    schema: Mapping[str, Any], *, strict: bool | None
) -> tuple[StructuredOutputs, list[Widened]]:
    """A schema, or, where ``strict`` is false, a wider one that can be kept to."""
    if strict is not False:
        return StructuredOutputs(json=schema), []
    wider, left_out = widened(schema)
    return StructuredOutputs(json=wider), [Widened(schema, left_out)] if left_out else []


async def checked(
    engine: AsyncEngine,
    progress: Progress,
    schemas: Sequence[Widened],
    reply: Callable[[CompletionOutput], Reply],
    warnings: list[str],
) -> Progress:
    """The same progress. Before a request's last delta, ``warnings`` say how its outputs fit.

    reply: what an output says.
    """
    seconds = 0.0
    async with aclosing(progress):
        async for deltas in progress:
            finals = [delta.final for _, delta in deltas if delta.final is not None]
            outputs = [output for final in finals for output in final.outputs]
            whole = [reply(output) for output in outputs if output.finish_reason == "stop"]
            found = [(one, *each) for said in whole for one in schemas for each in one.texts(said)]
            for one, what, text in found:
                begun = time.monotonic()
                told = _TOO_LONG if seconds > _LONGEST else await _fit(engine, one, what, text)
                seconds += time.monotonic() - begun
                warnings += [told] if told not in warnings else []
            yield deltas


async def _fit(engine: AsyncEngine, wanted: Widened, what: str, text: str) -> str:
    try:
        why = await engine.misfit(wanted.schema, text)
    except (RequestError, BoxBroken) as error:
        return f"whether {what} fits its schema is not known: {error}"
    return f"{what} does not fit its schema: {why}" if why else f"{what} fits its whole schema"

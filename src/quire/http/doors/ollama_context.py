"""What Ollama does with a text that its context cannot hold: the oldest of it is left out.

An answer ends where the context is full. What a context holds is the server's, or less by a
request's ``num_ctx``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from quire.core.errors import ContextLengthError
from quire.http.chats.conversation import ConversationTurn, PreparedChat, begin
from quire.http.service import Service
from quire.text.chat_template import Message
from quire.text.encoder import PromptForm
from quire.text.params import SamplingParams

_SEAM = 8  # tokens more that a text may have in another than by itself


class Context(NamedTuple):
    """How many tokens prompt and answer may have together, if that is bounded, and by what."""

    length: int | None
    name: str = "max_model_len"

    def __str__(self) -> str:
        return f"{self.name} is {self.length}"

    def check(self, known: int, field: str, least: int = 0) -> None:
        """ContextLengthError if after ``known`` tokens there is no room for ``least`` more."""
        if self.length is not None and known + least > self.length:
            most = self.length - least
            why = f"the prompt has {known} tokens; as {self}, it may have at most {most}"
            raise ContextLengthError(why, field, known, most, self.length)

    def ended_by(self, params: SamplingParams, known: int, field: str) -> SamplingParams:
        """Params of an answer that ends where the context is full, after a prompt of that many."""
        if self.length is None or (params.max_tokens is None and self.name == "max_model_len"):
            return params
        self.check(known, field, least=1)
        room = self.length - known
        return replace(params, max_tokens=min(params.max_tokens or room, room))


async def fitting(
    service: Service, turn: ConversationTurn, context: Context, warnings: list[str]
) -> PreparedChat:
    """A turn that is ready, without as many of its oldest messages as do not fit.

    System messages stay, and the last message does, which is cut at its beginning if it must be.
    """
    longest = context.length
    chat = await _within(service, turn, None if longest is None else longest - 1)
    if chat is not None or longest is None:
        return chat or await begin(service, turn)  # which says what is wrong
    most = longest - _output(turn.params.max_tokens, longest)
    starts = _starts(turn.messages)
    low, high, best = 0, len(starts), None
    while low < high:
        middle = (low + high) // 2
        shorter = replace(turn, messages=_from(turn.messages, starts[middle]))
        found = await _within(service, shorter, most)
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle
    if best is not None:
        left_out = len(turn.messages) - len(_from(turn.messages, starts[low]))
        warnings.append(f"the oldest {left_out} messages were left out: {context}")
        return best
    warnings.append(f"the prompt's beginning was cut off: {context}")
    return await _last_cut(service, replace(turn, messages=_from(turn.messages, starts[-1])), most)


async def _last_cut(service: Service, turn: ConversationTurn, most: int) -> PreparedChat:
    """The turn without the beginning of its last message's content."""
    *before, last = turn.messages
    empty = replace(turn, messages=[*before, {**last, "content": ""}])
    around = await _within(service, empty, most - _SEAM)
    if around is None:
        return await begin(service, turn)  # which says what is wrong
    form = PromptForm(False, most - _SEAM - around.num_prompt_tokens + 1)
    end = str(last["content"])[-service.input_processor.max_characters :]
    with service.reserve(1, [end]):
        token_ids = await service.engine.text_prompt(end, form)
        content = await service.engine.detokenize(token_ids)
    content = content.lstrip("\ufffd")  # the end of a character
    return await begin(service, replace(turn, messages=[*before, {**last, "content": content}]))


async def fitting_text(
    service: Service, text: str, max_tokens: int | None, context: Context, warnings: list[str]
) -> list[int]:
    """A prompt, cut at its beginning until it fits."""
    longest = context.length
    try:
        with service.reserve(1, [text]):
            whole = await service.engine.text_prompt(text, PromptForm())
        if longest is None or len(whole) < longest:
            return whole
    except ContextLengthError:
        if longest is None:
            raise
    warnings.append(f"the prompt's beginning was cut off: {context}")
    form = PromptForm(most=longest - _output(max_tokens, longest), keep_begin=True)
    end = text[-service.input_processor.max_characters :]
    with service.reserve(1, [end]):
        return await service.engine.text_prompt(end, form)


def _output(max_tokens: int | None, longest: int) -> int:
    """Tokens for the answer: Ollama goes on with half of a context when that is full."""
    half = max(1, longest // 2)
    return min(max_tokens or half, half)


async def _within(
    service: Service, turn: ConversationTurn, most: int | None
) -> PreparedChat | None:
    """The turn, if its prompt has no more tokens than that."""
    try:
        chat = await begin(service, turn)
    except ContextLengthError:
        return None
    return chat if most is None or chat.num_prompt_tokens <= most else None


def _starts(messages: Sequence[Message]) -> list[int]:
    """Where a shorter conversation may begin: a tool's answer needs its call before it."""
    later = range(1, len(messages))
    starts = [n for n in later if messages[n]["role"] not in ("system", "tool")]
    return starts if starts[-1:] == [len(messages) - 1] else [*starts, len(messages) - 1]


def _from(messages: Sequence[Message], start: int) -> list[Message]:
    return [one for n, one in enumerate(messages) if n >= start or one["role"] == "system"]

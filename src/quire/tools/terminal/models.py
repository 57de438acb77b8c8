"""What a chat asks of a model, wherever it runs."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from quire.core.errors import RequestError
from quire.tools.terminal.conversation import Message


@dataclass(frozen=True)
class Ending:
    """How an answer ended."""

    finish_reason: str | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0


class Piece(NamedTuple):
    """Some text of an answer; the last piece has the ending."""

    text: str = ""
    reasoning: str = ""  # what a model writes before it answers, where it is told apart
    ending: Ending | None = None


Answer = Generator[Piece, None, None]
"""Closed before its end, it stops the model."""


class ContextFullError(RequestError):
    """A conversation is longer than the model can read."""


class ChatModel(Protocol):
    """A model that answers conversations, one at a time."""

    @property
    def name(self) -> str: ...

    @property
    def max_model_len(self) -> int | None:
        """Tokens of a conversation and its answer; None: any number, or not known."""
        ...

    def room(self, messages: Sequence[Message]) -> int | None:
        """Tokens that are left for an answer, below 1 if there are none; None: not known."""
        ...

    def answer(self, messages: Sequence[Message], params: Mapping[str, Any]) -> Answer:
        """Stream an answer; ``params`` are the sampling parameters that were chosen.

        Raises:
            ContextFullError: there is no room for it, which ``room`` did not know.
            QuireError: it is refused, or fails.
        """
        ...

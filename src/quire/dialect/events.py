"""What a model's text turns out to be, piece by piece, and what the pieces come to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class ReasoningPiece(NamedTuple):
    """Thought, before the answer."""

    text: str


class ContentPiece(NamedTuple):
    """What is said to the user."""

    text: str


class CallBegun(NamedTuple):
    """A tool is called; its arguments follow. Calls of one text are numbered from 0.

    id: where the dialect has the model name its calls.
    """

    number: int
    name: str
    id: str | None = None


class CallArguments(NamedTuple):
    """More of the JSON object that a call's arguments are."""

    number: int
    text: str


class CallEnded(NamedTuple):
    """No more of its arguments comes, be they complete or cut short by the end of the text."""

    number: int


Event = ReasoningPiece | ContentPiece | CallBegun | CallArguments | CallEnded


@dataclass
class Call:
    """A tool's name and its arguments, JSON as the model has written it."""

    name: str
    arguments: str = ""
    id: str | None = None


@dataclass
class Reply:
    """A whole text: the sum of its events."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Reply:
        reply = cls()
        for event in events:
            match event:
                case ReasoningPiece(text):
                    reply.reasoning += text
                case ContentPiece(text):
                    reply.content += text
                case CallBegun(_, name, id):
                    reply.calls.append(Call(name, id=id))
                case CallArguments(number, text):
                    reply.calls[number].arguments += text
        return reply

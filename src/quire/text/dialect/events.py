"""The meaning of a model's text: events, piece by piece, and their sum."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class ReasoningPiece(NamedTuple):
    """Thought, before the answer."""

    text: str


class ContentPiece(NamedTuple):
    """A part of the answer to the user."""

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
    """A call's arguments are complete."""

    number: int


class CallCut(NamedTuple):
    """No more of a call's arguments comes, and they are not complete.

    text: what the model has written of the call.
    broken: it goes on as no call can; else the text has ended within the call.
    """

    number: int
    text: str
    broken: bool


Event = ReasoningPiece | ContentPiece | CallBegun | CallArguments | CallEnded | CallCut


@dataclass
class Call:
    """A tool's name and its arguments, in JSON.

    cut: what the model has written of a call that is not complete.
    """

    name: str
    arguments: str = ""
    id: str | None = None
    cut: str | None = None


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
                case CallCut(number, text):
                    reply.calls[number].cut = text
        return reply

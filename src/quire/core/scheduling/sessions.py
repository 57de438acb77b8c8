"""The open sessions, and which of them gives way first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from quire.core.errors import RequestError
from quire.core.memory import KVAllocator
from quire.core.protocol.request import Request
from quire.core.scheduling.decoding import LiveGroups
from quire.core.scheduling.sequence import SequenceGroup
from quire.core.scheduling.session import Session

_Session = TypeVar("_Session", bound=Session)


class Sessions:
    """All open sessions, in order of their last use."""

    def __init__(self, allocator: KVAllocator, live: LiveGroups) -> None:
        self._allocator = allocator
        self._live = live
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def idle(self) -> list[SequenceGroup]:
        """Who holds device blocks without a need, longest first."""
        return [session.resting for session in self._sessions.values() if session.idle]

    def resting(self) -> list[SequenceGroup]:
        return [session.resting for session in self._sessions.values()]

    def open(
        self, request: Request, make: Callable[[str, SequenceGroup, KVAllocator], _Session]
    ) -> _Session:
        """A new one, which ``make`` makes; RequestError if one of that id is open.

        request: of no tokens, with the session's id and what holds for all of its turns.
        """
        session_id = request.request_id
        if session_id in self._sessions:
            raise RequestError(f"session {session_id} is already open", "session_id")
        resting = self._live.resting_group(request)
        session = make(session_id, resting, self._allocator)
        self._sessions[session_id] = session
        return session

    def begin(self, session: Session, request: Request, rank: float) -> SequenceGroup:
        """Its next turn, ready to be queued."""
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = session  # the last one used
        return self._live.add_turn(session, request, rank)

    def close(self, session: Session) -> None:
        """Free its blocks and forget it."""
        session.forget()
        del self._sessions[session.session_id]

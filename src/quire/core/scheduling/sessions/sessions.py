"""The open sessions, what may be done with them, and which of them gives way first."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from quire.core.errors import (
    RequestError,
    SessionBusyError,
    TooManySessionsError,
    UnknownSessionError,
)
from quire.core.memory import KVAllocator
from quire.core.protocol.request import Adapter, Request
from quire.core.scheduling.decoding import LiveGroups
from quire.core.scheduling.sequence import SequenceGroup
from quire.core.scheduling.sessions.session import Ring, Session, SessionVerb

_MOST_SOFT_CUTS = 64  # each is looked at for every token that a step computes
_LONGEST_FADE = 2**31 - 1


@dataclass(frozen=True)
class SessionLimits:
    """How many sessions may be open, and what their histories go round in.

    max_sessions_per_client: how many of them one client may have; None: all.
    soft_cuts: whether there may be any: a state cannot count for less, as keys can.
    """

    max_num_sessions: int = 128
    max_sessions_per_client: int | None = None
    ring: Ring = Ring()  # noqa: RUF009  # frozen
    soft_cuts: bool = True


class Sessions:
    """All open sessions, in order of their last use.

    A session with a turn under way can do nothing else until that has ended.
    """

    def __init__(self, allocator: KVAllocator, live: LiveGroups, limits: SessionLimits) -> None:
        self.limits = limits
        self._allocator = allocator
        self._live = live
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: str) -> Session:
        """UnknownSessionError if none of that id is open."""
        session = self._sessions.get(session_id)
        if session is None:
            raise UnknownSessionError(f"session {session_id} is not open", "session_id")
        return session

    def all(self) -> list[Session]:
        """The open sessions, the one whose last turn is longest ago first."""
        return list(self._sessions.values())

    def idle(self) -> list[SequenceGroup]:
        """Who holds device blocks without a need, longest first."""
        return [session.resting for session in self._sessions.values() if session.idle]

    def resting(self) -> list[SequenceGroup]:
        return [session.resting for session in self._sessions.values()]

    def open(
        self,
        session_id: str,
        cache_salt: str = "",
        client: str | None = None,
        adapter: Adapter | None = None,
        recompute_last_n: int | None = None,
    ) -> None:
        """A sequence that lives from turn to turn; RequestError if too many are open.

        client: whose share it counts against; None: nobody's.
        recompute_last_n: see ``Session``.
        """
        if session_id in self._sessions:
            raise RequestError(f"session {session_id} is already open", "session_id")
        self._refuse_to_keep(recompute_last_n)
        self._refuse_above_share(client)
        most = self.limits.max_num_sessions
        if len(self._sessions) >= most:
            raise TooManySessionsError(
                f"max_num_sessions, {most}, are open: close one first",
                "session_id",
            )
        resting = self._live.resting_group(session_id, cache_salt, adapter)
        self._sessions[session_id] = Session(session_id, resting, client, recompute_last_n)

    def _refuse_above_share(self, client: str | None) -> None:
        most = self.limits.max_sessions_per_client
        if client is None or most is None:
            return
        if sum(session.client == client for session in self._sessions.values()) >= most:
            raise TooManySessionsError(
                f"this client has max_sessions_per_client, {most}, open: close one first",
                "session_id",
            )

    def _refuse_to_keep(self, last_n: int | None) -> None:
        """What is kept must leave room for an input and an answer."""
        sinks, size = self.limits.ring
        if last_n is None:
            return
        most = math.inf if size is None else size - sinks - 2
        if isinstance(last_n, bool) or not isinstance(last_n, int) or not 1 <= last_n <= most:
            raise RequestError(
                f"recompute_last_n must be an integer from 1 to {most:,}; got {last_n!r}",
                "recompute_last_n",
            )

    def append(self, session_id: str, token_ids: Seq[int]) -> None:
        """Input for the next turn, which will compute it."""
        self.unused(session_id).append(token_ids)

    def begin(self, session_id: str, request: Request, rank: float) -> SequenceGroup:
        """The next turn, ready to be queued."""
        session = self._sessions.pop(session_id)
        self._sessions[session_id] = session  # the last one used
        return self._live.add_turn(session, request, rank)

    def hard_cut(self, session_id: str) -> None:
        """Empty the session's cache and history; the next cache epoch begins."""
        session = self.unused(session_id)
        session.restart((), self._allocator)
        session.cache_epoch += 1
        session.note(SessionVerb.HARD_CUT)

    def soft_cut(self, session_id: str, bias: float, fade: int) -> None:
        """From here on, attend less to the history so far, but for sinks (see ``SoftCut``)."""
        session = self.unused(session_id)
        sinks, known = self.limits.ring.sinks, len(session.history)
        if not self.limits.soft_cuts:
            raise RequestError(
                "this model's layers keep a state of all the history, which cannot count for less: "
                "soft_cut is for models whose layers all have attention; use hard_cut or recompute",
                "session_id",
            )
        if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not bias <= 0:
            raise RequestError(f"bias must be a number from -inf to 0; got {bias!r}", "bias")
        if isinstance(fade, bool) or not isinstance(fade, int) or not 0 <= fade <= _LONGEST_FADE:
            raise RequestError(
                f"fade must be an integer from 0 to {_LONGEST_FADE:,}; got {fade!r}", "fade"
            )
        if known <= sinks:
            raise RequestError(
                f"there is nothing before the cut: the history has {known} tokens, of which "
                f"{sinks} attention sinks would stay as they are",
                "session_id",
            )
        if len(session.soft_cuts) >= _MOST_SOFT_CUTS:
            raise RequestError(
                f"the history has {_MOST_SOFT_CUTS} soft cuts, which is the most there may be: "
                "hard_cut or recompute first",
                "session_id",
            )
        session.soft_cut(sinks, float(bias), fade)

    def recompute(self, session_id: str, last_n: int) -> None:
        """Let attention sinks and the last tokens be the history, computed afresh from 0."""
        session = self.unused(session_id)
        if last_n < 1 or not session.history:
            raise RequestError(
                f"last_n must be at least 1, and there must be a history; got {last_n} of "
                f"{len(session.history)} tokens",
                "last_n",
            )
        self.restart(session_id, self._kept(session, last_n))

    def shortened(self, session: Session, more: int) -> list[int] | None:
        """The history before ``more`` tokens that the ring has no room for; None: as it is.

        Only of a session that recomputes by itself. All of the next turn's input is in it.
        """
        last_n, size = session.recompute_last_n, self.limits.ring.size
        if last_n is None or size is None or len(session.history) + more <= size:
            return None
        kept = self._kept(session, last_n + session.num_input)
        return kept if len(kept) < len(session.history) else None

    def restart(self, session_id: str, history: Seq[int]) -> None:
        """Let ``history`` be all there is, computed afresh from position 0."""
        session = self.unused(session_id)
        session.restart(history, self._allocator)
        session.note(SessionVerb.RECOMPUTE)

    def _kept(self, session: Session, last_n: int) -> list[int]:
        history, sinks = session.history, self.limits.ring.sinks
        first = max(sinks, len(history) - last_n)
        return [*history[:sinks], *history[first:]]

    def close(self, session_id: str) -> None:
        """Free the session's blocks and forget it."""
        session = self.unused(session_id)
        session.forget(self._allocator)
        session.note(SessionVerb.CLOSE)
        del self._sessions[session_id]

    def unused(self, session_id: str) -> Session:
        """An open session without a turn under way, or an error that says what is wrong."""
        session = self.get(session_id)
        if session.turn is not None:
            raise SessionBusyError(
                f"session {session_id} has a turn under way, {session.turn.request.request_id}: "
                "wait for it to end, or abort it",
                "session_id",
            )
        return session

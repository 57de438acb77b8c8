"""Streaming sessions as callers see them: limits checked by name, turns, cuts, events, expiry."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import NamedTuple

from quire.core.errors import (
    RequestError,
    SessionBusyError,
    TooManySessionsError,
    UnknownSessionError,
)
from quire.core.memory import KVAllocator
from quire.core.protocol import Adapter, Request, SoftCut
from quire.core.scheduling import Capability, Hooks, Scheduler, SequenceGroup, Session
from quire.text.params import SamplingParams

_MOST_INPUT = 2**20  # tokens that wait for a turn, where no sequence is too long
_MOST_SOFT_CUTS = 64  # each is looked at for every token that a step computes
_LONGEST_FADE = 2**31 - 1
_EVENTS_KEPT = 1000


class Ring(NamedTuple):
    """What a session's history goes round in, in tokens.

    sinks: first ones, which stay.
    size: of the longest text or, where a window lets texts go on for ever, of sinks and window.
    """

    sinks: int = 0
    size: int | None = None


@dataclass(frozen=True)
class SessionRules:
    """What holds for all sessions of an engine.

    timeout: seconds after which a session that is not used is closed; 0: never. What asks for it
        finds it closed from then on; its blocks come back when the next verb is called, or
        ``close_expired``.
    max_model_len: of a history, its turn's output included; None: there is no longest one.
    why_not: what keeps sessions from being served at all.
    why_no_soft_cuts: what keeps their cuts from being soft.
    max_sessions_per_client: of those that may be open; None: all.
    """

    timeout: float = 0.0
    max_model_len: int | None = None
    why_not: str | None = None
    why_no_soft_cuts: str | None = None
    max_num_sessions: int = 128
    max_sessions_per_client: int | None = None
    ring: Ring = Ring()  # noqa: RUF009  # frozen


class SessionVerb(Enum):
    OPEN = "open"
    APPEND = "append"
    GENERATE = "generate"  # a turn begins
    END = "end"  # a turn has ended, or been aborted
    HARD_CUT = "hard_cut"
    SOFT_CUT = "soft_cut"
    RECOMPUTE = "recompute"
    CLOSE = "close"


class SessionEvent(NamedTuple):
    """One thing that happened to a session. ``number`` counts all of them, from 0."""

    number: int
    what: SessionVerb
    cache_epoch: int
    num_tokens: int  # of the history, once this was done
    request_id: str | None = None  # of the turn


class OpenSession(Session):
    """A session with what has happened to it, and when it was used last.

    client: whose it is; None: the process's own.
    recompute_last_n: how many tokens before a turn's input it keeps, beside the sinks, when the
        ring is full; None: it goes round, or is refused more.
    idle_since: inf: it has a turn.
    """

    def __init__(
        self,
        session_id: str,
        resting: SequenceGroup,
        allocator: KVAllocator,
        clock: Callable[[], float],
        client: str | None = None,
        recompute_last_n: int | None = None,
    ) -> None:
        super().__init__(session_id, resting, allocator)
        self.client, self.recompute_last_n = client, recompute_last_n
        self.cache_epoch = 0
        self._clock, self.idle_since = clock, clock()
        self._events: deque[SessionEvent] = deque(maxlen=_EVENTS_KEPT)
        self._num_events = 0
        self.note(SessionVerb.OPEN)

    @property
    def events(self) -> list[SessionEvent]:
        """The latest thousand, oldest first."""
        return list(self._events)

    def note(self, what: SessionVerb, request_id: str | None = None) -> None:
        """Record that a verb has used the session."""
        number, epoch, tokens = self._num_events, self.cache_epoch, len(self.history)
        self._events.append(SessionEvent(number, what, epoch, tokens, request_id))
        self._num_events += 1
        self.idle_since = self._clock()

    def begin(self, turn: SequenceGroup) -> None:
        super().begin(turn)
        self.note(SessionVerb.GENERATE, turn.request.request_id)
        self.idle_since = math.inf

    def end(self, *, invalid: bool) -> None:
        request_id = None if self.turn is None else self.turn.request.request_id
        super().end(invalid=invalid)
        self.note(SessionVerb.END, request_id)


class SessionManager(Capability):
    """Opens, feeds, cuts and closes the sessions of one engine, in its thread.

    UnknownSessionError for a session that is not open; SessionBusyError while it has a turn.
    """

    _scheduler: Scheduler
    _hooks: Hooks

    def __init__(
        self,
        rules: SessionRules = SessionRules(),  # frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rules, self._clock = rules, clock
        self._sessions: dict[str, OpenSession] = {}

    # -- may be called from any thread ---------------------------------------------------------

    def get(self, session_id: str) -> OpenSession:
        session = self._sessions.get(session_id)
        if session is None or self._has_expired(session):
            raise self.unknown(session_id)
        return session

    def unknown(self, session_id: str) -> UnknownSessionError:
        """The error for a session that is not open."""
        timeout = self.rules.timeout
        expiry = f"; it may have expired: session_timeout is {timeout:g} seconds" if timeout else ""
        return UnknownSessionError(f"session {session_id:.100} is not open{expiry}", "session_id")

    def all(self) -> list[OpenSession]:
        """Open sessions, the least recently used first."""
        found = [one for one in list(self._sessions.values()) if not self._has_expired(one)]
        return sorted(found, key=lambda session: session.idle_since)

    @property
    def num_open(self) -> int:
        return len(self.all())

    def _has_expired(self, session: OpenSession) -> bool:
        timeout = self.rules.timeout
        return timeout > 0 and self._clock() - session.idle_since >= timeout

    # -- in the engine's thread ----------------------------------------------------------------

    def engine_begins(self, scheduler: Scheduler, hooks: Hooks) -> None:
        """Open sessions of this scheduler's from now on."""
        self._scheduler, self._hooks = scheduler, hooks
        self._sessions.clear()

    def open(
        self,
        session_id: str,
        cache_salt: str = "",
        client: str | None = None,
        adapter: Adapter | None = None,
        recompute_last_n: int | None = None,
    ) -> None:
        """Open a session. RequestError: too many are open. client: whose share it counts against.

        recompute_last_n: what it keeps when its ring is full (see ``OpenSession``).
        """
        if self.rules.why_not is not None:
            raise RequestError(self.rules.why_not, "session_id")
        self.close_expired()
        self._refuse_to_keep(recompute_last_n)
        self._refuse_too_many(client)
        make = partial(
            OpenSession, clock=self._clock, client=client, recompute_last_n=recompute_last_n
        )
        holder = Request(
            session_id, (), SamplingParams(), 0, 0, cache_salt=cache_salt, adapter=adapter
        )
        session = self._scheduler.sessions.open(holder, make)
        try:
            for begins in self._hooks.session_begins:
                begins(session)
        except RequestError:
            self._scheduler.sessions.close(session)
            raise
        self._sessions[session_id] = session

    def _refuse_to_keep(self, last_n: int | None) -> None:
        """RequestError unless ``last_n`` leaves room for an input and an answer."""
        sinks, size = self.rules.ring
        if last_n is None:
            return
        most = math.inf if size is None else size - sinks - 2
        if isinstance(last_n, bool) or not isinstance(last_n, int) or not 1 <= last_n <= most:
            raise RequestError(
                f"recompute_last_n must be an integer from 1 to {most:,}; got {last_n!r}",
                "recompute_last_n",
            )

    def _refuse_too_many(self, client: str | None) -> None:
        most, share = self.rules.max_num_sessions, self.rules.max_sessions_per_client
        own = sum(session.client == client for session in self._sessions.values())
        what = None
        if client is not None and share is not None and own >= share:
            what = f"this client has max_sessions_per_client, {share}, open"
        elif len(self._sessions) >= most:
            what = f"max_num_sessions, {most}, are open"
        if what is not None:
            raise TooManySessionsError(f"{what}: close one first", "session_id")

    def append(self, session_id: str, token_ids: Sequence[int]) -> None:
        """Input for the next turn, which will compute it."""
        session = self._unused(session_id)
        self._refuse_too_much(session, len(token_ids))
        session.append(token_ids)
        session.note(SessionVerb.APPEND)

    def history(self, session_id: str, more: int) -> Sequence[int]:
        """What the next turn goes on from, with room for ``more`` tokens where it can be short."""
        return self._shortened(self._unused(session_id), more)

    def add_turn(self, session_id: str, history: Sequence[int], request: Request) -> SequenceGroup:
        """Queue a turn that goes on from ``history``; until it ends, the session cannot expire."""
        session = self._unused(session_id)
        if len(history) < len(session.history):
            session.restart(history)
            session.note(SessionVerb.RECOMPUTE)
        return self._scheduler.add(request, session)

    def hard_cut(self, session_id: str) -> None:
        """Empty the session's cache and history; the next cache epoch begins."""
        session = self._unused(session_id)
        session.restart(())
        session.cache_epoch += 1
        session.note(SessionVerb.HARD_CUT)

    def soft_cut(self, session_id: str, bias: float, fade: int) -> None:
        """From here on, attend less to the history so far, but for sinks (see ``SoftCut``)."""
        if self.rules.why_no_soft_cuts is not None:
            raise RequestError(self.rules.why_no_soft_cuts, "session_id")
        session = self._unused(session_id)
        sinks, known = self.rules.ring.sinks, len(session.history)
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
        if bias:  # else nothing changes
            cut = SoftCut(sinks, known, float(bias), fade)
            session.sequence.cuts = (*session.soft_cuts, cut)
        session.note(SessionVerb.SOFT_CUT)

    def recompute(self, session_id: str, last_n: int) -> None:
        """Let attention sinks and the last tokens be the history, computed afresh from 0."""
        if isinstance(last_n, bool) or not isinstance(last_n, int):
            raise RequestError(f"last_n must be an integer, got {last_n!r}", "last_n")
        session = self._unused(session_id)
        if last_n < 1 or not session.history:
            raise RequestError(
                f"last_n must be at least 1, and there must be a history; got {last_n} of "
                f"{len(session.history)} tokens",
                "last_n",
            )
        session.restart(self._kept(session, last_n))
        session.note(SessionVerb.RECOMPUTE)

    def end(self, session_id: str) -> None:
        """Free the session's blocks and forget it."""
        self._close(self._unused(session_id))

    def close_expired(self) -> None:
        """Free the blocks of all sessions that nobody has used for so long."""
        for session in [one for one in self._sessions.values() if self._has_expired(one)]:
            self._close(session)

    def _close(self, session: OpenSession) -> None:
        self._scheduler.sessions.close(session)
        session.note(SessionVerb.CLOSE)
        del self._sessions[session.session_id]
        for ends in self._hooks.session_ends:
            ends(session)

    def _unused(self, session_id: str) -> OpenSession:
        """An open session without a turn under way, or an error that says what is wrong."""
        self.close_expired()
        session = self.get(session_id)
        if session.turn is not None:
            raise SessionBusyError(
                f"session {session_id} has a turn under way, {session.turn.request.request_id}: "
                "wait for it to end, or abort it",
                "session_id",
            )
        return session

    def _shortened(self, session: OpenSession, more: int) -> Sequence[int]:
        """The history before ``more`` tokens, which the ring may have no room for.

        Only one that recomputes by itself is cut. All of the next turn's input is in it.
        """
        last_n, size, history = session.recompute_last_n, self.rules.ring.size, session.history
        if last_n is None or size is None or len(history) + more <= size:
            return history
        return self._kept(session, last_n + session.num_input)

    def _kept(self, session: OpenSession, last_n: int) -> Sequence[int]:
        history, sinks = session.history, self.rules.ring.sinks
        first = max(sinks, len(history) - last_n)
        return [*history[:sinks], *history[first:]]

    def _refuse_too_much(self, session: OpenSession, more: int) -> None:
        longest, known = self.rules.max_model_len, len(self._shortened(session, more + 1))
        if longest is not None and known + more >= longest:
            raise RequestError(
                f"the session has {known} tokens, so that {more} more leave no room to "
                f"generate: max_model_len is {longest}. hard_cut or recompute make room",
                "input",
            )
        if session.num_input + more > _MOST_INPUT:
            raise RequestError(
                f"{session.num_input} tokens wait for the next turn, which may have at most "
                f"{_MOST_INPUT}: generate before {more} more are appended",
                "input",
            )

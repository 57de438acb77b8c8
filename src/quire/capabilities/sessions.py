"""Streaming sessions as callers see them: limits checked by name, turns, expiry."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from quire.core.errors import RequestError, UnknownSessionError
from quire.core.protocol import Adapter, Request
from quire.core.scheduling import Capability, Hooks, Scheduler, SequenceGroup, Session

_MOST_INPUT = 2**20  # tokens that wait for a turn, where no sequence is too long


@dataclass(frozen=True)
class SessionRules:
    """What holds for all sessions of an engine.

    timeout: seconds after which a session that is not used is closed; 0: never. What asks for it
        finds it closed from then on; its blocks come back when the next verb is called, or
        ``close_expired``.
    max_model_len: of a history, its turn's output included; None: there is no longest one.
    why_not: what keeps sessions from being served at all.
    why_no_soft_cuts: what keeps their cuts from being soft.
    """

    timeout: float = 0.0
    max_model_len: int | None = None
    why_not: str | None = None
    why_no_soft_cuts: str | None = None


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
        self._idle_since: dict[str, float] = {}  # inf: it has a turn

    # -- may be called from any thread ---------------------------------------------------------

    def get(self, session_id: str) -> Session:
        if not self._is_open(session_id):
            raise self.unknown(session_id)
        return self._scheduler.sessions.get(session_id)

    def unknown(self, session_id: str) -> UnknownSessionError:
        """What is told of a session that is not open."""
        timeout = self.rules.timeout
        expiry = f"; it may have expired: session_timeout is {timeout:g} seconds" if timeout else ""
        return UnknownSessionError(f"session {session_id:.100} is not open{expiry}", "session_id")

    def all_of(self, client: str | None) -> list[Session]:
        """A client's own, the one that has not been used for longest first."""
        sessions = self._scheduler.sessions.all()
        return [s for s in sessions if s.client == client and self._is_open(s.session_id)]

    @property
    def num_open(self) -> int:
        return sum(map(self._is_open, list(self._idle_since)))

    def _is_open(self, session_id: str) -> bool:
        since = self._idle_since.get(session_id)
        if since is None:
            return False
        return not self.rules.timeout or self._clock() - since < self.rules.timeout

    # -- in the engine's thread ----------------------------------------------------------------

    def engine_begins(self, scheduler: Scheduler, hooks: Hooks) -> None:
        """Open sessions of this scheduler's from now on."""
        self._scheduler, self._hooks = scheduler, hooks
        self._idle_since.clear()

    def open(
        self,
        session_id: str,
        cache_salt: str = "",
        client: str | None = None,
        adapter: Adapter | None = None,
        recompute_last_n: int | None = None,
    ) -> None:
        """RequestError if too many are open; ``client``: whose share it counts against, if any.

        recompute_last_n: what it keeps when its ring is full (see ``Session``).
        """
        if self.rules.why_not is not None:
            raise RequestError(self.rules.why_not, "session_id")
        self.close_expired()
        sessions = self._scheduler.sessions
        sessions.open(session_id, cache_salt, client, adapter, recompute_last_n)
        try:
            session = sessions.get(session_id)
            for begins in self._hooks.session_begins:
                begins(session)
        except RequestError:
            sessions.close(session_id)
            raise
        session.when_idle = partial(self._used, session_id)
        self._used(session_id)

    def append(self, session_id: str, token_ids: Sequence[int]) -> None:
        """Input for the next turn, which will compute it."""
        self._refuse_too_much(self._present(session_id), len(token_ids))
        self._scheduler.sessions.append(session_id, token_ids)
        self._used(session_id)

    def history(self, session_id: str, more: int) -> Sequence[int]:
        """What the next turn goes on from, with room for ``more`` tokens where it can be short."""
        session = self._present(session_id)
        shortened = self._scheduler.sessions.shortened(session, more)
        return session.history if shortened is None else shortened

    def add_turn(self, session_id: str, history: Sequence[int], request: Request) -> SequenceGroup:
        """Queue a turn that goes on from ``history``; until it ends, the session cannot expire."""
        sessions = self._scheduler.sessions
        if len(history) < len(sessions.unused(session_id).history):
            sessions.restart(session_id, history)
        group = self._scheduler.add_turn(session_id, request)
        self._idle_since[session_id] = math.inf
        return group

    def hard_cut(self, session_id: str) -> None:
        """Empty the session's cache and history; the next cache epoch begins."""
        self._present(session_id)
        self._scheduler.sessions.hard_cut(session_id)
        self._used(session_id)

    def soft_cut(self, session_id: str, bias: float, fade: int) -> None:
        """From here on, let the history so far count for less and less (see ``SoftCut``)."""
        if self.rules.why_no_soft_cuts is not None:
            raise RequestError(self.rules.why_no_soft_cuts, "session_id")
        self._present(session_id)
        self._scheduler.sessions.soft_cut(session_id, bias, fade)
        self._used(session_id)

    def recompute(self, session_id: str, last_n: int) -> None:
        """Let attention sinks and the last tokens be the history, computed afresh from 0."""
        if isinstance(last_n, bool) or not isinstance(last_n, int):
            raise RequestError(f"last_n must be an integer, got {last_n!r}", "last_n")
        self._present(session_id)
        self._scheduler.sessions.recompute(session_id, last_n)
        self._used(session_id)

    def end(self, session_id: str) -> None:
        """Free the session's blocks and forget it."""
        self._present(session_id)
        self._close(session_id)

    def close_expired(self) -> None:
        """Free the blocks of all sessions that nobody has used for so long."""
        for session_id in [one for one in self._idle_since if not self._is_open(one)]:
            self._close(session_id)

    def _close(self, session_id: str) -> None:
        session = self._scheduler.sessions.get(session_id)
        self._scheduler.sessions.close(session_id)
        del self._idle_since[session_id]
        for ends in self._hooks.session_ends:
            ends(session)

    def _present(self, session_id: str) -> Session:
        self.close_expired()
        return self.get(session_id)

    def _used(self, session_id: str) -> None:
        self._idle_since[session_id] = self._clock()

    def _refuse_too_much(self, session: Session, more: int) -> None:
        known, longest = len(session.history), self.rules.max_model_len
        shortened = self._scheduler.sessions.shortened(session, more + 1)
        known = known if shortened is None else len(shortened)
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

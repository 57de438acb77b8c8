"""Streaming sessions as callers see them: input as text, limits checked by name, expiry."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from quire.core.errors import RequestError, UnknownSessionError
from quire.core.protocol import Adapter, Origin
from quire.core.scheduling import Scheduler, Session
from quire.engine.capabilities import Hooks
from quire.engine.input_processor import InputProcessor
from quire.engine.prompts import PreparedParams, PreparedRequest

_MOST_INPUT = 2**20  # tokens that wait for a turn, where no sequence is too long


@dataclass(frozen=True)
class SessionRules:
    """What holds for all sessions of an engine.

    timeout: seconds after which a session that is not used is closed; 0: never. What asks for it
        finds it closed from then on; its blocks come back when the next verb is called, or
        ``close_expired``.
    why_not: what keeps sessions from being served at all.
    why_no_soft_cuts: what keeps their cuts from being soft.
    """

    timeout: float = 0.0
    why_not: str | None = None
    why_no_soft_cuts: str | None = None


class SessionManager:
    """Opens, feeds, cuts and closes the sessions of one engine, in its thread.

    hooks: of the engine's capabilities.

    UnknownSessionError for a session that is not open; SessionBusyError while it has a turn.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        input_processor: InputProcessor,
        clock: Callable[[], float],
        rules: SessionRules,
    ) -> None:
        self._scheduler = scheduler
        self._input_processor = input_processor
        self._clock = clock
        self.rules, self.hooks = rules, Hooks()
        self._idle_since: dict[str, float] = {}  # inf: it has a turn
        self.turns: dict[str, str] = {}  # request_id of a turn -> its session

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

    def tokens(self, session_id: str, given: str | Sequence[int]) -> tuple[int, ...]:
        """The tokens of an input."""
        return self._input_processor.session_input(given, first=not self.get(session_id).history)

    def _is_open(self, session_id: str) -> bool:
        since = self._idle_since.get(session_id)
        if since is None:
            return False
        return not self.rules.timeout or self._clock() - since < self.rules.timeout

    # -- in the engine's thread ----------------------------------------------------------------

    def renew(self, scheduler: Scheduler) -> None:
        """Another scheduler takes the place of the one there was, and of its sessions."""
        self._scheduler = scheduler
        self._idle_since.clear()
        self.turns.clear()

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
            for begins in self.hooks.session_begins:
                begins(sessions.get(session_id))
        except RequestError:
            sessions.close(session_id)
            raise
        self._used(session_id)

    def append(self, session_id: str, token_ids: Sequence[int]) -> None:
        """Input for the next turn, which will compute it."""
        self._refuse_too_much(self._present(session_id), len(token_ids))
        self._scheduler.sessions.append(session_id, token_ids)
        self._used(session_id)

    def prepare_turn(
        self,
        request_id: str,
        session_id: str,
        params: PreparedParams,
        priority: int,
        origin: Origin = Origin(),  # noqa: B008  # frozen
    ) -> PreparedRequest:
        """May shorten the history, where the turn is not refused."""
        session, sessions = self._present(session_id), self._scheduler.sessions
        shortened = sessions.shortened(session, params.max_tokens or 1)
        history = session.history if shortened is None else shortened
        prepared = self._input_processor.prepare_turn(
            request_id, history, session.input_token_ids, params, priority, self._clock()
        )
        if shortened is not None:
            sessions.restart(session_id, shortened)
        own, client = session.resting.request, session.client or ""
        request = replace(
            prepared.request,
            cache_salt=own.cache_salt,
            adapter=own.adapter,
            client=client,
            origin=origin,
        )
        return replace(prepared, request=request)

    def begin_turn(self, session_id: str, request_id: str) -> None:
        """A prepared turn stands in line: the session does not expire before it has ended."""
        self.turns[request_id] = session_id
        self._idle_since[session_id] = math.inf

    def end_turn(self, request_id: str) -> None:
        """A request has ended, which may be a turn."""
        session_id = self.turns.pop(request_id, None)
        if session_id is not None:
            self._used(session_id)

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

    def close(self, session_id: str) -> None:
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
        for ends in self.hooks.session_ends:
            ends(session)

    def _present(self, session_id: str) -> Session:
        self.close_expired()
        return self.get(session_id)

    def _used(self, session_id: str) -> None:
        self._idle_since[session_id] = self._clock()

    def _refuse_too_much(self, session: Session, more: int) -> None:
        known, longest = len(session.history), self._input_processor.max_model_len
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

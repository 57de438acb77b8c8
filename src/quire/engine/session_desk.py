"""Streaming sessions as callers see them: input as text, limits checked by name, expiry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from quire.engine.intake import Intake, PreparedRequest, check_client
from quire.errors import RequestError
from quire.scheduling import SamplingParams, Scheduler, Session


class SessionDesk:
    """Opens, feeds, cuts and closes the sessions of one engine, in its thread.

    timeout: seconds after which an unused session may be closed to make room; None: never.
    why_not: what keeps sessions from being served at all.

    UnknownSessionError for a session that is not open; SessionBusyError while it has a turn.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        intake: Intake,
        clock: Callable[[], float],
        timeout: float | None,
        why_not: str | None,
    ) -> None:
        self._scheduler = scheduler
        self._intake = intake
        self._clock = clock
        self._timeout = timeout
        self._why_not = why_not
        self._last_used: dict[str, float] = {}

    def get(self, session_id: str) -> Session:
        """May be read from any thread."""
        return self._scheduler.sessions.get(session_id)

    def open(self, session_id: str, cache_salt: str = "") -> None:
        """RequestError if too many are open, none of them unused for so long as to be closed."""
        if self._why_not is not None:
            raise RequestError(self._why_not, "session_id")
        if len(self._scheduler.sessions) >= self._scheduler.sessions.max_num_sessions:
            self._close_expired()
        self._scheduler.open_session(session_id, cache_salt)
        self._last_used[session_id] = self._clock()

    def tokens(self, session_id: str, given: str | Sequence[int]) -> tuple[int, ...]:
        """The tokens of an input. May be called from any thread."""
        return self._intake.session_input(given, first=not self.get(session_id).history)

    def append(self, session_id: str, token_ids: Sequence[int]) -> None:
        """Input for the next turn, which will compute it."""
        known, longest = len(self.get(session_id).history), self._intake.max_model_len
        if longest is not None and known + len(token_ids) >= longest:
            raise RequestError(
                f"the session has {known} tokens, so that {len(token_ids)} more leave no room to "
                f"generate: max_model_len is {longest}. hard_cut or recompute make room",
                "input",
            )
        self._scheduler.append(session_id, token_ids)
        self._last_used[session_id] = self._clock()

    def prepare_turn(
        self,
        request_id: str,
        session_id: str,
        params: SamplingParams,
        priority: int,
        client: str,
    ) -> PreparedRequest:
        check_client(client)
        session, now = self.get(session_id), self._clock()
        prepared = self._intake.prepare_turn(
            request_id, session.history, session.input_token_ids, params, now
        )
        self._last_used[session_id] = now
        request = replace(prepared.request, priority=priority, client=client)
        return replace(prepared, request=request)

    def hard_cut(self, session_id: str) -> None:
        """Empty the session's cache and history; the next cache epoch begins."""
        self._scheduler.hard_cut(session_id)
        self._last_used[session_id] = self._clock()

    def recompute(self, session_id: str, last_n: int) -> None:
        """Let attention sinks and the last tokens be the history, computed afresh from 0."""
        if isinstance(last_n, bool) or not isinstance(last_n, int):
            raise RequestError(f"last_n must be an integer, got {last_n!r}", "last_n")
        self._scheduler.recompute(session_id, last_n)
        self._last_used[session_id] = self._clock()

    def close(self, session_id: str) -> None:
        """Free the session's blocks and forget it."""
        self._scheduler.close_session(session_id)
        del self._last_used[session_id]

    def _close_expired(self) -> None:
        if self._timeout is None:
            return
        longest_ago = self._clock() - self._timeout
        for session_id in self._scheduler.sessions.ids():
            used = self._last_used[session_id]
            if used <= longest_ago and self.get(session_id).turn is None:
                self.close(session_id)

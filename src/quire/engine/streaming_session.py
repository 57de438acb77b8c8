"""A streaming session in Python: one text that is fed and continued, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count

from quire.capabilities.sessions import SessionEvent
from quire.core.errors import UnknownSessionError
from quire.core.protocol import Adapter, SoftCut
from quire.engine.driver import Driver
from quire.engine.outputs import Delta, RequestOutput
from quire.text.params import SamplingParams


class StreamingSession:
    """An open session; as a context manager, closed at the end.

    Between calls it keeps its KV blocks, unless others need them: then they are swapped out or
    computed again, which nobody can tell from its text. Without a window it is bounded by
    ``max_model_len``; with one it may go on for ever. All tokens since the last cut count,
    those of a turn that was ended early, and the end-of-sequence token, included. Not used for
    ``session_timeout`` it is closed: UnknownSessionError from then on.
    """

    def __init__(
        self,
        driver: Driver,
        session_id: str,
        default_params: Callable[[], SamplingParams],
        cache_salt: str = "",
        adapter: Adapter | None = None,
        recompute_last_n: int | None = None,
    ) -> None:
        self.session_id = session_id
        self._driver = driver
        self._sessions = driver.engine.sessions
        self._default_params = default_params
        self._numbers = count()
        driver.change(
            lambda: self._sessions.open(
                session_id, cache_salt, adapter=adapter, recompute_last_n=recompute_last_n
            )
        )

    def append(self, given: str | Sequence[int]) -> None:
        """Text or token ids, which the next turn computes and goes on from."""
        session = self._sessions.get(self.session_id)
        token_ids = self._driver.engine.input_processor.session_input(session, given)
        self._driver.change(lambda: self._sessions.append(self.session_id, token_ids))

    def generate(self, sampling_params: SamplingParams | None = None) -> RequestOutput:
        """One turn. Its prompt tokens are what has been appended since the turn before."""
        *_, last = self.stream(sampling_params)
        assert last.final is not None
        return last.final

    def stream(self, sampling_params: SamplingParams | None = None) -> Iterator[Delta]:
        """One turn as it comes, from the first ``next`` on. Closed early, what has come stays."""
        params = self._default_params() if sampling_params is None else sampling_params
        request_id = f"{self.session_id}-{next(self._numbers)}"
        engine, session_id = self._driver.engine, self.session_id
        return self._driver.stream(
            request_id, lambda: engine.add_turn(request_id, session_id, params)
        )

    def hard_cut(self) -> None:
        """Empty cache and history; the next ``cache_epoch`` begins."""
        self._driver.change(lambda: self._sessions.hard_cut(self.session_id))

    def soft_cut(self, bias: float, fade: int = 0) -> None:
        """From here on, attend less to all that there is so far, attention sinks aside.

        Over the next ``fade`` tokens the weights of its keys fall evenly, in the end to exp(bias)
        of what they would be. ``bias``: from 0 to -inf. Cuts add up.
        """
        self._driver.change(lambda: self._sessions.soft_cut(self.session_id, bias, fade))

    @property
    def soft_cuts(self) -> list[SoftCut]:
        """The soft cuts in its history, the first one first."""
        return list(self._sessions.get(self.session_id).soft_cuts)

    def recompute(self, last_n: int) -> None:
        """Let the attention sinks and the last ``last_n`` tokens be all there is.

        They are computed afresh, from position 0, by the next turn.
        """
        self._driver.change(lambda: self._sessions.recompute(self.session_id, last_n))

    def close(self) -> None:
        self._driver.change(lambda: self._sessions.end(self.session_id))

    @property
    def cache_epoch(self) -> int:
        """How often the cache has been cut."""
        return self._sessions.get(self.session_id).cache_epoch

    @property
    def token_ids(self) -> list[int]:
        """All tokens since the last cut."""
        return list(self._sessions.get(self.session_id).history)

    def events(self) -> list[SessionEvent]:
        """What has happened to it, the latest thousand events, oldest first."""
        return self._sessions.get(self.session_id).events

    def __enter__(self) -> StreamingSession:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(UnknownSessionError):  # it has expired
            self.close()

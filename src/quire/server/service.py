"""What the endpoints share: the engine, the models' names, and requests of several prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

from quire.engine import AsyncEngine, Delta, Intake, Prompt
from quire.errors import EngineError
from quire.scheduling import SamplingParams, Session
from quire.server.errors import EngineUnavailableError, UnknownModelError, in_callers_words
from quire.server.metrics import ServerMetrics

Progress = AsyncGenerator[tuple[int, Delta], None]
"""(number of the prompt, what one of its outputs gained)."""


@dataclass(frozen=True)
class Service:
    """An engine as the endpoints use it."""

    engine: AsyncEngine
    model_names: Sequence[str]
    metrics: ServerMetrics

    @property
    def intake(self) -> Intake:
        return self.engine.engine.intake

    def check_model(self, name: str) -> None:
        if name not in self.model_names:
            known = ", ".join(self.model_names)
            raise UnknownModelError(f"model {name!r} is not served here; {known} is", "model")

    def run(
        self,
        request_id: str,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        field_names: Mapping[str, str],
    ) -> Progress:
        """Run all the prompts together; one that fails ends the others.

        Nothing comes before every prompt has its first token, so that if any of them is refused
        the caller has not begun to answer yet. Closing the generator frees everything.
        """
        runs = [
            self.engine.generate(f"{request_id}-{number}", prompt, params)
            for number, prompt in enumerate(prompts)
        ]
        return self._together(runs, field_names)

    def run_turn(
        self, request_id: str, session_id: str, params: SamplingParams, priority: int
    ) -> Progress:
        """Run the next turn of a session, in the same manner."""
        turn = self.engine.generate_turn(request_id, session_id, params, priority)
        return self._together([turn], {})

    async def _together(
        self, runs: Sequence[AsyncGenerator[Delta, None]], field_names: Mapping[str, str]
    ) -> Progress:
        inbox: asyncio.Queue[tuple[int, Delta] | Exception] = asyncio.Queue()

        async def pump(number: int, deltas: AsyncGenerator[Delta, None]) -> None:
            try:
                with in_callers_words(field_names):
                    async for delta in deltas:
                        inbox.put_nowait((number, delta))
            except asyncio.CancelledError:
                self.metrics.observe_aborted()
                raise
            except Exception as error:
                inbox.put_nowait(error)

        tasks = [asyncio.ensure_future(pump(*numbered)) for numbered in enumerate(runs)]
        unfinished, silent = len(runs), set(range(len(runs)))
        held: list[tuple[int, Delta]] = []
        try:
            while unfinished:
                item = await inbox.get()
                if isinstance(item, Exception):
                    raise self._as_unavailable(item)
                number, delta = item
                unfinished -= delta.final is not None
                silent.discard(number)
                held.append(item)
                if not silent:
                    for ready in held:
                        yield ready
                    held.clear()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def session(self, session_id: str) -> Session:
        """An open session, to be read; UnknownSessionError if there is none."""
        return self.engine.engine.sessions.get(session_id)

    def _as_unavailable(self, error: Exception) -> Exception:
        """An EngineError of a dead engine is another matter than one of a failed step."""
        if isinstance(error, EngineError) and not self.engine.healthy:
            return EngineUnavailableError(str(error))
        return error

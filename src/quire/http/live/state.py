"""An engine's state as values. To be called in the engine's thread, between two steps."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from msgspec.structs import asdict

from quire.blocks.store import Tiers
from quire.core.errors import RequestError
from quire.core.scheduling import Session
from quire.core.version import __version__
from quire.engine.dashboard import (
    Pace,
    Reasons,
    Row,
    Rows,
    block_tables,
    holding,
    number_of,
    one_row,
    pool_figures,
    prefix_cache,
    rows,
)
from quire.engine.decision_log import Noted
from quire.engine.engine import Engine
from quire.engine.observed import Observed
from quire.http.errors import UnknownRequestError
from quire.http.live.types import (
    AdapterRow,
    BlockStory,
    DecisionList,
    DecisionRow,
    EngineState,
    Latencies,
    Moment,
    RequestStory,
    SessionRow,
    SettingsInForce,
    SpeculationFigures,
    StoreFigures,
)

_T = TypeVar("_T")
_STORY = 100  # decisions
_HOLDERS = 32
logger = logging.getLogger(__name__)
_KEPT, _APART = 600.0, 3.0  # seconds


class StateReader:
    """Reads one engine.

    model_name: what it is called. kv_layers: of each KV group, the model's and a draft model's.
    wall: gives the time in seconds since 1970.
    """

    def __init__(
        self,
        engine: Observed,
        model_name: str,
        max_model_len: int | None,
        session_timeout: float | None = None,
        kv_layers: Sequence[tuple[int, int]] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._model_name = model_name
        self._max_model_len = max_model_len
        self._session_timeout = session_timeout
        self._kv_layers = kv_layers
        self._wall = wall

    def moment(self, limit: int) -> Moment:
        """With details of at most ``limit`` requests of each kind."""
        engine, now = self._engine, self._engine.clock()
        scheduler, recent = engine.scheduler, engine.recent
        return Moment(
            time=self._wall(),
            step=engine.stats.num_steps,
            pool=pool_figures(scheduler, self._max_model_len, self._kv_layers),
            slot_seconds=dict(engine.stats.slot_seconds),
            requests=self._with_drafts(rows(scheduler, now, self._reasons(now), limit)),
            rates=recent.rates(now),
            latencies=Latencies(recent.first_token, recent.between_tokens),
            prefix_cache=prefix_cache(scheduler),
            decisions=dict(scheduler.stats.decisions),
            speculation=self._speculation(),
        )

    def state(self, limit: int) -> EngineState:
        """With details of at most ``limit`` requests of each kind, and sessions."""
        engine, sessions = self._engine, self._engine.scheduler.sessions
        preemptions = (one for one in reversed(engine.log.since(0)) if one.decision.what.preempts)
        return EngineState(
            **asdict(self.moment(limit)),
            model=self._model_name,
            version=__version__,
            kv_efficiency=engine.stats.kv_efficiency,
            queue_predicted_seconds=engine.waiting_room.predicted_wait,
            step_parts=engine.part_times.of_late(),
            latest_decision=engine.log.number,
            last_preemption=next(map(self._decision, preemptions), None),
            settings=self._settings(),
            num_sessions=len(sessions),
            sessions=[self._session(one) for one in _last(sessions.all(), limit)],
            adapters=self._adapters(),
            ranks=None if engine.capabilities.others is None else engine.capabilities.others.size,
            store=self._store(),
        )

    def decisions(self, since: int, limit: int) -> DecisionList:
        """The latest ``limit`` of those after a number."""
        log = self._engine.log
        rows = [self._decision(noted) for noted in _last(log.since(since), limit)]
        return DecisionList(data=rows, latest=log.number)

    def story(self, request_id: str) -> RequestStory:
        """Without texts. UnknownRequestError: there is none of that id, or it has ended."""
        engine, now = self._engine, self._engine.clock()
        group = engine.scheduler.group(request_id)
        if group is None:
            raise UnknownRequestError(request_id)
        about = [one for one in engine.log.since(0) if one.decision.request_id == request_id]
        return RequestStory(
            step=engine.stats.num_steps,
            request=self._drafted(one_row(engine.scheduler, group, now, self._reasons(now))),
            tables=block_tables(engine.scheduler, group),
            decisions=[self._decision(noted) for noted in about[-_STORY:]],
            prompt=None,
            outputs=None,
        )

    def block(self, number: int) -> BlockStory:
        """Who holds it. RequestError: there is none of that number."""
        scheduler = self._engine.scheduler
        found = holding(scheduler, number)
        if found is None:
            most = self.moment(0).pool.num_blocks - 1
            raise RequestError(f"block must be between 0 and {most}, not {number}", "block")
        return BlockStory(
            step=self._engine.stats.num_steps,
            block=number,
            kv_group=found.kv_group,
            num_holders=len(found.holders),
            holders=found.holders[:_HOLDERS],
        )

    # -- parts ---------------------------------------------------------------------------------

    def _reasons(self, now: float) -> Reasons:
        rates = self._engine.recent.rates(now)
        pace, log = None, self._engine.log
        if rates.step_seconds is not None:
            pace = Pace(rates.step_seconds, rates.tokens_each)
        preempted = {
            one.decision.request_id: one.time for one in log.since(0) if one.decision.what.preempts
        }
        return Reasons(log.waiting, self._engine.waiting_room.wait_of, pace, preempted)

    def _with_drafts(self, found: Rows) -> Rows:
        drafted = self._drafted
        return replace(
            found,
            running=[*map(drafted, found.running)],
            waiting=[*map(drafted, found.waiting)],
            preempted=[*map(drafted, found.preempted)],
        )

    def _drafted(self, row: Row) -> Row:
        """With what the engine knows beside the scheduler."""
        progress = self._engine.progress(row.id)
        if progress is None:
            return row
        return replace(
            row,
            output_tokens=sum(len(branch.output.token_ids) for branch in progress.branches),
            draft_tokens=progress.num_draft_tokens,
            accepted_tokens=progress.num_accepted_tokens,
        )

    def _decision(self, noted: Noted) -> DecisionRow:
        decision, ago = noted.decision, self._engine.clock() - noted.time
        return DecisionRow(
            noted.number,
            self._wall() - ago,
            decision.what.value,
            decision.request_id,
            decision.why,
            decision.needed,
            decision.free,
            decision.unit,
            decision.swap_seconds,
            decision.recompute_seconds,
            decision.remedy,
        )

    def _speculation(self) -> SpeculationFigures | None:
        stats, speculation = self._engine.stats, self._engine.capabilities.speculation
        if speculation is None:
            return None
        by_length = list(stats.accepted_by_position)
        while by_length and not by_length[-1]:
            by_length.pop()
        return SpeculationFigures(
            [one.name for one in speculation.drafters],
            stats.num_drafts,
            stats.num_draft_tokens,
            stats.num_accepted_tokens,
            by_length,
            speculation.num_bytes,
        )

    def _settings(self) -> SettingsInForce:
        engine, scheduler = self._engine, self._engine.scheduler
        return SettingsInForce(
            self._max_model_len,
            scheduler.batch.max_num_seqs,
            scheduler.batch.max_num_batched_tokens,
            engine.waiting_room.limit,
            scheduler.max_queue_time,
            scheduler.queue.policy.value,
            self._session_timeout,
        )

    def _adapters(self) -> list[AdapterRow] | None:
        adapters = self._engine.capabilities.adapters
        if adapters is None:
            return None
        running = {one.name for one in self._engine.scheduler.adapters.in_use}
        here = {one.name for one in adapters.weights}
        return [
            AdapterRow(one.name, one.name in running, one.name in here) for one in adapters.cards
        ]

    def _store(self) -> StoreFigures | None:
        store = self._engine.capabilities.store
        if isinstance(store, Tiers):
            store = store.disk
        if store is None:
            return None
        counts = store.counts
        return StoreFigures(
            store.num_bytes,
            not store.quiet,
            counts.read_blocks,
            counts.written_blocks,
            counts.evicted_blocks,
            counts.bad_blocks,
        )

    def _session(self, session: Session) -> SessionRow:
        holder = session.turn or session.resting
        return SessionRow(
            session.session_id,
            number_of(session.resting),
            len(session.history),
            session.turn is not None,
            session.cache_epoch,
            self._engine.scheduler.allocator.blocks_held(holder.tables())[0],
        )


class EngineReader(StateReader):
    """Reads an engine that has a model, and so knows texts."""

    def __init__(
        self, engine: Engine, model_name: str, kv_layers: Sequence[tuple[int, int]] = ()
    ) -> None:
        length, timeout = (
            engine.input_processor.max_model_len,
            engine.sessions.rules.timeout or None,
        )
        super().__init__(engine, model_name, length, timeout, kv_layers)
        self._whole = engine

    def story(self, request_id: str, *, show_text: bool = False) -> RequestStory:
        story, progress = super().story(request_id), self._whole.progress(request_id)
        if progress is None:
            raise UnknownRequestError(request_id)
        if not show_text:
            return story
        prompt = self._whole.input_processor.detokenize(progress.request.prompt_token_ids)
        story.prompt, story.outputs = prompt, [one.output.text for one in progress.branches]
        return story


def _last(many: Sequence[_T], limit: int) -> Sequence[_T]:
    return many[-limit:] if limit else ()


class History:
    """Notes a moment now and then, while there are steps: an idle engine is left alone.

    moments: oldest first. To be touched in the engine's thread.
    """

    def __init__(self, reader: StateReader, clock: Callable[[], float]) -> None:
        self._reader, self._clock = reader, clock
        self.moments: deque[Moment] = deque(maxlen=round(_KEPT / _APART))
        self._due = 0.0

    def observe(self) -> None:
        """A step has ended."""
        now = self._clock()
        if now >= self._due:
            self._due = now + _APART
            try:
                self.moments.append(self._reader.moment(0))
            except Exception:  # who looks must not end who serves
                logger.exception("the last ten minutes are noted no more")
                self._due = math.inf

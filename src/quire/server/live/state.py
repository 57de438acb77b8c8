"""An engine's state as values. To be called in the engine's thread, between two steps."""

from __future__ import annotations

import time
from dataclasses import replace

from quire.dashboard import (
    Pace,
    Reasons,
    Row,
    Rows,
    block_tables,
    number_of,
    one_row,
    pool_figures,
    prefix_cache,
    rows,
)
from quire.engine import Engine, Noted, Session
from quire.server.errors import UnknownRequestError
from quire.server.live.types import (
    AdapterTold,
    DecisionList,
    DecisionTold,
    EngineState,
    Latencies,
    RequestStory,
    SessionTold,
    Speculating,
    StoreTold,
)
from quire.version import __version__

_STORY = 100  # decisions


class Reader:
    """Reads one engine. ``model_name``: what it is called."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name

    def state(self, limit: int) -> EngineState:
        """With details of so many requests of each kind, and sessions."""
        engine, now = self._engine, self._engine.clock()
        scheduler, log = engine.scheduler, engine.log
        preemptions = (one for one in reversed(log.since(0)) if one.decision.what.preempts)
        rates = engine.recent.rates(now)
        return EngineState(
            model=self._model_name,
            version=__version__,
            time=time.time(),
            step=engine.stats.num_steps,
            pool=pool_figures(scheduler, engine.input_processor.max_model_len),
            slot_seconds=dict(engine.stats.slot_seconds),
            kv_efficiency=engine.stats.kv_efficiency,
            requests=self._with_drafts(rows(scheduler, now, self._reasons(now), limit)),
            queue_predicted_seconds=engine.waiting_room.predicted_wait,
            rates=rates,
            latencies=Latencies(engine.recent.first_token, engine.recent.between_tokens),
            prefix_cache=prefix_cache(scheduler),
            decisions=dict(scheduler.stats.decisions),
            latest_decision=log.number,
            last_preemption=next(map(self._told, preemptions), None),
            speculation=self._speculation(),
            num_sessions=len(scheduler.sessions),
            sessions=[self._session(one) for one in scheduler.sessions.all()[-limit:]],
            adapters=self._adapters(),
            ranks=None if engine.others is None else engine.others.size,
            store=self._store(),
        )

    def decisions(self, since: int, limit: int) -> DecisionList:
        """The latest ``limit`` of those after a number."""
        log = self._engine.log
        told = [self._told(noted) for noted in log.since(since)[-limit:]]
        return DecisionList(data=told, latest=log.number)

    def story(self, request_id: str, *, show_text: bool) -> RequestStory:
        """UnknownRequestError: there is none of that id, or it has ended."""
        engine, now = self._engine, self._engine.clock()
        group, progress = engine.scheduler.group(request_id), engine.progress(request_id)
        if group is None or progress is None:
            raise UnknownRequestError(request_id)
        about = [one for one in engine.log.since(0) if one.decision.request_id == request_id]
        row = one_row(engine.scheduler, group, now, self._reasons(now))
        outputs = [branch.output.text for branch in progress.branches]
        prompt = engine.input_processor.detokenize(progress.request.prompt_token_ids)
        return RequestStory(
            step=engine.stats.num_steps,
            request=self._drafted(row),
            tables=block_tables(engine.scheduler, group),
            decisions=[self._told(noted) for noted in about[-_STORY:]],
            prompt=prompt if show_text else None,
            outputs=outputs if show_text else None,
        )

    # -- parts ---------------------------------------------------------------------------------

    def _reasons(self, now: float) -> Reasons:
        rates = self._engine.recent.rates(now)
        pace = None
        if rates.step_seconds is not None:
            pace = Pace(rates.step_seconds, rates.tokens_each)
        return Reasons(self._engine.log.waiting, self._engine.waiting_room.wait_of, pace)

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

    def _told(self, noted: Noted) -> DecisionTold:
        decision, ago = noted.decision, self._engine.clock() - noted.time
        return DecisionTold(
            noted.number,
            time.time() - ago,
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

    def _speculation(self) -> Speculating | None:
        stats = self._engine.stats
        if self._engine.speculation is None:
            return None
        return Speculating(stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens)

    def _adapters(self) -> list[AdapterTold] | None:
        shelf = self._engine.adapters
        if shelf is None:
            return None
        running = {one.name for one in self._engine.scheduler.adapters.in_use}
        here = {one.name for one in shelf.weights}
        return [AdapterTold(one.name, one.name in running, one.name in here) for one in shelf.cards]

    def _store(self) -> StoreTold | None:
        store = self._engine.store
        if store is None:
            return None
        counts = store.counts
        return StoreTold(
            store.num_bytes,
            not store.quiet,
            counts.read_blocks,
            counts.written_blocks,
            counts.evicted_blocks,
            counts.bad_blocks,
        )

    def _session(self, session: Session) -> SessionTold:
        holder = session.turn or session.resting
        return SessionTold(
            session.session_id,
            number_of(session.resting),
            len(session.history),
            session.turn is not None,
            session.cache_epoch,
            self._engine.scheduler.allocator.blocks_held(holder.tables())[0],
        )

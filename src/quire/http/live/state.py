"""An engine's state as values. To be called in the engine's thread, between two steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar

from msgspec.structs import asdict

from quire.blocks.store import StoreCounts, places_of
from quire.capabilities.misses import Miss
from quire.capabilities.sessions import OpenSession
from quire.core.errors import RequestError
from quire.core.scheduling import Scheduler
from quire.core.version import __version__
from quire.engine.capabilities import Capabilities
from quire.engine.dashboard import (
    BranchTable,
    Holder,
    MissRow,
    Pace,
    Pool,
    PoolBytes,
    PrefixCacheFigures,
    Reasons,
    Row,
    Rows,
    block_tables,
    holding,
    miss_row,
    number_of,
    one_row,
    pool_figures,
    prefix_cache,
    rows,
)
from quire.engine.engine import Engine
from quire.engine.events import RequestState, Watcher
from quire.engine.forecast import Forecasts, Grade
from quire.engine.progress import RequestProgress
from quire.engine.stats import (
    DecisionLog,
    EngineStats,
    Noted,
    PartTimes,
    Percentiles,
    Rates,
    StepParts,
)
from quire.engine.waiting_room import WaitingRoom
from quire.http.answers.rendering import Answer
from quire.http.config.server import ServerConfig
from quire.http.errors import UnknownRequestError


class DecisionRow(Answer):
    """number: of all decisions, from 1. time: in seconds since 1970.

    swap_seconds, recompute_seconds: what either way of preempting it costs.
    """

    number: int
    time: float
    what: Literal[
        "admit", "wait", "swap", "recompute", "resume", "refuse", "expire", "sit_out", "draft"
    ]
    request_id: str
    why: str
    needed: int | None
    free: int | None
    unit: Literal["blocks", "pages", "sequences"]
    swap_seconds: float | None
    recompute_seconds: float | None
    remedy: str | None


class Latencies(Answer):
    """first_token: from a request's arrival. between_tokens: of one output."""

    first_token: Percentiles
    between_tokens: Percentiles


class SpeculationFigures(Answer):
    """drafters: in the order in which they are heard. drafts: times that a sequence was drafted for
    in a step. accepted_by_position: drafts that were right, the first of each time first. bytes: of
    memory that drafters hold.
    """

    drafters: list[str]
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_by_position: list[int]
    bytes: int


class SettingsInForce(Answer):
    """What bounds who runs and who waits, by names of `quire serve`'s settings; null: none."""

    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_waiting: int | None
    max_queue_time: float | None
    scheduling_policy: str
    session_timeout: float | None


class SessionRow(Answer):
    """number: as blocks have it for their owner. busy: it has a turn."""

    id: str
    number: int
    tokens: int
    busy: bool
    cache_epoch: int
    blocks: int


class AdapterRow(Answer):
    """running: it has one of the slots."""

    name: str
    running: bool
    in_memory: bool


class StoreFigures(Answer):
    """bytes: on disk, of all engines that share the store."""

    bytes: int
    writing: bool
    read_blocks: int
    written_blocks: int
    evicted_blocks: int
    bad_blocks: int


class Moment(Answer, kw_only=True):
    """What changes in an engine. Counters are since its start.

    step: how many there have been. time: in seconds since 1970. slot_seconds: the pool's slots by
    what they did, over the time of all steps.
    """

    time: float
    step: int
    pool: Pool
    slot_seconds: dict[str, float]
    requests: Rows
    rates: Rates
    latencies: Latencies
    prefix_cache: PrefixCacheFigures
    decisions: dict[str, int]
    speculation: SpeculationFigures | None


class Pressure(Answer, kw_only=True):
    """The pool and its queue between two steps: the figures that go with a frame of blocks.

    first: in the queue; null where nobody waits.
    """

    time: float
    step: int
    pool: Pool
    kv_efficiency: float | None
    num_running: int
    num_waiting: int
    num_preempted: int
    first: Row | None


class MomentList(Answer, kw_only=True):
    """Of the latest ten minutes, oldest first, without those who ran or waited."""

    object: Literal["list"] = "list"
    data: list[Moment]


class EngineState(Moment, kw_only=True):
    """The engine between two steps. Parts that are off are null.

    kv_efficiency: of the slots that were taken, over time, the share that was used.
    queue_predicted_seconds: until all that wait now have been let in. forecasts: how the latest
    came true. step_parts: timed only while somebody asks for the state; null until a step has been.
    """

    object: Literal["quire.state"] = "quire.state"
    model: str
    version: str
    kv_efficiency: float | None
    queue_predicted_seconds: float
    forecasts: Grade | None
    step_parts: StepParts | None
    latest_decision: int
    last_preemption: DecisionRow | None
    settings: SettingsInForce
    num_sessions: int
    sessions: list[SessionRow]
    adapters: list[AdapterRow] | None
    ranks: int | None
    store: StoreFigures | None


class DecisionList(Answer, kw_only=True):
    """latest: the number of the latest of all."""

    object: Literal["list"] = "list"
    data: list[DecisionRow]
    latest: int


class AbortedRequest(Answer, kw_only=True):
    """A request that has been ended."""

    id: str
    object: Literal["quire.request"] = "quire.request"
    aborted: Literal[True] = True


class RequestStory(Answer, kw_only=True):
    """A request that has not ended. prompt, outputs: only with --dashboard-show-text."""

    object: Literal["quire.request"] = "quire.request"
    step: int
    request: Row
    tables: list[BranchTable]
    decisions: list[DecisionRow]
    prompt: str | None
    outputs: list[str] | None


class BlockStory(Answer, kw_only=True):
    """One block at this step. kv_group: whose pool it is in. holders: the first 32 of them."""

    object: Literal["quire.block"] = "quire.block"
    step: int
    block: int
    kv_group: int
    num_holders: int
    holders: list[Holder]


logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_STORY = 100  # decisions
_HOLDERS = 32


class Observed(Protocol):
    """An engine, or a simulated one, to be read between two steps."""

    scheduler: Scheduler
    stats: EngineStats
    part_times: PartTimes
    log: DecisionLog
    waiting_room: WaitingRoom
    capabilities: Capabilities
    clock: Callable[[], float]

    @property
    def forecasts(self) -> Forecasts | None:
        """What was expected of requests; None: nobody says."""

    def progress(self, request_id: str) -> RequestProgress | None:
        """A request's outputs; None if they are not known, or no longer."""


class StateReader:
    """Reads one engine.

    model_name: what it is called. kv_layers: of each KV group, the model's and a draft model's.
    wall: gives the time in seconds since 1970. pool_bytes: None: not known.
    """

    def __init__(
        self,
        engine: Observed,
        model_name: str,
        max_model_len: int | None,
        session_timeout: float | None = None,
        kv_layers: Sequence[tuple[int, int]] = (),
        wall: Callable[[], float] = time.time,
        pool_bytes: PoolBytes | None = None,
    ) -> None:
        self._engine = engine
        self._model_name = model_name
        self._max_model_len = max_model_len
        self._session_timeout = session_timeout
        self._kv_layers = kv_layers
        self._wall = wall
        self._pool_bytes = pool_bytes

    def moment(self, limit: int) -> Moment:
        """The moment, with details of at most ``limit`` requests of each kind."""
        engine, now = self._engine, self._engine.clock()
        scheduler, stats = engine.scheduler, engine.stats
        return Moment(
            time=self._wall(),
            step=stats.num_steps,
            pool=pool_figures(scheduler, self._max_model_len, self._kv_layers),
            slot_seconds=dict(stats.slot_seconds),
            requests=self._with_drafts(rows(scheduler, now, self._reasons(now), limit)),
            rates=stats.rates(now),
            latencies=Latencies(stats.first_token, stats.between_tokens),
            prefix_cache=prefix_cache(scheduler),
            decisions=dict(scheduler.stats.decisions),
            speculation=self._speculation(),
        )

    def state(self, limit: int) -> EngineState:
        """With details of at most ``limit`` requests of each kind, and sessions."""
        engine, sessions = self._engine, self._engine.capabilities.sessions.all()
        preemptions = (one for one in reversed(engine.log.since(0)) if one.decision.what.preempts)
        return EngineState(
            **asdict(self.moment(limit)),
            model=self._model_name,
            version=__version__,
            kv_efficiency=engine.stats.kv_efficiency,
            queue_predicted_seconds=engine.waiting_room.predicted_wait,
            forecasts=None if engine.forecasts is None else engine.forecasts.grade,
            step_parts=engine.part_times.of_late(),
            latest_decision=engine.log.number,
            last_preemption=next(map(self._decision, preemptions), None),
            settings=self._settings(),
            num_sessions=len(sessions),
            sessions=[self._session(one) for one in _last(sessions, limit)],
            adapters=self._adapters(),
            ranks=None if engine.capabilities.others is None else engine.capabilities.others.size,
            store=self._store(),
        )

    def pressure(self) -> Pressure:
        """The figures that go with the pool's blocks."""
        engine, now = self._engine, self._engine.clock()
        scheduler = engine.scheduler
        reasons, first = self._reasons(now), next(iter(scheduler.waiting), None)
        counts = rows(scheduler, now, reasons, 0)
        return Pressure(
            time=self._wall(),
            step=engine.stats.num_steps,
            pool=pool_figures(scheduler, self._max_model_len, self._kv_layers),
            kv_efficiency=engine.stats.kv_efficiency,
            num_running=counts.num_running,
            num_waiting=counts.num_waiting,
            num_preempted=counts.num_preempted,
            first=None if first is None else one_row(scheduler, first, now, reasons),
        )

    def decisions(self, since: int, limit: int) -> DecisionList:
        """The latest ``limit`` decisions after a number."""
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
            raise RequestError(f"block must be from 0 to {most}, got {number}", "block")
        return BlockStory(
            step=self._engine.stats.num_steps,
            block=number,
            kv_group=found.kv_group,
            num_holders=len(found.holders),
            holders=found.holders[:_HOLDERS],
        )

    # -- parts ---------------------------------------------------------------------------------

    def _reasons(self, now: float) -> Reasons:
        rates = self._engine.stats.rates(now)
        pace, log = None, self._engine.log
        if rates.step_seconds is not None:
            pace = Pace(rates.step_seconds, rates.tokens_each)
        preempted = {
            one.decision.request_id: one.time for one in log.since(0) if one.decision.what.preempts
        }
        wait_of = self._engine.waiting_room.wait_of
        return Reasons(log.waiting, wait_of, pace, preempted, self._pool_bytes)

    def _with_drafts(self, found: Rows) -> Rows:
        drafted = self._drafted
        return replace(
            found,
            running=[*map(drafted, found.running)],
            waiting=[*map(drafted, found.waiting)],
            preempted=[*map(drafted, found.preempted)],
        )

    def _drafted(self, row: Row) -> Row:
        """The row with what the engine knows beside the scheduler."""
        progress = self._engine.progress(row.id)
        if progress is None:
            return row
        return replace(
            row,
            output_tokens=sum(len(branch.output.token_ids) for branch in progress.branches),
            draft_tokens=progress.num_draft_tokens,
            accepted_tokens=progress.num_accepted_tokens,
            grammar_seconds=progress.grammar_seconds,
            beside_seconds=progress.beside_seconds,
            expected_first_token=progress.expected and progress.expected.first_token,
            expected_end=progress.expected and progress.expected.end,
        )

    def _decision(self, noted: Noted) -> DecisionRow:
        decision, ago = noted.decision, self._engine.clock() - noted.time
        fields: dict[str, Any] = {**decision._asdict(), "what": decision.what.value}
        return DecisionRow(number=noted.number, time=self._wall() - ago, **fields)

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
        disks = [] if store is None else places_of(store)[1]
        if not disks:
            return None
        counts = StoreCounts.total(disk.counts for disk in disks)
        return StoreFigures(
            disks[0].num_bytes,
            not any(disk.quiet for disk in disks),
            counts.read_blocks,
            counts.written_blocks,
            counts.evicted_blocks,
            counts.bad_blocks,
        )

    def _session(self, session: OpenSession) -> SessionRow:
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
        self,
        engine: Engine,
        model_name: str,
        kv_layers: Sequence[tuple[int, int]] = (),
        pool_bytes: PoolBytes | None = None,
    ) -> None:
        length, timeout = (
            engine.input_processor.max_model_len,
            engine.sessions.rules.timeout or None,
        )
        super().__init__(engine, model_name, length, timeout, kv_layers, pool_bytes=pool_bytes)
        self._whole = engine

    def story(self, request_id: str, *, show_text: bool = False) -> RequestStory:
        story, progress = super().story(request_id), self._whole.progress(request_id)
        if progress is None:
            raise UnknownRequestError(request_id)
        if not show_text:
            return story
        read = self._whole.input_processor.detokenize
        story.prompt = read(progress.request.prompt_token_ids)
        story.outputs = [one.output.text for one in progress.branches]
        if progress.miss is not None:
            told = self.miss(progress.miss, show_text=True)
            story.request = replace(story.request, miss=told)
        return story

    def miss(self, miss: Miss, *, show_text: bool) -> MissRow:
        read = self._whole.input_processor.detokenize if show_text else None
        return miss_row(miss, self._whole.scheduler, self._pool_bytes, read)


def _last(many: Sequence[_T], limit: int) -> Sequence[_T]:
    return many[-limit:] if limit else ()


class MissLog(Watcher):
    """Says why prompts were not found in the prefix cache, as their requests end."""

    def __init__(self, reader: EngineReader, *, show_text: bool) -> None:
        self._reader, self._show_text = reader, show_text

    def ended(self, state: RequestState) -> None:
        request, miss = state.request, state.metrics.miss
        if miss is not None:
            names = {"request_id": request.origin.request_id}
            text = self._reader.miss(miss, show_text=self._show_text).text
            logger.debug("request %s: %s", request.request_id, text, extra=names)


def miss_log(reader: EngineReader, config: ServerConfig) -> list[MissLog]:
    """None, if nobody would read it: a state is made for it of every request that ends."""
    wanted = config.uvicorn_log_level in ("debug", "trace") or logger.isEnabledFor(logging.DEBUG)
    return [MissLog(reader, show_text=config.dashboard_show_text)] if wanted else []

"""One of a fleet's replicas, from life to life."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

from quire.core.limits import EngineLimits
from quire.core.protocol import Step
from quire.core.scheduling.admission import SchedulerStats
from quire_cluster.rules import ReplicaReport
from quire_lab.simulation.engine import Pause, SimulatedEngine
from quire_lab.simulation.fleet.flight import Flight
from quire_lab.simulation.fleet.result import MOST_LIVES, Life, ReplicaResult
from quire_lab.simulation.fleet.setup import ReplicaKind, Role
from quire_lab.simulation.fleet.transfer import Delivered, HandedOver
from quire_lab.simulation.recorder import SimulationRecorder
from quire_lab.simulation.result import RequestRecord
from quire_lab.simulation.sampling import SimulatedModel

NEVER: Pause = (-1.0, 0)


class State(Enum):
    DOWN = "down"
    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"  # until it has answered what it has


class SimulatedReplica:
    """The engine of a replica, what it was sent, and the results of all of its lives.

    name: another one in each life. flights: sent here and not answered, by number.
    report: the last one. running: its engine's steps, while there are any; pause: when they
        continue.
    """

    def __init__(
        self,
        slot: int,
        kind: ReplicaKind,
        limits: EngineLimits,
        recorder: SimulationRecorder,
        *,
        seed: int,
        skip_ahead: bool,
        on_end: Callable[[SimulatedReplica, RequestRecord, float], None],
        on_step: Callable[[int, float, Step], None] | None,
    ) -> None:
        self.slot = slot
        self.kind = kind
        self.limits = limits
        self.costs = kind.deployment.cost_model(limits.block_size)
        self.state = State.DOWN
        self.life = 0
        self.name = ""
        self.flights: dict[int, Flight] = {}
        self.report = ReplicaReport()
        self.running: Iterator[Pause] | None = None
        self.pause = NEVER
        self.source: Delivered | None = None
        self._recorder = recorder
        self._seed = seed
        self._skip_ahead = skip_ahead
        self._on_end = on_end
        self._on_step = on_step
        self._engine: SimulatedEngine | None = None
        self._stats = SchedulerStats()
        self._num_sent = self._num_lost = self._num_failures = self._lost_tokens = 0
        self._lost_block_seconds = 0.0
        self._since: float | None = None  # it has been paid for, or served
        self._paid_seconds = self._served_seconds = 0.0
        self._serves_since = self.started = 0.0
        self._lives: list[Life] = []

    @property
    def engine(self) -> SimulatedEngine:
        assert self._engine is not None, "it serves"
        return self._engine

    @property
    def is_up(self) -> bool:
        """Whether it runs what it has."""
        return self.state in (State.SERVING, State.LEAVING)

    # -- its life ------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """The machine is taken; until ``serve``, it loads."""
        self.state = State.STARTING
        self.life += 1
        self.started = now
        if self._since is None:
            self._since = now

    def serve(self, now: float) -> None:
        self.state = State.SERVING
        self.name = f"{self.slot:04}.{self.life}"
        self.report = ReplicaReport()
        self._serves_since = now
        role, on_step, slot = self.kind.role, self._on_step, self.slot
        sources = {Role.PREFILL: HandedOver, Role.DECODE: Delivered}
        self.source = sources[role]() if role in sources else None
        drafting = None if role is Role.PREFILL else self.kind.deployment.drafting
        self._engine = SimulatedEngine(
            self.limits,
            self.costs,
            SimulatedModel(self._seed, drafting),
            self._recorder,
            on_end=lambda record, time: self._on_end(self, record, time),
            skip_ahead=self._skip_ahead,
            source=self.source,
            on_step=None if on_step is None else lambda time, step: on_step(slot, time, step),
        )

    def stop(self, now: float) -> None:
        """Stop paying for it."""
        if self.is_up:
            self._end_life(now, failed=False)
        elif self.state is State.STARTING:
            self._note(None, now, failed=False)
        self.state = State.DOWN
        if self._since is not None:
            self._paid_seconds += now - self._since
            self._since = None

    def fail(self, now: float) -> list[Flight]:
        """Let it fail; returns the lost requests in order of arrival."""
        lost = sorted(self.flights.values(), key=lambda flight: flight.number)
        for live in self.engine.lose(now):
            self._lost_tokens += live.num_output_tokens
            self._lost_block_seconds += live.group.memory.block_seconds
        self._num_failures += 1
        self._num_lost += len(lost)
        self.flights = {}
        self._end_life(now, failed=True)
        self.state = State.DOWN
        return lost

    def _note(self, serves: float | None, now: float, failed: bool) -> None:
        if len(self._lives) < MOST_LIVES:
            self._lives.append(Life(self.started, serves, now, failed))

    def _end_life(self, now: float, failed: bool) -> None:
        self._note(self._serves_since, now, failed)
        self._served_seconds += now - self._serves_since
        ended, stats = self.engine.stats, self._stats
        stats.decisions.update(ended.decisions)
        stats.prefix_queries += ended.prefix_queries
        stats.prefix_hits += ended.prefix_hits
        stats.prefix_fetched += ended.prefix_fetched
        stats.prefix_evicted += ended.prefix_evicted
        stats.prefix_tails += ended.prefix_tails
        self._engine = self.running = self.source = None

    # -- what it has to do ---------------------------------------------------------------------

    def take(self, flight: Flight, now: float) -> bool:
        """Whether it was idle, and runs again from now on."""
        self._num_sent += 1
        self.flights[flight.number] = flight
        trace = flight.prompt if self.kind.role is Role.PREFILL else flight.trace
        self.engine.take(flight.number, trace, now)
        if self.running is not None:
            return False
        self.running = self.engine.steps(now)
        return True

    def forget(self, flight: Flight) -> None:
        """The blocks of it that were sent here."""
        if self.source is not None and flight.names:
            self.source.remove(flight.names)
            flight.names = ()

    def tell(self, now: float) -> None:
        """Make a report."""
        engine = self.engine
        engine.catch_up(now)
        usage = engine.usage
        rate = engine.num_tokens / engine.busy_seconds if engine.busy_seconds else 0.0
        number, free = self.report.number + 1, usage.free + usage.cached
        self.report = ReplicaReport(
            number, usage.capacity, free, engine.backlog, engine.predicted_wait, rate
        )

    def result(self, begin: float, end: float) -> ReplicaResult:
        """All of its lives, from ``begin`` to ``end``. It ends with this."""
        self.stop(end)
        return ReplicaResult(
            slot=self.slot,
            kind=str(self.kind),
            num_machines=self.kind.deployment.tensor_parallel,
            dollars_per_hour=self.kind.deployment.dollars,
            role=self.kind.role.value,
            num_sent=self._num_sent,
            num_lost=self._num_lost,
            num_failures=self._num_failures,
            lost_tokens=self._lost_tokens,
            lost_block_seconds=self._lost_block_seconds,
            paid_seconds=self._paid_seconds,
            served_seconds=self._served_seconds,
            fetched_tokens=self._stats.prefix_fetched,
            lives=tuple(self._lives),
            result=self._recorder.result(self.limits, self._stats, begin, end),
        )

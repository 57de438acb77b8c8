"""A workload that several engines serve, each with the real scheduler, on one virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from quire.core.memory import BlockHash
from quire.core.protocol import Step
from quire.engine.traces.request import TraceRequest
from quire_cluster.rules import demand_of
from quire_lab.simulation.arrivals import Arrivals, OpenLoop
from quire_lab.simulation.fleet.asking import Asking
from quire_lab.simulation.fleet.autoscaling import Autoscaler
from quire_lab.simulation.fleet.clock import FleetClock
from quire_lab.simulation.fleet.failures import Failure
from quire_lab.simulation.fleet.flight import Flight
from quire_lab.simulation.fleet.handover import BlockHandover, Sent
from quire_lab.simulation.fleet.replica import SimulatedReplica, State
from quire_lab.simulation.fleet.result import FleetRecorder, FleetResult
from quire_lab.simulation.fleet.routing import Router, router_of
from quire_lab.simulation.fleet.setup import FleetSetup, Role
from quire_lab.simulation.recorder import KeptResults, SimulationRecorder
from quire_lab.simulation.result import RequestRecord

_REPORTS = 1.0  # seconds between two of a replica's, as in quire deploy


class FleetSimulator:
    """One run of a workload, by a fleet.

    kept: of the whole and, but for ``most_missed``, of each replica.
    seed, skip_ahead: as for a ``Simulator``, of each replica.
    make_router: another one than the setup's routing names.
    on_record: called with every request that is over for its client.
    on_step: called with the replica's number, the time, and every step that its scheduler made.
    """

    def __init__(
        self,
        setup: FleetSetup,
        kept: KeptResults = KeptResults(),  # noqa: B008  # frozen
        *,
        seed: int = 0,
        skip_ahead: bool = True,
        make_router: Callable[[], Router] | None = None,
        on_record: Callable[[RequestRecord], None] | None = None,
        on_step: Callable[[int, float, Step], None] | None = None,
    ) -> None:
        self._setup = setup
        self._seed = seed
        self._skip_ahead = skip_ahead
        self._kept = kept
        self._on_record = on_record
        self._on_step = on_step
        self._recorder = FleetRecorder(kept)
        deployments = {id(kind.deployment): kind.deployment for kind in setup.kinds}
        self._limits = {key: one.limits() for key, one in deployments.items()}
        make = make_router or (lambda: router_of(setup.routing))
        roles = (Role.PREFILL, Role.DECODE) if setup.is_apart else (Role.BOTH,)
        self._routers = {role: make() for role in roles}
        self._serving: dict[Role, list[SimulatedReplica]] = {role: [] for role in roles}
        self._first = roles[0] if setup.max_local_prefill_length is None else roles[-1]
        self._replicas: list[SimulatedReplica] = []
        self._handover = BlockHandover(setup.transfer)
        self._make_router = make
        self._asking: Asking | None = None  # where who answers asks who prefills
        self._scaler: Autoscaler | None = None
        if setup.autoscaling is not None:
            self._scaler = Autoscaler(setup.autoscaling, len(setup.kinds))
        self._nowhere: list[Flight] = []  # whom nobody takes now
        self._num_arrived = self._num_under_way = 0
        self._arrivals: Arrivals = OpenLoop(())
        self._clock = FleetClock(0.0)

    def run(self, workload: Iterable[TraceRequest]) -> FleetResult:
        """Serve requests that come in order of arrival."""
        return self.serve(OpenLoop(workload))

    def serve(self, arrivals: Arrivals) -> FleetResult:
        """Serve all that come, to the end. A fleet serves once."""
        self._arrivals = arrivals
        begin = arrivals.next_time or 0.0
        clock = self._clock = FleetClock(begin)
        self._asking = self._asking_of(self._setup)
        for slot in range(len(self._setup.kinds)):
            self._start(slot, begin, 0.0)
        for failure in self._setup.failures.at:
            clock.at(begin + failure.at, partial(self._fail_as_told, failure))
        clock.at(begin + _REPORTS, self._tick)
        recorder = self._recorder
        while not recorder.gives_up:
            arrival = arrivals.next_time
            if arrival is None and not self._num_under_way and not self._computes_for_nobody:
                break
            event = clock.next_event
            due = event if arrival is None else min(event, arrival)
            if clock.run(due):
                continue
            if event <= due:
                clock.happen()
            else:
                self._arrive(due)
        end = clock.now
        return recorder.result(end - begin, [one.result(begin, end) for one in self._replicas])

    def _asking_of(self, setup: FleetSetup) -> Asking | None:
        if not setup.is_apart or setup.max_local_prefill_length is None:
            return None
        return Asking(
            setup.max_local_prefill_length,
            self._make_router,
            self._handover,
            self._clock,
            able=lambda: self._serving[Role.PREFILL],
            give=self._give,
            send=lambda flight, source, target, names, now: self._send(
                flight, source, source.life, target, names, now
            ),
        )

    @property
    def _computes_for_nobody(self) -> bool:
        return self._asking is not None and self._asking.has_work

    # -- requests ------------------------------------------------------------------------------

    def _arrive(self, now: float) -> None:
        self._clock.now = now
        flight = Flight(self._num_arrived, self._arrivals.take())
        self._num_arrived += 1
        self._num_under_way += 1
        self._route(flight, now)

    def _route(self, flight: Flight, now: float) -> None:
        """Send a request to the replica that answers it; or, behind a proxy, to one that computes
        its prompt, and then to one that continues.
        """
        role = self._first if flight.source is None else Role.DECODE
        able = self._serving[role]
        if not able:
            self._keep_or_refuse(flight, role, now)
            return
        replica = self._routers[role].choose(flight, able)
        if flight.source is None:
            if self._asking is None or not self._asking.begin(flight, replica, now):
                self._give(flight, replica)
            return
        (slot, life), names = flight.source, self._handover.missing(flight, replica, now)
        self._send(flight, self._replicas[slot], life, replica, names, now)

    def _send(
        self,
        flight: Flight,
        source: SimulatedReplica,
        life: int,
        target: SimulatedReplica,
        names: Sequence[BlockHash],
        now: float,
    ) -> None:
        """Blocks of its prompt, to where it counts as sent from now on."""
        target.flights[flight.number] = flight
        alive = source.is_up and source.life == life
        sent = self._handover.begin(flight, source, life, target, names if alive else (), now)
        self._recorder.transfers.add(sent.end - now)
        self._recorder.transferred_bytes += sent.num_bytes
        self._clock.at(sent.end, lambda _: self._handed_over(sent))

    def _handed_over(self, sent: Sent) -> None:
        if sent.arrives():
            self._give(sent.flight, sent.target)

    def _give(self, flight: Flight, replica: SimulatedReplica) -> None:
        if replica.take(flight, self._clock.now):
            self._clock.wake(replica)
        else:
            self._clock.reschedule(replica)

    def _ended(self, replica: SimulatedReplica, record: RequestRecord, now: float) -> None:
        """A replica has done its part of a request, or refused it."""
        flight = replica.flights.pop(int(record.request_id))
        if self._asking is not None and replica.kind.role is Role.PREFILL:
            self._asking.computed(replica, flight, record.metrics is not None, now)
            return
        self._routers[replica.kind.role].done(flight, replica)
        replica.forget(flight)
        if replica.kind.role is Role.PREFILL and record.metrics is not None:
            flight.source = replica.slot, replica.life
            self._route(flight, now)
            return
        self._over(flight, record, now)
        if replica.state is State.LEAVING and not replica.flights:
            self._clock.at(now, lambda now: self._stop(replica, now))

    def _over(self, flight: Flight, record: RequestRecord, now: float) -> None:
        self._num_under_way -= 1
        self._recorder.end(record, flight.times_lost)
        if self._on_record is not None:
            self._on_record(record)
        self._arrivals.ended(now)

    def _keep_or_refuse(self, flight: Flight, role: Role, now: float) -> None:
        """No replica serves now: wait for one that starts, if any does."""
        if any(one.state is State.STARTING and one.kind.role is role for one in self._replicas):
            self._nowhere.append(flight)
            return
        record = RequestRecord(str(flight.number), None, None, refused="no replica is left")
        self._over(flight, record, now)

    def _route_again(self, now: float) -> None:
        """Route the requests that no replica has taken."""
        waiting, self._nowhere = self._nowhere, []
        for flight in waiting:
            self._route(flight, now)

    # -- replicas ------------------------------------------------------------------------------

    def _start(self, slot: int, now: float, seconds: float) -> None:
        """Start a replica, which serves after this many seconds."""
        if slot == len(self._replicas):
            self._replicas.append(self._made(slot))
        replica = self._replicas[slot]
        replica.start(now)
        life = replica.life
        if seconds:
            self._clock.at(now + seconds, lambda now: self._serve(replica, life, now))
        else:
            self._serve(replica, life, now)

    def _made(self, slot: int) -> SimulatedReplica:
        kind = self._setup.kind(slot)
        return SimulatedReplica(
            slot,
            kind,
            self._limits[id(kind.deployment)],
            SimulationRecorder(replace(self._kept, most_missed=None)),
            seed=self._seed,
            skip_ahead=self._skip_ahead,
            on_end=self._ended,
            on_step=self._on_step,
        )

    def _serve(self, replica: SimulatedReplica, life: int, now: float) -> None:
        if replica.state is not State.STARTING or replica.life != life:
            return
        replica.serve(now)
        self._note_serving()
        lives = self._setup.failures.life(self._seed, replica.slot, life)
        if lives is not None:
            after = self._setup.start_seconds
            self._clock.at(now + lives, lambda now: self._fail(replica.slot, now, after, life))
        if self._asking is not None and replica.kind.role is Role.PREFILL:
            self._asking.ask_again()
        self._route_again(now)

    def _note_serving(self) -> None:
        for role in self._serving:
            self._serving[role] = [
                one
                for one in self._replicas
                if one.state is State.SERVING and one.kind.role is role
            ]
        serving = sum(map(len, self._serving.values()))
        self._recorder.most_serving = max(self._recorder.most_serving, serving)

    def _fail_as_told(self, failure: Failure, now: float) -> None:
        self._fail(failure.replica, now, failure.restart_after)

    def _fail(
        self, slot: int, now: float, restart_after: float | None, life: int | None = None
    ) -> None:
        """Let a replica fail; its requests are sent again at once. ``life``: only if it is still
        that one.
        """
        replica = self._replicas[slot] if slot < len(self._replicas) else None
        if replica is None or not replica.is_up or life not in (None, replica.life):
            return
        leaves = replica.state is State.LEAVING
        lost = replica.fail(now)
        self._clock.drop(replica)
        self._note_serving()
        if self._scaler is not None and restart_after is None:
            restart_after = self._setup.start_seconds
        if leaves or restart_after is None:
            replica.stop(now)
        else:
            self._start(slot, now, restart_after)
        self._lose(replica, lost, now)
        self._route_again(now)

    def _lose(self, replica: SimulatedReplica, lost: Sequence[Flight], now: float) -> None:
        """Drop a replica's requests; prompts that other replicas wanted are not lost to clients."""
        if self._asking is not None and replica.kind.role is Role.PREFILL:
            for flight in lost:
                self._asking.lost(replica, flight)
            return
        self._recorder.num_lost += len(lost)
        for flight in lost:
            flight.begin_anew()
            self._route(flight, now)

    def _stop(self, replica: SimulatedReplica, now: float) -> None:
        if replica.state is State.LEAVING and not replica.flights:
            replica.stop(now)
            self._clock.drop(replica)

    # -- once a second -------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        """Collect the replicas' reports."""
        for replica in self._replicas:
            if replica.is_up:
                replica.tell(now)
        if self._scaler is not None:
            serving = self._serving[Role.BOTH]
            self._scaler.observe(now, {one.name: demand_of(one.report) for one in serving})
            self._scale(self._scaler.target, now)
        self._clock.at(now + _REPORTS, self._tick)

    def _scale(self, target: int, now: float) -> None:
        there = [one for one in self._replicas if one.state in (State.STARTING, State.SERVING)]
        for _ in range(target - len(there)):
            free = (one.slot for one in self._replicas if one.state is State.DOWN)
            self._start(next(free, len(self._replicas)), now, self._setup.start_seconds)
        newest = sorted(there, key=lambda one: (one.started, one.slot), reverse=True)
        for replica in newest[: max(0, len(there) - target)]:
            if replica.state is State.STARTING:
                replica.stop(now)
                continue
            replica.state = State.LEAVING
            self._stop(replica, now)
        if len(there) > target:
            self._note_serving()

"""Prompts that a replica has another one compute, as ``quire deploy --prefill-replicas`` does it:
its rules, and its order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.core.memory import BlockHash
from quire_cluster.rules import TAKEN_WITHIN, Pairing
from quire_lab.simulation.fleet.clock import FleetClock
from quire_lab.simulation.fleet.flight import Flight
from quire_lab.simulation.fleet.handover import BlockHandover
from quire_lab.simulation.fleet.replica import SimulatedReplica
from quire_lab.simulation.fleet.routing import Router


@dataclass(eq=False)
class Ask:
    """A request waits where it is answered, for blocks of its prompt that are not there."""

    flight: Flight
    target: SimulatedReplica
    names: Sequence[BlockHash]

    @property
    def stands(self) -> bool:
        """Whether it waits still."""
        return self.flight.ask is self


class PrefillAsker:
    """What a replica that answers knows of prefill replicas, in one of its lives."""

    def __init__(self, most_local: int, router: Router) -> None:
        self.pairing = Pairing(most_local)
        self.router = router


class Asking:
    """Requests of replicas that answer to prefill replicas.

    most_local: uncached tokens of a prompt up to which it is computed where it is answered.
    able: the prefill replicas that serve now.
    give: sends a request to a replica, which computes what it lacks.
    send: sends blocks from the replica that computed them to the one that answers.
    """

    def __init__(
        self,
        most_local: int,
        make_router: Callable[[], Router],
        handover: BlockHandover,
        clock: FleetClock,
        *,
        able: Callable[[], Sequence[SimulatedReplica]],
        give: Callable[[Flight, SimulatedReplica], None],
        send: Callable[
            [Flight, SimulatedReplica, SimulatedReplica, Sequence[BlockHash], float], None
        ],
    ) -> None:
        self._most_local = most_local
        self._make_router = make_router
        self._handover = handover
        self._clock = clock
        self._able, self._give, self._send = able, give, send
        self._askers: dict[str, PrefillAsker] = {}  # by name, which is another in each life
        self._choices: dict[int, Router] = {}  # by number of a prompt under way: whose choice
        self._unheard: list[Ask] = []  # since no prefill replica serves

    @property
    def has_work(self) -> bool:
        """Whether prompts are being computed for others, though they be dead."""
        return bool(self._choices)

    def begin(self, flight: Flight, target: SimulatedReplica, now: float) -> bool:
        """Whether the request waits for another replica; else it is to be given to ``target``."""
        if target.name not in self._askers:
            self._askers[target.name] = PrefillAsker(self._most_local, self._make_router())
        pairing, size = self._askers[target.name].pairing, target.limits.block_size
        if not pairing.pays(flight.trace.prompt_tokens // size * size, now):
            return False
        names = self._handover.missing(flight, target, now)
        if not pairing.pays(len(names) * size, now):
            return False
        ask = flight.ask = Ask(flight, target, names)
        target.flights[flight.number] = flight
        if self._able():
            self._have_computed(ask)
        else:
            self._unheard.append(ask)
            self._clock.at(now + TAKEN_WITHIN, lambda now: self._give_up(ask, now))
        return True

    def ask_again(self) -> None:
        """Continue, since a prefill replica serves now."""
        unheard, self._unheard = self._unheard, []
        for ask in unheard:
            if ask.stands:
                self._have_computed(ask)

    def computed(self, source: SimulatedReplica, flight: Flight, able: bool, now: float) -> None:
        """A prompt's computing has ended. able: or been refused."""
        ask = self._taken_back(flight, source)
        if ask is None:
            return
        self._askers[ask.target.name].pairing.answered()
        if able:
            self._send(flight, source, ask.target, ask.names, now)
        else:  # between two steps of another engine
            self._clock.at(now, lambda _: self._take_up(ask, flight.times_lost))

    def lost(self, source: SimulatedReplica, flight: Flight) -> None:
        """The prefill replica has failed: the prompt is computed where it is answered."""
        ask = self._taken_back(flight, source)
        if ask is not None:
            self._give(flight, ask.target)

    def _have_computed(self, ask: Ask) -> None:
        flight = ask.flight
        if flight.number in self._choices:
            return  # for who has asked before, and failed
        router = self._choices[flight.number] = self._askers[ask.target.name].router
        self._give(flight, router.choose(flight, self._able()))

    def _taken_back(self, flight: Flight, source: SimulatedReplica) -> Ask | None:
        """The request whose prompt ``source`` had; None: none waits for it."""
        self._choices.pop(flight.number).done(flight, source)
        ask, flight.ask = flight.ask, None
        assert ask is None or isinstance(ask, Ask)
        return ask

    def _take_up(self, ask: Ask, times_lost: int) -> None:
        if ask.flight.times_lost == times_lost:
            self._give(ask.flight, ask.target)

    def _give_up(self, ask: Ask, now: float) -> None:
        """No prefill replica has taken the prompt in time."""
        if ask.stands and ask in self._unheard:
            self._unheard.remove(ask)
            ask.flight.ask = None
            self._askers[ask.target.name].pairing.unanswered(now)
            self._give(ask.flight, ask.target)

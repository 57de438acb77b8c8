"""Which replica gets a request. The rules that ``quire deploy`` has are its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from quire.engine.work import Work
from quire_cluster.rules import (
    MOST_PIECES,
    TOKENS_PER_PIECE,
    Affinity,
    Prefix,
    ReplicaLoad,
    RoundRobin,
)
from quire_lab.simulation.fleet.flight import Flight
from quire_lab.workload.clipping import block_names

if TYPE_CHECKING:
    from quire_lab.simulation.fleet.replica import SimulatedReplica


class Router(Protocol):
    """Chooses among serving replicas, by reports that are at most a second old."""

    def choose(self, flight: Flight, replicas: Sequence[SimulatedReplica]) -> SimulatedReplica:
        """One of at least one. The request counts as sent there."""
        ...

    def done(self, flight: Flight, replica: SimulatedReplica) -> None:
        """The replica has answered it."""
        ...


class Turns:
    """``round-robin``: each replica in its turn."""

    def __init__(self) -> None:
        self._turns = RoundRobin()

    def choose(self, flight: Flight, replicas: Sequence[SimulatedReplica]) -> SimulatedReplica:
        by_name = {replica.name: replica for replica in replicas}
        return by_name[self._turns.choose(by_name)[0]]

    def done(self, flight: Flight, replica: SimulatedReplica) -> None:
        pass


class Costs:
    """``prefix-aware``, and without prefixes ``least-loaded``: see ``Affinity``."""

    def __init__(self, prefixes: bool) -> None:
        self._affinity = Affinity()
        self._prefixes = prefixes
        self._running: dict[str, int] = {}  # requests that this one has sent, by replica

    def choose(self, flight: Flight, replicas: Sequence[SimulatedReplica]) -> SimulatedReplica:
        by_name = {replica.name: replica for replica in replicas}
        running = self._running = {name: self._running.get(name, 0) for name in by_name}
        loads = {one.name: ReplicaLoad(running[one.name], one.report) for one in replicas}
        prefix = Prefix((), flight.trace.prompt_tokens)
        if self._prefixes:
            prefix = prefix_of(flight)
        best = self._affinity.choose(str(flight.number), prefix, loads)[0]
        running[best] += 1
        return by_name[best]

    def done(self, flight: Flight, replica: SimulatedReplica) -> None:
        self._affinity.done(replica.name, str(flight.number))
        if replica.name in self._running:
            self._running[replica.name] -= 1


class ShortestWait:
    """``shortest-wait``: where the prompt is computed first, by the replicas' own step times.

    Requests that wait for blocks wait as long as the replica predicts; then full steps compute the
    prompts that are there, and this one's, beside the running sequences.
    """

    def __init__(self) -> None:
        self._sent: dict[str, dict[int, int]] = {}  # by replica, tokens since its last report
        self._reports: dict[str, int] = {}
        self._choices = 0
        self._chosen: dict[str, int] = {}  # which choice each was last

    def choose(self, flight: Flight, replicas: Sequence[SimulatedReplica]) -> SimulatedReplica:
        """Among equals the least recently chosen, so that new requests spread."""
        best = min(
            replicas,
            key=lambda one: (
                self._wait(one, flight), len(one.flights), self._chosen.get(one.name, -1),
            ),
        )  # fmt: skip
        self._choices += 1
        self._chosen[best.name] = self._choices
        self._sent[best.name][flight.number] = flight.trace.prompt_tokens
        return best

    def done(self, flight: Flight, replica: SimulatedReplica) -> None:
        self._sent.get(replica.name, {}).pop(flight.number, None)

    def _wait(self, replica: SimulatedReplica, flight: Flight) -> float:
        name, report = replica.name, replica.report
        if self._reports.get(name) != report.number:
            self._reports[name], self._sent[name] = report.number, {}
        tokens = report.backlog + sum(self._sent[name].values()) + flight.trace.prompt_tokens
        limits = replica.limits
        running = min(len(replica.flights), limits.max_num_seqs)
        room = max(1, limits.max_num_batched_tokens - running)
        held = report.capacity - report.free
        full = math.ceil(tokens / room) - 1
        seconds = replica.costs.seconds(_work(tokens - full * room, running, held))
        if full:
            seconds += full * replica.costs.seconds(_work(room, running, held))
        return report.wait + seconds


def _work(prompt: int, running: int, held: int) -> Work:
    return Work(
        prefill_tokens=prompt,
        prefill_pairs=prompt * (prompt + 1) / 2,
        prefill_context=prompt,
        decode_seqs=running,
        decode_context=held if running else 0,
        samples=running + 1,
    )


def prefix_of(flight: Flight) -> Prefix:
    """The prefix of a request's prompt, in pieces as long as those of ``quire deploy``."""
    trace = flight.trace
    length = min(trace.prompt_tokens, TOKENS_PER_PIECE * MOST_PIECES)
    pieces = block_names(trace.content, length, TOKENS_PER_PIECE, f"own {flight.number}")
    if trace.adapter is not None:
        salt = trace.adapter.encode()
        pieces = [salt + piece for piece in pieces]
    return Prefix(tuple(pieces), trace.prompt_tokens)


ROUTINGS = ("round-robin", "least-loaded", "shortest-wait", "prefix-aware")


def router_of(routing: str) -> Router:
    if routing == "round-robin":
        return Turns()
    if routing == "shortest-wait":
        return ShortestWait()
    return Costs(prefixes=routing == "prefix-aware")

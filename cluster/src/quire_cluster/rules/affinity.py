"""Which replica gets a request: what it need not compute there, against what it would wait for."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

TOKENS_PER_PIECE = 32
MOST_PIECES = 1024  # of a prompt that are looked at; what is behind them still counts as work

_RUNNING = 32  # tokens: what each request that runs already costs another beside it
_FEWEST_PIECES = 1024  # remembered of a replica that has not reported yet
_LEAST_USE = 256  # tokens: a request uses a replica, and may stay there, however short it is
_HALF_LIFE = 16  # choices after which a use counts half


class Prefix(NamedTuple):
    """The digest of each piece, which says all before it too, and how long the whole is."""

    pieces: tuple[bytes, ...] = ()
    num_tokens: int = 0  # estimated


class ReplicaReport(NamedTuple):
    """What a replica says of itself. number: of its reports so far."""

    number: int = 0
    capacity: int = 0  # tokens that its KV pool holds
    free: int = 0  # of them, that nothing holds
    backlog: int = 0  # tokens of prompts that are there and not computed
    wait: float = 0.0  # seconds until who comes now is let in, by prediction
    rate: float = 0.0  # tokens that it computes in a second


class ReplicaLoad(NamedTuple):
    """running: requests that have been sent there and are not answered."""

    running: int
    report: ReplicaReport


@dataclass
class _KnownReplica:
    """What is remembered of a replica.

    pieces: of prompts that it was sent, the one that was met last at the end.
    sent: tokens that each request gave it to compute since its last report, if it runs still;
    num_sent: of all of them.
    use: tokens that it was given to compute, decayed, as of the choice number ``used_at``.
    lost: tokens that it had to give up while others had room, and that have not yet sent anything
    there.
    """

    pieces: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    report: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    num_sent: int = 0
    use: float = 0.0
    used_at: int = 0
    lost: int = 0

    def use_at(self, choice: int) -> float:
        return self.use * math.pow(2.0, (self.used_at - choice) / _HALF_LIFE)


class Affinity:
    """Remembers what was sent where, at most as much as the pools there hold.

    Costs are counted in tokens to compute: those of the prompt that the replica has not met, what
    it has to do before them, and what must leave its pool. A beginning that all prompts share
    would keep them together for ever, in one pool, for it is computed nowhere else. So what a pool
    loses while others have room is remembered until it comes to more than the beginning costs
    elsewhere; then that is paid, once.
    """

    def __init__(self) -> None:
        self._known: dict[str, _KnownReplica] = {}
        self._choices = 0

    @property
    def num_remembered(self) -> int:
        """Pieces of prompts."""
        return sum(len(known.pieces) for known in self._known.values())

    def choose(self, request: str, prefix: Prefix, loads: Mapping[str, ReplicaLoad]) -> list[str]:
        """The replicas, whoever costs least first; the request counts as sent to that one."""
        for gone in self._known.keys() - loads.keys():
            del self._known[gone]
        self._choices += 1
        costs = {name: self._cost(request, name, prefix, load) for name, load in loads.items()}
        lost = self._lost(loads)
        ranked = sorted(loads, key=lambda name: (costs[name][0] + lost[name], *costs[name][1:]))
        if ranked:
            best = min(loads, key=lambda name: costs[name])
            self._known[best].lost = max(
                0, lost[best] - round(costs[ranked[0]][0] - costs[best][0])
            )
            self._send(request, prefix, ranked[0], loads)
        return ranked

    def done(self, name: str, request: str) -> None:
        """A replica has answered."""
        known = self._known.get(name)
        if known is not None:
            known.num_sent -= known.sent.pop(request, 0)

    def _cost(
        self, request: str, name: str, prefix: Prefix, load: ReplicaLoad
    ) -> tuple[float, float, bytes]:
        """Among equals who was used least of late, and then chance: so what is new spreads.

        How much a replica has met says nothing of that, since it does not grow beyond its pool.
        Chance is the request's, so that several routers do not all begin with the same replica.
        """
        known, report = self._known.setdefault(name, _KnownReplica()), load.report
        if known.report != report.number:
            known.report, known.sent, known.num_sent = report.number, {}, 0
        new = self._new_tokens(known, prefix)
        before = max(report.backlog, report.wait * report.rate) + known.num_sent
        short = max(0, prefix.num_tokens - report.free) if report.number else 0
        chance = blake2b(name.encode(), key=request.encode()[:64], digest_size=8).digest()
        cost = new + before + short + _RUNNING * load.running
        return cost, known.use_at(self._choices), chance

    def _new_tokens(self, known: _KnownReplica, prefix: Prefix) -> int:
        """Of the prompt, those that the replica has not met."""
        met = 0
        for piece in prefix.pieces:
            if piece not in known.pieces:
                break
            met += 1
        return max(0, prefix.num_tokens - met * TOKENS_PER_PIECE)

    def _lost(self, loads: Mapping[str, ReplicaLoad]) -> dict[str, int]:
        """By replica. Where all pools are full, it is nobody's fault."""
        if not any(self._has_room(name, load.report) for name, load in loads.items()):
            for name in loads:
                self._known[name].lost = 0
        return {name: self._known[name].lost for name in loads}

    def _has_room(self, name: str, report: ReplicaReport) -> bool:
        return len(self._known[name].pieces) < _most_pieces(report)

    def _send(
        self, request: str, prefix: Prefix, name: str, loads: Mapping[str, ReplicaLoad]
    ) -> None:
        known = self._known[name]
        new = self._new_tokens(known, prefix)
        known.num_sent += new - known.sent.get(request, 0)
        known.sent[request] = new
        known.use = known.use_at(self._choices) + max(new, _LEAST_USE)
        known.used_at = self._choices
        for piece in reversed(prefix.pieces):  # beginnings are needed longest
            known.pieces[piece] = None
            known.pieces.move_to_end(piece)
        others = (other for other in loads if other != name)
        room = any(self._has_room(other, loads[other].report) for other in others)
        while len(known.pieces) > _most_pieces(loads[name].report):
            known.pieces.popitem(last=False)
            known.lost += TOKENS_PER_PIECE if room else 0


def _most_pieces(report: ReplicaReport) -> int:
    return max(report.capacity // TOKENS_PER_PIECE, _FEWEST_PIECES)


class RoundRobin:
    """Each replica in its turn."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, names: Iterable[str]) -> list[str]:
        """The next one first."""
        ordered = sorted(names)
        later = [name for name in ordered if name > self._last]
        ranked = [*later, *ordered[: len(ordered) - len(later)]]
        if ranked:
            self._last = ranked[0]
        return ranked

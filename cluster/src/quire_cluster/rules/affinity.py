"""Which replica gets a request: the cached part of its prompt is weighed against the wait."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

TOKENS_PER_PIECE = 32
MOST_PIECES = 1024  # pieces of a prompt that are compared; the rest still counts as work

_RUNNING = 32  # tokens: what each running request costs a new one
_FEWEST_PIECES = 1024  # pieces remembered of a replica that has not reported yet
_LEAST_USE = 256  # tokens: the least that a request counts as
_HALF_LIFE = 16  # choices after which a use counts by half


class Prefix(NamedTuple):
    """The digest of each piece, which covers all before it too, and the length of the whole."""

    pieces: tuple[bytes, ...] = ()
    num_tokens: int = 0  # estimated


class ReplicaReport(NamedTuple):
    """The figures of a replica. number: of its reports so far."""

    number: int = 0
    capacity: int = 0  # tokens that its KV pool holds
    free: int = 0  # of them, not held
    backlog: int = 0  # tokens of its requests' prompts that are not computed yet
    wait: float = 0.0  # predicted seconds until a new request is admitted
    rate: float = 0.0  # tokens that it computes per second


class ReplicaLoad(NamedTuple):
    """running: requests that were sent there and are not answered."""

    running: int
    report: ReplicaReport


@dataclass
class _KnownReplica:
    """What the router remembers of a replica.

    pieces: of prompts that were sent there, the most recent at the end.
    sent: tokens to compute that each running request brought since the last report.
    num_sent: their sum.
    use: tokens to compute that were sent there, decayed, as of choice number ``used_at``.
    lost: tokens, by the prompt's first piece, that it evicted while others had room.
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
    """Remembers which prefixes were sent where, at most as many as the pools there hold.

    Costs are counted in tokens to compute: the part of the prompt that the replica has not cached,
    the work before it, and what it would evict. A prefix that all prompts share would keep them
    together in one pool for ever, since it would have to be computed anywhere else. So tokens that
    a pool evicts while others have room are added up until they exceed that cost; then it is paid,
    once.
    """

    def __init__(self) -> None:
        self._known: dict[str, _KnownReplica] = {}
        self._choices = 0

    @property
    def num_remembered(self) -> int:
        """Number of pieces that are remembered."""
        return sum(len(known.pieces) for known in self._known.values())

    def choose(self, request: str, prefix: Prefix, loads: Mapping[str, ReplicaLoad]) -> list[str]:
        """The replicas, the cheapest first; the request counts as sent to that one."""
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
        """Note that a replica has answered."""
        known = self._known.get(name)
        if known is not None:
            known.num_sent -= known.sent.pop(request, 0)

    def _cost(
        self, request: str, name: str, prefix: Prefix, load: ReplicaLoad
    ) -> tuple[float, float, bytes]:
        """Equal costs are ordered by recent use, and then by chance, so that new prefixes spread.

        The number of remembered pieces cannot show use, since it does not grow beyond the pool.
        Chance is derived from the request, so that several routers do not all begin with the same
        replica.
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
        """Tokens of the prompt that the replica has not cached."""
        met = 0
        for piece in prefix.pieces:
            if piece not in known.pieces:
                break
            met += 1
        return max(0, prefix.num_tokens - met * TOKENS_PER_PIECE)

    def _lost(self, loads: Mapping[str, ReplicaLoad]) -> dict[str, int]:
        """Evicted tokens by replica. If all pools are full, none count."""
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
        for piece in reversed(prefix.pieces):  # beginnings are reused longest
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
    """Each replica in turn."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, names: Iterable[str]) -> list[str]:
        """The replicas, the next one first."""
        ordered = sorted(names)
        later = [name for name in ordered if name > self._last]
        ranked = [*later, *ordered[: len(ordered) - len(later)]]
        if ranked:
            self._last = ranked[0]
        return ranked

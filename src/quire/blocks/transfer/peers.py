"""The engines that blocks are fetched from: the threads of each, and which are avoided."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

Address = tuple[str, int]

MOST_AT_ONCE = 64  # transfers, over all peers: each has a thread
_MOST_FOR_A_PEER = 4
_FIRST_REST, _LONGEST_REST = 5.0, 60.0  # seconds
_MOST_REMEMBERED = 1024  # peers: requests name them


@dataclass
class _KnownPeer:
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_FOR_A_PEER))
    users: int = 0  # transfers that run or wait
    rest: float = _FIRST_REST  # the next pause, in seconds
    rests_until: float = float("-inf")


class Peers:
    """Says whether a peer may be used now. A refusal costs a recomputation, and no time.

    A peer that hangs delays its own transfers and no others. One that was too slow is used again
    after a pause, which doubles with each further time. Belongs to one event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._peers: OrderedDict[Address, _KnownPeer] = OrderedDict()
        self._under_way = 0

    async def begin(self, address: Address) -> str | None:
        """Count a transfer when its turn comes; or say why it may not start."""
        peer = self._of(address)
        if (refused := self._refused(peer)) is not None:
            return refused
        peer.users += 1
        try:
            await peer.turns.acquire()
        except BaseException:
            peer.users -= 1
            raise
        if (refused := self._refused(peer)) is not None:  # transfers before it have found out
            peer.turns.release()
            peer.users -= 1
            return refused
        self._under_way += 1
        return None

    def end(self, address: Address) -> None:
        """Free a transfer's thread."""
        peer = self._peers[address]
        self._under_way -= 1
        peer.users -= 1
        peer.turns.release()

    def answered(self, address: Address) -> None:
        """Note that a peer has sent all that it had of the requested blocks."""
        self._of(address).rest = _FIRST_REST

    def hung(self, address: Address) -> None:
        """Note that a peer was too slow, or could not be reached in time."""
        peer = self._of(address)
        if self._clock() >= peer.rests_until:  # other transfers may have waited for the same peer
            peer.rests_until = self._clock() + peer.rest
            peer.rest = min(2 * peer.rest, _LONGEST_REST)

    def _refused(self, peer: _KnownPeer) -> str | None:
        left = peer.rests_until - self._clock()
        if left > 0:
            return f"it was too slow, and is not asked for {left:.1f} s"
        return "too many others are slow" if self._under_way >= MOST_AT_ONCE else None

    def _of(self, address: Address) -> _KnownPeer:
        """A peer's entry; the least recently used ones without transfers are forgotten."""
        peer = self._peers.setdefault(address, _KnownPeer())
        self._peers.move_to_end(address)
        if len(self._peers) > _MOST_REMEMBERED:
            del self._peers[next(name for name, each in self._peers.items() if not each.users)]
        return peer

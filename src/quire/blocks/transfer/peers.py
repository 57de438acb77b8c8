"""Whom blocks are fetched from: how much of us each may keep busy, and who is left alone."""

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
_MOST_REMEMBERED = 1024  # peers: who they are is said by requests


@dataclass
class _Peer:
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_FOR_A_PEER))
    users: int = 0  # transfers that are under way, or wait for their turn
    rest: float = _FIRST_REST  # the next one, seconds
    rests_until: float = float("-inf")


class Peers:
    """Says whether a peer may be asked now. A refusal costs a recompute, and no time.

    A peer that hangs keeps its own transfers waiting and nobody else's. Who was too slow is asked
    again after a rest, which doubles each time that this happens again. Of one event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._peers: OrderedDict[Address, _Peer] = OrderedDict()
        self._under_way = 0

    async def begin(self, address: Address) -> str | None:
        """Count a transfer in, once it is its turn; or say why it may not be."""
        peer = self._of(address)
        if (refused := self._refused(peer)) is not None:
            return refused
        peer.users += 1
        try:
            await peer.turns.acquire()
        except BaseException:
            peer.users -= 1
            raise
        if (refused := self._refused(peer)) is not None:  # those before have found out
            peer.turns.release()
            peer.users -= 1
            return refused
        self._under_way += 1
        return None

    def end(self, address: Address) -> None:
        """A transfer's thread is free again."""
        peer = self._peers[address]
        self._under_way -= 1
        peer.users -= 1
        peer.turns.release()

    def answered(self, address: Address) -> None:
        """It has sent what it had of all that it was asked for."""
        self._of(address).rest = _FIRST_REST

    def hung(self, address: Address) -> None:
        """It was too slow, or could not be reached in time."""
        peer = self._of(address)
        if self._clock() >= peer.rests_until:  # others may have waited for the same
            peer.rests_until = self._clock() + peer.rest
            peer.rest = min(2 * peer.rest, _LONGEST_REST)

    def _refused(self, peer: _Peer) -> str | None:
        left = peer.rests_until - self._clock()
        if left > 0:
            return f"it was too slow, and is not asked for {left:.1f} s"
        return "too many others are slow" if self._under_way >= MOST_AT_ONCE else None

    def _of(self, address: Address) -> _Peer:
        """Forgotten is who was not asked for longest and has no transfers, which are few."""
        peer = self._peers.setdefault(address, _Peer())
        self._peers.move_to_end(address)
        if len(self._peers) > _MOST_REMEMBERED:
            del self._peers[next(name for name, each in self._peers.items() if not each.users)]
        return peer

"""Blocks from another engine that all ranks fetch, each its part."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

from quire.blocks.transfer import BlockFetcher, BlockServer, Missing
from quire.engine.assembly.ranks.messages import Fetch, Fetched
from quire.engine.assembly.ranks.team import Team


class OtherFetchers:
    """See ``FetchingRanks``. Several fetches may be under way."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._numbers = itertools.count()
        self._under_way: dict[int, threading.Semaphore] = {}
        team.hear_of(Fetched, self._fetched)

    def begin(self, host: str, port: int, missing: Missing) -> Callable[[float], None]:
        """See ``FetchingRanks``. A rank that does not answer costs the seconds."""
        number, ended = next(self._numbers), threading.Semaphore(0)
        self._under_way[number] = ended
        self._team.say(Fetch(number, host, port, *map(list, missing)))

        def wait(seconds: float) -> None:
            deadline = time.monotonic() + seconds
            for _ in self._team.members:
                ended.acquire(timeout=max(0.0, deadline - time.monotonic()))
            del self._under_way[number]

        return wait

    def _fetched(self, message: Fetched) -> None:
        ended = self._under_way.get(message.number)
        if ended is not None:
            ended.release()


def fetch_on_all(team: Team | None, transfer: BlockServer | BlockFetcher | None) -> None:
    """If there are other ranks, and blocks are fetched."""
    if team is not None and isinstance(transfer, BlockFetcher):
        transfer.others = OtherFetchers(team)

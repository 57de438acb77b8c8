"""What events say can be found, beside what can; and random lives in which both are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quire.core.memory import hash_blocks, root_hash
from quire.core.scheduling import (
    AllBlocksCleared,
    BlockEvent,
    BlocksRemoved,
    BlocksStored,
    Scheduler,
)
from support.pipelined_runs import PipelinedRun
from support.scheduler_runs import SchedulerRun
from support.session_runs import SessionRun


class Replay:
    """The names that can be found in each KV group, by what has been told."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.found: set[tuple[int, bytes]] = set()
        self.counts: Counter[str] = Counter()

    def take(self, events: Sequence[BlockEvent]) -> None:
        for event in events:
            self.counts[type(event).__name__] += 1
            if isinstance(event, AllBlocksCleared):
                self.found.clear()
                continue
            named = {(event.kv_group, name) for name in event.names}
            assert len(named) == len(event.names) > 0
            if isinstance(event, BlocksRemoved):
                assert named <= self.found, "only what was there can go"
                self.found -= named
            else:
                assert named.isdisjoint(self.found), "each is told once"
                self.found |= named
                self._check_tokens(event)

    def _check_tokens(self, event: BlocksStored) -> None:
        adapter = b"" if event.adapter is None else event.adapter.fingerprint
        parent = event.parent or root_hash(event.cache_salt, adapter)
        names = hash_blocks(parent, event.token_ids, self._block_size)
        assert names == list(event.names), "these tokens, after that block"


class Told(SchedulerRun):
    """After each deed, events say exactly what can be found. Mixed into other kinds of lives."""

    replay: Replay | None = None
    watched = True

    def hear(self, events: Sequence[BlockEvent]) -> None:
        self.replay = self.replay or Replay(self.allocator.block_size)
        self.replay.take(events)

    def check(self) -> None:
        super().check()
        cache = self.scheduler.prefix_cache
        if cache is None:
            return
        events = cache.events
        assert events is not None
        self.hear(events.take())
        assert self.replay is not None
        assert not events._undescribed
        pools = [kv_group.device for kv_group in self.kv_groups()]
        assert self.replay.found == {
            (n, name) for n, pool in enumerate(pools) for name in pool._block_of
        }
        if self.rng.random() < 0.01 and type(self.scheduler) is Scheduler:
            self.allocator.clear_contents()


class ToldPipelined(Told, PipelinedRun):
    pass


class ToldSessions(Told, SessionRun):
    pass

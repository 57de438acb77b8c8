"""Two schedulers that are given the same, and so must come to the same block tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.core.memory import KVAllocator, LayeredAllocator, PagedAllocator
from quire.core.protocol import Progress, Step, StepResult
from quire.core.scheduling import Scheduler

_VERBS = {"abort", "add", "add_turn", "invalidate", "propose"}
_OF_SESSIONS = {"append", "close", "hard_cut", "open", "recompute", "soft_cut"}


class Both:
    """Some verbs of two things that are made alike, on both; all else is the first one's."""

    def __init__(self, first: Any, second: Any, verbs: set[str]) -> None:
        self._first = first
        self._second = second
        self._verbs = verbs

    def __bool__(self) -> bool:
        return bool(self._first)

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._first, name)
        return _both(own, getattr(self._second, name)) if name in self._verbs else own


def _both(first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    def act(*args: Any, **named: Any) -> Any:
        try:
            return first(*args, **named)
        finally:  # what one refuses, the other does
            try:
                second(*args, **named)
            except Exception as error:
                assert error.args, "said in words"

    return act


class Twin(Both):
    """``Scheduler``, twice."""

    def __init__(self, first: Scheduler, second: Scheduler) -> None:
        super().__init__(first, second, _VERBS)
        self.sessions = Both(first.sessions, second.sessions, _OF_SESSIONS)
        self._steps: list[tuple[Step, Step]] = []  # those that have not been taken in

    def check(self) -> None:
        assert tables(self._first.allocator) == tables(self._second.allocator)

    def schedule(self, now: float) -> Step:
        return self._planned(self._first.schedule(now), self._second.schedule(now))

    def schedule_ahead(self, under_way: Step, now: float) -> Step | None:
        (step,) = [other for one, other in self._steps if one is under_way]
        first = self._first.schedule_ahead(under_way, now)
        second = self._second.schedule_ahead(step, now)
        if first is None or second is None:
            assert first is second is None
            return None
        return self._planned(first, second)

    def update(
        self, step: Step, result: StepResult, now: float, told: Callable[[Progress], bool]
    ) -> None:
        (place,) = [place for place, (one, _) in enumerate(self._steps) if one is step]
        heard: list[tuple[Progress, bool]] = []

        def first(progress: Progress) -> bool:
            heard.append((progress, told(progress)))
            return heard[-1][1]

        def second(progress: Progress) -> bool:
            known, over = heard.pop(0)
            assert progress == known
            return over

        self._first.update(step, result, now, first)
        self._second.update(self._steps.pop(place)[1], result, now, second)
        assert not heard

    def _planned(self, first: Step, second: Step) -> Step:
        assert first.moves == second.moves
        assert first.chunks == second.chunks
        self._steps.append((first, second))
        return first


def tables(allocator: KVAllocator) -> object:
    """All that is known of memory."""
    kv_groups = allocator.kv_groups if isinstance(allocator, LayeredAllocator) else (allocator,)
    known: list[object] = []
    for kv_group in kv_groups:
        if not isinstance(kv_group, PagedAllocator):
            known.append(kv_group.usage())
            continue
        lists = {
            seq_id: (*table.blocks, table.num_tokens, table.num_dropped, table.swapped)
            for seq_id, table in kv_group.tables.items()
        }
        known.append(
            (lists, kv_group.device.ref_counts, kv_group.device._hashes, kv_group.host.ref_counts)
        )
    return known

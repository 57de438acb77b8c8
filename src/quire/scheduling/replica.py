"""A scheduler that follows another one's journal, as a rank does."""

from __future__ import annotations

from quire.scheduling.journal import (
    Aborted,
    Added,
    Appended,
    Event,
    Finished,
    HardCut,
    Recomputed,
    Scheduled,
    ScheduledAhead,
    SessionClosed,
    SessionOpened,
    Spoiled,
    TurnAdded,
    Updated,
)
from quire.scheduling.scheduler import Scheduler
from quire.scheduling.step import Step


class Replica:
    """Drives ``scheduler``, made like the one that wrote the journal, by its events.

    ``step``: the latest one, the same that the other scheduler has planned.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.step = Step([], [], [])
        self._under_way: Step | None = None  # a step before it that has not been taken in

    def follow(self, event: Event) -> None:
        """Do what the event tells."""
        scheduler = self.scheduler
        match event:
            case Scheduled(now):
                self.step, self._under_way = scheduler.schedule(now), None
            case ScheduledAhead(now):
                ahead = scheduler.schedule_ahead(self.step, now)
                if ahead is not None:
                    self.step, self._under_way = ahead, self.step
            case Updated(result, now):
                scheduler.update(self._under_way or self.step, result, now)
                self._under_way = None
            case Added(request):
                scheduler.add(request)
            case Aborted(request_id, spoiled):
                scheduler.abort(request_id, spoiled=spoiled)
            case Finished(seq_id):
                scheduler.finish(seq_id)
            case Spoiled(moves):
                scheduler.spoil(moves)
            case SessionOpened(session_id, cache_salt, client):
                scheduler.open_session(session_id, cache_salt, client)
            case Appended(session_id, token_ids):
                scheduler.append(session_id, token_ids)
            case TurnAdded(session_id, request):
                scheduler.add_turn(session_id, request)
            case HardCut(session_id):
                scheduler.hard_cut(session_id)
            case Recomputed(session_id, last_n):
                scheduler.recompute(session_id, last_n)
            case SessionClosed(session_id):
                scheduler.close_session(session_id)

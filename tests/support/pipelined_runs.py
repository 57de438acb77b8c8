"""Random lives of a scheduler that plans ahead of a device."""

from __future__ import annotations

from functools import partial

from quire.core.memory import MoveKind
from quire.core.protocol import PendingStep, Step
from support.fake_model import FULL, Windows
from support.fake_pipeline import FakePipeline
from support.outcomes import take_in
from support.scheduler_runs import MakeAllocator, SchedulerRun, make_paged
from support.twin import Twin


class PipelinedRun(SchedulerRun):
    """As ``SchedulerRun``, but a step is begun while the one before is under way, if it can be.

    Requests are aborted between any two of the things that happen. ``late_writes`` is the device's.
    """

    def __init__(
        self,
        seed: int,
        make_allocator: MakeAllocator = make_paged,
        windows: Windows = FULL,
        *,
        late_writes: bool = False,
    ) -> None:
        super().__init__(seed, make_allocator, windows)
        self.pipeline = FakePipeline(self.executor, self.rng, late_writes=late_writes)
        self.scheduler = Twin(self.make_scheduler(), self.make_scheduler())
        self.num_copies = 0
        self.num_dropped = 0  # tokens that were computed for sequences that had stopped

    def run(self) -> None:
        super().run()
        copied = sum(group.memory.copied_blocks for group in self.by_request.values())
        if self.kv_groups():  # regions are copied by forks too, which groups are not told
            assert copied == self.num_copies, "each copy is put down to the group that asked for it"

    def step(self, now: float) -> None:
        if self.begun is None:
            self.propose()
        pending = self.begun or self.begin(self.scheduler.schedule(now))
        step = pending.step
        if self.begun is None:
            self.take_expired(step, now)
        assert step.chunks or not self.scheduler.running
        self.abort_some()
        self.begun = None
        ahead = self.scheduler.schedule_ahead(step, now)
        if ahead is not None:
            assert ahead.chunks
            assert (ahead.now, ahead.usage) == (now, self.allocator.usage())
            assert all(move.kind is MoveKind.COPY for move in step.moves), "others may fail"
            assert not any(decision.what.preempts for decision in ahead.decisions)
            self.take_expired(ahead, now)
            self.begun = self.begin(ahead)
        self.abort_some()
        self.pipeline.proceed()
        result = pending.collect()
        self.failed_moves += len(result.failed_moves)
        for progress in take_in(self.scheduler, step, result, now + 0.5):
            self.note(progress, result)
        self.check()
        self.abort_some()
        if self.begun is not None:
            live = [self.scheduler.request_of(c.seq_id) for c in self.begun.step.chunks]
            self.num_dropped += live.count(None)
        for number, kv_group in enumerate(self.kv_groups()):
            blank = list(kv_group.device._blank)
            self.pipeline.enqueue(partial(self.executor.poison, number, blank))

    def begin(self, step: Step) -> PendingStep:
        assert step.num_tokens <= self.scheduler.batch.max_num_batched_tokens
        assert len(step.chunks) <= self.scheduler.batch.max_num_seqs
        self.check()
        self.check_tokens(step)
        self.num_copies += sum(move.kind is MoveKind.COPY for move in step.moves)
        self.decisions.update(decision.what.value for decision in step.decisions)
        return self.pipeline.submit(step)

    def abort_some(self) -> None:
        if self.rng.random() < 0.01 and self.requests:
            victim = self.rng.choice(list(self.requests))
            if self.scheduler.abort(victim):
                del self.requests[victim]

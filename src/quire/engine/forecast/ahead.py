"""What a scheduler has to do before requests that have just come, as an outlook takes it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, MutableMapping

from quire.core.memory import Demand
from quire.core.protocol import PreemptionMode, Step
from quire.core.scheduling import Scheduler, SequenceGroup
from quire.core.scheduling.sequence import Status
from quire.engine.forecast.outlook import Supply, TaskAhead

_ENOUGH = 1e9  # blocks


class Ahead:
    """Who runs, and who waits up to the last of ``own``, in their order.

    own: the tasks of these, as they wait.
    found: of newcomers, what the prefix cache had when they came: tokens, and blocks to take.
    output: steps in which a group is to write further tokens.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        own: Collection[SequenceGroup],
        under_way: Step | None,
        found: MutableMapping[str, tuple[int, float]],
        output: Callable[[SequenceGroup], int],
    ) -> None:
        self._allocator, self._admission = scheduler.allocator, scheduler.admission
        self._found, self._output = found, output
        self._chunks = {} if under_way is None else {
            chunk.seq_id: len(chunk.token_ids) for chunk in under_way.chunks
        }  # fmt: skip
        size, batch = self._allocator.block_size, scheduler.batch
        tokens = max(len(group.branches[0].token_ids) for group in own)
        fit = self._allocator.fit(Demand(tokens))
        # Where there are several KV groups, a block here is one of each of them; where a text takes
        # no more as it grows, since layers keep states alone, there are enough.
        few, many = (self._allocator.fit(Demand(count)).needed for count in (1, 4 * size))
        self._scale = fit.needed / -(-tokens // size) or 1.0
        self._swap = scheduler.recovery.costs.swap_per_block * self._scale
        free = fit.free / self._scale if many > few else _ENOUGH
        self.running = [self._runs(group) for group in scheduler.running]
        held = sum(task.blocks for task in self.running)
        used = (fit.capacity - fit.free) / self._scale
        if held > used:  # some are shared
            for task in self.running:
                task.blocks *= used / held
        self.waiting = list[TaskAhead]()
        self._before = [*scheduler.running]
        wanted, self.own = {*own}, dict[str, TaskAhead]()  # by their requests
        for group in scheduler.queue.order():
            task = self._waits(group)
            self.waiting.append(task)
            self._before.append(group)
            if group in wanted:
                self.own[group.request.request_id] = task
                if len(self.own) == len(wanted):
                    break
        pairs = zip(self._before[len(self.running) :], self.waiting, strict=True)
        self.newcomers = [task for group, task in pairs if not group.begun]
        mode, costs = scheduler.recovery.mode, scheduler.recovery.costs
        self.room = Supply(
            batch.max_num_seqs,
            batch.max_num_batched_tokens,
            free,
            size,
            scheduler.prefix_cache is not None,
            None if mode is PreemptionMode.RECOMPUTE else self._swap,
            costs.recompute_per_token if mode is PreemptionMode.AUTO else float("inf"),
        )

    def _task(self, group: SequenceGroup) -> TaskAhead:
        trunk = group.branches[0]
        begun = trunk.num_output_tokens > 0
        output = self._output(group)
        return TaskAhead(trunk.num_pending, trunk.num_computed, output, group.width, begun)

    def _runs(self, group: SequenceGroup) -> TaskAhead:
        task, trunk = self._task(group), group.branches[0]
        task.blocks = self._blocks(group)
        under_way = self._chunks.get(trunk.seq_id)
        if under_way is not None:
            task.prompt, task.context = task.prompt - under_way, task.context + under_way
            if task.prompt <= 0:
                task.prompt, task.begun, task.output = 1, True, max(1, task.output - 1)
        return task

    def _blocks(self, group: SequenceGroup) -> float:
        """That it holds: its whole prompt's, and what its branches have written each."""
        size, trunk = self._allocator.block_size, group.branches[0]
        whole = -(-max(trunk.num_computed, trunk.num_prompt_tokens) // size)
        return whole + (len(group.branches) - 1) * (whole - trunk.num_prompt_tokens // size)

    def _waits(self, group: SequenceGroup) -> TaskAhead:
        task, name, size = self._task(group), group.request.request_id, self._allocator.block_size
        if group.status is Status.RESIDENT:
            task.blocks = self._blocks(group)
        elif group.status is Status.SWAPPED:
            task.late = self._swap * -(-task.context // size)
        elif group.begun:
            task.kept = self._admission.fit(group).cached / size
        else:
            if name not in self._found:
                fit = self._admission.fit(group)
                read = min(self._read_before(group) * size, task.prompt - 1)
                take = fit.needed / self._scale - max(0, read - fit.cached) // size
                self._found[name] = max(fit.cached, read), take
            cached, task.take = self._found[name]
            task.prompt, task.context = task.prompt - cached, task.context + cached
        return task

    def _read_before(self, group: SequenceGroup) -> int:
        """Blocks of its prompt that earlier requests compute."""
        hashes, most = group.branches[0].block_hashes, 0
        for other in self._before if hashes else ():
            theirs = other.branches[0].block_hashes
            if len(theirs) > most and theirs[0] == hashes[0]:
                shared = range(min(len(theirs), len(hashes)))
                most = max(most, bisect_left(shared, True, key=lambda n: theirs[n] != hashes[n]))
        return most

"""What is true of an engine between any two things that happen, found out from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from lives.device import Device
from lives.replay import Replay
from quire.blocks.events.events import BlockEvent
from quire.capabilities.fairness import FairQueue
from quire.core.memory import (
    LayeredAllocator,
    MoveKind,
    PagedAllocator,
    SharedPool,
    StateAllocator,
)
from quire.core.protocol import Chunk, Step, StepResult, Verdict
from quire.core.scheduling import Scheduler, SequenceGroup
from quire.core.scheduling.decoding import OnToken
from support.invariants import check_allocator, check_pages, check_states

_MOST_IDLE = 8
"""Steps in a row in which who is alone on shared pages leaves and comes back, to lie closer."""


class Oracle:
    """Looks at a scheduler and a device after each plan and each step."""

    def __init__(self, scheduler: Scheduler, device: Device) -> None:
        self.scheduler, self.device = scheduler, device
        allocator = scheduler.allocator
        kv_groups = allocator.kv_groups if isinstance(allocator, LayeredAllocator) else (allocator,)
        self.kv_groups = [
            one for one in kv_groups if isinstance(one, (PagedAllocator, StateAllocator))
        ]
        self.on_pages = bool(self.kv_groups) and isinstance(self.kv_groups[0].device, SharedPool)
        self.states = None  # the number of the KV group that keeps states
        if self.kv_groups and isinstance(self.kv_groups[-1], StateAllocator):
            self.states = len(self.kv_groups) - 1
        self.size = allocator.block_size
        self.contents: dict[bytes, list[int]] = {}  # keys of a block, by its name
        self.happened: Counter[str] = Counter()
        self.held_seconds = self._now = 0.0
        self.ledger = Ledger(scheduler)
        self._num_checks = 0
        self._num_idle = 0  # steps in a row in which nothing was computed though there was work
        self._replay = Replay(self.size)
        advance = allocator.advance

        def passed(now: float) -> None:  # time passes in between, and blocks are charged for it
            held = sum(kv_group.device.num_held for kv_group in self.kv_groups)
            self.held_seconds += (now - self._now) * held
            self._now = now
            advance(now)

        allocator.advance = passed  # type: ignore[method-assign]
        update = scheduler.update

        def told(step: Step, result: StepResult, now: float, on_token: OnToken) -> None:
            self.ledger.took(step, result)
            update(step, result, now, on_token)

        scheduler.update = told  # type: ignore[method-assign]

    # -- memory --------------------------------------------------------------------------------

    def everyone(self) -> Iterator[SequenceGroup]:
        """Who may hold blocks."""
        scheduler = self.scheduler
        yield from scheduler.running
        yield from scheduler.waiting
        yield from scheduler.sessions.resting()

    def check(self, under_way: Step | None) -> None:
        """Reference counts are those of the block tables; what can be found is there.

        under_way: a step that has not been taken in; what it writes need not be there.
        """
        self._num_checks += 1
        holders = [
            (seq_id, group.status.value == "swapped")
            for group in self.everyone()
            for seq_id in group.tables()
        ]
        for kv_group in self.kv_groups:
            device = [0] * len(kv_group.device.ref_counts)
            host = [0] * len(kv_group.host.ref_counts)
            for seq_id, swapped in holders:
                counts = host if swapped else device
                for block in kv_group.table(seq_id).block_ids:
                    counts[block] += 1
            assert kv_group.device.ref_counts == device, "references to blocks"
            assert kv_group.host.ref_counts == host, "references to blocks of the host"
            assert kv_group.device.num_held == len(device) - device.count(0), "free blocks"
            held = len(host) - host.count(0)
            assert kv_group.host.num_held == held, "free blocks of the host"
            if not self._num_checks % 8:
                if isinstance(kv_group, StateAllocator):
                    check_states(kv_group)
                else:
                    check_allocator(kv_group)
        allocator = self.scheduler.allocator
        if self.on_pages and isinstance(allocator, LayeredAllocator) and not self._num_checks % 8:
            check_pages(allocator)
        self._check_contents(under_way)

    def _check_contents(self, under_way: Step | None) -> None:
        """No block is found that does not hold what its name says."""
        unsettled = set() if under_way is None else self._written(under_way)
        for number, kv_group in enumerate(self.kv_groups):
            held, contents = self.device.pools[number].device, self.contents
            of_states = isinstance(kv_group, StateAllocator)
            for name, block in kv_group.device._block_of.items():
                there, wanted = held[block], contents.get(name) or self._learn(name)
                if of_states:
                    there, wanted = there[1:2], wanted[-1:]
                if there != wanted and (number, block) not in unsettled:
                    raise AssertionError(
                        f"block {block} of KV group {number} can be found, and holds {held[block]}"
                    )

    def _learn(self, wanted: bytes) -> list[int]:
        """By the names that live sequences have."""
        size = self.size
        for group in self.everyone():
            for branch in group.branches:
                text = self.device.texts.get(branch.seq_id)
                if text is None:
                    continue
                for number, name in enumerate(branch.block_hashes):
                    keys = text.keys[number * size : (number + 1) * size]
                    if len(keys) == size:
                        known = self.contents.setdefault(name, keys)
                        assert known == keys, "one name of two contents"
        assert wanted in self.contents, "a block can be found by a name that no text has"
        return self.contents[wanted]

    def _written(self, step: Step) -> set[tuple[int, int]]:
        written = {(m.kv_group, m.target) for m in step.moves if m.kind is not MoveKind.SWAP_OUT}
        for chunk in step.chunks:
            written.update(self._blocks(chunk))
        return written

    def _blocks(self, chunk: Chunk) -> Iterator[tuple[int, int]]:
        """That hold a chunk's tokens."""
        last = (chunk.start + len(chunk.token_ids) - 1) // self.size
        for number, table in enumerate(chunk.table.kv_groups):
            if table.keeps_state:
                yield number, table.block_ids[0]
                yield from ((number, slot) for _, slot in chunk.left)
                continue
            for logical in range(chunk.start // self.size, last + 1):
                yield number, table.block(logical)

    # -- steps ---------------------------------------------------------------------------------

    def planned(self, step: Step) -> None:
        """A step has been planned, and nothing of it done."""
        scheduler = self.scheduler
        assert step.num_tokens <= scheduler.batch.max_num_batched_tokens
        assert len(step.chunks) <= scheduler.batch.max_num_seqs
        self._check_decisions(step)
        self._check_owners(step)
        for kv_group in self.kv_groups:
            for name in kv_group.device._block_of:
                if name not in self.contents:
                    self._learn(name)
        if scheduler.has_work and not step.chunks and not step.ahead:
            waits = scheduler.waiting or any(move.kind is MoveKind.STORE for move in step.moves)
            self._num_idle = 0 if waits else self._num_idle + 1
            # Who is alone and holds parts of pages may have to leave and come back to grow.
            most = _MOST_IDLE if self.on_pages else 0
            assert self._num_idle <= most, "a scheduler with work must compute something"
        elif step.chunks:
            self._num_idle = 0
        slots = scheduler.adapters
        begun = [g.request.adapter for g in scheduler._live._groups.values() if g.begun]
        assert set(slots.in_use) == set(begun) - {None}, "slots of adapters"
        assert slots.most is None or len(slots.in_use) <= slots.most
        for move in step.moves:
            self.happened[move.kind.value] += 1
            if move.kv_group == self.states:
                self.happened["states " + move.kind.value] += 1
        self.happened["ahead"] += step.ahead
        self.happened["states left"] += sum(len(chunk.left) for chunk in step.chunks)
        self.happened["drafts"] += sum(len(chunk.drafts) for chunk in step.chunks)

    def _check_decisions(self, step: Step) -> None:
        """Each says why, and is what happens."""
        computed = {self.device.texts[c.seq_id].request.request_id for c in step.chunks}
        begun = {opened.request.request_id for opened in step.opened}
        admitted: set[str] = set()
        for decision in step.decisions:
            what, name = decision.what, decision.request_id
            idle = "idle" in decision.why
            self.happened[what.value + " idle" * idle] += 1
            assert decision.why and str(decision)
            if what.preempts and not idle:
                assert name not in computed, "who gave way is computed"
            elif what in (Verdict.ADMIT, Verdict.RESUME):
                admitted.add(name)
                if self.states is not None:
                    self.happened["states found"] += decision.why[0] in "123456789"
                    self.happened["states missed"] += "snapshot" in decision.why
            elif what is Verdict.EXPIRE:
                assert self.scheduler.group(name) is None
            elif what is Verdict.WAIT:
                group = self.scheduler.group(name)
                assert group is not None and group not in self.scheduler.running
        assert begun <= admitted, "somebody begins without a decision"

    def _check_owners(self, step: Step) -> None:
        """A slot is written by one sequence: its owner, or one of equal text."""
        written: set[tuple[int, int, int]] = set()
        size, texts = self.size, self.device.texts
        for chunk in step.chunks:
            for number, table in enumerate(chunk.table.kv_groups):
                if table.keeps_state:
                    (own,) = table.block_ids
                    counts = self.kv_groups[number].device.ref_counts
                    assert counts[own] == 1, "a shared state"
                    left = [slot for _, slot in chunk.left]
                    assert not any(counts[slot] for slot in left), "left where somebody writes"
                    for slot in (own, *left):
                        assert (number, slot, 0) not in written, "two write one state"
                        written.add((number, slot, 0))
                    continue
                for position in range(chunk.start, chunk.start + len(chunk.token_ids)):
                    slot = number, table.block(position // size), position % size
                    assert slot not in written, "two write into one slot"
                    written.add(slot)
        shared = {
            (number, block)
            for number, kv_group in enumerate(self.kv_groups)
            for number_, block, _ in written
            if number_ == number and kv_group.device.ref_counts[block] > 1
        }
        if not shared:
            return
        writers = {place: chunk.seq_id for chunk in step.chunks for place in self._blocks(chunk)}
        for group in self.everyone():
            if group.status.value == "swapped":
                continue
            for seq_id in group.tables():
                for number, table in enumerate(self.scheduler.allocator.table(seq_id).kv_groups):
                    for index, block in enumerate(table.block_ids):
                        writer = writers.get((number, block), seq_id)
                        if (number, block) in shared and writer != seq_id:
                            sinks = index < table.num_sink_blocks
                            end = (index + (0 if sinks else table.num_dropped) + 1) * size
                            mine, other = texts[seq_id].keys[:end], texts[writer].keys[:end]
                            assert mine == other, "another's block is written"

    def hear(self, events: Sequence[BlockEvent]) -> None:
        """What is told can be found is what can be found."""
        self._replay.take(events)
        found = {
            (number, name)
            for number, kv_group in enumerate(self.kv_groups)
            for name in kv_group.device._block_of
        }
        assert self._replay.found == found, "events"
        self.happened["events"] += len(events)

    # -- the end -------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Nothing is left."""
        scheduler = self.scheduler
        usage = scheduler.allocator.usage()
        assert usage.cached + usage.free == usage.capacity, "leaked blocks"
        assert not scheduler.running and not scheduler.waiting and not scheduler.adapters.in_use
        assert not scheduler._live._branches
        assert not scheduler._scored.awaited, "what was waited for has come"
        closed = {*scheduler._live._closed}
        assert {*self.device.roster._known} <= closed, "executors keep somebody who has ended"
        assert scheduler.audit() == []


class Ledger:
    """What clients are charged under the fair policy, by what steps have computed for them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        accounts = scheduler.queue.accounts
        assert accounts is None or isinstance(accounts, FairQueue)
        self._accounts = accounts
        self._open: dict[str, tuple[object, float, float]] = {}
        self._charged: Counter[str] = Counter()
        self._sound = True

    def open(self) -> None:
        """Before a step."""
        if self._accounts is not None:
            self._open = {
                client: (account, account.served, account.begin)
                for client, account in self._accounts._accounts.items()
            }
            self._charged.clear()
            self._sound = True

    def unsound(self) -> None:
        """Something has ended early, so that prompts are given back."""
        self._sound = False

    def planned(self, step: Step) -> None:
        """Prompts are charged as they are let in, without what was found."""
        if self._accounts is None:
            return
        starts = {chunk.seq_id: chunk.start for chunk in reversed(step.chunks)}
        for opened in step.opened:
            request, start = opened.request, starts.get(opened.seq_id)
            if start is None:
                self._sound = False
                continue
            left = min(opened.output_start - start, len(request.prompt_token_ids))
            self._charged[request.client] += left + request.keeping_tokens

    def took(self, step: Step, result: StepResult) -> None:
        """Further tokens are charged as they are computed."""
        if self._accounts is None:
            return
        outcomes = result.outcomes
        failed = result.failed_moves or any(one.failure for one in outcomes.values())
        self._sound = self._sound and not failed
        for chunk in step.chunks:
            request = self._scheduler.request_of(chunk.seq_id)
            if request is not None and chunk.readout is not None and chunk.readout.rows:
                outcome = outcomes[chunk.seq_id]
                self._charged[request.client] += len(outcome.tokens) + len(outcome.forks) or 1

    def close(self) -> int:
        """After the step; how many accounts have been compared."""
        compared = 0
        if self._accounts is None or not self._sound:
            return 0
        for client, account in self._accounts._accounts.items():
            known, served, begin = self._open.get(client, (None, 0.0, 0.0))
            if known is account and account.begin == begin:
                compared += 1
                charged = account.served - served - self._charged[client]
                assert abs(charged) < 1e-6, f"charges of {client}"
        return compared

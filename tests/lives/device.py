"""The device of a life: every slot of every block, and what each step finds and leaves there."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from lives.drafter import Drafter
from lives.script import Settings
from lives.texts import VOCAB, Answer, Beam, Text, candidates, next_token, score, vector
from quire.core.memory import BlockMove, BlockTable, MoveKind
from quire.core.protocol import (
    IN_FLIGHT,
    Chunk,
    Outcome,
    PendingStep,
    Request,
    Roster,
    Sample,
    Step,
    StepResult,
    confirmed,
)
from support.fake_model import Sight
from support.fake_source import FakeSource

NOTHING, LOST, SPOILT, FREE = -1, -2, -3, -4
"""What slots hold that hold no key: never written; of a move that failed, or of what was made of
it; of a step that failed; free to be given out."""


class StepFailed(Exception):
    """As planned."""


class Pool:
    """The blocks of one KV group."""

    def __init__(self, sight: Sight, blocks: int, size: int, host_blocks: int) -> None:
        self.sight, self.size = sight, size
        self.device = [[NOTHING] * size for _ in range(blocks)]
        self.host = [[NOTHING] * size for _ in range(host_blocks)]

    def write(self, table: BlockTable, start: int, keys: Sequence[int], drafts: int) -> None:
        """drafts: how many of the keys, the last, are of drafts."""
        for position, key in enumerate(keys, start):
            block, offset = divmod(position, self.size)
            self.device[table.block(block)][offset] = key

    def leave(self, start: int, keys: Sequence[int], left: Sequence[tuple[int, int]]) -> None:
        """See ``Chunk.left``: blocks are there anyhow."""

    def kept(self, move: BlockMove) -> list[int]:
        """What is to be stored of a block."""
        held = self.device[move.source]
        assert move.content is not None
        assert len(move.content.token_ids) == len(held), "only full blocks are stored"
        return held

    def wrong(self, table: BlockTable, keys: Sequence[int], start: int, end: int) -> int | None:
        """What tokens from ``start`` to ``end`` see that is no key of this text; None: nothing."""
        window, sinks = self.sight
        first = 0 if window is None else max(0, start - window + 1)
        wrong = self._wrong(table, keys, first, end)
        if wrong is None and first and sinks:
            wrong = self._wrong(table, keys, 0, min(sinks, first))
        return wrong

    def _wrong(self, table: BlockTable, keys: Sequence[int], first: int, end: int) -> int | None:
        size, ids = self.size, table.block_ids
        kept, dropped = table.num_sink_blocks + table.num_dropped, table.num_dropped
        sinks = table.num_sink_blocks
        while first < end:
            block = first // size
            last = min(end, block * size + size)
            assert not sinks <= block < kept, f"block {block} is seen, and has been given back"
            held = self.device[ids[block if block < kept else block - dropped]]
            found = held[first - block * size : last - block * size]
            if found != keys[first:last]:
                pairs = zip(found, keys[first:last], strict=True)
                return min(one for one, key in pairs if one != key)
            first = last
        return None


class States(Pool):
    """The slots of a KV group that keeps states: how many tokens one stands for, and the last key;
    then the keys of drafts, which it has not seen.

    What a step goes on from is what was there before it wrote.
    """

    def __init__(self, slots: int, host_slots: int) -> None:
        super().__init__(Sight(), slots, 2, host_slots)
        self._before: dict[int, list[int]] = {}  # by slot, what the last one who wrote has found

    def write(self, table: BlockTable, start: int, keys: Sequence[int], drafts: int) -> None:
        (slot,) = table.block_ids
        (count, *last), seen = self.device[slot][:2], self.device[slot][2:]
        if table.confirmed and count >= 0:
            count += table.confirmed
            last = seen[table.confirmed - 1 : table.confirmed] or [LOST]
        self._before[slot] = [count, *last]
        known = len(keys) - drafts
        self.device[slot] = [start + known, *keys[known - 1 :]]

    def leave(self, start: int, keys: Sequence[int], left: Sequence[tuple[int, int]]) -> None:
        for place, slot in left:
            self.device[slot] = [place, keys[place - start - 1]]

    def kept(self, move: BlockMove) -> list[int]:
        return self.device[move.source][:2]  # drafts that are kept beside it are nobody else's

    def wrong(self, table: BlockTable, keys: Sequence[int], start: int, end: int) -> int | None:
        found = self._before[table.block_ids[0]]
        if not start or found == [start, keys[start - 1]]:
            return None
        return LOST if LOST in found else found[1]


class Task(NamedTuple):
    """What a step computes of one sequence."""

    chunk: Chunk
    text: Text
    keys: list[int]  # that it writes; of wrong drafts, what is no key of the text
    own: int  # tokens that are no drafts

    @property
    def end(self) -> int:
        return self.chunk.start + self.own


class Device:
    """Executes steps as a device does: one after the other, when it gets to them.

    answer: the text of a request's branch, as it must be.
    """

    def __init__(
        self,
        settings: Settings,
        pools: Sequence[Pool],
        rng: random.Random,
        answer: Callable[[Request, int], Text],
        source: FakeSource | None,
        drafter: Drafter | None = None,
    ) -> None:
        self.pools, self.roster = pools, Roster()
        self.texts: dict[int, Text] = {}  # by sequence
        self.fault: Callable[[], str] = lambda: ""  # "submit", "collect" or "number", of a step
        self.planned: Callable[[Step], None] = lambda step: None
        # Which of its moves fail elsewhere, by their numbers:
        self.elsewhere: Callable[[Step, Sequence[Task]], Collection[int]] = lambda step, tasks: ()
        self.during: Callable[[], None] = lambda: None  # what happens while a step is under way
        self.late_writes = (
            False  # what a step writes arrives once more after the next, as it must not
        )
        self.failed: set[str] = set()  # requests in steps that failed, or without a number
        self.num_lost = 0
        self.complaint: Exception | None = None  # what was found wrong
        self._answer, self._source, self._rng = answer, source, rng
        self._lost_moves, self._right = settings.lost_moves, settings.right_drafts or 0.0
        self._drafter = drafter
        self._queue: deque[Callable[[], None]] = deque()
        self._last_failed = False  # so that what goes on from that step fails too
        self._late: list[Task] = []

    # -- the queue -----------------------------------------------------------------------------

    def submit(self, step: Step) -> PendingStep:
        """See ``Executor``."""
        with self._noted():
            return self._begin(step)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """What is found wrong here would be a failed step to the engine."""
        try:
            yield
        except StepFailed:
            raise
        except Exception as error:
            self.complaint = self.complaint or error
            raise

    def _begin(self, step: Step) -> PendingStep:
        self._follow(step)
        tasks = [self._task(self._drafted(chunk)) for chunk in step.chunks]
        self.planned(step)
        fault = self.fault() if step.chunks else ""
        if fault == "submit":
            self._note_failed(tasks)
            self.enqueue(lambda: self._spoil(step, tasks))
            raise StepFailed(fault)
        done: list[StepResult | None] = []
        self.enqueue(lambda: done.append(self._carry_out(step, tasks, fault)))
        self.proceed()

        def collect() -> StepResult:
            with self._noted():
                self.during()
                while not done:
                    self._queue.popleft()()
                if done[0] is None:
                    raise StepFailed(fault)
                return done[0]

        return PendingStep(step, collect)

    def enqueue(self, work: Callable[[], None]) -> None:
        """To be done after what is queued before it."""
        self._queue.append(work)

    def proceed(self) -> None:
        """Time passes: some of the queue is done, or nothing."""
        for _ in range(min(len(self._queue), self._rng.choice((0, 0, 1, 9)))):
            self._queue.popleft()()

    def drain(self) -> None:
        while self._queue:
            self._queue.popleft()()

    def free(self, kv_group: int, blocks: Sequence[int]) -> None:
        """Nobody may read these blocks any more."""
        pool = self.pools[kv_group]
        for block in blocks:
            pool.device[block] = [FREE] * pool.size

    # -- steps ---------------------------------------------------------------------------------

    def _follow(self, step: Step) -> None:
        self.roster.follow(step)
        texts = self.texts
        for opened in step.opened:
            texts[opened.seq_id] = self._answer(opened.request, opened.branch)
        for parent, child, branch in step.forked:
            text = texts[parent]
            own = text.child() if isinstance(text, Beam) else self._answer(text.request, branch)
            texts[child] = own
        for seq_id in step.closed:
            texts.pop(seq_id, None)

    def _drafted(self, chunk: Chunk) -> Chunk:
        if self._drafter is None:
            return chunk
        return self._drafter.guess(chunk, self.texts[chunk.seq_id], self._right, VOCAB)

    def _task(self, chunk: Chunk) -> Task:
        """Its tokens must be those of the text."""
        text = self.texts[chunk.seq_id]
        start, own = chunk.start, len(chunk.token_ids)
        readout = chunk.readout
        drafts = () if readout is None or readout.rows < 2 else chunk.drafts
        own -= len(drafts)
        end = start + own
        assert list(chunk.cuts) == list(text.cuts), "other cuts"
        if chunk.token_ids[0] != IN_FLIGHT:
            text.grown(start, chunk.token_ids[:own])
        elif isinstance(text, Answer):
            text.upto(end)
        keys = text.keys[start:end]
        right = bool(drafts)
        for position, draft in enumerate(drafts, end):
            assert isinstance(text, Answer)
            right = right and text.upto(position + 1)[position] == draft
            keys.append(text.keys[position] if right else -10 - draft)
        return Task(chunk, text, keys, own)

    def _carry_out(self, step: Step, tasks: list[Task], fault: str) -> StepResult | None:
        self._last_failed = fault == "collect" or (step.ahead and self._last_failed)
        if self._last_failed:
            self._spoil(step, tasks)
            return None
        elsewhere = self.elsewhere(step, tasks)
        done = [self._move(move) and n not in elsewhere for n, move in enumerate(step.moves)]
        self._draft(step, tasks, done)
        failed_moves = [move for move, well in zip(step.moves, done, strict=True) if not well]
        self.num_lost += len(failed_moves)
        for task in tasks:
            self._write(task, task.keys)
        lost = self._check_reads(tasks, bool(failed_moves))
        outcomes = {}
        for task in tasks:
            outcome = self._outcome(task, wrong=task.chunk.seq_id in lost)
            if outcome is not None:
                outcomes[task.chunk.seq_id] = outcome
        if self._drafter is not None:
            self._drafter.observe([task.chunk for task in tasks], outcomes)
        request_ids = {task.chunk.seq_id: task.text.request.request_id for task in tasks}
        read = [task.chunk.seq_id for task in tasks if task.chunk.readout is not None]
        if fault == "number" and read:
            chosen = self._rng.choice(read)
            outcomes[chosen] = Outcome(failure="not a number")
            self.failed.add(request_ids[chosen])
        if self.late_writes:
            for task in self._late:
                self._write(task, task.keys)
            self._late = tasks
        return StepResult(outcomes, failed_moves)

    def _move(self, move: BlockMove) -> bool:
        """False: it failed."""
        pool = self.pools[move.kv_group]
        fails = move.kind is not MoveKind.COPY and self._rng.random() < self._lost_moves
        lost = [LOST] * pool.size
        if move.kind is MoveKind.STORE:
            assert self._source is not None
            held = pool.kept(move)
            assert min(held) >= 0, "what is stored is there"
            if not fails:
                self._source.keep(move, held)
            return True
        if move.kind is MoveKind.FETCH:
            assert self._source is not None
            found = None if fails else self._source.find(move)
            pool.device[move.target] = lost if found is None else found
            return found is not None
        source = pool.host if move.kind is MoveKind.SWAP_IN else pool.device
        target = pool.host if move.kind is MoveKind.SWAP_OUT else pool.device
        target[move.target] = lost if fails else source[move.source].copy()
        return not fails

    def _draft(self, step: Step, tasks: list[Task], done: Sequence[bool]) -> None:
        """done: which of the step's moves have been."""
        if self._drafter is not None:
            self._drafter.catch_up(step)
            for move, well in zip(step.moves, done, strict=True):
                self._drafter.move(move, done=well)
            texts = {task.chunk.seq_id: task.text for task in tasks}
            self._drafter.fill(step.chunks, [task.chunk for task in tasks], texts)

    def _write(self, task: Task, keys: Sequence[int]) -> None:
        chunk = task.chunk
        for pool, table in zip(self.pools, chunk.table.kv_groups, strict=True):
            pool.write(table, chunk.start, keys, len(keys) - task.own)
            pool.leave(chunk.start, keys, chunk.left)

    def _spoil(self, step: Step, tasks: list[Task]) -> None:
        """Nobody knows what a step that failed has left in the blocks that it was to write."""
        self._note_failed(tasks)
        self._draft(step, tasks, [False] * len(step.moves))
        for move in step.moves:
            if move.kind is not MoveKind.STORE:
                pool = self.pools[move.kv_group]
                target = pool.host if move.kind is MoveKind.SWAP_OUT else pool.device
                target[move.target] = [SPOILT] * pool.size
        for task in tasks:
            self._write(task, [SPOILT] * len(task.keys))

    def _note_failed(self, tasks: list[Task]) -> None:
        self.failed.update(task.text.request.request_id for task in tasks)

    def _check_reads(self, tasks: list[Task], some_failed: bool) -> set[int]:
        """All writes come before all reads. Who has read what was lost, and so computed nothing."""
        lost: set[int] = set()
        while True:
            known = len(lost)
            for task in tasks:
                if task.chunk.seq_id not in lost and not self._sees_its_own(task, some_failed):
                    lost.add(task.chunk.seq_id)
                    self._write(task, [LOST] * len(task.keys))
            if len(lost) == known:
                return lost

    def _sees_its_own(self, task: Task, some_failed: bool) -> bool:
        for pool, table in zip(self.pools, task.chunk.table.kv_groups, strict=True):
            wrong = pool.wrong(table, task.text.keys, task.chunk.start, task.end)
            if wrong is not None:
                assert some_failed and wrong == LOST, f"{task.chunk} sees {wrong}"
                return False
        return True

    def _outcome(self, task: Task, *, wrong: bool) -> Outcome | None:
        """wrong: of what was lost, so that nobody may use it."""
        chunk, text, request = task.chunk, task.text, task.text.request
        scores = []
        if request.params.prompt_logprobs is not None:
            following = request.prompt_token_ids[chunk.start + 1 : task.end + 1]
            keys = text.keys[chunk.start :]
            scores = [score(key + wrong, token) for key, token in zip(keys, following)]  # noqa: B905
        readout = chunk.readout
        if readout is None:
            return Outcome(prompt_logprobs=scores) if scores else None
        key = text.keys[task.end - 1] + wrong
        if readout.pool:
            return Outcome(vector=vector(key))
        if not readout.rows:
            return Outcome(prompt_logprobs=scores)
        if readout.candidates:
            return Outcome(candidates=candidates(key, readout.candidates), prompt_logprobs=scores)
        assert isinstance(text, Answer)
        drafts = chunk.drafts
        following = text.upto(task.end + readout.rows)[task.end : task.end + readout.rows]
        tokens = [Sample((token + wrong) % 50) for token in following]
        forks = [
            Sample(next_token(key, request.seed, branch)) for branch in range(1, readout.draws)
        ]
        return Outcome(confirmed(tokens, drafts), forks, prompt_logprobs=scores)

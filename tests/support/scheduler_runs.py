"""Random lives of a scheduler over the fake model: any pool, budget, policy, failure or abort."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from quire.core.errors import RequestError
from quire.core.memory import KVAllocator, LayeredAllocator, MoveKind, PagedAllocator
from quire.core.protocol import (
    IN_FLIGHT,
    PendingStep,
    Pooling,
    PoolingParams,
    PreemptionMode,
    Progress,
    RecoveryCosts,
    Request,
    SamplingParams,
    SchedulingPolicy,
    Step,
    StepResult,
    Verdict,
)
from quire.core.scheduling import Caching, Scheduler, SequenceGroup
from support.fake_model import (
    EOS,
    FULL,
    VOCAB,
    FakeExecutor,
    FakeLayer,
    Windows,
    expected_outputs,
    expected_scores,
    expected_vector,
)
from support.fake_source import FakeSource
from support.invariants import check_allocator
from support.outcomes import take_in
from support.schedulers import make_scheduler
from support.twin import Twin

MOST_STEPS = 20_000  # a life takes some hundreds

MakeAllocator = Callable[[int, int, int, int], KVAllocator]
"""(blocks, block size, host blocks, tokens a step) -> allocator"""


def make_paged(blocks: int, size: int, host_blocks: int, step_tokens: int) -> PagedAllocator:
    return PagedAllocator(blocks, size, host_blocks)


def random_params(rng: random.Random) -> SamplingParams:
    max_tokens = rng.randint(1, 40)
    if rng.random() < 0.25:
        return SamplingParams(
            use_beam_search=True,
            beam_width=rng.choice([2, 3, 4, 6]),
            n=rng.choice([1, 2]),
            max_tokens=max_tokens,
            length_penalty=rng.choice([0.0, 1.0, 2.0]),
            early_stopping=rng.choice([True, False, "never"]),
            presence_penalty=rng.choice([0.0, 1.0]),
        )
    if rng.random() < 0.06:
        return SamplingParams(max_tokens=0, prompt_logprobs=0)
    return SamplingParams(
        n=rng.choice([1, 1, 1, 2, 4]),
        max_tokens=max_tokens,
        prompt_logprobs=rng.choice([None] * 4 + [0]),
        presence_penalty=rng.choice([0.0, 0.0, 1.0]),
    )


def random_place(rng: random.Random, policy: SchedulingPolicy) -> dict[str, Any]:
    """What a request says of its place in line."""
    if policy is SchedulingPolicy.FCFS:
        return {}
    place: dict[str, Any] = {"priority": rng.randint(-3, 3)}
    if policy is SchedulingPolicy.FAIR:
        place = {"priority": rng.choice([0, 0, 0, -1, 2]), "client": rng.choice("abcd")}
    return place


def random_request(rng: random.Random, number: int, policy: SchedulingPolicy) -> Request:
    prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 24))]
    if rng.random() < 0.5:  # a prefix that others have too, sometimes all there is
        prefix = [7, 8, 9, 10] * rng.randint(1, 5)
        prompt = prefix + prompt if rng.random() < 0.7 else prefix
    params, pooling = random_params(rng), None
    if rng.random() < 0.05:
        params, pooling = SamplingParams(), PoolingParams(rng.choice(list(Pooling)), True)
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=tuple(prompt),
        params=params,
        max_tokens=0 if pooling else params.max_tokens or 0,
        pooling=pooling,
        seed=rng.randrange(1000),
        arrival=float(number),
        eos_token_ids=frozenset([EOS]),
        cache_salt=rng.choice(["", "", "salt"]),
        **random_place(rng, policy),
    )


class SchedulerRun:
    """One life: requests arrive, some are aborted, all others end with the text they should.

    watched: whether somebody takes the events of what can be found.
    """

    watched = False

    def __init__(
        self,
        seed: int,
        make_allocator: MakeAllocator = make_paged,
        windows: Windows = FULL,
        source: FakeSource | None = None,
    ) -> None:
        rng = self.rng = random.Random(seed)
        size = rng.choice([1, 2, 3, 4, 8, 16])
        if source is not None:
            size = source.block_size
        # From barely one request to plenty.
        blocks = max(1, rng.choice([30, 60, 80, 80, 120, 160, 400]) // size)
        host_blocks = rng.choice([0, 20, 100, 400]) // size
        budget = rng.choice([1, 2, 5, 16, 64])
        self.windows = windows
        self.policy = rng.choice(list(SchedulingPolicy))
        mode = rng.choice(list(PreemptionMode))
        costs = RecoveryCosts(rng.random() * size, rng.random())
        self.max_queue_time = 5.0 if seed % 7 == 2 else None
        settings: dict[str, Any] = {
            "max_num_seqs": rng.choice([1, 4, 8, 8, 32]),
            "max_num_batched_tokens": budget,
            "caching": Caching(source, watched=self.watched) if rng.random() < 0.7 else None,
            "policy": self.policy,
            "max_queue_time": self.max_queue_time,
            "mode": mode,
            "costs": costs,
        }

        def make(**more: Any) -> Scheduler:
            """Another one each time, all made alike."""
            allocator = make_allocator(blocks, size, host_blocks, budget)
            return make_scheduler(allocator, **settings, **more)

        self.make_scheduler = make
        self.scheduler = make()
        self.executor = FakeExecutor(blocks, size, host_blocks)
        self.executor.layers = [FakeLayer(blocks, size, host_blocks, w) for w in windows]
        for layer in self.executor.layers:
            layer.source = source
        failure_rate = 0.2 if seed % 2 else 0.0
        self.executor.fails = lambda: rng.random() < failure_rate
        self.outputs: dict[str, list[list[int]]] = {}
        self.requests: dict[str, Request] = {}
        self.decisions: Counter[str] = Counter()
        self.failed_moves = 0
        # The share of drafts that are right; None: nobody proposes any.
        self.drafts_are = [None, 1.0, 0.0, 0.6][seed % 4]
        self.draft_rng = random.Random(seed)
        self.vectors: dict[str, Sequence[float] | None] = {}
        self.begun: PendingStep | None = None  # and not taken in
        self.by_request: dict[str, SequenceGroup] = {}  # all that have been
        self.truth: dict[str, list[list[int]]] = {}
        self.accepted = self.rejected = 0

    @property
    def allocator(self) -> KVAllocator:
        return self.scheduler.allocator

    def submit(self, number: int) -> None:
        request = random_request(self.rng, number, self.policy)
        before = self.allocator.usage()
        try:
            group = self.scheduler.add(request)
        except RequestError:
            assert self.allocator.usage() == before
            return
        self.requests[request.request_id] = request
        self.by_request[request.request_id] = group
        self.outputs[request.request_id] = [[] for _ in range(request.params.num_outputs)]

    def take_expired(self, step: Step, now: float) -> None:
        """Of requests that waited too long nothing is left; nobody else is ended."""
        for decision in step.decisions:
            if decision.what is Verdict.EXPIRE:
                request = self.requests.pop(decision.request_id)
                assert now - request.arrival > (self.max_queue_time or 0.0) > 0
                assert not any(self.outputs[decision.request_id])
                assert self.scheduler.group(decision.request_id) is None
        if self.max_queue_time is not None and not step.ahead:
            assert not self.scheduler.queue.overdue(now - self.max_queue_time)

    def expected_of(self, request: Request) -> list[list[int]]:
        """The outputs that it must have in the end."""
        return self.truth.setdefault(request.request_id, expected_outputs(request, self.windows))

    def propose(self) -> None:
        """Drafts for some of those that run: right, wrong, or right up to some place."""
        rng = self.draft_rng
        for group in self.scheduler.running if self.drafts_are is not None else ():
            for branch in group.branches:
                if group.beams is not None or rng.random() < 0.3:
                    continue
                rest = self.expected_of(group.request)[branch.index][branch.num_output_tokens :]
                drafts = rest[: rng.randint(1, 9)]
                if rng.random() > self.drafts_are:
                    wrong = rng.randint(0, 3)
                    drafts[wrong:] = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))]
                self.scheduler.propose(branch.seq_id, drafts)

    def step(self, now: float) -> None:
        self.propose()
        step = self.scheduler.schedule(now)
        self.take_expired(step, now)
        if not self.scheduler.has_work:
            self.executor.execute(step)
            return
        if not step.chunks:
            assert all(move.kind is MoveKind.STORE for move in step.moves), "or store something"
            assert step.moves, "a scheduler with work must compute something"
        assert step.num_tokens <= self.scheduler.batch.max_num_batched_tokens
        assert len(step.chunks) <= self.scheduler.batch.max_num_seqs
        self.check()
        self.decisions.update(decision.what.value for decision in step.decisions)
        self.check_tokens(step)
        if self.rng.random() < 0.03 and self.requests:  # while the step is under way
            victim = self.rng.choice(list(self.requests))
            if self.scheduler.abort(victim):
                del self.requests[victim]
        result = self.executor.execute(step)
        self.count_drafts(step, result)
        self.failed_moves += len(result.failed_moves)
        for progress in take_in(self.scheduler, step, result, now + 0.5):
            self.note(progress, result)
        self.check()
        self.check_roster()
        for number, kv_group in enumerate(self.kv_groups()):
            self.executor.poison(number, kv_group.device._blank)

    def note(self, progress: Progress, result: StepResult) -> None:
        request_id = progress.request.request_id
        if progress.sample is not None:
            self.outputs[request_id][progress.branch].append(progress.sample.token_id)
        else:
            self.vectors[request_id] = result.outcomes[progress.seq_id].vector

    def count_drafts(self, step: Step, result: StepResult) -> None:
        for chunk in step.chunks:
            if chunk.drafts:
                accepted = len(result.outcomes[chunk.seq_id].tokens) - 1
                self.accepted += accepted
                self.rejected += len(chunk.drafts) - accepted

    def check_tokens(self, step: Step) -> None:
        """What is computed of an output is what has been told of it, and perhaps drafts."""
        known = {opened.seq_id: opened for opened in step.opened}
        for chunk in step.chunks:
            found = self.scheduler._live.branch(chunk.seq_id)
            assert found is not None
            request, branch = found[0].request, found[1]
            if chunk.seq_id in known:
                assert known[chunk.seq_id].request is request
            assert chunk.output_start == branch.num_prompt_tokens
            if request.params.use_beam_search or request.request_id not in self.outputs:
                continue
            text = [*request.prompt_token_ids, *self.outputs[request.request_id][branch.index]]
            tokens = chunk.token_ids[: len(chunk.token_ids) - len(chunk.drafts)]
            if tokens != [IN_FLIGHT]:
                assert list(tokens) == text[chunk.start : chunk.start + len(tokens)]

    def check_roster(self) -> None:
        """Executors have been told of all that live, and of nobody else."""
        live = self.scheduler._live
        told = {*self.executor.roster._known} - {*live._closed}
        told |= {one.seq_id for one in live._opened} | {one.child for one in live._forked}
        begun = {i for i, (group, _) in live._branches.items() if group.begun}
        assert told - {*live._closed} == begun

    def kv_groups(self) -> tuple[PagedAllocator, ...]:
        if isinstance(self.allocator, LayeredAllocator):
            return self.allocator.kv_groups
        return (self.allocator,) if isinstance(self.allocator, PagedAllocator) else ()

    def check(self) -> None:
        for kv_group in self.kv_groups():
            check_allocator(kv_group)
        usage = self.allocator.usage()
        assert min(usage) >= 0
        if isinstance(self.scheduler, Twin):
            self.scheduler.check()

    def run(self) -> None:
        for number in range(self.rng.randint(1, 16)):
            self.submit(number)
        clock = 0
        while self.scheduler.has_work:
            self.step(float(clock))
            clock += 1
            if clock % 20 == 0 and clock <= 80:
                self.submit(100 + clock)
            assert clock < MOST_STEPS, "no progress"
        for request_id, request in self.requests.items():
            assert self.outputs[request_id] == self.expected_of(request), request
            scores = self.by_request[request_id].scores
            if scores is not None:
                assert list(scores) == expected_scores(request, self.windows), request
            if request.pooling is not None:
                assert self.vectors[request_id] == expected_vector(request, self.windows)
        if self.begun is None:
            assert not self.scheduler._scored.awaited, "what was waited for has come"
        usage = self.allocator.usage()
        assert usage.cached + usage.free == usage.capacity, "leaked blocks"

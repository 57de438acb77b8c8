"""The same requests give the same text in any pool, under any budget, preempted or not."""

from __future__ import annotations

import random

import pytest
from support.fake_model import EOS, VOCAB, FakeExecutor, expected_outputs
from support.invariants import check_allocator

from quire.errors import RequestError
from quire.memory import PagedAllocator
from quire.scheduling import Request, SamplingParams, Scheduler, Verdict

RUNS = 600
MOST_STEPS = 20_000  # a run takes some hundreds


def random_request(rng: random.Random, number: int) -> Request:
    prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 24))]
    if rng.random() < 0.5:  # a prefix that others have too
        prompt[:0] = [7, 8, 9, 10] * rng.randint(1, 5)
    max_tokens = rng.randint(1, 40)
    if rng.random() < 0.25:
        params = SamplingParams(
            use_beam_search=True,
            beam_width=rng.choice([2, 3, 4, 6]),
            n=rng.choice([1, 2]),
            max_tokens=max_tokens,
            length_penalty=rng.choice([0.0, 1.0, 2.0]),
            early_stopping=rng.choice([True, False, "never"]),
            presence_penalty=rng.choice([0.0, 1.0]),
        )
    else:
        params = SamplingParams(
            n=rng.choice([1, 1, 1, 2, 4]),
            max_tokens=max_tokens,
            prompt_logprobs=rng.choice([None] * 5 + [0]),
            presence_penalty=rng.choice([0.0, 0.0, 1.0]),
        )
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=tuple(prompt),
        params=params,
        max_tokens=max_tokens,
        seed=rng.randrange(1000),
        arrival=float(number),
        eos_token_ids=frozenset([EOS]),
    )


class Run:
    """One random engine life: requests arrive, some are aborted, all others must finish."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        size = rng.choice([1, 2, 3, 4, 8, 16])
        # From barely one request to plenty.
        blocks = max(1, rng.choice([30, 50, 60, 80, 100, 400]) // size)
        self.allocator = PagedAllocator(blocks, size)
        self.scheduler = Scheduler(
            self.allocator,
            max_num_seqs=rng.choice([1, 2, 4, 8, 32]),
            max_num_batched_tokens=rng.choice([1, 2, 5, 16, 64]),
            enable_prefix_caching=rng.random() < 0.7,
        )
        self.executor = FakeExecutor(blocks, size)
        self.outputs: dict[str, list[list[int]]] = {}
        self.requests: dict[str, Request] = {}
        self.preemptions = 0

    def submit(self, number: int) -> None:
        request = random_request(self.rng, number)
        before = self.allocator.usage()
        try:
            self.scheduler.add(request)
        except RequestError:
            assert self.allocator.usage() == before
            return
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = [[] for _ in range(request.params.num_outputs)]

    def step(self, now: float) -> None:
        step = self.scheduler.schedule(now)
        assert step.chunks, "a scheduler with work must compute something"
        assert step.num_tokens <= self.scheduler.max_num_batched_tokens
        assert len(step.chunks) <= self.scheduler.max_num_seqs
        check_allocator(self.allocator)
        self.preemptions += sum(d.what is Verdict.PREEMPT for d in step.decisions)
        for chunk in step.chunks:
            params = chunk.request.params
            if params.needs_history and not params.use_beam_search:
                assert list(chunk.history) == self.outputs[chunk.request.request_id][chunk.branch]
        if self.rng.random() < 0.03 and self.requests:  # while the step is under way
            victim = self.rng.choice(list(self.requests))
            if self.scheduler.abort(victim):
                del self.requests[victim]
        result = self.executor.execute(step)
        for progress in self.scheduler.update(step, result, now + 0.5):
            request_id = progress.request.request_id
            self.outputs[request_id][progress.branch].append(progress.sample.token_id)
        check_allocator(self.allocator)

    def finish(self) -> None:
        for number in range(self.rng.randint(1, 12)):
            self.submit(number)
        clock = 0
        while self.scheduler.has_work:
            self.step(float(clock))
            clock += 1
            if clock % 20 == 0 and clock <= 80:
                self.submit(100 + clock)
            assert clock < MOST_STEPS, "no progress"
        for request_id, request in self.requests.items():
            assert self.outputs[request_id] == expected_outputs(request)
        usage = self.allocator.usage()
        assert usage.cached + usage.free == usage.capacity, "leaked blocks"


@pytest.mark.parametrize("batch", range(10))
def test_text_does_not_depend_on_memory(batch: int) -> None:
    preemptions = 0
    for seed in range(batch * RUNS // 10, (batch + 1) * RUNS // 10):
        run = Run(seed)
        run.finish()
        preemptions += run.preemptions
    assert preemptions > 10, "the pools were too roomy to test anything"


def test_end_of_sequence_ends_a_branch() -> None:
    executor = FakeExecutor(64, 4)
    scheduler = Scheduler(PagedAllocator(64, 4), max_num_seqs=8, max_num_batched_tokens=64)
    for number in range(40):
        params = SamplingParams(n=2, max_tokens=100, temperature=1.0)
        prompt = (number, 3, 5)
        request = Request("r", prompt, params, 100, seed=number, eos_token_ids=frozenset([EOS]))
        scheduler.add(request)
        outputs: list[list[int]] = [[], []]
        while scheduler.has_work:
            step = scheduler.schedule(0.0)
            for progress in scheduler.update(step, executor.execute(step), 0.0):
                outputs[progress.branch].append(progress.sample.token_id)
        assert outputs == expected_outputs(request)
